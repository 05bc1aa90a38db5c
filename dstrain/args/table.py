"""Every field of transformers' arguments since 4.37 against ours, and docs/arguments.md made from it.

`python -m dstrain.args.table docs/arguments.md` writes the page.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dstrain.args._entries import ENTRIES, SEQ2SEQ, Entry
from dstrain.args._removed import ALIASES, REMOVED
from dstrain.args.training import TrainingArguments
from dstrain.args.validate import default_of
from dstrain.core.atomic import write_text
from dstrain.core.docstrings import attribute_docstrings

__all__ = ["ENTRIES", "REMOVED", "SEQ2SEQ", "Entry", "main", "page"]

_HEAD = """# Arguments

Every field of transformers' `TrainingArguments` and `Seq2SeqTrainingArguments` (5.24, and those that are gone since
4.37), and what dstrain does with it. This page is made from `dstrain/args/table.py`: `make docs`.

- *same*: same name, meaning and default.
- *differs*: works, and the last column says what is different.
- *alias*: an older spelling, taken with one line of notice.
- *not yet*: named honestly; refused by name.
- *absent*: refused by name, with what to use instead.

What is absent or not yet there is still taken when it asks for what is done anyway (`push_to_hub=False`), so that the
arguments of an older run can be read. Flags, JSON, YAML and Python give the same object, all names are taken in all of
them, and a name that is unknown is refused with the nearest one. Marks: M must have, N nice to have, I not wanted.
"""
_ORDER = ("same", "differs", "alias", "not yet", "absent")


def page() -> str:
    """docs/arguments.md."""
    parts = [_HEAD]
    for title, entries in (
        ("TrainingArguments", ENTRIES),
        ("Seq2SeqTrainingArguments", SEQ2SEQ),
        ("Gone from transformers since 4.37", REMOVED),
    ):
        parts += [f"## {title}\n", _counts(entries), "", *_rows(entries), ""]
    parts += ["## Of dstrain alone\n", "| field | default | meaning |", "|---|---|---|", *_own(), ""]
    return "\n".join(parts)


def _counts(entries: Sequence[Entry]) -> str:
    found = [(status, sum(entry.status == status for entry in entries)) for status in _ORDER]
    return f"{len(entries)} fields: " + ", ".join(f"{count} {status}" for status, count in found if count) + "."


def _rows(entries: Iterable[Entry]) -> Iterable[str]:
    helps = attribute_docstrings(TrainingArguments)
    defaults = {field.name: default_of(field) for field in dataclasses.fields(TrainingArguments)}
    yield "| field | default in transformers | default here | mark | state | meaning, or what to use instead |"
    yield "|---|---|---|---|---|---|"
    for entry in entries:
        here = f"`{defaults[entry.name]!r}`" if entry.name in defaults else ""
        text = " ".join(part for part in (helps.get(entry.name, ""), _note(entry)) if part)
        yield _row(f"`{entry.name}`", f"`{entry.default!r}`", here, entry.mark, entry.status, text)


def _note(entry: Entry) -> str:
    if entry.status == "alias":
        alias = ALIASES[entry.name]
        return f"→ `{alias.to}`" if alias.to else f"no effect, with a notice; {entry.text.removeprefix('nothing: ')}"
    if entry.status == "differs":
        return f"*Differs:* {entry.text}."
    return entry.text


def _own() -> Iterable[str]:
    theirs = {entry.name for entry in (*ENTRIES, *SEQ2SEQ, *REMOVED)}
    helps = attribute_docstrings(TrainingArguments)
    for field in dataclasses.fields(TrainingArguments):
        if field.name not in theirs:
            yield _row(f"`{field.name}`", f"`{default_of(field)!r}`", helps[field.name])


def _row(*cells: Any) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page to the path that is given."""
    paths = sys.argv[1:] if argv is None else argv
    if len(paths) != 1:
        print("usage: python -m dstrain.args.table docs/arguments.md", file=sys.stderr)
        return 2
    write_text(Path(paths[0]), page())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
