"""Callbacks: the names and the order of events are those of transformers."""

from __future__ import annotations

from typing import Any

from dstrain.loop.state import TrainerControl, TrainerState
from dstrain.resolve.plan import IntervalPlan, ReportPlan

EVENTS = (
    "on_init_end",
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_substep_end",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_log",
    "on_evaluate",
    "on_save",
    "on_prediction_step",
    "on_predict",
    "on_epoch_end",
    "on_train_end",
)


class TrainerCallback:
    """Override any of `EVENTS`: `def on_step_end(self, args, state, control, **kwargs)`.

    A method may return a changed `control`, or change the one it is given.
    """


class CallbackHandler:
    """Calls every callback in the order they were added."""

    def __init__(self, callbacks: list[Any], args: Any, state: TrainerState, control: TrainerControl) -> None:
        self.callbacks = list(callbacks)
        self.args, self.state, self.control = args, state, control
        self.extras: dict[str, Any] = {}

    def fire(self, event: str, **kwargs: Any) -> TrainerControl:
        """Call `event` of each callback that has it."""
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is None:
                continue
            changed = method(self.args, self.state, self.control, **self.extras, **kwargs)
            if isinstance(changed, TrainerControl):
                self.control = changed
        return self.control


def _due(interval: IntervalPlan, step: int) -> bool:
    return interval.steps is not None and step % interval.steps == 0


class FlowCallback(TrainerCallback):
    """Turns the plan's intervals into wishes."""

    def __init__(self, plan: ReportPlan) -> None:
        self._plan = plan

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """By steps, and at the end."""
        step, end = state.global_step, state.global_step >= state.max_steps
        plan = self._plan
        control.should_log |= _due(plan.logging, step) or (plan.logging_first_step and step == 1)
        control.should_evaluate |= _due(plan.evaluation, step) and step >= plan.eval_delay
        control.should_save |= _due(plan.saving, step)
        if end:
            control.should_training_stop = True
            control.should_evaluate |= plan.evaluation.steps is not None and step >= plan.eval_delay
            control.should_log |= plan.logging.steps is not None
            # The last steps are never lost, whatever the interval.
            control.should_save |= plan.saving.steps is not None or plan.saving.epoch

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **_: Any) -> None:  # noqa: ARG002
        """By epochs."""
        control.should_log |= self._plan.logging.epoch
        control.should_evaluate |= self._plan.evaluation.epoch and (state.epoch or 0) >= self._plan.eval_delay
        control.should_save |= self._plan.saving.epoch
