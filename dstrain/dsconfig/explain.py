"""What a key does, what a file comes to with all defaults, and how two files differ by effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dstrain.core.errors import UsageError
from dstrain.core.nearest import nearest
from dstrain.dsconfig.canonical import canonical, chosen_block
from dstrain.dsconfig.catalogue import KEYS, KeyInfo, by_last_name, info_of
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.removed import FORGOTTEN, REMOVED

if TYPE_CHECKING:
    from dstrain.dsconfig.blocks.base import Block, BlockField

DEFAULT = "DeepSpeed default"
ABSENT = "absent"
_BY_PRESENCE = frozenset(
    {
        "optimizer",
        "scheduler",
        "comms_logger",
        "weight_quantization",
        "checkpoint.writer",
        "zero_optimization.zenflow",
        "autotuning.model_info",
    }
)
"""Sections whose mere presence switches something on; the others mean the same when they are left out."""


def explain_key(key: str) -> str:
    """A text about one key, for somebody who has never seen ZeRO. A last name (`stage`) will do where it is unique.

    Raises:
        UsageError: no such key; the nearest ones are named.
    """
    if key in REMOVED:
        return f"{key}\n  Removed from DeepSpeed: 0.19.8 rejects a file that holds it.\n  Instead: {REMOVED[key]}."
    if key in FORGOTTEN and info_of(key) is None and key not in by_last_name():
        return f"{key}\n  No key of DeepSpeed 0.19.8. Write '{FORGOTTEN[key]}':\n\n{explain_key(FORGOTTEN[key])}"
    info = info_of(key)
    if info is None and key in by_last_name():
        found = by_last_name()[key]
        if len(found) > 1:
            raise UsageError(f"'{key}' stands in several sections", fix="name one: " + ", ".join(found))
        info = KEYS[found[0]]
    if info is None:
        near = nearest(key, KEYS) or nearest(key.rpartition(".")[2], by_last_name())
        known = by_last_name().get(near or "", (near,) if near else ())
        fix = f"did you mean {', '.join(known)}?" if near else "dstrain config explain lists the keys there are"
        raise UsageError(f"DeepSpeed 0.19.8 has no key '{key}'", fix=fix)
    return "\n".join(_lines(info))


def _lines(info: KeyInfo) -> Iterator[str]:
    yield info.key
    yield f"  {info.help}"
    if info.field.section is not None:
        yield from _section_lines(info)
    else:
        unit = f" ({info.unit})" if info.unit else ""
        yield f"  values: {info.type_text}{unit}"
        yield f"  default: {info.default_text}"
    yield from _effect_lines(info)
    if info.types:
        yield f"  taken by: {', '.join(info.types)}"
    if info.also:
        yield f"  also written: {', '.join(info.also)}"
    beside = "is ignored in silence"
    if info.strict or info.block.arguments:
        beside = "stops the run (DeepSpeed checks this section)" if info.strict else "stops the run (TypeError)"
    yield f"  a misspelt key beside it {beside}"
    if info.read_at:
        yield f"  read at: deepspeed/{info.read_at} (0.19.8)"


def _section_lines(info: KeyInfo) -> Iterator[str]:
    inside = [key for key in KEYS if key.rpartition(".")[0] == info.key]
    width = max((len(key) for key in inside), default=0)
    yield "  a section with the keys:"
    yield from (f"    {key:<{width}}  {KEYS[key].help}" for key in inside)


def _effect_lines(info: KeyInfo) -> Iterator[str]:
    if info.stages is not None:
        stages = " and ".join(str(stage) for stage in info.stages) if len(info.stages) < 3 else "1, 2 and 3"
        yield f"  has an effect at ZeRO stage {stages} only"
    if info.only_with:
        yield f"  has an effect only with: {info.only_with}"
    if info.dead:
        yield "  has no effect: DeepSpeed reads it and never uses it"
    if info.replaced_by is not None:
        yield f"  deprecated: write {info.replaced_by} instead" if info.replaced_by else "  deprecated: delete it"
    filled = info.filled
    if filled is not None:
        who = "dstrain and transformers" if filled.transformers else "dstrain"
        where = " (transformers at stage 3 only)" if filled.stages else ""
        yield f'  "auto": filled by {who}{where}; DeepSpeed itself fills nothing'


@dataclass(frozen=True, slots=True)
class Effective:
    """One value that a run will have.

    Args:
        key: dotted.
        value: as DeepSpeed will take it; "auto" where somebody has yet to fill it; "absent" for a section left out.
        source: `ds_config.json:14:3`, or `DeepSpeed default`.
    """

    key: str
    value: Any
    source: str


def effective(doc: Document) -> list[Effective]:
    """Every value with its source, defaults included, old forms read as DeepSpeed 0.19.8 reads them.

    Unknown keys have no effect and are not in the list. Values that depend on others are resolved where DeepSpeed does
    that in its configuration (`overlap_comm` follows the stage).
    """
    from dstrain.dsconfig.blocks.root import DSConfig

    data = _modern(canonical(doc))
    found = list(_block(doc, DSConfig, data, (), written=True))
    return [_resolved(entry, data) for entry in found]


def _resolved(entry: Effective, data: Mapping[str, Any]) -> Effective:
    if entry.key == "zero_optimization.overlap_comm" and entry.value is None:
        section = data.get("zero_optimization")
        stage = section.get("stage", 0) if isinstance(section, Mapping) else 0
        return Effective(entry.key, stage == 3, entry.source)
    return entry


def _modern(data: dict[str, Any]) -> dict[str, Any]:
    """Deprecated forms as the successors that DeepSpeed makes of them."""
    zero = data.get("zero_optimization")
    if isinstance(zero, bool):
        zero = {"stage": int(zero)}
        if zero["stage"] and "allgather_size" in data:
            zero["allgather_bucket_size"] = data["allgather_size"]
    if isinstance(zero, dict):
        zero = dict(zero)
        for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
            if zero.pop(old, None) is True:
                zero.setdefault(new, {"device": "cpu"})
        old_name = "stage3_gather_fp16_weights_on_model_save"
        if old_name in zero:
            zero.setdefault("stage3_gather_16bit_weights_on_model_save", zero.pop(old_name))
        data = {**data, "zero_optimization": zero}
    if data.get("bf16") is None and "bfloat16" in data:
        data = {**data, "bf16": data["bfloat16"]}
    return {key: value for key, value in data.items() if key not in ("bfloat16", "allgather_size")}


_GONE = frozenset({"bfloat16", "allgather_size", "cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory"})


def _block(
    doc: Document, block: type[Block], mapping: Mapping[Any, Any], path: tuple[str, ...], *, written: bool
) -> Iterator[Effective]:
    from dstrain.dsconfig.blocks.base import fields_of

    for field in fields_of(block).values():
        inner = (*path, field.name)
        if field.name in _GONE or field.name == "stage3_gather_fp16_weights_on_model_save":
            continue
        present = written and field.name in mapping
        value = mapping.get(field.name) if present else None
        section = chosen_block(doc, inner, field)
        if section is None:
            yield from _leaf(doc, block, field, inner, value, present=present)
        elif isinstance(value, Mapping):
            yield from _block(doc, section, value, inner, written=True)
        elif ".".join(inner) in _BY_PRESENCE or path[:1] in (("optimizer",), ("scheduler",)):
            yield Effective(".".join(inner), ABSENT, _place(doc, inner) if present else DEFAULT)
        else:
            yield from _block(doc, section, {}, inner, written=False)


def _leaf(
    doc: Document, block: type[Block], field: BlockField, path: tuple[str, ...], value: Any, *, present: bool
) -> Iterator[Effective]:
    from dstrain.dsconfig.blocks.base import takes_auto

    key = ".".join(path)
    if not present:
        if not field.required:
            yield Effective(key, field.default, DEFAULT)
    elif value == "auto" and block.strict and not takes_auto(field) and KEYS[key].filled is None:
        yield Effective(key, field.default, f'{DEFAULT} ("auto" at {_place(doc, path)} is dropped)')
    else:
        yield Effective(key, value, _place(doc, path))


def _place(doc: Document, path: tuple[str, ...]) -> str:
    """Where the value was written, under whichever of its names."""
    parent = path[:-1]
    info = KEYS.get(".".join(path))
    for name in (path[-1], *(info.also if info else ())):
        if doc.has(".".join((*parent, name))):
            return str(doc.place(".".join((*parent, name))))
    return str(doc.place(".".join(path)))


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose effect differs between two files."""

    key: str
    left: Effective | None
    right: Effective | None


def diff_by_effect(left: Document, right: Document) -> list[Difference]:
    """The keys whose effective values differ, defaults included: a value written as its default is no difference."""
    ours = {entry.key: entry for entry in effective(left)}
    theirs = {entry.key: entry for entry in effective(right)}
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return [
        Difference(key, ours.get(key), theirs.get(key))
        for key in keys
        if _value(ours.get(key)) != _value(theirs.get(key))
    ]


def _value(entry: Effective | None) -> Any:
    """A value to compare: true is not 1, but 1 is 1.0, and a pair is a list."""
    from dstrain.dsconfig.blocks.optimizers import ANY_CASE

    if entry is None:
        return (ABSENT,)
    value = list(entry.value) if isinstance(entry.value, tuple) else entry.value
    if entry.key == "optimizer.type" and isinstance(value, str) and value.lower() in ANY_CASE:
        value = value.lower()
    return (isinstance(value, bool), value)
