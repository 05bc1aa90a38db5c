"""Every key of DeepSpeed 0.19.8, flat: made from the typed blocks when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dstrain.dsconfig.blocks.base import Block, BlockField, fields_of
from dstrain.dsconfig.blocks.notes import (
    Also,
    Condition,
    Dead,
    Filled,
    OnlyWith,
    Replaced,
    Stages,
    Unit,
)
from dstrain.dsconfig.removed import REMOVED
from dstrain.dsconfig.values import show

__all__ = ["KEYS", "REMOVED", "KeyInfo", "by_last_name", "dotted_key", "info_of", "section_blocks"]


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What there is to know about one key.

    Args:
        key: dotted from the root; `<metric>` stands for a free name.
        block: the block it belongs to.
        field: the field, with its type and notes.
        types: for `optimizer.params.*` and `scheduler.params.*`, the blocks (by type name) that take the key.
    """

    key: str
    block: type[Block]
    field: BlockField = field(repr=False)
    types: tuple[str, ...] = ()

    @property
    def type_text(self) -> str:
        """`an integer > 0`, `true or false`, `a section`."""
        return "a section" if self.field.section else self.field.type.text()

    @property
    def default(self) -> Any:
        """DeepSpeed's own default; None also where there is none (see `required`)."""
        return self.field.default

    @property
    def default_text(self) -> str:
        """The default as JSON writes it; `none, it must be written`; `absent` for sections."""
        if self.field.section:
            return "absent"
        return "none, it must be written" if self.field.required else show(self.default)

    @property
    def allowed(self) -> tuple[Any, ...]:
        """The words or numbers that are allowed, where they can be listed."""
        return self.field.type.choices

    @property
    def unit(self) -> str:
        """What a number counts, or an empty text."""
        note = self.field.note(Unit)
        return note.text if note else ""

    @property
    def help(self) -> str:
        """One line for somebody who has never seen DeepSpeed. Reads our sources the first time."""
        from dstrain.core.docstrings import attribute_docstrings

        return attribute_docstrings(self.block).get(self.field.name, "")

    @property
    def strict(self) -> bool:
        """Whether DeepSpeed rejects unknown keys beside this one; else it ignores them in silence."""
        return self.block.strict

    @property
    def stages(self) -> tuple[int, ...] | None:
        """The ZeRO stages at which the key has an effect; None for all."""
        note = self.field.note(Stages)
        return note.stages if note else None

    @property
    def only_with(self) -> str:
        """The condition under which the key has an effect: `zero_optimization.offload_param.device = nvme`."""
        texts = []
        for note in self.field.notes:
            if isinstance(note, OnlyWith):
                words = " or ".join(show(value).strip('"') for value in note.values)
                texts.append(f"{dotted_key(self.key.rpartition('.')[0], note.sibling)} = {words}")
            elif isinstance(note, Condition):
                texts.append(note.text)
        return ", ".join(texts)

    @property
    def dead(self) -> bool:
        """Whether DeepSpeed reads the key and never uses it."""
        return self.field.note(Dead) is not None

    @property
    def replaced_by(self) -> str | None:
        """For a deprecated key: the key to write instead, "" for none."""
        note = self.field.note(Replaced)
        if note is None:
            return None
        return dotted_key(self.key.rpartition(".")[0], note.by) if note.by else ""

    @property
    def also(self) -> tuple[str, ...]:
        """Other spellings that DeepSpeed takes."""
        note = self.field.note(Also)
        return note.names if note else ()

    @property
    def filled(self) -> Filled | None:
        """Who replaces "auto" here, if anybody does."""
        return self.field.note(Filled)

    @property
    def read_at(self) -> str:
        """Where DeepSpeed 0.19.8 reads it, below its package folder: `runtime/config.py:340`."""
        for block in self.block.__mro__:
            place = getattr(block, "reads", {}).get(self.field.name)
            if place:
                return str(place)
        return ""


def dotted_key(prefix: str, name: str) -> str:
    """`("zero_optimization", "stage")` -> `zero_optimization.stage`."""
    return f"{prefix}.{name}" if prefix else name


def section_blocks(prefix: str, block: type[Block]) -> Iterator[tuple[str, type[Block], tuple[str, ...]]]:
    """Every section below a block: its key, its block, and the type names that choose it (for params)."""
    yield prefix, block, ()
    for found in fields_of(block).values():
        key = dotted_key(prefix, found.name)
        if key in ("optimizer.params", "scheduler.params"):
            for name, params in _params(key).items():
                yield key, params, (name,)
        elif found.section is not None:
            yield from section_blocks(key, found.section)
        elif found.type.entries is not None:
            yield from section_blocks(f"{key}.<metric>", found.type.entries)


def _params(key: str) -> Mapping[str, type[Block]]:
    from dstrain.dsconfig.blocks.optimizers import OPTIMIZERS
    from dstrain.dsconfig.blocks.schedulers import SCHEDULERS

    return OPTIMIZERS if key == "optimizer.params" else SCHEDULERS


@cache
def _all() -> dict[str, KeyInfo]:
    from dstrain.dsconfig.blocks.root import DSConfig

    found: dict[str, KeyInfo] = {}
    for prefix, block, types in section_blocks("", DSConfig):
        for entry in fields_of(block).values():
            key = dotted_key(prefix, entry.name)
            known = found.get(key)
            if known is None:
                found[key] = KeyInfo(key, block, entry, types)
            elif types:
                found[key] = KeyInfo(key, known.block, known.field, known.types + types)
    return found


class _Keys(Mapping[str, KeyInfo]):
    """The catalogue; built when it is first looked into."""

    def __getitem__(self, key: str) -> KeyInfo:
        return _all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_all())

    def __len__(self) -> int:
        return len(_all())


KEYS: Mapping[str, KeyInfo] = _Keys()
"""Every key by its dotted name (`zero_optimization.stage`); sections are keys too."""


@cache
def by_last_name() -> Mapping[str, tuple[str, ...]]:
    """`stage` -> (`zero_optimization.stage`,): where in the tree a name is known, other spellings included."""
    found: dict[str, list[str]] = {}
    for key, info in KEYS.items():
        for name in (info.field.name, *info.also):
            found.setdefault(name, []).append(key)
    return {name: tuple(keys) for name, keys in found.items()}


def info_of(key: str) -> KeyInfo | None:
    """The entry of a key as a file writes it: other spellings, the root's aliases and free names resolved."""
    if key in KEYS:
        return KEYS[key]
    parent, _, name = key.rpartition(".")
    for full in by_last_name().get(name, ()):
        prefix = full.rpartition(".")[0]
        if prefix == parent or _matches(prefix, parent):
            return KEYS[full]
    return None


def _matches(pattern: str, key: str) -> bool:
    left, right = pattern.split("."), key.split(".")
    return len(left) == len(right) and all(p == k or p.startswith("<") for p, k in zip(left, right, strict=True))
