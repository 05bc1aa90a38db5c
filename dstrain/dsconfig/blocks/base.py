"""The base of every typed block of a DeepSpeed configuration."""

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

from dstrain.dsconfig.blocks.light import LightModel, declared
from dstrain.dsconfig.blocks.notes import Also, Required
from dstrain.dsconfig.values import READ, ValueType, read, show, value_type

Note = TypeVar("Note")


class BlockField:
    """One key of a block: its type, its default and its notes, taken from the annotation once."""

    __slots__ = ("default", "name", "notes", "type")

    def __init__(self, name: str, annotation: Any, notes: tuple[Any, ...], default: Any) -> None:
        self.name = name
        self.notes = notes
        self.default = default
        self.type: ValueType = value_type(annotation, notes)

    def note(self, kind: type[Note]) -> Note | None:
        """The note of this kind, if the field carries one."""
        return next((note for note in self.notes if isinstance(note, kind)), None)

    @property
    def required(self) -> bool:
        """Whether DeepSpeed has no default for it."""
        return self.note(Required) is not None

    @property
    def section(self) -> "type[Block] | None":
        """The block of a field that is a section."""
        return cast("type[Block] | None", self.type.section)


class Block(LightModel):
    """A section. Unknown keys are kept as they are; "auto" means what it means to DeepSpeed: the default.

    Numbers as people write them (`"5e8"`, `4.0`) are read as what they mean. A value that cannot be read raises
    pydantic's `ValidationError`: run the rules first, they say it all at once and better.
    """

    strict: ClassVar[bool] = False
    """Whether DeepSpeed rejects unknown keys here (a pydantic model); else it ignores them in silence."""
    free: ClassVar[bool] = False
    """Whether other keys may have a meaning that cannot be listed (arguments of a class chosen by name)."""
    arguments: ClassVar[bool] = False
    """Whether the keys are arguments of a constructor, which fails on those that it does not know."""
    reads: ClassVar[Mapping[str, str]] = {}
    """Where DeepSpeed 0.19.8 reads or declares each key: `runtime/config.py:340`, below its package folder."""

    @classmethod
    def as_meant(cls, data: Any) -> Any:
        """Keys by their own names, values as what they mean; what cannot be read is left to pydantic to refuse."""
        if not isinstance(data, Mapping):
            return data
        result: dict[str, Any] = {}
        for key, value in data.items():
            field = find_field(cls, key)
            if field is None:
                result[str(key)] = value
            elif not (isinstance(value, str) and value == "auto" and not takes_auto(field)):
                reading = read(field.type, value)
                if isinstance(value, bool) and reading.fit not in READ:
                    # pydantic takes true for 1, which is never what was meant here.
                    raise ValueError(f"{key} is {show(value)}, expected {field.type.text()}")
                result[field.name] = reading.value if reading.fit in READ else value
        return result


def takes_auto(field: BlockField) -> bool:
    """Whether "auto" is a value of DeepSpeed's own here, with a meaning other than 'somebody fills it'."""
    return "auto" in field.type.choices or "any" in field.type.kinds


@cache
def fields_of(block: type[Block]) -> Mapping[str, BlockField]:
    """The fields of a block by the name that a file uses."""
    fields = {}
    for name, entry in declared(block).items():
        field = BlockField(name, entry.annotation, entry.notes, None)
        if field.section is None:
            field.default = entry.fresh()
        fields[name] = field
    return fields


@cache
def _by_other_name(block: type[Block]) -> Mapping[str, BlockField]:
    others: dict[str, BlockField] = {}
    for field in fields_of(block).values():
        note = field.note(Also)
        others.update(dict.fromkeys(note.names if note else (), field))
    return others


def find_field(block: type[Block], key: Any) -> BlockField | None:
    """The field that a key of a file means here: its own name, or another spelling that DeepSpeed takes."""
    if not isinstance(key, str):
        return None
    return fields_of(block).get(key) or _by_other_name(block).get(key)


def read_at(path: str, **lines: int) -> dict[str, str]:
    """`read_at("runtime/zero/config.py", stage=95)` -> `{"stage": "runtime/zero/config.py:95"}`."""
    return {key: f"{path}:{line}" for key, line in lines.items()}
