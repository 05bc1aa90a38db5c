"""What paper may ask of the machine without importing it: the top of the package introduces who answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dstrain.core.facts import WorldFacts


class Metal(Protocol):
    """Answers for `TrainingArguments.device` and its kin; torch is imported only when one of them is read."""

    def world(self) -> WorldFacts:
        """The ranks of this run, as the launcher says. No torch."""

    def device(self, *, use_cpu: bool) -> Any:
        """The `torch.device` of this rank."""

    def main_first(self, *, use_cpu: bool, local: bool, timeout_s: float) -> AbstractContextManager[None]:
        """Rank 0 (of each host, when local) runs the block before the others. Collective."""


_load: Callable[[], Metal] | None = None


def introduce(load: Callable[[], Metal]) -> None:
    """Say who answers; `load` is called at the first question."""
    global _load
    _load = load


def metal() -> Metal:
    """Who answers.

    Raises:
        RuntimeError: nobody was introduced (`dstrain/__init__.py` does it, so this cannot be met by a user).
    """
    if _load is None:
        raise RuntimeError("nobody answers for the machine: import dstrain first")
    return _load()
