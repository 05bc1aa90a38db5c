"""Reading: values as hjson gives them, the place of every key, and every fault that people paste, with its mend."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import hjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstrain.core.errors import UsageError
from dstrain.core.facts import Mode
from dstrain.core.finding import Severity, render
from dstrain.dsconfig._hjson import parse
from dstrain.dsconfig._tree import Stop
from dstrain.dsconfig.codes import READING
from dstrain.dsconfig.reader import for_mode, is_unreadable, read, read_bytes, read_text

pytestmark = pytest.mark.paper

CASES = Path(__file__).parent / "cases"

# text, ids of the errors, the data, place of the first error, whether a mended text is offered
FAULTY: list[tuple[str, list[str], Any, tuple[int, int], bool]] = [
    ('{"a": True,\n "b": None, "c": 1}', ["DS004", "DS004"], {"a": True, "b": None, "c": 1}, (1, 7), True),
    ("{'a': False, 'b': (0.9, 0.99)}", ["DS004", "DS004"], {"a": False, "b": [0.9, 0.99]}, (1, 7), True),
    ('{"a": .5, "b": 1_000, "c": 0x10}', ["DS004"] * 3, {"a": 0.5, "b": 1000, "c": 16}, (1, 7), True),
    ('{"a": 1,\n "b": {"c": 2}\n', ["DS002"], {"a": 1, "b": {"c": 2}}, (1, 1), True),
    ('{"a": [1, 2, "b": 3}', ["DS002"], {"a": [1, 2], "b": 3}, (1, 7), True),
    ('{"a": 1}}', ["DS002"], {"a": 1}, (1, 9), True),
    ('"a": 1,\n"b": 2\n}', ["DS002"], {"a": 1, "b": 2}, (3, 1), True),
    ('{"a": 1 "b": 2}', ["DS002"], {"a": 1, "b": 2}, (1, 9), True),
    ('{"a" 1, "b"= 2}', ["DS002", "DS002"], {"a": 1, "b": 2}, (1, 5), True),
    ('{"a": , "b": 2}', ["DS002"], {"b": 2}, (1, 7), False),
    ('{"a": 1,, "b": 2}', ["DS002"], {"a": 1, "b": 2}, (1, 9), True),
    ('{"a": "cpu,\n"b": 2}', ["DS002"], {"a": "cpu", "b": 2}, (1, 7), True),
    ('{"a": "x\ty"}', ["DS002"], {"a": "x\ty"}, (1, 9), True),
    ('{"a": "C:\\new\\data"}', ["DS002"], {"a": "C:\\new\\data"}, (1, 7), True),
    ('{"a": 1,\n...\n"b": 2}', ["DS002"], {"a": 1, "b": 2}, (2, 1), True),
    ('{"a": 1, "a": 2}', ["DS003"], {"a": 2}, (1, 10), False),
    ('{"a": 1, "a": 1}', ["DS003"], {"a": 1}, (1, 10), True),
    ('```json\n{"a": 1}\n```\n', ["DS005"], {"a": 1}, (1, 1), True),
    ('Try this:\n```\n{"a": 1}\n```\nIt helps.', ["DS005"], {"a": 1}, (2, 1), True),
    ('{"a": 1}\n```', ["DS005"], {"a": 1}, (2, 1), True),
    ('ds_config = {"a": 1}\n', ["DS005"], {"a": 1}, (1, 1), True),
    (
        '{"a": NaN, "b": -Infinity, "c": 1e400}',
        ["DS006"] * 3,
        {"a": "NaN", "b": "-Infinity", "c": "1e400"},
        (1, 7),
        False,
    ),
    ("{“a”: “b”, “c”: 1}", ["DS007"], {"a": "b", "c": 1}, (1, 2), True),
    ('{\n\u00a0\u00a0"a": 1\n}', ["DS007"], {"a": 1}, (2, 1), True),
    ("[1, 2]", ["DS008"], {}, (1, 1), False),
    ('"text"', ["DS008"], {}, (1, 1), False),
    ("", ["DS009"], {}, (1, 1), False),
    ("// nothing\n", ["DS009"], {}, (1, 1), False),
    ("{a: cpu, b: true}", ["DS011"], {"a": "cpu", "b": True}, (1, 5), True),
    ("{\n a: cpu,\n b: x # hi\n}", ["DS011", "DS011"], {"a": "cpu", "b": "x"}, (2, 5), True),
    ("lr: 1\nzero:\n  stage: 2\n", ["DS014"], {"lr": 1, "zero": {"stage": 2}}, (1, 1), False),
    ("{" * 10_000, ["DS001"], {}, (1, 2), False),
    ("[" * 10_000, ["DS017"], {}, (1, 102), False),
    ('{"a":' * 10_000, ["DS017"], {}, (1, 502), False),
    ('{"a": /* x', ["DS001"], {}, (1, 7), False),
]


@pytest.mark.parametrize(("text", "ids", "data", "place", "mends"), FAULTY, ids=range(len(FAULTY)))
def test_fault(text: str, ids: list[str], data: Any, place: tuple[int, int], mends: bool) -> None:
    document = read_text(text, "c.json")
    errors = [finding for finding in document.findings if finding.severity is Severity.ERROR]
    assert [finding.id for finding in errors] == ids, render(document.findings)
    assert document.data == data
    assert (errors[0].place.line, errors[0].place.column) == place
    assert (document.mended is not None) == mends
    if document.mended is not None:
        again = read_text(document.mended, "c.json")
        assert again.data == data
        assert not [finding for finding in again.findings if finding.severity is Severity.ERROR], document.mended


def test_every_id_of_the_table_is_well_formed() -> None:
    assert list(READING) == sorted(READING)
    for id, code in READING.items():
        assert id == code.id
        assert "DS001" <= id <= "DS019"
        assert code.title
        assert len(code.help) > 60


def test_places_of_keys_and_items() -> None:
    document = read_text('{\n  "zero": {\n    "stage": 2,\n    "betas": [1,\n      2]\n  }\n}', "c.json")
    assert document.places[("zero",)] == (2, 3)
    assert document.places[("zero", "stage")] == (3, 5)
    assert document.places[("zero", "betas", 0)] == (4, 15)
    assert document.places[("zero", "betas", 1)] == (5, 7)
    assert str(document.place("zero.stage")) == "c.json:3:5"
    assert str(document.place("zero.missing")) == "c.json:2:3"


def test_hjson_as_deepspeed_reads_it() -> None:
    head = "{\n  // c\n  a: cpu\n  b: 5e8 # size\n  'c': [1 /* one */\n    2,]\n"
    text = head + "  d:\n    '''\n    x\n    y\n    '''\n  e: 1.0\n}"
    document = read_text(text, "c.hjson")
    assert document.data == {"a": "cpu", "b": 500_000_000, "c": [1, 2], "d": "x\ny", "e": 1}
    assert document.data == hjson.loads(text)
    assert isinstance(document.data["b"], int)
    assert document.format == "hjson"
    assert not document.findings


def test_a_trailing_comma_is_advice_with_a_mend() -> None:
    document = read_text('{"a": [1, 2,], // one\n}', "c.json")
    assert document.data == {"a": [1, 2]}
    assert [(f.id, f.severity, str(f.place)) for f in document.findings] == [("DS010", Severity.ADVICE, "c.json:1:12")]
    assert document.mended == '{"a": [1, 2] // one\n}'
    assert read_text('{"a": [1, 2,]}', "c.hjson").mended is None
    assert read_text('{"a": True, "b": [1,],}', "c.json").mended == '{"a": true, "b": [1]}'


def test_hjson_in_a_json_file_is_advice_and_an_error_for_transformers() -> None:
    document = read_text('{"a": 1, // one\n}', "c.json")
    assert [(f.id, f.severity) for f in document.findings] == [("DS010", Severity.ADVICE)]
    assert for_mode(document, Mode.DEEPSPEED).findings[0].severity is Severity.ADVICE
    assert for_mode(document, Mode.TRANSFORMERS).findings[0].severity is Severity.ERROR
    named = for_mode(read_text('{"a": 1, // one\n}', "c.hjson"), Mode.TRANSFORMERS)
    assert [(f.id, f.severity) for f in named.findings] == [("DS010", Severity.ERROR)]


NEXT = list(zip("abcdefgh", "bcdefghi", strict=True))

YAML = """# head
lr: 1e-5
on: yes
zero: &zero
  stage: 2
  sizes: [5e8, 0x10]
other:
  <<: *zero
  stage: 3
same: *zero
date: 2020-01-01
"""


def test_yaml() -> None:
    document = read_text(YAML, "c.yaml")
    zero = {"stage": 2, "sizes": [500_000_000, 16]}
    other = {"stage": 3, "sizes": [500_000_000, 16]}
    assert document.data == {
        "lr": 1e-5, "on": True, "zero": zero, "other": other, "same": zero, "date": "2020-01-01",
    }  # fmt: skip
    assert document.places[("zero", "sizes", 1)] == (6, 16)
    assert document.places[("other", "sizes")] == (6, 3)
    assert {f.id for f in document.findings} == {"DS015", "DS016"}
    assert read_text(document.mended or "", "c.yaml").data == document.data
    assert [f.id for f in for_mode(document, Mode.DEEPSPEED).findings if f.severity is Severity.ERROR] == ["DS014"]
    assert not [f for f in for_mode(document, Mode.DSTRAIN).findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize(
    "text",
    [
        "a: [1,\n",
        "a:\n\t- b",
        "a: 1\n---\nb: 2\n",
        "? [1]\n: 2\n",
        "a: *a",
        "a: &a [*a]",
        "{" * 5000,
        'a: "x\n',
        "\ud800: 1",
        "- 1",
        "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 9)}]\n" for a, b in NEXT),
    ],
)
def test_yaml_that_cannot_be_read(text: str) -> None:
    document = read_text(text, "c.yaml")
    assert is_unreadable(document)
    assert document.data == {}
    assert document.findings[0].place.line


def test_duplicates_name_both_places() -> None:
    document = read_text('{"a": {"x": 1,\n "x": 2}}', "c.json")
    (finding,) = document.findings
    assert (finding.id, finding.key, str(finding.place)) == ("DS003", "a.x", "c.json:2:2")
    assert [str(place) for place in finding.also] == ["c.json:1:8"]


def test_dicts_and_base64() -> None:
    data = {"a": {"b": [1, 2]}}
    assert read(data).data is data
    coded = base64.urlsafe_b64encode(json.dumps(data).encode()).decode()
    document = read(coded)
    assert (document.name, document.data, document.format) == ("<base64>", data, "dict")


@pytest.mark.parametrize(
    ("content", "id", "data"),
    [
        ('{"a": 1}'.encode("utf-16"), "DS012", {"a": 1}),
        ('{"a": "é"}'.encode("latin-1"), "DS012", {"a": "é"}),
        (b'\xef\xbb\xbf{"a": 1}', "DS013", {"a": 1}),
        (b"\x7fELF\x02\x01\x01" + bytes(90), "DS001", {}),
        (bytes(range(256)) * 4, "DS001", {}),
    ],
)
def test_bytes(content: bytes, id: str, data: Any) -> None:
    document = read_bytes(content, "c.json")
    assert [finding.id for finding in document.findings] == [id]
    assert document.data == data
    if data:
        assert read_text(document.mended or "", "c.json").findings == ()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{"a": 1}')
    assert read(path).data == {"a": 1}
    with pytest.raises(UsageError, match=r"ds_config\.json") as missing:
        read(str(tmp_path / "ds_confg.json"))
    assert "did you mean 'ds_config.json'?" in str(missing.value)
    with pytest.raises(UsageError):
        read(tmp_path)
    monkeypatch.setattr("dstrain.dsconfig.reader.MAX_BYTES", 3)
    assert [finding.id for finding in read(path).findings] == ["DS018"]


WORDS = """{ } [ ] : , "a" "b" 'c' key 1 2.5 1e5 -3 1e12 true false null True text / - 1.0 " \\ "\\u00e9" :{ "k":"""
SPACES = [" ", "\n", "\t", "# c\n", "// x\n", "/* y */", "x y", "'''\n x\n'''", "\r\n", "\u00a0", ",\n", "}\n"]
PIECES = st.sampled_from([*WORDS.split(), *SPACES])
SOUP = st.lists(PIECES, max_size=14).map("".join)
BRACED = SOUP.map(lambda text: "{" + text + "}")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=SOUP | BRACED)
def test_same_values_as_hjson(text: str) -> None:
    """Where hjson 3.1.0 (DeepSpeed's reader) reads a mapping, so do we, with the same values; and the reverse."""
    try:
        theirs = hjson.loads(text, object_pairs_hook=dict)
    except (ValueError, IndexError, OverflowError):
        theirs = Stop
    try:
        ours: Any = parse(text).root.data()
    except Stop:
        ours = Stop
    if isinstance(theirs, dict) or isinstance(ours, dict):
        assert json.dumps(ours, default=str) == json.dumps(theirs, default=str)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(text=SOUP | BRACED | st.text(max_size=40), name=st.sampled_from(["c.json", "c.yaml", "c"]))
def test_reading_never_fails(text: str, name: str) -> None:
    document = read_text(text, name)
    assert isinstance(document.data, dict)
    assert document.data or document.findings or text.strip().startswith("{")
    if document.mended is not None:
        assert read_text(document.mended, name).data == document.data
    assert "Traceback" not in render(document.findings)


@pytest.mark.parametrize("path", sorted(CASES.glob("*")), ids=lambda path: path.name)
def test_finds_of_the_fuzzer(path: Path) -> None:
    """Inputs on which a fuzzer once made the reader, a rule or the renderer fail."""
    from dstrain.cli._config_check import check, lines_of

    document = read(path)
    for mode in Mode:
        checked = check(document, mode, None)
        assert "\n".join(line for finding in checked.findings for line in lines_of(finding)) or not checked.findings
