"""What rank 0 shows: a progress bar on a terminal, a line for each record elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from dstrain.core.units import count_text, duration_text


class Console:
    """Shows nothing when `enabled` is False (ranks other than 0).

    Args:
        total: optimizer steps of the run.
        bar: True and False force it; None shows the bar on a terminal only.
    """

    def __init__(self, *, enabled: bool, bar: bool | None = None, total: int = 0) -> None:
        self._rich = RichConsole(quiet=not enabled, soft_wrap=True, highlight=False)
        self._bar_wanted = enabled and (self._rich.is_terminal if bar is None else bar)
        self._progress: Progress | None = None
        self._task: Any = None
        self._total = total
        self._first_step = 0
        self._started_s = 0.0
        self._values: dict[str, float] = {}

    def begin(self, step: int, total: int) -> None:
        """Training starts (or goes on) at `step` of `total`."""
        self._total, self._first_step, self._started_s, self._values = total, step, time.perf_counter(), {}
        if self._bar_wanted:
            # 80 columns hold it all; what is most wanted stands first, since a narrower terminal cuts the end.
            columns = (MofNCompleteColumn(), BarColumn(bar_width=8), TextColumn("{task.fields[text]}"))
            self._progress = Progress(*columns, console=self._rich, transient=False)
            self._task = self._progress.add_task("step", total=total, completed=step, text="")
            self._progress.start()

    def step(self, step: int, values: dict[str, float]) -> None:
        """One optimizer step is done; `values` are those known at once (lr, grad norm)."""
        self._values |= values
        if self._progress is not None:
            self._progress.update(self._task, completed=step, text=f"{self._left(step)} left  {self._text()}")

    def record(self, logs: dict[str, Any]) -> None:
        """One record of the log."""
        step = int(logs.get("step", 0))
        if "loss" in logs:
            self._values |= {key: float(logs[key]) for key in _SHOWN if key in logs}
            if self._progress is None:
                self._rich.print(f"step {step}/{self._total}  {self._text()}  {self._left(step)} left")
            return
        shown = "  ".join(f"{key} {_number(value)}" for key, value in logs.items() if key not in ("epoch", "step"))
        self._rich.print(f"step {step}/{self._total}  {shown}")

    def note(self, text: str) -> None:
        """One line."""
        self._rich.print(text, markup=False)

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        """A short table of names and values."""
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in rows:
            table.add_row(name, value)
        self._rich.print(table)

    def end(self) -> None:
        """Training is over, or was interrupted."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _text(self) -> str:
        return "  ".join(form(self._values[key]) for key, form in _SHOWN.items() if key in self._values)

    def _left(self, step: int) -> str:
        done = step - self._first_step
        if done <= 0:
            return "?"
        return duration_text((time.perf_counter() - self._started_s) / done * (self._total - step))


_SHOWN: dict[str, Callable[[float], str]] = {
    "loss": lambda value: f"loss {value:.4f}",
    "learning_rate": lambda value: f"lr {value:.2e}",
    "grad_norm": lambda value: f"grad norm {value:.2f}",
    "tokens_per_second": lambda value: f"{count_text(value)} tokens/s",
    "rows_per_second": lambda value: f"{count_text(value)} rows/s",
}


def _number(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
