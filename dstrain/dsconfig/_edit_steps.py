"""RFC 6902 operations as steps that data and text can both take."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dstrain.core.errors import UsageError
from dstrain.dsconfig.document import Path


@dataclass(frozen=True, slots=True)
class Step:
    """One change. `rename` gives the key at `path` the name `value`; `insert` puts `value` before an item."""

    kind: Literal["set", "delete", "rename", "insert"]
    path: Path
    value: Any = None


def steps(data: Any, operation: Mapping[str, Any]) -> list[Step] | None:
    """What an operation does to the data; [] when its place does not exist; None when a `test` failed.

    Raises:
        UsageError: the operation is malformed.
    """
    kind = operation.get("op")
    if kind not in ("add", "replace", "remove", "move", "copy", "test"):
        raise UsageError(f"{kind!r} is no operation of a JSON patch")
    path = _pointer(operation.get("path"))
    if kind == "remove":
        return [Step("delete", where)] if (where := _existing(data, path)) else []
    if kind in ("move", "copy"):
        source = _existing(data, _pointer(operation.get("from")))
        return [] if source is None else _moved(data, source, path, kind == "copy")
    if "value" not in operation:
        raise UsageError(f"the operation {kind!r} at {operation.get('path')!r} has no value")
    value = copy.deepcopy(operation["value"])
    if kind == "add":
        return _added(data, path, value)
    where = _existing(data, path)
    if kind == "test":
        return [] if where is not None and _get(data, where) == value else None
    return [Step("set", where, value)] if where is not None else []


def _moved(data: Any, source: Path, path: list[str], is_copy: bool) -> list[Step]:
    value = copy.deepcopy(_get(data, source)) if source else copy.deepcopy(data)
    if is_copy:
        return _added(data, path, value)
    target = _existing(data, path)
    if target == source:
        return []
    if not source or path[: len(source)] == [str(part) for part in source]:
        raise UsageError("a value cannot be moved into itself")
    parent = _get(data, source[:-1])
    if isinstance(parent, dict) and path[:-1] == [str(part) for part in source[:-1]]:
        gone = [Step("delete", (*source[:-1], path[-1]))] if path[-1] in parent else []
        return [*gone, Step("rename", source, path[-1])]
    removal = Step("delete", source)
    return [removal, *_added(on_data(data, removal), path, value)]


def _added(data: Any, path: list[str], value: Any) -> list[Step]:
    if not path:
        return [Step("set", (), value)]
    node, done = data, list[str | int]()
    for index, part in enumerate(path):
        last = index == len(path) - 1
        if isinstance(node, dict):
            if last or part not in node:
                for missing in reversed(path[index + 1 :]):
                    value = {missing: value}
                return [Step("set", (*done, part), value)]
            done.append(part)
            node = node[part]
        elif isinstance(node, list):
            position = len(node) if part == "-" else _index(part)
            if position is None or position > len(node) or (not last and position == len(node)):
                return []
            if last:
                return [Step("insert", (*done, position), value)]
            done.append(position)
            node = node[position]
        else:
            return []
    return []


def on_data(data: Any, step: Step) -> Any:
    """The data with the step made; containers on the way are copied, the rest is shared."""
    if not step.path:
        return step.value
    return _on(data, step.path, step)


def _on(node: Any, path: Path, step: Step) -> Any:
    part = path[0]
    if len(path) > 1:
        changed = node.copy()
        changed[part] = _on(node[part], path[1:], step)
        return changed
    if step.kind == "rename":
        return {(step.value if key == part else key): value for key, value in node.items()}
    changed = node.copy()
    if step.kind == "delete":
        del changed[part]
    elif step.kind == "insert":
        changed.insert(part, step.value)
    else:
        changed[part] = step.value
    return changed


def _pointer(text: Any) -> list[str]:
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise UsageError(f"{text!r} is no JSON pointer: it is empty or starts with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")[1:]]


def _index(part: str) -> int | None:
    return int(part) if part.isascii() and part.isdigit() and len(part) < 10 else None


def _existing(data: Any, pointer: list[str]) -> Path | None:
    """The pointer as a path into the data, indices as numbers; None when there is no such place."""
    node, path = data, list[str | int]()
    for part in pointer:
        if isinstance(node, dict) and part in node:
            path.append(part)
        elif isinstance(node, list) and (index := _index(part)) is not None and index < len(node):
            path.append(index)
        else:
            return None
        node = node[path[-1]]
    return tuple(path)


def _get(data: Any, path: Path) -> Any:
    for part in path:
        data = data[part]
    return data
