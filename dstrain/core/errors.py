"""The exception tree of dstrain. Everything that we raise on purpose for a user derives from `DstrainError`.

DstrainError                 a message for a person at a terminal; exit code 2
├── UsageError               what was typed cannot be understood (flags, files)
├── PlanError                the plan cannot run; carries the findings, all of them
├── DataError                the rows that were given cannot be trained on or evaluated
├── ModelError               the model does not do what a Trainer needs of it
├── CheckpointError          a checkpoint is missing, damaged, or of another run
├── OpError                  a compiled op is not built, or will not build
└── RankError                another rank failed, or the ranks do not agree
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dstrain.core.finding import Finding


class DstrainError(Exception):
    """What is wrong, where, and what to type. `str()` is the whole text shown to the user.

    Args:
        message: what is wrong, with its value.
        where: the place (`ds_config.json:14:3`, `--max_steps`), if there is one.
        fix: what to type or change.
    """

    exit_code = 2

    def __init__(self, message: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.message, self.where, self.fix = message, where, fix
        super().__init__(message)

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  fix: {self.fix}" if self.fix else head


class UsageError(DstrainError):
    """Flags or files that cannot be understood."""


class PlanError(DstrainError):
    """The plan cannot run. Every finding is carried, not only the first."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        from dstrain.core.finding import render

        self.findings = tuple(findings)
        super().__init__(render(findings))


class DataError(DstrainError):
    """Rows that cannot be trained on or evaluated."""


class ModelError(DstrainError):
    """A model that does not do what a Trainer needs of it."""


class CheckpointError(DstrainError):
    """A checkpoint that is missing, damaged or of another run."""


class OpError(DstrainError):
    """A compiled op that is not built, or does not build."""


class RankError(DstrainError):
    """Another rank failed, or the ranks do not agree."""
