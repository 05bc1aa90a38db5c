"""`metrics.jsonl`: one JSON object a line, one line a record, appended as they come."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dstrain.core import atomic

NAME = "metrics.jsonl"


class MetricsFile:
    """The records of a run. NaN and infinities are written as the words JSON has none for: "nan", "inf", "-inf"."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self._begun = False

    def begin(self, step: int) -> None:
        """Go on from `step`: records of later steps, which a run that was killed had written, are dropped."""
        self._begun = True
        self.path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in self._lines() if _step_of(line) <= step] if step else []
        atomic.write_text(self.path, "".join(f"{line}\n" for line in kept))

    def append(self, record: dict[str, Any]) -> None:
        """Add one record; before `begin` there is no run that it would belong to."""
        if not self._begun:
            return
        with self.path.open("a") as stream:
            stream.write(json.dumps({key: _plain(value) for key, value in record.items()}) + "\n")

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.is_file() else []


def _step_of(line: str) -> float:
    """The step of a record; a line that a killed run left half written belongs to no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return math.inf


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
