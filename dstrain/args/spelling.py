"""Names that are no field of ours: older spellings are taken with a notice, all others refused with what to use."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from dstrain.args._entries import ENTRIES, SEQ2SEQ, Entry
from dstrain.args._removed import ALIASES, REMOVED
from dstrain.core.nearest import nearest

_said: set[str] = set()


@dataclass
class Spelled:
    """What was meant: values by field, older names that were met, notices to print and everything that is wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@cache
def entries() -> dict[str, Entry]:
    """Every field of transformers since 4.37, by name."""
    return {entry.name: entry for entry in (*ENTRIES, *SEQ2SEQ, *REMOVED)}


def others(own: Collection[str]) -> list[str]:
    """Names that are known, but are no fields of `own`."""
    return [name for name, entry in entries().items() if name not in own and entry.status not in ("same", "differs")]


def spell(given: Mapping[str, Any], own: Collection[str], called: Callable[[str], str]) -> Spelled:
    """From what was written to fields of ours.

    Args:
        own: names that are taken as they are.
        called: how a name is called in messages.
    """
    spelled = Spelled()
    for name, value in given.items():
        if name in own:
            spelled.values[name] = value
    for name, value in given.items():
        if name in own:
            continue
        if name in ALIASES:
            _alias(spelled, name, value, given, called)
        elif name in entries():
            if not means_nothing(entries()[name], value):
                spelled.problems.append(f"{called(name)}: {refusal(entries()[name], value)}")
        else:
            hint = meant_by(name, own)
            text = f"; did you mean '{hint}'?" if hint else ""
            spelled.problems.append(f"{called(name)}: unknown argument '{name}'{text}")
    return spelled


def meant_by(name: str, own: Collection[str]) -> str | None:
    """The nearest name of today."""
    near = nearest(name, [*own, *ALIASES])
    return near if near is None or near in own else ALIASES[near].to or None


def _alias(spelled: Spelled, name: str, value: Any, given: Mapping[str, Any], called: Callable[[str], str]) -> None:
    alias = ALIASES[name]
    if value is None or means_nothing(entries()[name], value):
        return
    if not alias.to:
        spelled.notices.append(f"{called(name)}: no effect; {entries()[name].text.removeprefix('nothing: ')}")
        return
    try:
        meant = alias.write(value)
    except ValueError as error:
        spelled.problems.append(f"{called(name)}: {error}")
        return
    if alias.to in given and given[alias.to] is not None and given[alias.to] != meant:
        spelled.problems.append(
            f"{called(name)} is {value!r}, and {called(alias.to)} is {given[alias.to]!r}: the first is an older name "
            f"of the second; give {alias.to} alone"
        )
        return
    spelled.values[alias.to] = meant
    spelled.written[alias.to] = name
    spelled.notices.append(f"{called(name)} is the older name of {alias.to}: taken as {alias.to}={meant!r}")


def means_nothing(entry: Entry, value: Any) -> bool:
    """Whether the value asks for what is done anyway (in flags it is text)."""
    for known in (entry.default, *entry.neutral):
        if value is known or (type(value) is type(known) and value == known):
            return True
        if isinstance(value, str | int | float) and str(value).strip().lower() == str(known).lower():
            return True
        if not isinstance(value, str | bool) and not isinstance(known, bool) and value == known:
            return True
    return False


def refusal(entry: Entry, value: Any) -> str:
    """Why the field is not taken, and what to do instead."""
    what = "not yet supported" if entry.status == "not yet" else "not supported"
    text = f"{entry.name} is {what}" + (f": {entry.text}" if entry.text else "")
    return text if "token" in entry.name else f"{text} (got {value!r})"  # a secret does not belong into a log


def announce(notices: Collection[str]) -> None:
    """Print each notice once in a process, on rank 0."""
    for notice in notices:
        if notice not in _said and os.environ.get("RANK", "0") == "0":
            print(f"note: {notice}", file=sys.stderr)
        _said.add(notice)
