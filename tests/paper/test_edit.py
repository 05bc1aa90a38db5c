"""Patches keep what the person wrote around them: comments, order, indentation, the style of keys."""

from __future__ import annotations

from typing import Any

import pytest

from dstrain.core.errors import UsageError
from dstrain.dsconfig.edit import apply, apply_to_data
from dstrain.dsconfig.reader import read, read_text

pytestmark = pytest.mark.paper

HJSON = """{
    // batch
    "train_batch_size": 8, // eight
    "zero": {
        "stage": 2,  # two
        /* x */ "overlap_comm": "true"
    },
    "bf16": {"enabled": true, "sizes": [1, 2]},
    "last": 1 // end
}
"""

YAML = """# head
train_batch_size: 8  # eight
zero:
  stage: 2   # two
  # own line
  overlap_comm: "true"
opt:
  betas:
    - 0.9
    - 0.99  # b
last: 1
"""


def patched(text: str, *operations: dict[str, Any], name: str = "c.hjson") -> str:
    document = read_text(text, name)
    edited = apply(document, operations)
    assert read_text(edited, name).data == apply_to_data(document.data, operations)
    return edited


def test_rename_keeps_the_section_and_its_comments() -> None:
    edited = patched(HJSON, {"op": "move", "from": "/zero", "path": "/zero_optimization"})
    assert edited == HJSON.replace('"zero"', '"zero_optimization"')
    edited = patched(YAML, {"op": "move", "from": "/zero", "path": "/zero_optimization"}, name="c.yaml")
    assert edited == YAML.replace("zero:", "zero_optimization:")


def test_replace() -> None:
    operation = {"op": "replace", "path": "/zero/overlap_comm", "value": True}
    assert patched(HJSON, operation) == HJSON.replace('"true"', "true")
    assert patched(YAML, operation, name="c.yaml") == YAML.replace('"true"', "true")


def test_remove_first_middle_last_and_only() -> None:
    assert patched(HJSON, {"op": "remove", "path": "/train_batch_size"}) == HJSON.replace(
        '    "train_batch_size": 8, // eight\n', ""
    )
    last = patched(HJSON, {"op": "remove", "path": "/last"})
    assert last.endswith('"sizes": [1, 2]}\n}\n')
    assert "// eight" in last
    assert '"bf16": {"sizes": [1, 2]}' in patched(HJSON, {"op": "remove", "path": "/bf16/enabled"})
    assert '"bf16": {"enabled": true}' in patched(HJSON, {"op": "remove", "path": "/bf16/sizes"})
    assert '"sizes": [2]' in patched(HJSON, {"op": "remove", "path": "/bf16/sizes/0"})
    assert patched('{"a": {"b": 1}}', {"op": "remove", "path": "/a/b"}) == '{"a": {}}'
    assert (
        patched("a:\n  b: 1 # x\nc: 2 # y\n", {"op": "remove", "path": "/a/b"}, name="c.yaml")
        == "a: {} # x\nc: 2 # y\n"
    )


def test_add_takes_the_indentation_that_is_there() -> None:
    edited = patched(HJSON, {"op": "add", "path": "/zero/offload", "value": {"device": "cpu"}})
    assert (
        '        /* x */ "overlap_comm": "true",\n        "offload": {\n            "device": "cpu"\n        }\n'
        in edited
    )
    edited = patched(HJSON, {"op": "add", "path": "/gradient_clipping", "value": 0.5})
    assert edited.endswith('    "last": 1, // end\n    "gradient_clipping": 0.5\n}\n')
    edited = patched(YAML, {"op": "add", "path": "/zero/offload", "value": {"device": "cpu"}}, name="c.yaml")
    assert '  overlap_comm: "true"\n  offload:\n    device: cpu\nopt:' in edited
    edited = patched(YAML, {"op": "add", "path": "/opt/betas/1", "value": 0.95}, name="c.yaml")
    assert "    - 0.9\n    - 0.95\n    - 0.99  # b\n" in edited


def test_add_makes_missing_sections() -> None:
    edited = patched('{\n  "a": 1\n}\n', {"op": "add", "path": "/scheduler/params/lr", "value": 1e-5})
    assert edited == '{\n  "a": 1,\n  "scheduler": {\n    "params": {\n      "lr": 1e-05\n    }\n  }\n}\n'


def test_styles_of_hjson() -> None:
    assert patched("{\n  a: cpu\n}", {"op": "add", "path": "/b", "value": 1}) == '{\n  a: cpu\n  "b": 1\n}'
    assert patched("a: 1\nb: 2\n", {"op": "move", "from": "/a", "path": "/c"}) == "c: 1\nb: 2\n"
    assert patched("{\n  a: 1,\n}", {"op": "add", "path": "/b", "value": 1}) == '{\n  a: 1,\n  "b": 1,\n}'
    windows = '{\r\n  "a": 1\r\n}\r\n'
    assert patched(windows, {"op": "add", "path": "/b", "value": {"c": 1}}) == (
        '{\r\n  "a": 1,\r\n  "b": {\r\n    "c": 1\r\n  }\r\n}\r\n'
    )


def test_a_move_into_another_section() -> None:
    text = '{\n  "stage": 2,\n  "zero": {}\n}\n'
    edited = patched(text, {"op": "move", "from": "/stage", "path": "/zero/stage"})
    assert edited == '{\n  "zero": {\n    "stage": 2\n  }\n}\n'


def test_reading_mends_come_first() -> None:
    document = read_text("```\n{'a': True, 'b': 1}\n```\n", "c.json")
    assert apply(document, []) == "{'a': true, 'b': 1}\n"
    assert apply(document, [{"op": "remove", "path": "/b"}]) == "{'a': true}\n"


def test_removing_a_duplicate_key_removes_both() -> None:
    assert patched('{"a": 1, "a": 2, "b": 3}', {"op": "remove", "path": "/a"}) == '{"b": 3}'


def test_an_alias_is_written_out() -> None:
    text = "a: &x\n  k: 1\nb: *x\n"
    edited = patched(text, {"op": "replace", "path": "/b/k", "value": 2}, name="c.yaml")
    assert read_text(edited, "c.yaml").data == {"a": {"k": 1}, "b": {"k": 2}}


def test_applying_twice_changes_nothing_more() -> None:
    operations = [
        {"op": "move", "from": "/zero", "path": "/zero_optimization"},
        {"op": "remove", "path": "/last"},
        {"op": "add", "path": "/x", "value": [1, {"y": None}]},
        {"op": "replace", "path": "/nowhere/x", "value": 1},
        {"op": "copy", "from": "/nowhere", "path": "/somewhere"},
        {"op": "test", "path": "/x", "value": "not this"},
        {"op": "remove", "path": "/x"},
    ]
    once = patched(HJSON, *operations)
    assert '"x"' in once
    assert patched(once, *operations) == once


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "jump", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
        {"op": "add", "path": "/a"},
        {"op": "add", "path": "", "value": [1]},
        {"op": "add", "path": "/b", "value": float("nan")},
        {"op": "add", "path": "/b", "value": {1: 2}},
        {"op": "add", "path": "/b", "value": object()},
        {"op": "move", "from": "/a", "path": "/a/b"},
    ],
)
def test_malformed_operations(operation: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        apply(read_text('{"a": {}}', "c.json"), [operation])


def test_dicts_are_written_as_json() -> None:
    assert apply(read({"a": 1}), [{"op": "add", "path": "/b", "value": [1, 2]}]) == '{\n  "a": 1,\n  "b": [1, 2]\n}\n'
