"""What a field can say about itself beyond its type: put into `Annotated[type, note, ...]`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts: `elements`, `bytes`, `steps`."""

    text: str


@dataclass(frozen=True, slots=True)
class Stages:
    """The ZeRO stages at which the key has an effect; it is read and ignored at the others.

    Args:
        stages: the stages.
        feature: the key asks for something whose absence matters (memory, traffic), not for a tuning of it.
        raises: DeepSpeed itself stops at the other stages when the key asks for something; a rule of its own says so.
    """

    stages: tuple[int, ...]
    feature: bool = False
    raises: bool = False


@dataclass(frozen=True, slots=True)
class OnlyWith:
    """The key has an effect only while a sibling key (of the same section) holds one of these values."""

    sibling: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """When the key has an effect, for people; nothing checks it."""

    text: str


@dataclass(frozen=True, slots=True)
class Also:
    """Other spellings that DeepSpeed takes for the same field (pydantic's `populate_by_name`)."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replaced:
    """A deprecated key: `by` is the key of the same section to write instead, "" when it is simply to be deleted.

    Args:
        by: the new key.
        value: what the new key holds when the old one was true; None to carry the old value over.
        clashes: whether DeepSpeed refuses (or ignores) the old key when the new one is there too.
    """

    by: str
    value: dict[str, object] | None = None
    clashes: bool = True


@dataclass(frozen=True, slots=True)
class Dead:
    """DeepSpeed reads the key and never uses it."""

    why: str = "DeepSpeed 0.19.8 reads it and never uses it"


@dataclass(frozen=True, slots=True)
class NotInFiles:
    """DeepSpeed wants a Python object here: no value of a file will do."""

    wants: str


@dataclass(frozen=True, slots=True)
class Filled:
    """Who replaces the value "auto": transformers (at these stages, None for all), and dstrain."""

    transformers: bool = True
    stages: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Required:
    """There is no default: the key has to be written, always or in the given case."""

    when: str = ""


@dataclass(frozen=True, slots=True)
class AnyCase:
    """The words are compared without regard to case."""


@dataclass(frozen=True, slots=True)
class OffWhenAuto:
    """DeepSpeed drops "auto" here, and the default that is then used turns the feature off."""


@dataclass(frozen=True, slots=True)
class NotNull:
    """DeepSpeed fails on null, although the key may be left out."""


STAGE_3 = Stages((3,))
STAGE_3_FEATURE = Stages((3,), feature=True)
STAGES_1_2 = Stages((1, 2))
STAGES_1_2_3 = Stages((1, 2, 3))
FILLED = Filled()
FILLED_AT_3 = Filled(stages=(3,))
FILLED_HERE = Filled(transformers=False)
ELEMENTS = Unit("elements")
BYTES = Unit("bytes")
STEPS = Unit("steps")
NOT_NULL = NotNull()
