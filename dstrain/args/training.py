"""`TrainingArguments`: everything a user may say in Python, flat, validated by pydantic, and a real dataclass."""

from __future__ import annotations

import dataclasses
import json
import typing
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from dstrain.args.sections import (
    BackendArguments,
    BatchArguments,
    DataArguments,
    DeviceArguments,
    EvalArguments,
    LengthArguments,
    LoggingArguments,
    OptimizerArguments,
    OutputArguments,
    PrecisionArguments,
    SaveArguments,
    ScheduleArguments,
    SeedArguments,
)
from dstrain.core.errors import UsageError
from dstrain.core.source import DEFAULT, Source


@dataclass
class TrainingArguments(
    BackendArguments,
    DeviceArguments,
    SeedArguments,
    DataArguments,
    SaveArguments,
    EvalArguments,
    LoggingArguments,
    PrecisionArguments,
    ScheduleArguments,
    OptimizerArguments,
    LengthArguments,
    BatchArguments,
    OutputArguments,
):
    """All arguments of a run, flat. `output_dir` may be given by position.

    A user's own `@dataclass` subclass with more fields is validated just the same: checking happens after
    initialisation, against a pydantic model made from the class's own annotations.

    Raises:
        UsageError: with every value that is wrong, not only the first.
    """

    def __post_init__(self) -> None:
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.init}
        for name, value in validated(type(self), values).items():
            setattr(self, name, value)
        problems = list(self._section_problems())
        if problems:
            raise UsageError("\n".join(problems))

    def _section_problems(self) -> typing.Iterator[str]:
        """Checks inside one section; whatever spans sections or needs a fact is a rule."""
        if self.bf16 and self.fp16:
            yield "--bf16 and --fp16 are both on: choose one"
        if self.max_steps < -1 or self.max_steps == 0:
            yield f"--max_steps: {self.max_steps} is no number of steps; expected -1 (by epochs) or 1 and more"
        if self.dataloader_prefetch_factor is not None and self.dataloader_num_workers == 0:
            yield (
                f"--dataloader_prefetch_factor: {self.dataloader_prefetch_factor} has no effect without loader "
                "processes; add --dataloader_num_workers 2"
            )
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            yield "--dataloader_persistent_workers has no effect without loader processes; add --dataloader_num_workers"

    @property
    def sources(self) -> dict[str, Source]:
        """Where each value came from: a flag, a file position, Python, or the default."""
        known: dict[str, Source] = getattr(self, "_sources", {})
        found = {}
        for field in fields(self):
            if field.name in known:
                found[field.name] = known[field.name]
            elif getattr(self, field.name) == default_of(field):
                found[field.name] = DEFAULT
            else:
                found[field.name] = Source("python", f"TrainingArguments({field.name}=…)")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field name."""
        return dataclasses.asdict(self)

    def to_json_string(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default value, made anew where it has a factory; `dataclasses.MISSING` where it has none."""
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return dataclasses.MISSING


@cache
def _model(cls: type[Any]) -> type[BaseModel]:
    """A pydantic model with the class's init fields; unknown annotations of user subclasses are let through."""
    hints = typing.get_type_hints(cls, include_extras=True)
    spec: dict[str, Any] = {field.name: (hints[field.name], ...) for field in dataclasses.fields(cls) if field.init}
    config = ConfigDict(arbitrary_types_allowed=True, protected_namespaces=(), strict=False)
    return create_model(cls.__name__, __config__=config, **spec)


def validated(cls: type[Any], values: dict[str, Any], names: dict[str, str] | None = None) -> dict[str, Any]:
    """The values coerced to the field types of `cls`.

    Args:
        names: how each field is called in messages (default: its flag).

    Raises:
        UsageError: one line for each value that is wrong.
    """
    try:
        model = _model(cls)(**values)  # type: ignore[arg-type]  # a class is hashable
    except ValidationError as error:
        raise UsageError("\n".join(_lines(error, names or {}))) from None
    return {name: getattr(model, name) for name in values}


def _lines(error: ValidationError, names: dict[str, str]) -> typing.Iterator[str]:
    by_field: dict[str, list[str]] = {}
    inputs: dict[str, Any] = {}
    for item in error.errors(include_url=False):
        name = str(item["loc"][0])
        by_field.setdefault(name, [])
        text = _expected(item["msg"])
        if text not in by_field[name]:
            by_field[name].append(text)
        inputs[name] = item["input"]
    for name, expected in by_field.items():
        yield f"{names.get(name, '--' + name)}: got {inputs[name]!r}, expected {' or '.join(expected)}"


def _expected(message: str) -> str:
    """pydantic's `Input should be a valid integer, unable to …` as the noun that was expected."""
    text = message.removeprefix("Input should be ").split(", unable to")[0]
    return text[0].lower() + text[1:] if text else message
