"""Patches on a configuration's text: RFC 6902 operations that keep comments, key order and indentation.

An operation becomes one or two steps (set, delete, rename, insert). Each step is made on the data and on the text; the
text is read again, and only if it says what the data say is the step's edit kept. Else the whole is written anew: the
values are always right, and comments are lost only where a text is too unusual to be edited in place.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dstrain.core.errors import UsageError
from dstrain.dsconfig import _edit_braces, _edit_yaml
from dstrain.dsconfig._edit_steps import Step, on_data, steps
from dstrain.dsconfig._tree import Edit, Node, Stop, apply_edits
from dstrain.dsconfig._write import json_document, yaml_document
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.reader import read_tree

Operation = Mapping[str, Any]


def apply(document: Document, patches: Sequence[Operation]) -> str:
    """The document's text with the operations applied, after the mends of what reading found.

    `add`, `replace`, `remove`, `move`, `copy` and `test` as in RFC 6902, with two differences that make a patch safe to
    apply twice: an operation whose place does not exist is left out, and `add` makes the sections that are missing on
    its way. A failed `test` leaves out what follows it. Documents without a text (dicts, base64) are written as JSON.

    Raises:
        UsageError: an operation is malformed, or a value cannot be written as JSON.
    """
    base = document.mended if document.mended is not None else document.text
    text = json_document(document.data) if base is None else base
    yaml = document.format == "yaml"
    data: Any = copy.deepcopy(dict(document.data))
    for operation in patches:
        planned = steps(data, operation)
        if planned is None:
            break
        for step in planned:
            changed = on_data(data, step)
            if not _same(changed, data):
                text = _on_text(text, step, changed, yaml)
            data = changed
    return text


def apply_to_data(data: Mapping[str, Any], patches: Sequence[Operation]) -> dict[str, Any]:
    """The same operations on plain data; `data` is left as it is."""
    result: Any = copy.deepcopy(dict(data))
    for operation in patches:
        planned = steps(result, operation)
        if planned is None:
            break
        for step in planned:
            result = on_data(result, step)
    if not isinstance(result, dict):
        raise UsageError("a patch would make the configuration something other than a section")
    return result


def _on_text(text: str, step: Step, wanted: Any, yaml: bool) -> str:
    if not isinstance(wanted, dict):
        raise UsageError("a patch would make the configuration something other than a section")
    for edits in _attempts(text, step, yaml):
        edited = apply_edits(text, edits)
        try:
            if _same(read_tree(edited, yaml=yaml).data(), wanted):
                return edited
        except Stop:
            continue
    return yaml_document(wanted) if yaml else json_document(wanted)


def _attempts(text: str, step: Step, yaml: bool) -> Iterator[list[Edit]]:
    try:
        root = read_tree(text, yaml=yaml)
    except Stop:
        return
    parent = _follow(root, step.path[:-1]) if step.path else None
    if parent is None:
        return
    if parent.style == "block" and step.kind == "delete" and len(parent.children) == 1 and len(step.path) > 1:
        # YAML has no empty block: the section becomes {} or [].
        yield from _attempts(text, Step("set", step.path[:-1], parent.data().__class__()), yaml)
        return
    if parent.style == "block":
        edits = _edit_yaml.change(text, parent, step)
    else:
        edits = _edit_braces.change(text, root, parent, step, yaml=yaml)
    if edits is not None:
        yield edits


def _follow(root: Node, path: Sequence[str | int]) -> Node | None:
    """The node at a path; None when the way leads through a YAML alias, whose text belongs to another section too."""
    node = root
    for part in path:
        found = [
            child for index, child in enumerate(node.children) if (index if child.key is None else child.key) == part
        ]
        if not found or found[-1].node.style == "alias":
            return None
        node = found[-1].node
    return node


def _same(first: Any, second: Any) -> bool:
    """Equality in which true is not 1; 1.0 is 1, as HJSON has no other way to write it."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    return bool(first == second)
