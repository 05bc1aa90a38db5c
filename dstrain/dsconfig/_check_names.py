"""Keys that DeepSpeed does not know: what was meant, and where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from dstrain.core.finding import Severity
from dstrain.core.nearest import nearest
from dstrain.dsconfig._problem import Kind, Path, Problem, moved, problem, removed
from dstrain.dsconfig.blocks.base import Block, fields_of, find_field
from dstrain.dsconfig.blocks.notes import Also
from dstrain.dsconfig.catalogue import KEYS, by_last_name, info_of
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.removed import COMMENTS, FORGOTTEN
from dstrain.dsconfig.values import READ, read

_SURE = 0.75
"""A name this like a known one was meant to be it: the feature is off."""
_SLIP = 0.9
"""A name this like one of its own section is a slip of the hand, even where another section has it exactly."""
_NEAR_ELSEWHERE = 0.85
_COMMENT_WORDS = frozenset({"comment", "comments", "note", "notes", "description", "help", "readme"})
_MANY = 3
"""A name that stands in more sections than this (`enabled`, `type`) says nothing about where it belongs."""


def unknown(doc: Document, block: type[Block], path: Path, value: Any) -> Problem | None:
    """The fault of a key that its block does not have; None where any key may have a meaning."""
    name = path[-1]
    if name.startswith(COMMENTS) or name.lower() in _COMMENT_WORDS:
        return _comment(block, path)
    target = _target(block, path)
    if target is not None:
        sure = True
    else:
        near = nearest(name, _names(block), cutoff=_SURE)
        sure = near is not None
        near = near or (None if block.free else nearest(name, _names(block)))
        elsewhere = None if sure or block.free else nearest(name, by_last_name(), cutoff=_NEAR_ELSEWHERE)
        if elsewhere is not None:
            target, sure = _choose(by_last_name()[elsewhere], path[:-1]), True
        if target is None and near is not None:
            target = (*path[:-1], near)
    if block.free and not sure:
        return None
    severity = Severity.ERROR if sure or block.strict or block.arguments else Severity.WARNING
    if target is not None and target[:-1] != path[:-1]:
        return _misplaced(doc, block, path, target, value, severity)
    return _misspelt(doc, block, path, target, value, severity, sure=sure)


def _comment(block: type[Block], path: Path) -> Problem:
    effect = _effect(block)
    severity = Severity.ERROR if block.strict or block.arguments else Severity.WARNING
    message = f"'{path[-1]}' looks like a comment, but it is a key that DeepSpeed does not know: {effect}"
    return problem(Kind.COMMENT, severity, path, message, "delete it, or write comments as HJSON (# …)", removed(path))


def _effect(block: type[Block]) -> str:
    if block.strict:
        return "DeepSpeed rejects the file"
    return "the constructor fails on it" if block.arguments else "DeepSpeed ignores it in silence"


def _misspelt(
    doc: Document, block: type[Block], path: Path, target: Path | None, value: Any, severity: Severity, *, sure: bool
) -> Problem:
    where = f"in '{'.'.join(path[:-1])}'" if path[:-1] else "at the top level"
    message = f"unknown key '{path[-1]}' {where}: {_effect(block)}"
    if target is None:
        return problem(Kind.UNKNOWN, severity, path, message, "delete it, or look for its name: dstrain config explain")
    if target[-1].lower() == path[-1].lower():
        message += "; upper and lower case matter"
    patch = moved(doc, path, target) if sure and _fits(target, value) else ()
    fix = f"did you mean '{target[-1]}'?"
    if sure and not patch and doc.has(".".join(target)):
        fix = f"delete it: '{target[-1]}' is there too"
    return problem(Kind.UNKNOWN, severity, path, message, fix, patch)


def _misplaced(doc: Document, block: type[Block], path: Path, target: Path, value: Any, severity: Severity) -> Problem:
    where = f"'{'.'.join(path[:-1])}'" if path[:-1] else "the top level"
    message = f"'{path[-1]}' is no key of {where}: {_effect(block)}"
    key = ".".join(target)
    if "<" in key:
        return problem(Kind.MISPLACED, severity, path, message, f"it belongs under '{'.'.join(target[:-1])}'")
    patch = moved(doc, path, target) if _fits(target, value) else ()
    if path[-1] == target[-1]:
        place = f"under '{'.'.join(target[:-1])}'" if target[:-1] else "at the top level"
        fix = f"it belongs {place}: write {key}"
    else:
        fix = f"write '{key}' instead"
    if not patch and doc.has(key):
        fix = f"delete it: '{key}' is there too"
    return problem(Kind.MISPLACED, severity, path, message, fix, patch)


def _target(block: type[Block], path: Path) -> Path | None:
    """Where a key belongs whose name is known, but not here."""
    key = ".".join(path)
    if key in FORGOTTEN:
        return tuple(FORGOTTEN[key].split("."))
    known = by_last_name().get(path[-1])
    if known is None or nearest(path[-1], _names(block), cutoff=_SLIP) is not None:
        return None
    return _choose(known, path[:-1])


def _choose(known: tuple[str, ...], parent: Path) -> Path | None:
    """The likeliest of several sections: one inside this one, one around it, the top level, the only one."""
    candidates = [tuple(key.split(".")) for key in known]
    candidates = [candidate for candidate in candidates if candidate[:-1] != parent]
    around = [c for c in candidates if c[:-1] == parent[: len(c) - 1]]
    inside = [c for c in candidates if c[: len(parent)] == parent and len(c) == len(parent) + 2]
    if parent and inside:
        return inside[0] if len(inside) == 1 else None
    if around:
        return max(around, key=len)
    if len(candidates) > _MANY:
        return None
    pool = inside or candidates
    return pool[0] if len(pool) == 1 else None


@cache
def _names(block: type[Block]) -> tuple[str, ...]:
    names: list[str] = []
    for field in fields_of(block).values():
        note = field.note(Also)
        names += [field.name, *(note.names if note else ())]
    return tuple(names)


def _fits(target: Path, value: Any) -> bool:
    """Whether a value may be carried over to another key as it is."""
    info = KEYS.get(".".join(target)) or info_of(".".join(target))
    if info is None:
        return False
    if info.field.section is not None:
        section = info.field.section
        return isinstance(value, Mapping) and all(find_field(section, key) is not None for key in value)
    return value == "auto" or read(info.field.type, value).fit in READ
