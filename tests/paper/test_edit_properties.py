"""Edits against a small reference of RFC 6902: whatever the text looks like, its data are those of the patch."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstrain.dsconfig._write import yaml_document
from dstrain.dsconfig.edit import apply
from dstrain.dsconfig.reader import read_text

pytestmark = pytest.mark.paper

KEYS = st.sampled_from(["a", "b", "stage", "zero_optimization", "x y", "on", "1", "a/b", "é"])
TEXTS = st.sampled_from(
    ["", "cpu", "auto", "1e5", "true", "no", "it's", 'say "x"', "a: b", "# no", "é", "x\ny", "- a", "2020-01-01"]
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**12), 10**12), st.floats(allow_nan=False, allow_infinity=False), TEXTS
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
CONFIGS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


def as_hjson(value: Any, indent: str = "") -> str:
    """A writer of commented HJSON with bare keys and no commas, to edit in."""
    inner = indent + "  "
    if isinstance(value, dict):
        lines = [
            f"{inner}# about {i}\n{inner}{json.dumps(k)}: {as_hjson(v, inner)}"
            for i, (k, v) in enumerate(value.items())
        ]
        return "{\n" + "\n".join(lines) + f"\n{indent}" + "}" if lines else "{ }"
    if isinstance(value, list):
        return (
            "[\n" + "\n".join(f"{inner}{as_hjson(v, inner)}  // item" for v in value) + f"\n{indent}]"
            if value
            else "[]"
        )
    return json.dumps(value)


STYLES = {
    "compact": lambda data: json.dumps(data),
    "tight": lambda data: json.dumps(data, separators=(",", ":")),
    "indented": lambda data: json.dumps(data, indent=4),
    "windows": lambda data: json.dumps(data, indent=2).replace("\n", "\r\n"),
    "comments": as_hjson,
    "trailing": lambda data: json.dumps(data, indent=1).replace("\n}", ",\n}") if data else "{}",
    "yaml": yaml_document,
    "yaml-flow": lambda data: json.dumps(data, ensure_ascii=False),
}


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path]
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        found += places(value, (*path, key))
    return found


def pointer(path: tuple[Any, ...]) -> str:
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def reference(data: Any, op: dict[str, Any]) -> Any:
    """RFC 6902 in the plainest words, for operations that are known to be possible."""
    data = copy.deepcopy(data)

    def find(text: str) -> tuple[Any, Any]:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]
        node = data
        for part in parts[:-1]:
            node = node[int(part) if isinstance(node, list) else part]
        last = parts[-1]
        return node, last if isinstance(node, dict) else len(node) if last == "-" else int(last)

    def take(text: str) -> Any:
        node, key = find(text)
        value = node[key]
        del node[key]
        return value

    def put(text: str, value: Any) -> None:
        node, key = find(text)
        if isinstance(node, list):
            node.insert(key, value)
        else:
            node[key] = value

    if op["op"] == "remove":
        take(op["path"])
    elif op["op"] == "replace":
        node, key = find(op["path"])
        node[key] = op["value"]
    elif op["op"] == "add":
        put(op["path"], op["value"])
    elif op["op"] == "copy":
        node, key = find(op["from"])
        put(op["path"], copy.deepcopy(node[key]))
    else:
        put(op["path"], take(op["from"]))
    return data


@st.composite
def operation(draw: Any, data: Any) -> dict[str, Any]:
    every = places(data)
    inner = [path for path in every if path]
    kind = draw(st.sampled_from(["add", "replace", "remove", "move", "copy"] if inner else ["add"]))
    if kind in ("replace", "remove"):
        path = draw(st.sampled_from(inner))
        return {"op": kind, "path": pointer(path), **({"value": draw(VALUES)} if kind == "replace" else {})}

    def container(path: tuple[Any, ...], of: Any) -> Any:
        for part in path:
            of = of[part]
        return of

    source = draw(st.sampled_from(inner)) if kind in ("move", "copy") else None
    world = reference(data, {"op": "remove", "path": pointer(source)}) if kind == "move" else data
    parents = [path for path in places(world) if isinstance(container(path, world), (dict, list))]
    parent = draw(st.sampled_from(parents))
    node = container(parent, world)
    last = draw(KEYS) if isinstance(node, dict) else draw(st.sampled_from([*map(str, range(len(node) + 1)), "-"]))
    target = pointer((*parent, last))
    if kind == "add":
        return {"op": "add", "path": target, "value": draw(VALUES)}
    if kind == "move" and source is not None and (*parent, last)[: len(source)] == source:
        return {"op": "remove", "path": pointer(source)}
    return {"op": kind, "from": pointer(source or ()), "path": target}


def normal(value: Any) -> Any:
    """As read back: integral floats below 1e10 are integers to hjson; true is not 1."""
    if isinstance(value, dict):
        return {key: normal(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [normal(inner) for inner in value]
    return ("bool", value) if isinstance(value, bool) else value


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), config=CONFIGS, style=st.sampled_from(sorted(STYLES)))
def test_text_follows_the_patch(data: Any, config: dict[str, Any], style: str) -> None:
    text = STYLES[style](config)
    document = read_text(text, "c.yaml" if style.startswith("yaml") else "c.hjson")
    expected, operations = copy.deepcopy(dict(document.data)), []
    for _ in range(data.draw(st.integers(1, 3))):
        chosen = data.draw(operation(expected))
        operations.append(chosen)
        expected = reference(expected, chosen)
    edited = apply(document, operations)
    again = read_text(edited, document.name)
    if expected:
        assert normal(again.data) == normal(expected), edited
        assert not [finding for finding in again.findings if finding.severity == "error"], edited
