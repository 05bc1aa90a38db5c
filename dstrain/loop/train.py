"""The training loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch

from dstrain import dist
from dstrain.backends.base import Backend, Batch, Output, StepOutcome
from dstrain.core.errors import DataError
from dstrain.data.loader import MicroBatch
from dstrain.loop import loss as losses
from dstrain.loop import preempt
from dstrain.loop.events import CallbackHandler
from dstrain.loop.state import TrainerControl, TrainerState
from dstrain.resolve.plan import RunPlan


class Windows(Protocol):
    """The optimizer steps of an epoch on this rank, as lists of micro-batches."""

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[MicroBatch]]:
        """From step `start` of the epoch on."""


LossFunction = Callable[[Batch], torch.Tensor]


@dataclass
class TrainRun:
    """Everything that `train` works with, wired by the trainer.

    Args:
        compute_loss: the mean loss of a micro-batch, through the backend's forward.
        weigh: how many items that mean was taken over.
        look: shown the first batch of each step, before any is weighed.
        evaluate: runs an evaluation, logs it, returns its metrics.
        save: writes a checkpoint of the state as it is.
        preempted: set when training ended because some rank was asked to end.
    """

    backend: Backend
    plan: RunPlan
    windows: Windows
    events: CallbackHandler
    state: TrainerState
    compute_loss: Callable[[Batch], tuple[torch.Tensor, Output]]
    weigh: Callable[[Batch], int]
    look: Callable[[Batch], None]
    evaluate: Callable[[], dict[str, Any]]
    save: Callable[[], None]
    preempted: bool = False
    meter: Meter = field(default_factory=lambda: Meter())


@dataclass
class Meter:
    """Sums since the last log, and since the start; kept as tensors so that reading them waits for nothing."""

    loss_sum: torch.Tensor | None = None
    steps: int = 0
    tokens: int = 0
    unit: Literal["tokens", "rows"] = "tokens"
    total_loss: float = 0.0
    total_steps: int = 0
    started_s: float = field(default_factory=time.perf_counter)
    last: StepOutcome | None = None
    skip_nonfinite: bool = False
    finite: torch.Tensor | None = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Time that is not training: evaluation, saving."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.started_s += time.perf_counter() - begin

    def add(self, loss: torch.Tensor, tokens: int, outcome: StepOutcome) -> None:
        """One optimizer step; `loss` is this rank's part of the step's mean."""
        detached = loss.detach().double()
        if self.skip_nonfinite:
            good = torch.isfinite(detached)
            detached = torch.where(good, detached, torch.zeros_like(detached))
            self.finite = good.double() if self.finite is None else self.finite + good
        self.loss_sum = detached if self.loss_sum is None else self.loss_sum + detached
        self.steps += 1
        self.tokens += tokens
        self.last = outcome

    def take(self) -> dict[str, float]:
        """The mean loss of the steps since the last take, over all ranks, and tokens per second. Collective."""
        if self.loss_sum is None:
            return {}
        now = time.perf_counter()
        if self.finite is not None:  # the mean over the finite steps stands for the others; NaN when there is none
            self.loss_sum = self.loss_sum / self.finite * self.steps
        sums = dist.all_reduce_sum(torch.stack([self.loss_sum.cpu(), torch.tensor(float(self.tokens)).double()]))
        mean = float(sums[0]) / self.steps
        self.total_loss += float(sums[0])
        self.total_steps += self.steps
        rates = {"loss": mean, f"{self.unit}_per_second": float(sums[1]) / max(now - self.started_s, 1e-9)}
        self.loss_sum, self.finite, self.steps, self.tokens, self.started_s = None, None, 0, 0, now
        return rates


def train(run: TrainRun) -> TrainerControl:
    """Train until `max_steps`.

    ```
    for each epoch:
        for each window (the micro-batches of one optimizer step):
            total = label tokens of the window over all ranks
            for each micro-batch:
                backward(mean loss x its tokens / total x ranks)      # the engine takes the mean over ranks
            step                                                      # clip, update, schedule
            log, evaluate, save when they are due
    ```
    """
    state, events = run.state, run.events
    control = events.fire("on_train_begin")
    run.meter.started_s = time.perf_counter()
    if state.global_step == 0 and run.plan.report.eval_on_start:
        with run.meter.paused():
            run.evaluate()
    while state.global_step < state.max_steps and not control.should_training_stop:
        _epoch(run)
        control = run.events.control
    events.fire("on_train_end")
    return run.events.control


def _epoch(run: TrainRun) -> None:
    state, events = run.state, run.events
    events.control.should_epoch_stop = False
    events.fire("on_epoch_begin")
    steps = state.step_in_epoch
    for window in run.windows.epoch(state.epoch_index, state.step_in_epoch):
        steps += 1
        _step(run, window)
        control = events.fire("on_step_end")
        _meet_wishes(run)
        if control.should_training_stop or control.should_epoch_stop:
            break
    else:
        if steps == 0:
            raise DataError("the training dataset gave no rows", fix="check the dataset, or --dataloader_drop_last")
        per_epoch = run.plan.length.steps_per_epoch
        if per_epoch is None and steps:
            state.epoch = float(state.epoch_index + 1)
    # A checkpoint of the epoch's end goes on with the next epoch, and one of its last step with this end.
    if not events.control.should_training_stop:
        state.epoch_index, state.step_in_epoch = state.epoch_index + 1, 0
    events.fire("on_epoch_end")
    _meet_wishes(run)


def _step(run: TrainRun, window: list[MicroBatch]) -> None:
    state, events, backend = run.state, run.events, run.backend
    events.fire("on_step_begin")
    run.look(window[0].batch)
    weights = [0 if micro.share.filler else run.weigh(micro.batch) for micro in window]
    counts = torch.tensor([sum(weights), preempt.requested(), _seen(run, window)])
    total, stop, seen = (int(value) for value in dist.all_reduce_sum(counts))
    state.num_input_tokens_seen += seen
    if stop:
        run.preempted = events.control.should_training_stop = True
        events.control.should_save = run.plan.report.saving.steps is not None or run.plan.report.saving.epoch
    scale = dist.world_size() / total if total else 0.0
    step_loss = torch.zeros((), dtype=torch.float32)
    for index, (micro, weight) in enumerate(zip(window, weights, strict=True)):
        last = index == len(window) - 1
        mean, _ = run.compute_loss(micro.batch)
        loss = losses.weighted(mean, weight * scale)
        backend.backward(loss, last=last)
        step_loss = step_loss.to(loss.device) + loss.detach()
        if not last:
            events.fire("on_substep_end")
    events.fire("on_pre_optimizer_step")
    outcome = backend.step()
    events.fire("on_optimizer_step")
    state.global_step += 1
    state.step_in_epoch += 1
    state.skipped_steps += not outcome.applied
    _count_epoch(run)
    run.meter.unit = "tokens" if "input_ids" in window[0].batch else "rows"
    tokens = sum(_tokens(micro.batch) for micro in window if not micro.share.filler)
    run.meter.add(step_loss / dist.world_size(), tokens, outcome)


def _count_epoch(run: TrainRun) -> None:
    per_epoch = run.plan.length.steps_per_epoch or run.state.max_steps
    run.state.epoch = run.state.epoch_index + run.state.step_in_epoch / per_epoch


def _tokens(batch: Batch) -> int:
    """Input elements of a batch: `input_ids` when there are any, else rows."""
    ids = batch.get("input_ids")
    return int(ids.numel()) if isinstance(ids, torch.Tensor) else losses.rows_of(batch)


def _seen(run: TrainRun, window: list[MicroBatch]) -> int:
    """Input tokens of this rank's window, counted as the plan asks."""
    kind = run.plan.report.count_tokens
    batches = [micro.batch for micro in window if not micro.share.filler] if kind != "no" else []
    masks = [batch.get("attention_mask") if kind == "non_padding" else None for batch in batches]
    return sum(
        int(mask.sum()) if isinstance(mask, torch.Tensor) else _tokens(batch)
        for mask, batch in zip(masks, batches, strict=True)
    )


def _meet_wishes(run: TrainRun) -> None:
    events = run.events
    control = events.control
    if control.should_log:
        control.should_log = False
        if values := run.meter.take():
            log(run, values)
    if control.should_evaluate:
        control.should_evaluate = False
        with run.meter.paused():
            run.evaluate()
    if control.should_save:
        control.should_save = False
        with run.meter.paused():
            run.save()
            events.fire("on_save")


def log(run: TrainRun, values: dict[str, Any]) -> None:
    """Add a record of training to the history and tell the callbacks."""
    outcome = run.meter.last
    record: dict[str, Any] = dict(values)
    if outcome is not None:
        record |= {"grad_norm": outcome.grad_norm, "learning_rate": outcome.lr}
        if outcome.loss_scale is not None:
            record["loss_scale"] = outcome.loss_scale
    if run.plan.report.count_tokens != "no":
        record["num_input_tokens_seen"] = run.state.num_input_tokens_seen
    if run.state.skipped_steps:
        record["skipped_steps"] = run.state.skipped_steps
    emit(run.events, run.state, record)


def emit(events: CallbackHandler, state: TrainerState, record: dict[str, Any]) -> None:
    """One record, with epoch and step, into the history and to `on_log`."""
    record = {**record, "epoch": round(state.epoch or 0.0, 6), "step": state.global_step}
    state.log_history.append(record)
    events.fire("on_log", logs=record)
