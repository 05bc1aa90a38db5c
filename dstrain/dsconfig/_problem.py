"""What the per-key check reports, and the JSON patches that mend it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document

Path = tuple[str, ...]
Patch = tuple[Mapping[str, Any], ...]


class Kind(StrEnum):
    """One kind of fault; each is a rule (DS101 to DS115)."""

    UNKNOWN = "unknown"
    MISPLACED = "misplaced"
    REMOVED = "removed"
    DEPRECATED = "deprecated"
    CLASH = "clash"
    TYPE = "type"
    TEXT = "text"
    RANGE = "range"
    NULL = "null"
    SECTION = "section"
    AUTO = "auto"
    STAGE = "stage"
    CONDITION = "condition"
    DEAD = "dead"
    COMMENT = "comment"


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault of one key."""

    kind: Kind
    hit: Hit


def problem(kind: Kind, severity: Severity, path: Path, message: str, fix: str, patch: Patch = ()) -> Problem:
    """A `Problem` at a path."""
    return Problem(kind, Hit(name_of(path), message, fix, patch, severity))


def name_of(path: Path) -> str:
    """A path as a person writes it: `zero_optimization.stage`."""
    return ".".join(path)


def json_pointer(path: Path) -> str:
    """RFC 6901; unlike `document.pointer` it stands names that hold a dot."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in path)


def replaced(path: Path, value: Any) -> Patch:
    """The patch that writes another value."""
    return ({"op": "replace", "path": json_pointer(path), "value": value},)


def removed(path: Path) -> Patch:
    """The patch that deletes a key."""
    return ({"op": "remove", "path": json_pointer(path)},)


def moved(doc: Document, old: Path, new: Path) -> Patch:
    """The patch that moves a key, making the sections on the way; none when something is already there."""
    operations: list[Mapping[str, Any]] = []
    node: Any = doc.data
    for depth, part in enumerate(new):
        last = depth == len(new) - 1
        if isinstance(node, Mapping) and part in node and new[: depth + 1] != old:
            if last:
                return ()
            node = node[part]
            if not isinstance(node, Mapping):
                return ()
        elif not last:
            operations.append({"op": "add", "path": json_pointer(new[: depth + 1]), "value": {}})
            node = {}
    return (*operations, {"op": "move", "from": json_pointer(old), "path": json_pointer(new)})
