"""Arguments from flags, a JSON or a YAML file: all give the same object, and all mistakes come at once."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import typing
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

import yaml

from dstrain.args._removed import ALIASES
from dstrain.args.spelling import announce, meant_by, others, spell
from dstrain.args.training import TrainingArguments
from dstrain.args.validate import default_of, kinds, validated
from dstrain.core.docstrings import attribute_docstrings
from dstrain.core.errors import UsageError
from dstrain.core.source import Source

A = TypeVar("A")
B = TypeVar("B")
_FILES = (".json", ".yaml", ".yml")


class _OneOrMany(argparse.Action):
    """A flag alone is true, with one word it is that word, with more a list."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, values: Any, _option: str | None = None) -> None:
        setattr(namespace, self.dest, True if not values else values[0] if len(values) == 1 else values)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


@overload
def parse_args(first: type[A], /, *, argv: Sequence[str] | None = None) -> tuple[A]: ...
@overload
def parse_args(first: type[A], second: type[B], /, *, argv: Sequence[str] | None = None) -> tuple[A, B]: ...
@overload
def parse_args(*classes: type[Any], argv: Sequence[str] | None = None) -> tuple[Any, ...]: ...
def parse_args(*classes: type[Any], argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """One object for each dataclass, from the command line.

    `train.py settings.yaml --learning_rate 1e-3` reads the file first; flags win over it. The `deepspeed` launcher's
    leading `--local_rank=N` is understood in any place.

    Args:
        classes: dataclasses (ours, the user's own) whose field names do not overlap; default `TrainingArguments`.
        argv: the command line without the program (default: `sys.argv[1:]`).

    Raises:
        UsageError: every unknown flag (with the nearest known one) and every wrong value, together.
    """
    classes = classes or (TrainingArguments,)
    tokens = list(sys.argv[1:] if argv is None else argv)
    owners = _owners(classes)
    older = others(owners) if any(issubclass(cls, TrainingArguments) for cls in classes) else []
    given: dict[str, tuple[Any, Source]] = {}
    problems: list[str] = []
    if file := _leading_file(tokens):
        tokens.remove(file)
        given.update(_from_file(file, owners, older, problems))
    parser = _parser(classes, tuple(older), bool({"-h", "--help"} & set(sys.argv)))
    namespace, unknown = parser.parse_known_args(tokens)
    problems += _unknown_flags(unknown, owners)
    for name, value in vars(namespace).items():
        given[name] = (value, Source("flag", f"--{name}"))
    given, notices = _newer(given, owners, problems)
    objects = [_build(cls, given, problems) for cls in classes]
    if problems:
        raise UsageError("\n".join(problems))
    announce(notices)
    return tuple(objects)


def _newer(
    given: dict[str, tuple[Any, Source]], owners: dict[str, type[Any]], problems: list[str]
) -> tuple[dict[str, tuple[Any, Source]], list[str]]:
    """What was given by field of today."""

    def called(name: str) -> str:
        source = given[name][1]
        return f"{source}: {name}" if source.kind == "file" else str(source)

    # A flag wins over the file, whichever spelling either has.
    flags = {ALIASES[name].to for name, (_, source) in given.items() if name in ALIASES and source.kind == "flag"}
    values = {
        name: value
        for name, (value, source) in given.items()
        if source.kind == "flag" or (name not in flags and not _given_by_flag(name, given))
    }
    said = spell(values, owners, called)
    problems += said.problems
    return {name: (value, given[said.written.get(name, name)][1]) for name, value in said.values.items()}, said.notices


def _given_by_flag(name: str, given: dict[str, tuple[Any, Source]]) -> bool:
    newer = ALIASES[name].to if name in ALIASES else ""
    return newer in given and given[newer][1].kind == "flag"


def _owners(classes: Sequence[type[Any]]) -> dict[str, type[Any]]:
    owners: dict[str, type[Any]] = {}
    for cls in classes:
        for field in dataclasses.fields(cls):
            if field.init:
                owners[field.name] = cls
    return owners


def _leading_file(tokens: Sequence[str]) -> str | None:
    bare = [token for token in tokens if not token.startswith("--local_rank")]
    return bare[0] if bare and not bare[0].startswith("-") and bare[0].endswith(_FILES) else None


def _from_file(
    file: str, owners: Collection[str], older: Collection[str], problems: list[str]
) -> dict[str, tuple[Any, Source]]:
    try:
        text = Path(file).read_text()
    except OSError as error:
        raise UsageError(f"cannot read the arguments file: {error.strerror}", where=file) from None
    try:
        loaded = json.loads(text) if file.endswith(".json") else yaml.safe_load(text)
    except json.JSONDecodeError as error:
        raise UsageError(error.msg, where=f"{file}:{error.lineno}:{error.colno}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise UsageError(str(getattr(error, "problem", error)), where=where) from None
    if not isinstance(loaded, dict):
        raise UsageError(f"expected a mapping of arguments, found {type(loaded).__name__}", where=file)
    lines = text.splitlines()
    given = {}
    for name, value in loaded.items():
        line = next((i for i, row in enumerate(lines, 1) if row.strip().strip("{\"'").startswith(str(name))), None)
        where = f"{file}:{line}" if line else file
        if name not in owners and name not in older:
            hint = meant_by(str(name), owners)
            problems.append(f"{where}: unknown argument '{name}'" + (f"; did you mean '{hint}'?" if hint else ""))
            continue
        given[name] = (value, Source("file", where))
    return given


@cache
def _parser(classes: tuple[Any, ...], older: tuple[str, ...], with_help: bool) -> _Parser:
    parser = _Parser(allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for cls in classes:
        group = parser.add_argument_group(cls.__name__)
        helps = attribute_docstrings(cls) if with_help else {}
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if field.init:
                _add(group, field, hints[field.name], helps.get(field.name, ""))
    for name in older:
        names = dict.fromkeys((f"--{name}", "--" + name.replace("_", "-")))
        parser.add_argument(*names, dest=name, nargs="*", action=_OneOrMany, help=argparse.SUPPRESS)
    return parser


def _add(group: Any, field: dataclasses.Field[Any], hint: Any, text: str) -> None:
    found = kinds(hint)
    names = [f"--{field.name}"]
    if "-" not in field.name and "_" in field.name:
        names.append("--" + field.name.replace("_", "-"))
    options: dict[str, Any] = {"dest": field.name, "help": text.replace("%", "%%")}
    if bool in found:
        options |= {"nargs": "?", "const": True}
    elif list in found:
        options |= {"nargs": "+"}
    if dict in found:
        options |= {"type": _json_or_text}
    group.add_argument(*names, metavar=field.name.upper(), **options)


def _json_or_text(text: str) -> Any:
    if not text.lstrip().startswith("{"):
        return text
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text  # the field's own check says what is wrong with it, beside all other mistakes


def _unknown_flags(unknown: Sequence[str], owners: dict[str, type[Any]]) -> list[str]:
    problems = []
    for token in unknown:
        if not token.startswith("-"):
            continue
        name = token.lstrip("-").split("=")[0].replace("-", "_")
        hint = meant_by(name, owners)
        problems.append(f"unknown flag --{name}" + (f"; did you mean '--{hint}'?" if hint else ""))
    if not problems and unknown:
        problems.append(f"unexpected text on the command line: {' '.join(unknown)}")
    return problems


def _build(cls: type[Any], given: dict[str, tuple[Any, Source]], problems: list[str]) -> Any:
    own = {field.name for field in dataclasses.fields(cls) if field.init}
    values = {name: value for name, (value, _) in given.items() if name in own}
    names = {name: str(source) for name, (_, source) in given.items() if name in own}
    required = [
        field.name
        for field in dataclasses.fields(cls)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in values
    ]
    if required:
        problems += [f"--{name} is required" for name in required]
        return None
    defaults = {
        field.name: default_of(field) for field in dataclasses.fields(cls) if field.init and field.name not in values
    }
    try:
        built = cls(**validated(cls, {**defaults, **values}, names))
    except UsageError as error:
        problems.append(error.message)
        return None
    object.__setattr__(built, "_sources", {name: source for name, (_, source) in given.items() if name in own})
    return built
