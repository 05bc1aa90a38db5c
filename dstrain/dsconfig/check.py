"""The per-key check: each key that was written, held against what DeepSpeed 0.19.8 does with it.

One walk finds everything; the rules DS101 to DS115 (`dstrain/rules/keys.py`) each take the faults of one kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig._problem import Kind, Path, Problem, problem, removed
from dstrain.dsconfig.canonical import chosen_block
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.removed import REMOVED

if TYPE_CHECKING:
    from dstrain.dsconfig._check_values import Context
    from dstrain.dsconfig.blocks.base import Block, BlockField

__all__ = ["Kind", "Problem", "hits", "problems"]

_last: tuple[Document, Mode, tuple[Problem, ...]] | None = None


def problems(doc: Document, mode: Mode) -> tuple[Problem, ...]:
    """All faults of single keys, in the order of the file. The result for the last document is kept.

    Nothing is raised for any content. Cross-field faults (batch equation, optimizer names) are not looked for here.
    """
    global _last
    last = _last
    if last is not None and last[0] is doc and last[1] is mode:
        return last[2]
    found = tuple(_without_collisions(_start(doc, mode)))
    _last = (doc, mode, found)
    return found


def _without_collisions(found: Iterable[Problem]) -> Iterator[Problem]:
    """Keep a patch only if no earlier one writes to the same place: all of them may be applied one after the other.

    Two misplaced keys that each make the same section, or two misspellings of one key, would overwrite each other. The
    later one gets its patch when the file is checked again.
    """
    taken: set[str] = set()
    for entry in found:
        places = {str(operation["path"]) for operation in entry.hit.patch if operation["op"] in ("add", "move")}
        if places & taken:
            entry = Problem(entry.kind, replace(entry.hit, patch=()))
        taken |= places
        yield entry


def hits(doc: Document, mode: Mode, *kinds: Kind) -> Iterator[Hit]:
    """The faults of these kinds, as a rule yields them."""
    return (found.hit for found in problems(doc, mode) if found.kind in kinds)


def _start(doc: Document, mode: Mode) -> Iterator[Problem]:
    # Imported here: the blocks cost 0.05 s, which a command that checks nothing need not pay.
    from dstrain.dsconfig._check_effect import stage_of
    from dstrain.dsconfig._check_values import Context
    from dstrain.dsconfig.blocks.root import DSConfig

    autotuning = doc.get("autotuning.enabled") is True
    context = Context(mode, stage_of(doc), enabled=True, autotuning=autotuning)
    yield from _walk(doc, DSConfig, doc.data, (), context)


def _walk(
    doc: Document, block: type[Block], mapping: Mapping[Any, Any], prefix: Path, context: Context
) -> Iterator[Problem]:
    from dstrain.dsconfig._check_names import unknown
    from dstrain.dsconfig.blocks.base import find_field

    for key, value in mapping.items():
        path = (*prefix, str(key))
        if ".".join(path) in REMOVED:
            yield _removed(path, value)
            continue
        field = find_field(block, key)
        if field is None:
            found = unknown(doc, block, path, value)
            if found is not None:
                yield found
        else:
            yield from _known(doc, block, field, path, value, mapping, context)


def _removed(path: Path, value: Any) -> Problem:
    message = f"'{path[-1]}' was removed from DeepSpeed: 0.19.8 rejects the file, even where the feature is disabled"
    fix = REMOVED[".".join(path)]
    # What is on and has a successor is to be moved there by a person; to delete it would switch the feature off.
    asked = fix.startswith("use ") and isinstance(value, Mapping) and value.get("enabled", True) not in (False, None)
    return problem(Kind.REMOVED, Severity.ERROR, path, message, fix, () if asked else removed(path))


def _known(
    doc: Document,
    block: type[Block],
    field: BlockField,
    path: Path,
    value: Any,
    mapping: Mapping[Any, Any],
    context: Context,
) -> Iterator[Problem]:
    from dstrain.dsconfig import _check_effect as effect
    from dstrain.dsconfig import _check_values as values

    if path == ("zero_optimization",) and isinstance(value, bool):
        yield effect.zero_as_bool(path, value)
        return
    for found in (effect.check_deprecated(doc, field, path, value), effect.two_spellings(field, path, mapping)):
        if found is not None:
            yield found
    idle = tuple(effect.check_effect(block, field, path, value, mapping, context.stage))
    yield from idle
    if field.section is not None:
        yield from _section(doc, field, path, value, context, idle=bool(idle))
    elif field.type.entries is not None and isinstance(value, Mapping):
        yield from _entries(doc, field, path, value, context)
    elif not (idle and value == "auto"):
        found = values.check_value(block, field, path, value, context)
        if found is not None:
            yield found


def _section(
    doc: Document, field: BlockField, path: Path, value: Any, context: Context, *, idle: bool
) -> Iterator[Problem]:
    from dstrain.dsconfig import _check_values as values

    section = chosen_block(doc, path, field)
    if section is None:
        return
    if value is None:
        if not field.type.nullable:
            yield values.null_section(path, context.mode)
    elif not isinstance(value, Mapping):
        yield values.wrong_section(path, section, value)
    else:
        # Where the whole section is idle at this stage, one finding says so; its keys are checked for the rest only.
        stage = None if idle else context.stage
        yield from _walk(doc, section, value, path, replace(context, stage=stage, enabled=_enabled(section, value)))


def _enabled(section: type[Block], value: Mapping[Any, Any]) -> bool:
    """Whether a section with a switch is on: DeepSpeed validates some of its values only then."""
    from dstrain.dsconfig.blocks.base import fields_of

    switch = fields_of(section).get("enabled")
    return True if switch is None else value.get("enabled", switch.default) not in (False, None, 0)


def _entries(
    doc: Document, field: BlockField, path: Path, value: Mapping[Any, Any], context: Context
) -> Iterator[Problem]:
    from dstrain.dsconfig import _check_values as values

    entries: Any = field.type.entries
    for name, inner in value.items():
        where = (*path, str(name))
        if isinstance(inner, Mapping):
            yield from _walk(doc, entries, inner, where, context)
        else:
            yield values.wrong_section(where, entries, inner)
