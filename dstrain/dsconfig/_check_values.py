"""Values of known keys: their type, their range, null, "auto"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dstrain.core.facts import Mode
from dstrain.core.finding import Severity
from dstrain.dsconfig._problem import Kind, Patch, Path, Problem, name_of, problem, removed, replaced
from dstrain.dsconfig.blocks.base import Block, BlockField, fields_of, takes_auto
from dstrain.dsconfig.blocks.notes import Filled, NotInFiles, OffWhenAuto
from dstrain.dsconfig.values import READ, Fit, ValueType, read, show

_BATCH = frozenset({"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"})
_SOFT = (("scheduler", "params", "warmup_type"), ("aio",))
"""Where DeepSpeed 0.19.8 goes on with a wrong value: an unknown warm-up is "log", aio counts only with NVMe."""
_ONLY_WHEN_ON = (
    ("fp16", "loss_scale_window"),
    ("fp16", "min_loss_scale"),
    ("expert_parallel",),
    ("autotuning",),
    ("data_efficiency",),
)
"""What DeepSpeed 0.19.8 validates (or uses at all) only while the section is enabled."""
_REAL_BOOLS = frozenset({"wall_clock_breakdown", "flops_profiler.enabled", "checkpoint.parallel_write.pipeline_stage"})
"""Plain booleans that DeepSpeed 0.19.8 fails on as text or null: it puts `|` between them, or compares with true."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a value is judged by: who reads the file, the stage, whether the section is on, whether autotuning is."""

    mode: Mode
    stage: int | None
    enabled: bool
    autotuning: bool


def check_value(block: type[Block], field: BlockField, path: Path, value: Any, context: Context) -> Problem | None:
    """The fault of a value, if it has one."""
    if value is None:
        return None if field.type.nullable else _null(block, field, path, context)
    if isinstance(value, str) and value == "auto" and not takes_auto(field):
        return _auto(block, field, path, context)
    wanted = field.note(NotInFiles)
    if wanted is not None:
        message = f"'{name_of(path)}' is {_described(value)}, but DeepSpeed takes {wanted.wants} only"
        return problem(Kind.TYPE, Severity.ERROR, path, message, "delete it", removed(path))
    if isinstance(value, list) and context.autotuning and "list" not in field.type.kinds:
        return None  # a list is a search space there
    reading = read(field.type, value)
    if reading.fit not in READ:
        return _wrong(field, path, value, reading.fit, context)
    if reading.fit is Fit.EXACT:
        return None
    if reading.fit is Fit.WORD_AS_BOOL:
        return None if block.strict else _word(path, value, bool(reading.value))
    if reading.fit is Fit.NUMBER_AS_BOOL:
        return None
    return _written(block, field, path, value, reading.value, reading.fit, context)


def wrong_section(path: Path, section: type[Block], value: Any) -> Problem:
    """A section that is no mapping: `"bf16": true`, `"offload_optimizer": "cpu"`, `"optimizer": "AdamW"`."""
    names = fields_of(section)
    meant: dict[str, Any] | None = None
    if "enabled" in names and isinstance(value, bool):
        meant = {"enabled": value}
    else:
        for name in ("device", "type", "stage"):
            reading = read(names[name].type, value) if name in names else None
            if reading is not None and reading.fit in READ and not isinstance(value, bool):
                meant = {name: reading.value}
                break
    message = f"'{name_of(path)}' is {_described(value)}, expected a section (a mapping of keys)"
    patch: Patch = replaced(path, meant) if meant else ()
    fix = f"write {_json(meant or _typical(names, value))}"
    return problem(Kind.SECTION, Severity.ERROR, path, message, fix, patch)


def _typical(names: Mapping[str, BlockField], value: Any) -> dict[str, Any]:
    """A mapping to start from, where the value does not say which one was meant."""
    if "enabled" in names:
        return {"enabled": "auto" if value == "auto" else True}
    for name, usual in (("device", "cpu"), ("stage", 2), ("type", "AdamW")):
        if name in names:
            return {name: usual}
    return {next(iter(names), "key"): "…"}


def null_section(path: Path, mode: Mode) -> Problem:
    """A section that is null where DeepSpeed fails on it."""
    message = f"'{name_of(path)}' is null, and DeepSpeed 0.19.8 fails on that with a TypeError or AttributeError"
    return problem(Kind.NULL, _unless_ours(mode), path, message, "delete the key", removed(path))


def _unless_ours(mode: Mode, otherwise: Severity = Severity.WARNING) -> Severity:
    """dstrain writes the JSON that DeepSpeed gets, so what it can read is no error there."""
    return otherwise if mode is Mode.DSTRAIN else Severity.ERROR


def _null(block: type[Block], field: BlockField, path: Path, context: Context) -> Problem | None:
    if not block.strict and field.type.kinds == ("bool",) and name_of(path) not in _REAL_BOOLS:
        if not field.default:
            return None
        message = f"'{name_of(path)}' is null: DeepSpeed takes that as false, while its default is true"
        return problem(Kind.NULL, Severity.WARNING, path, message, "write true or false", removed(path))
    message = f"'{name_of(path)}' is null, expected {field.type.text()}"
    if field.required:
        return problem(Kind.NULL, Severity.ERROR, path, message, "write a value: there is no default")
    fix = f"delete the key: the default is {show(field.default)}"
    return problem(Kind.NULL, _unless_ours(context.mode), path, message, fix, removed(path))


def _wrong(field: BlockField, path: Path, value: Any, fit: Fit, context: Context) -> Problem:
    expected = field.type.text()
    if fit is Fit.TYPE:
        message = f"'{name_of(path)}' is {_described(value)}, expected {expected}"
        severity = Severity.WARNING if _below(path, _SOFT) else Severity.ERROR
        return problem(Kind.TYPE, severity, path, message, f"write {_example(field)}")
    off = not context.enabled and not field.type.not_empty and _below(path, _ONLY_WHEN_ON)
    severity = Severity.WARNING if off or _below(path, _SOFT) else Severity.ERROR
    message = f"'{name_of(path)}' is {show(value)}, expected {expected}"
    fix = f"write {_example(field)}"
    patch: Patch = ()
    if path == ("gradient_clipping",):
        severity = Severity.WARNING
        message += "; DeepSpeed takes a negative number as 'no clipping'"
        fix, patch = "write 0 for no clipping", replaced(path, 0)
    return problem(Kind.RANGE, severity, path, message, fix, patch)


def _below(path: Path, prefixes: tuple[Path, ...]) -> bool:
    return any(path[: len(prefix)] == prefix for prefix in prefixes)


def _word(path: Path, value: Any, meant: bool) -> Problem:
    """Text where a plain dictionary is asked for a truth value: every text but "" counts as true."""
    fails = name_of(path) in _REAL_BOOLS
    effect = "DeepSpeed fails on it" if fails else "to DeepSpeed every text is true"
    severity = Severity.ERROR if fails or not meant else Severity.WARNING
    message = f"'{name_of(path)}' is the text {show(value)}, expected true or false; {effect}"
    return problem(Kind.TEXT, severity, path, message, f"write {show(meant)}", replaced(path, meant))


def _written(
    block: type[Block], field: BlockField, path: Path, value: Any, meant: Any, fit: Fit, context: Context
) -> Problem | None:
    """A value that can be read, but that DeepSpeed itself may not read."""
    effect = _effect(block, field, path, value, fit, context.mode)
    if not effect:
        return None
    if context.mode is Mode.DSTRAIN and fit is Fit.NUMBER_AS_FLOAT:
        return None
    message = f"'{name_of(path)}' is {_described(value)}, meaning {show(meant)}; {effect}"
    severity = _unless_ours(context.mode, Severity.ADVICE)
    return problem(Kind.TEXT, severity, path, message, f"write {show(meant)}", replaced(path, meant))


def _effect(block: type[Block], field: BlockField, path: Path, value: Any, fit: Fit, mode: Mode) -> str:
    """What DeepSpeed (or transformers) does with a value in another form; "" where it reads it as it is meant."""
    if fit is Fit.OTHER_CASE:
        return "DeepSpeed compares the word exactly" + (" and rejects the file" if block.strict else "")
    if fit is Fit.NUMBER_AS_TEXT:
        if path == ("zero_optimization", "stage") and mode is Mode.TRANSFORMERS:
            return "transformers compares it with 3 and does not see stage 3, while DeepSpeed runs it"
        if not block.strict:
            return "DeepSpeed fails on text in place of a number with a TypeError"
        whole = "int" in field.type.kinds
        return "DeepSpeed rejects the file" if whole and (takes_auto(field) or not _plain_integer(value)) else ""
    if block.arguments and "int" in field.type.kinds:
        return "the schedule accepts integers only (ValueError)"
    if path[-1] in _BATCH:
        return "DeepSpeed keeps it as a float, and the data loader rejects that"
    return ""


def _plain_integer(value: Any) -> bool:
    try:
        int(value)
    except (TypeError, ValueError):
        return False
    return True


def _auto(block: type[Block], field: BlockField, path: Path, context: Context) -> Problem | None:
    filled = field.note(Filled)
    if _is_filled(filled, context) or (context.autotuning and path[-1] in _BATCH):
        return None
    who = {"deepspeed": "DeepSpeed itself fills no value", "dstrain": "dstrain does not fill this key"}.get(
        context.mode.value, "transformers does not fill this key"
    )
    if not block.strict:
        message = f"'{name_of(path)}' is \"auto\": {who}, and DeepSpeed takes the text as the value"
        return problem(Kind.AUTO, Severity.ERROR, path, message, f"write {_example(field)}, or delete the key")
    default = f"{show(field.default)}" if field.default is not None else "chosen by DeepSpeed"
    message = f"'{name_of(path)}' is \"auto\": {who}; DeepSpeed drops it, so that the value is the default, {default}"
    severity = Severity.WARNING if context.mode is Mode.DEEPSPEED else Severity.ADVICE
    if field.note(OffWhenAuto) is not None:
        severity = Severity.ERROR
        message += ": the feature is off"
    return problem(Kind.AUTO, severity, path, message, f"write {_example(field)}, or delete the key")


def _is_filled(filled: Filled | None, context: Context) -> bool:
    if filled is None or context.mode is Mode.DEEPSPEED:
        return False
    if context.mode is Mode.DSTRAIN:
        return True
    return filled.transformers and (filled.stages is None or context.stage is None or context.stage in filled.stages)


def _described(value: Any) -> str:
    if isinstance(value, str):
        return f"the text {show(value)}"
    if isinstance(value, Mapping):
        return "a section"
    if isinstance(value, list | tuple):
        return f"a list, {show(value)}"
    return show(value)


def _example(field: BlockField) -> str:
    """A value to type."""
    kind: ValueType = field.type
    if kind.choices:
        return " or ".join(show(choice) for choice in kind.choices[:6])
    text = replace(kind, nullable=False).text()
    if field.default is not None and not field.required:
        return f"{text} (the default is {_json(field.default)})"
    return text


def _json(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f'"{key}": {_json(inner)}' for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(_json(inner) for inner in value) + "]"
        return text if len(text) <= 60 else "[…]"
    return show(value)
