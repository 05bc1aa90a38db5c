"""The table of arguments against the dataclass and the page in docs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from dstrain.args import TrainingArguments, table
from dstrain.args._removed import ALIASES

pytestmark = pytest.mark.paper
_PAGE = Path(__file__).parents[2] / "docs" / "arguments.md"
_ALL = (*table.ENTRIES, *table.SEQ2SEQ, *table.REMOVED)
_FIELDS = {field.name: field for field in dataclasses.fields(TrainingArguments)}


def test_each_name_is_there_once() -> None:
    names = [entry.name for entry in _ALL]
    assert len(names) == len(set(names))
    assert (len(table.ENTRIES), len(table.SEQ2SEQ), len(table.REMOVED)) == (114, 5, 33)


@pytest.mark.parametrize("entry", _ALL, ids=lambda entry: entry.name)
def test_an_entry_says_what_the_dataclass_does(entry: table.Entry) -> None:
    is_field = entry.name in _FIELDS
    assert is_field == (entry.status in ("same", "differs"))
    assert (entry.status == "alias") == (entry.name in ALIASES)
    if entry.status == "same":
        assert _FIELDS[entry.name].default == entry.default
    if entry.status in ("differs", "absent"):
        assert entry.text
    if entry.status == "alias" and ALIASES[entry.name].to:
        assert ALIASES[entry.name].to in _FIELDS


def test_what_it_says_to_use_instead_is_there() -> None:
    for entry in _ALL:
        for name in re.findall(r"use (\w+_\w+)", entry.text):
            assert name in _FIELDS, entry


def test_the_page_is_the_tables(tmp_path: Path) -> None:
    assert table.main([str(tmp_path / "page.md")]) == 0
    written = (tmp_path / "page.md").read_text()
    assert written == _PAGE.read_text(), "make docs"
    for name in (*(entry.name for entry in _ALL), *_FIELDS):
        assert f"`{name}`" in written


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main([]) == 2
    assert "usage" in capsys.readouterr().err
