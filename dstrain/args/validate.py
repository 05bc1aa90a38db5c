"""Values against the annotations of a dataclass, by pydantic; every value that is wrong in one error."""

from __future__ import annotations

import dataclasses
import enum
import os
import types
import typing
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from dstrain.core.errors import UsageError


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default value, made anew where it has a factory; `dataclasses.MISSING` where it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


# `Any` for a class in what is cached: mypy does not take `type[Any]` for hashable.
@cache
def init_names(cls: Any) -> frozenset[str]:
    """The names of the fields that `__init__` takes."""
    return frozenset(field.name for field in dataclasses.fields(cls) if field.init)


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


@cache
def _model(cls: Any, only: str | None) -> type[BaseModel]:
    """A pydantic model with the class's init fields (or one); unknown annotations of users pass."""
    names: frozenset[str] | set[str] = init_names(cls) if only is None else {only}
    spec: dict[str, Any] = {
        field.name: (_hints(cls)[field.name], ...) for field in dataclasses.fields(cls) if field.name in names
    }
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), strict=False)
    return create_model(cls.__name__, __config__=config, **spec)


def validated(cls: Any, values: dict[str, Any], names: dict[str, str] | None = None) -> dict[str, Any]:
    """The values coerced to the field types of `cls`: all fields, or a single one.

    Args:
        names: how each field is called in messages (default: its flag).

    Raises:
        UsageError: one line for each value that is wrong.
    """
    only = next(iter(values)) if len(values) == 1 else None
    try:
        model = _model(cls, only)(**{name: _plain(value, _hints(cls)[name]) for name, value in values.items()})
    except ValidationError as error:
        raise UsageError("\n".join(_lines(error, names or {}, values))) from None
    return {name: getattr(model, name) for name in values}


def _plain(value: Any, hint: Any) -> Any:
    """Enums of text (transformers' IntervalStrategy) as their text, and paths as text where text is wanted."""
    if isinstance(value, enum.Enum) and isinstance(value, str):
        return value.value
    if isinstance(value, bool) and kinds(hint) <= {int, float, type(None)}:
        return str(value)  # pydantic would take True for 1
    if isinstance(value, os.PathLike) and str in kinds(hint):
        return os.fspath(value)
    return value


def kinds(hint: Any) -> set[Any]:
    """The plain types of an annotation: `list[str] | None` gives list and NoneType."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {kind for part in typing.get_args(hint) for kind in kinds(part)}
    if typing.get_origin(hint) is typing.Annotated:
        return kinds(typing.get_args(hint)[0])
    return {typing.get_origin(hint) or hint}


def _lines(error: ValidationError, names: dict[str, str], values: dict[str, Any]) -> typing.Iterator[str]:
    by_field: dict[str, list[str]] = {}
    for item in error.errors(include_url=False, include_input=False):
        texts = by_field.setdefault(str(item["loc"][0]), [])
        text = _expected(item["msg"])
        if text not in texts:
            texts.append(text)
    for name, expected in by_field.items():
        yield f"{names.get(name, '--' + name)}: got {values.get(name)!r}, expected {' or '.join(expected)}"


def _expected(message: str) -> str:
    """pydantic's `Input should be a valid integer, unable to …` as the noun that was expected."""
    text = message.removeprefix("Input should be ").split(", unable to")[0]
    return text[0].lower() + text[1:] if text else message
