"""The callbacks that every Trainer has: console and metrics file, on rank 0."""

from __future__ import annotations

from typing import Any

from dstrain.loop.events import TrainerCallback
from dstrain.loop.state import TrainerState
from dstrain.loop.train import Meter
from dstrain.report import Console, MetricsFile


class ReportCallback(TrainerCallback):
    """Shows progress and writes records."""

    def __init__(self, console: Console, metrics: MetricsFile | None, meter: Meter) -> None:
        self._console, self._metrics, self._meter = console, metrics, meter

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Open the bar."""
        if self._metrics is not None:
            self._metrics.begin(state.global_step)
        self._console.begin(state.global_step, state.max_steps)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Move the bar."""
        outcome = self._meter.last
        values = {"learning_rate": outcome.lr, "grad_norm": outcome.grad_norm} if outcome is not None else {}
        self._console.step(state.global_step, values)

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any], **_: Any) -> None:  # noqa: ARG002
        """Show and write one record."""
        self._console.record(logs)
        if self._metrics is not None:
            self._metrics.append(logs)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Close the bar."""
        self._console.end()
