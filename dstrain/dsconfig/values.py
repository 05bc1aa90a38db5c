"""What a key may hold, and how a value as people write it is read: `"5e8"` and `4.0` mean the integers they look."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from dstrain.dsconfig.blocks.notes import AnyCase, NotNull, Required

_TRUE_WORDS = frozenset({"true", "yes", "on", "1", "t", "y"})
_FALSE_WORDS = frozenset({"false", "no", "off", "0", "f", "n"})
_NUMBER = re.compile(r"[+-]?(\d[\d_]*\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)
_KIND_TEXT = {"bool": "true or false", "int": "an integer", "float": "a number", "str": "text", "dict": "a mapping"}


@dataclass(frozen=True, slots=True)
class ValueType:
    """The values that a key may hold, made from the annotation of its field.

    Args:
        kinds: of `bool`, `int`, `float`, `str`, `list`, `dict`, `any`.
        choices: the values that are allowed as they are, besides the kinds.
        item: the type of the members of a list.
        section: the block of a section; `entries` the block of each value of a mapping with free names.
    """

    kinds: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    nullable: bool = False
    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    any_case: bool = False
    not_empty: bool = False
    item: ValueType | None = None
    section: type | None = None
    entries: type | None = None

    def text(self) -> str:
        """`an integer > 0`, `one of 0, 1, 2, 3`, `true or false`."""
        options = [self._kind_text(kind) for kind in self.kinds]
        if self.choices:
            options.append(("one of " if len(self.choices) > 1 else "") + ", ".join(map(show, self.choices)))
        if self.nullable:
            options.append("null")
        return " or ".join(options) or "anything"

    def range_text(self) -> str:
        """`> 0`, `>= 0 and <= 1`, or an empty text."""
        bounds = ((">", self.above), (">=", self.at_least), ("<", self.below), ("<=", self.at_most))
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    def _kind_text(self, kind: str) -> str:
        if kind == "list":
            return _list_text(self.item)
        if kind == "any":
            return "anything"
        if kind == "str" and self.not_empty:
            return "text that is not empty"
        bounds = self.range_text() if kind in ("int", "float") else ""
        return f"{_KIND_TEXT[kind]} {bounds}".strip()

    def in_range(self, value: float) -> bool:
        """Whether a number is within the bounds."""
        return not (
            (self.above is not None and not value > self.above)
            or (self.at_least is not None and not value >= self.at_least)
            or (self.below is not None and not value < self.below)
            or (self.at_most is not None and not value <= self.at_most)
        )


_MEMBERS = {"bool": "of true and false", "int": "of integers", "float": "of numbers", "str": "of texts"}


def _list_text(item: ValueType | None) -> str:
    if item is None or item.kinds == ("any",):
        return "a list"
    if len(item.kinds) == 1 and item.kinds[0] in _MEMBERS and not item.choices:
        return f"a list {_MEMBERS[item.kinds[0]]} {item.range_text()}".strip()
    return f"a list whose members are {item.text()}"


class Fit(StrEnum):
    """How a value fits a type."""

    EXACT = "exact"
    NUMBER_AS_FLOAT = "an integer written as a float"
    NUMBER_AS_TEXT = "a number written as text"
    WORD_AS_BOOL = "a truth value written as text"
    NUMBER_AS_BOOL = "a truth value written as a number"
    OTHER_CASE = "a word in another case"
    NULL = "null"
    RANGE = "out of range"
    CHOICE = "not one of the allowed values"
    TYPE = "of another type"


READ = frozenset(
    {Fit.EXACT, Fit.NUMBER_AS_FLOAT, Fit.NUMBER_AS_TEXT, Fit.WORD_AS_BOOL, Fit.NUMBER_AS_BOOL, Fit.OTHER_CASE}
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The value that was meant (as written when it cannot be read), and how it fits."""

    value: Any
    fit: Fit


def show(value: Any) -> str:
    """A value as JSON writes it, shortened: what a person sees in the file."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    try:
        text = f'"{value}"' if isinstance(value, str) else str(value) if isinstance(value, int | float) else repr(value)
    except (ValueError, RecursionError):  # an integer of more than 4300 digits; a nesting deeper than the stack
        return f"<{type(value).__name__}>"
    return text if len(text) <= 80 else text[:77] + "..."


def value_type(annotation: Any, notes: Sequence[Any] = ()) -> ValueType:
    """The `ValueType` of an annotation and of the notes that pydantic took out of its `Annotated`."""
    result = _of_annotation(annotation)
    for note in notes:
        result = _with_note(result, note)
    return result


def _of_annotation(annotation: Any) -> ValueType:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return value_type(arguments[0], arguments[1:])
    if origin is Literal:
        return ValueType(choices=arguments)
    if origin in (Union, types.UnionType):
        result = ValueType()
        for argument in arguments:
            result = _union(result, _of_annotation(argument))
        return result
    if origin is list:
        return ValueType(("list",), item=_of_annotation(arguments[0]))
    if origin is tuple:
        return ValueType(("list",), item=_of_annotation(arguments[0]))
    if origin is dict:
        inner = arguments[1]
        return ValueType(("dict",), entries=inner if isinstance(inner, type) and hasattr(inner, "strict") else None)
    return _of_class(annotation)


def _of_class(annotation: Any) -> ValueType:
    if annotation in (type(None), None):
        return ValueType(nullable=True)
    if annotation in (bool, int, float, str):
        return ValueType((annotation.__name__,))
    if annotation in (list, dict):
        return ValueType((annotation.__name__,))
    if isinstance(annotation, type) and hasattr(annotation, "strict"):
        return ValueType(section=annotation)
    return ValueType(("any",), nullable=True)


def _union(left: ValueType, right: ValueType) -> ValueType:
    merged = {
        name: getattr(left, name) if getattr(left, name) is not None else getattr(right, name)
        for name in ("above", "at_least", "below", "at_most", "item", "section", "entries")
    }
    return ValueType(
        left.kinds + right.kinds,
        left.choices + right.choices,
        left.nullable or right.nullable,
        any_case=left.any_case or right.any_case,
        **merged,
    )


def _with_note(result: ValueType, note: Any) -> ValueType:
    if isinstance(note, AnyCase):
        return replace(result, any_case=True)
    if getattr(note, "min_length", None):
        return replace(result, not_empty=True)
    if isinstance(note, Required | NotNull):
        return replace(result, nullable=False)
    bounds = {"gt": "above", "ge": "at_least", "lt": "below", "le": "at_most"}
    for theirs, ours in bounds.items():
        bound = getattr(note, theirs, None)
        if isinstance(bound, int | float):
            changes: dict[str, Any] = {ours: bound}
            result = replace(result, **changes)
    return result


def read(kind: ValueType, value: Any) -> Reading:
    """Read a value as its key means it. Nothing is raised: what cannot be read comes back with the reason in `fit`."""
    if value is None:
        return Reading(value, Fit.EXACT if kind.nullable else Fit.NULL)
    if "any" in kind.kinds or _is_choice(kind.choices, value):
        return Reading(value, Fit.EXACT)
    choice = _read_choice(kind, value)
    if choice is not None:
        return choice
    failures = []
    for name in kind.kinds:
        reading = _READERS[name](kind, value)
        if reading.fit in READ:
            return reading
        failures.append(reading)
    for fit in (Fit.RANGE, Fit.CHOICE):
        if any(failure.fit is fit for failure in failures):
            return Reading(value, fit)
    same_type = any(type(value) is type(choice) for choice in kind.choices)
    return Reading(value, Fit.CHOICE if kind.choices and (same_type or not kind.kinds) else Fit.TYPE)


def _is_choice(choices: Sequence[Any], value: Any) -> bool:
    return any(type(choice) is type(value) and choice == value for choice in choices)


def _read_choice(kind: ValueType, value: Any) -> Reading | None:
    numbers = [choice for choice in kind.choices if isinstance(choice, int) and not isinstance(choice, bool)]
    if numbers and not isinstance(value, bool):
        reading = _read_int(ValueType(("int",)), value)
        if reading.fit in READ and reading.value in numbers:
            return reading
    if kind.any_case and isinstance(value, str):
        for choice in kind.choices:
            if isinstance(choice, str) and choice.lower() == value.lower():
                return Reading(choice, Fit.EXACT)
    if isinstance(value, str):
        for choice in kind.choices:
            if isinstance(choice, str) and choice.lower() == value.strip().lower():
                return Reading(choice, Fit.OTHER_CASE)
    return None


def _read_bool(_: ValueType, value: Any) -> Reading:
    if isinstance(value, bool):
        return Reading(value, Fit.EXACT)
    if isinstance(value, int | float) and value in (0, 1):
        return Reading(bool(value), Fit.NUMBER_AS_BOOL)
    if isinstance(value, str) and value.strip().lower() in _TRUE_WORDS | _FALSE_WORDS:
        return Reading(value.strip().lower() in _TRUE_WORDS, Fit.WORD_AS_BOOL)
    return Reading(value, Fit.TYPE)


def _number_of(text: str) -> float | int | None:
    text = text.strip().replace(",", "_")
    if not _NUMBER.fullmatch(text):
        return None
    plain = text.replace("_", "")
    try:
        return int(plain)
    except ValueError:
        pass
    number = float(plain)
    return number if math.isfinite(number) else None


def _read_int(kind: ValueType, value: Any) -> Reading:
    fit = Fit.EXACT
    number = value
    if isinstance(value, str):
        number, fit = _number_of(value), Fit.NUMBER_AS_TEXT
    if isinstance(number, bool) or not isinstance(number, int | float):
        return Reading(value, Fit.TYPE)
    if isinstance(number, float):
        if not math.isfinite(number) or number != int(number):
            return Reading(value, Fit.TYPE)
        number, fit = int(number), Fit.NUMBER_AS_FLOAT if fit is Fit.EXACT else fit
    return Reading(number, fit) if kind.in_range(number) else Reading(value, Fit.RANGE)


def _read_float(kind: ValueType, value: Any) -> Reading:
    fit = Fit.EXACT
    number = value
    if isinstance(value, str):
        number, fit = _number_of(value), Fit.NUMBER_AS_TEXT
    if isinstance(number, bool) or not isinstance(number, int | float):
        return Reading(value, Fit.TYPE)
    if isinstance(number, float) and not math.isfinite(number):
        return Reading(value, Fit.RANGE)
    return Reading(number, fit) if kind.in_range(number) else Reading(value, Fit.RANGE)


def _read_str(kind: ValueType, value: Any) -> Reading:
    if not isinstance(value, str):
        return Reading(value, Fit.TYPE)
    return Reading(value, Fit.RANGE if kind.not_empty and not value else Fit.EXACT)


def _read_list(kind: ValueType, value: Any) -> Reading:
    if not isinstance(value, list | tuple):
        return Reading(value, Fit.TYPE)
    if kind.item is None:
        return Reading(value, Fit.EXACT)
    readings = [read(kind.item, member) for member in value]
    worst = next((r.fit for r in readings if r.fit not in READ), None)
    if worst is not None:
        return Reading(value, worst)
    fit = next((r.fit for r in readings if r.fit is not Fit.EXACT), Fit.EXACT)
    return Reading([r.value for r in readings], fit)


def _read_dict(_: ValueType, value: Any) -> Reading:
    return Reading(value, Fit.EXACT if isinstance(value, Mapping) else Fit.TYPE)


_READERS = {
    "bool": _read_bool,
    "int": _read_int,
    "float": _read_float,
    "str": _read_str,
    "list": _read_list,
    "dict": _read_dict,
}
