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
from dstrain.dsconfig.removed import COMMENTS, ELSEWHERE, FORGOTTEN
from dstrain.dsconfig.values import READ, read

_SURE = 0.75
"""A name this like a known one was meant to be it: the feature is off."""
_SLIP = 0.9
"""A name this like one of its own section is a slip of the hand, even where another section has it exactly."""
_NEAR_ELSEWHERE = 0.85
_COMMENT_WORDS = frozenset({"comment", "comments", "note", "notes", "description", "help", "readme"})
_LISTED = 12
_LONG = 8
"""A shorter name is like too many others."""
_LIKELY = frozenset(
    {
        "zero_optimization",
        "optimizer",
        "scheduler",
        "bf16",
        "fp16",
        "torch_autocast",
        "data_types",
        "activation_checkpointing",
        "tensor_parallel",
        "checkpoint",
        "aio",
    }
)
_PLAIN_WORDS = frozenset({"betas", "eps", "momentum"})
_MANY = 3
"""A name that stands in more sections than this (`enabled`, `type`) says nothing about where it belongs."""


def unknown(doc: Document, block: type[Block], path: Path, value: Any) -> Problem | None:
    """The fault of a key that its block does not have; None where any key may have a meaning."""
    name = path[-1]
    if name.startswith(COMMENTS) or name.lower() in _COMMENT_WORDS:
        return _comment(block, path)
    if len(path) == 1 and name in ELSEWHERE:
        whose, fix = ELSEWHERE[name]
        message = f"'{name}' is {whose}, no key of DeepSpeed's: DeepSpeed ignores it in silence"
        return problem(Kind.UNKNOWN, Severity.WARNING, path, message, fix)
    target, sure = _meant(block, path)
    if block.free and not sure:
        return None
    if target is None and name in by_last_name():
        return _one_of(block, path, by_last_name()[name])
    severity = Severity.ERROR if sure or block.strict or block.arguments else Severity.WARNING
    if target is not None and target[:-1] != path[:-1]:
        return _misplaced(doc, block, path, target, value, severity, sure=sure)
    return _misspelt(doc, block, path, target, value, severity, sure=sure)


def _meant(block: type[Block], path: Path) -> tuple[Path | None, bool]:
    """The key that was meant, and whether that is beyond doubt."""
    name, key = path[-1], ".".join(path)
    if key in FORGOTTEN:
        return tuple(FORGOTTEN[key].split(".")), True
    near = nearest(name, _names(block), cutoff=_SLIP)
    if near is None and name in by_last_name() and not block.free:
        target = _choose(by_last_name()[name], path[:-1])
        if target is not None:
            return target, _is_telling(target, path)
    near = near or nearest(name, _names(block), cutoff=_SURE)
    if near is not None and is_slip(name, near):
        return (*path[:-1], near), True
    elsewhere = nearest(name, by_last_name(), cutoff=_NEAR_ELSEWHERE) if len(name) >= _LONG else None
    if elsewhere is not None and not block.free and is_slip(name, elsewhere):
        target = _choose(by_last_name()[elsewhere], path[:-1])
        if target is not None:
            return target, _is_telling(target, path)
    near = near or nearest(name, _names(block))
    return ((*path[:-1], near) if near else None), False


def is_slip(name: str, known: str) -> bool:
    """Whether a name is a known one mistyped, rather than a name of its own (`eval_batch_size`, `checkpoint_dir`).

    Word by word: as many words, each like its counterpart; or the same letters with other dividers; or a known name cut
    short after its second word.
    """
    left, right = _words(name), _words(known)
    if nearest("".join(left), ["".join(right)], cutoff=_SLIP) is not None:
        return True
    if len(left) == len(right):
        return all(nearest(a, [b]) is not None for a, b in zip(left, right, strict=True))
    return 2 <= len(left) < len(right) and left == right[: len(left)]


def _words(name: str) -> list[str]:
    return name.lower().replace("-", "_").replace(" ", "_").split("_")


def _is_telling(target: Path, path: Path) -> bool:
    """Whether a name says where it belongs: `seed` at the top level may be anybody's, `offload_optimizer` may not."""
    info = KEYS.get(".".join(target))
    if len(target) == 1 or len(path) > 1 or (info is not None and info.field.section is not None):
        return True
    return target[0] in _LIKELY and ("_" in target[-1] or target[-1] in _PLAIN_WORDS)


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
        return problem(Kind.UNKNOWN, severity, path, message, f"delete it{_known_here(block, path)}")
    if target[-1].lower() == path[-1].lower():
        message += "; upper and lower case matter"
    patch = moved(doc, path, target) if sure and _fits(target, value) else ()
    fix = f"did you mean '{target[-1]}'?"
    if sure and not patch and doc.has(".".join(target)):
        fix = f"delete it: '{target[-1]}' is there too"
    return problem(Kind.UNKNOWN, severity, path, message, fix, patch)


def _one_of(block: type[Block], path: Path, known: tuple[str, ...]) -> Problem:
    """A name that stands in several other sections."""
    telling = any(_is_telling(tuple(key.split(".")), path) for key in known)
    severity = Severity.ERROR if telling or block.strict or block.arguments else Severity.WARNING
    where = f"'{'.'.join(path[:-1])}'" if path[:-1] else "the top level"
    message = f"'{path[-1]}' is no key of {where}: {_effect(block)}"
    fix = f"delete it, or write one of {', '.join(known)}"
    if len(known) > _MANY:
        fix = f"delete it{_known_here(block, path)}"
    return problem(Kind.MISPLACED, severity, path, message, fix)


def _known_here(block: type[Block], path: Path) -> str:
    """The names that there are, or the command that lists them."""
    names = sorted(fields_of(block))
    if len(path) == 1 or not names:
        return "; dstrain config explain lists the keys there are"
    shown = ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
    return f"; the keys of '{'.'.join(path[:-1])}' are {shown}"


def _misplaced(
    doc: Document, block: type[Block], path: Path, target: Path, value: Any, severity: Severity, *, sure: bool
) -> Problem:
    where = f"'{'.'.join(path[:-1])}'" if path[:-1] else "the top level"
    message = f"'{path[-1]}' is no key of {where}: {_effect(block)}"
    key = ".".join(target)
    if not sure:
        return problem(Kind.MISPLACED, severity, path, message, f"delete it, or write '{key}' if you mean that")
    patch = moved(doc, path, target) if _fits(target, value) else ()
    if path[-1] == target[-1]:
        place = f"under '{'.'.join(target[:-1])}'" if target[:-1] else "at the top level"
        fix = f"it belongs {place}: write {key}"
    else:
        fix = f"write '{key}' instead"
    if not patch and doc.has(key):
        fix = f"delete it: '{key}' is there too"
    return problem(Kind.MISPLACED, severity, path, message, fix, patch)


def _choose(known: tuple[str, ...], parent: Path) -> Path | None:
    """The likeliest of several sections: one inside this one, one around it, the top level, the only one."""
    candidates = [tuple(key.split(".")) for key in known]
    candidates = [c for c in candidates if c[:-1] != parent and not any(part.startswith("<") for part in c)]
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
