"""Known keys that do nothing here: deprecated, dead, at the wrong stage, without their condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dstrain.core.finding import Severity
from dstrain.dsconfig._problem import Kind, Path, Problem, json_pointer, moved, name_of, problem, removed, replaced
from dstrain.dsconfig.blocks.base import Block, BlockField, fields_of
from dstrain.dsconfig.blocks.notes import Dead, OnlyWith, Replaced, Stages
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.values import READ, read, show


def stage_of(doc: Document) -> int | None:
    """The ZeRO stage that DeepSpeed will run; None where the value cannot be read."""
    section = doc.data.get("zero_optimization")
    if isinstance(section, bool):
        return int(section)
    if not isinstance(section, Mapping):
        return 0 if section is None else None
    from dstrain.dsconfig.blocks.zero import ZeroOptimization

    reading = read(fields_of(ZeroOptimization)["stage"].type, section.get("stage", 0))
    return int(reading.value) if reading.fit in READ else None


def check_deprecated(doc: Document, field: BlockField, path: Path, value: Any) -> Problem | None:
    """An old key, alone (it works, with a warning) or together with its successor (DeepSpeed stops, or ignores it)."""
    note = field.note(Replaced)
    if note is None:
        return None
    if not note.by:
        why = field.note(Dead)
        message = f"'{name_of(path)}' is deprecated" + (" and has no effect any more" if why else "")
        fix = "delete it; write pin_memory inside offload_param or offload_optimizer" if why else _ALLGATHER_FIX
        return problem(Kind.DEPRECATED, Severity.WARNING, path, message, fix, removed(path) if why else ())
    new = (*path[:-1], note.by)
    if note.clashes and doc.get(".".join(new)) is not None:
        effect = "DeepSpeed ignores the old one" if len(path) == 1 else "DeepSpeed stops with an AssertionError"
        message = f"'{name_of(path)}' (deprecated) and '{note.by}' are both there: {effect}"
        return problem(Kind.CLASH, Severity.ERROR, path, message, f"delete '{path[-1]}'", removed(path))
    message = f"'{name_of(path)}' is deprecated; its successor is '{note.by}'"
    if note.value is None:
        patch = moved(doc, path, new)
        return problem(Kind.DEPRECATED, Severity.WARNING, path, message, f"rename it to '{note.by}'", patch)
    if value is False or value is None:
        return problem(Kind.DEPRECATED, Severity.WARNING, path, message, "delete it", removed(path))
    patch = removed(path)
    if value is True:
        operation = "replace" if doc.has(".".join(new)) else "add"
        patch = (*patch, {"op": operation, "path": json_pointer(new), "value": dict(note.value)})
    fix = f'write "{note.by}": {{"device": "cpu"}}'
    return problem(Kind.DEPRECATED, Severity.WARNING, path, message, fix, patch)


_ALLGATHER_FIX = "write zero_optimization.allgather_bucket_size; this one counts only beside zero_optimization: true"


def zero_as_bool(path: Path, value: bool) -> Problem:
    """`"zero_optimization": true`, the form of the first release: stage 1."""
    meant = {"stage": int(value)}
    message = f"'zero_optimization' is {show(value)}, a deprecated form that means stage {meant['stage']}"
    fix = f'write "zero_optimization": {{"stage": {meant["stage"]}}}'
    return problem(Kind.DEPRECATED, Severity.WARNING, path, message, fix, replaced(path, meant))


def two_spellings(field: BlockField, path: Path, mapping: Mapping[Any, Any]) -> Problem | None:
    """Both names of one field: DeepSpeed takes either, and rejects both."""
    if path[-1] == field.name or field.name not in mapping:
        return None
    message = f"'{name_of(path)}' and '{field.name}' are two names of one key: DeepSpeed rejects the file"
    return problem(Kind.CLASH, Severity.ERROR, path, message, f"delete '{path[-1]}'", removed(path))


def check_effect(
    block: type[Block], field: BlockField, path: Path, value: Any, mapping: Mapping[Any, Any], stage: int | None
) -> Iterator[Problem]:
    """Advice on a key that has no effect; a warning where it asks for a feature that then is missing."""
    if field.note(Dead) is not None and field.note(Replaced) is None:
        message = f"'{name_of(path)}' has no effect: DeepSpeed 0.19.8 reads it and never uses it"
        yield problem(Kind.DEAD, Severity.ADVICE, path, message, "delete it", removed(path))
    stages = field.note(Stages)
    if stages is not None and not stages.raises and stage is not None and stage not in stages.stages:
        found = _wrong_stage(field, path, value, stages, stage)
        if found is not None:
            yield found
            return
    for note in field.notes:
        if isinstance(note, OnlyWith):
            found = _condition(block, path, mapping, note)
            if found is not None:
                yield found
                return


def _wrong_stage(field: BlockField, path: Path, value: Any, stages: Stages, stage: int) -> Problem | None:
    if stages.feature and not _asks(field, value):
        return None
    if not stages.feature and stages.stages == (1, 2, 3):
        return None  # without ZeRO every key of the section is idle; one finding for each would say nothing
    at = " and ".join(str(number) for number in stages.stages) if len(stages.stages) < 3 else "1, 2 and 3"
    message = f"'{name_of(path)}' has no effect at ZeRO stage {stage}: it acts at stage {at}"
    severity = Severity.WARNING if stages.feature else Severity.ADVICE
    fix = f"delete it, or set zero_optimization.stage to {stages.stages[0]}"
    return problem(Kind.STAGE, severity, path, message, fix)


def _asks(field: BlockField, value: Any) -> bool:
    """Whether the value asks for the feature: a section with a device, a true, a number other than the default."""
    if field.section is not None:
        return isinstance(value, Mapping) and value.get("device", "cpu") not in ("none", None, "auto")
    reading = read(field.type, value)
    return reading.fit in READ and reading.value not in (None, False, field.default)


def _condition(block: type[Block], path: Path, mapping: Mapping[Any, Any], note: OnlyWith) -> Problem | None:
    sibling = fields_of(block)[note.sibling]
    raw = mapping.get(note.sibling, sibling.default)
    reading = read(sibling.type, raw)
    if reading.fit not in READ or reading.value in note.values:
        return None
    words = " or ".join(show(value) for value in note.values)
    message = f"'{name_of(path)}' has no effect while '{note.sibling}' is {show(reading.value)}: it acts with {words}"
    return problem(Kind.CONDITION, Severity.ADVICE, path, message, f"delete it, or set '{note.sibling}' to {words}")
