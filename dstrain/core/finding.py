"""What a check reports: one `Finding` for one fault, with its place, its values and its mend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    """error: cannot run, or trains on wrong numbers. warning: runs, not what was meant. advice: faster or smaller."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"


_ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.ADVICE: 2}


@dataclass(frozen=True, slots=True)
class Place:
    """Where something was written: a file position, a command-line flag, or a Python argument."""

    file: str | None = None
    line: int | None = None
    column: int | None = None
    flag: str | None = None

    def __str__(self) -> str:
        if self.flag:
            return self.flag
        parts = [self.file or "<dict>"]
        if self.line is not None:
            parts.append(str(self.line))
            if self.column is not None:
                parts.append(str(self.column))
        return ":".join(parts)


@dataclass(frozen=True, slots=True)
class Hit:
    """What a rule yields; the engine that runs the rule adds id, default severity and place.

    Args:
        key: dotted from the root (`zero_optimization.stage`), "" for the whole file, `--flag` for an argument.
        message: what is wrong, with its value and what was expected.
        fix: what to type.
        patch: the mend as RFC 6902 JSON Patch operations, where it is mechanical.
        severity: only where it differs from the rule's own.
        also: other places that take part (the second of two values that disagree).
        proof: what was seen that makes it true, one line each; for facts that are written in no file.
    """

    key: str
    message: str
    fix: str = ""
    patch: tuple[Mapping[str, Any], ...] = ()
    severity: Severity | None = None
    also: tuple[Place, ...] = ()
    proof: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, complete: what a person reads and what a tool consumes."""

    id: str
    severity: Severity
    key: str
    message: str
    fix: str = ""
    place: Place = Place()
    patch: tuple[Mapping[str, Any], ...] = ()
    also: tuple[Place, ...] = ()
    proof: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The stable shape of `--format json`."""
        return {
            "id": self.id,
            "severity": self.severity.value,
            "key": self.key,
            "line": self.place.line,
            "column": self.place.column,
            "message": self.message,
            "fix": self.fix,
            "patch": [dict(operation) for operation in self.patch],
        }


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Errors first, then by place, then by id."""
    return sorted(
        findings,
        key=lambda f: (_ORDER[f.severity], f.place.file or "", f.place.line or 0, f.place.column or 0, f.id, f.key),
    )


def has_errors(findings: Iterable[Finding]) -> bool:
    """Whether any of them stops the run."""
    return any(finding.severity is Severity.ERROR for finding in findings)


def render(findings: Sequence[Finding]) -> str:
    """All findings as text for a terminal: place, severity, id, message, and the mend on its own line."""
    lines = []
    for finding in ordered(findings):
        lines.append(f"{finding.place}: {finding.severity.value} {finding.id}: {finding.message}")
        lines += [f"  also: {place}" for place in finding.also]
        if finding.fix:
            lines.append(f"  fix: {finding.fix}")
    return "\n".join(lines)
