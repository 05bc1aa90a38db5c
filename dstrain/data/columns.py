"""Columns that the model's forward does not take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

LABELS = ("label", "label_ids", "labels")


def accepted_columns(forward: Callable[..., Any]) -> frozenset[str] | None:
    """The names that `forward` takes; None when it takes any (`**kwargs` alone would hide a typo, but is honoured)."""
    parameters = inspect.signature(forward).parameters.values()
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    if any(p.kind is p.VAR_KEYWORD for p in parameters) and not names:
        return None
    return frozenset(names)


def without_unused(
    collate: Callable[[list[Any]], Mapping[str, Any]], accepted: frozenset[str] | None
) -> Callable[[list[Any]], Mapping[str, Any]]:
    """A collator that sees only the columns that the model takes, and the labels."""
    if accepted is None:
        return collate
    return _Pruned(collate, accepted | set(LABELS))


class _Pruned:
    """A class, since a function within a function cannot be sent to a loader process that is spawned."""

    def __init__(self, collate: Callable[[list[Any]], Mapping[str, Any]], keep: frozenset[str]) -> None:
        self._collate, self._keep = collate, keep

    def __call__(self, rows: list[Any]) -> Mapping[str, Any]:
        if isinstance(rows[0], Mapping):
            rows = [{name: value for name, value in row.items() if name in self._keep} for row in rows]
        return self._collate(rows)
