"""Steps on the block style of YAML, where indentation is the syntax."""

from __future__ import annotations

from typing import Any

from dstrain.dsconfig._edit_steps import Step
from dstrain.dsconfig._scan import line_end
from dstrain.dsconfig._tree import Child, Edit, Node
from dstrain.dsconfig._write import block, flow, yaml_key


def change(text: str, parent: Node, step: Step) -> list[Edit] | None:
    """The edits that make a step in `parent`, a block collection; None where that cannot be done in place."""
    own = [child for child in parent.children if not child.merged]
    if not own:
        return None
    matching = _at(own, step)
    if step.kind == "insert" or (step.kind == "set" and not matching):
        return _insert(text, parent, own, step)
    if not matching or (step.kind == "delete" and len(matching) != len(_at(parent.children, step))):
        return None
    if step.kind == "rename":
        return [Edit(matching[-1].start, matching[-1].key_end, yaml_key(step.value))]
    if step.kind == "set":
        return _set(text, matching[-1], step.value)
    if len(matching) == len(own):
        return None
    return [edit for child in matching for edit in _delete(text, own, child)]


def _at(children: list[Child], step: Step) -> list[Child]:
    last = step.path[-1]
    return [child for index, child in enumerate(children) if (index if child.key is None else child.key) == last]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _column(text: str, at: int) -> int:
    return at - (text.rfind("\n", 0, at) + 1)


def _indent(text: str, own: list[Child]) -> str:
    """The indentation of a mapping's keys, the first of which may stand behind a dash."""
    return " " * _column(text, own[0].start)


def _line_before(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : at]


def _dash(text: str, child: Child) -> int | None:
    """Where the dash of an item stands, if it is the first thing on the item's line."""
    line = _line_before(text, child.start)
    return child.start - len(line) + line.index("-") if line.strip() == "-" else None


def _insert(text: str, parent: Node, own: list[Child], step: Step) -> list[Edit] | None:
    newline = _newline(text)
    if parent.kind == "object":
        indent = _indent(text, own)
        written = f"{yaml_key(step.path[-1])}:{block(step.value, indent, newline=newline)}"
    else:
        dash = _dash(text, own[0])
        if dash is None:
            return None
        indent = " " * _column(text, dash)
        written = f"- {flow(step.value, '', '', yaml=True)}"
        index = step.path[-1]
        if isinstance(index, int) and index < len(own):
            before = _dash(text, own[index])
            return None if before is None else [Edit(before, before, written + newline + indent)]
    end = line_end(text, max(child.node.end for child in own))
    return [Edit(end, end, newline + indent + written)]


def _set(text: str, child: Child, value: Any) -> list[Edit] | None:
    node = child.node
    if child.key is None:
        return [Edit(node.start, node.end, flow(value, "", "", yaml=True))]
    colon = text.find(":", child.key_end)
    if colon < 0:
        return None
    simple = node.style != "block" and not (isinstance(value, dict) and value)
    if simple and node.end > node.start:
        return [Edit(node.start, node.end, flow(value, "", "", yaml=True))]
    indent = " " * _column(text, child.start)
    return [Edit(colon + 1, max(node.end, colon + 1), block(value, indent, newline=_newline(text)))]


def _delete(text: str, own: list[Child], child: Child) -> list[Edit]:
    start = child.start
    dash = _dash(text, child) if child.key is None else None
    if dash is not None:
        start = dash
    line = _line_before(text, start)
    end = line_end(text, child.node.end)
    end += 2 if text.startswith("\r\n", end) else 1 if text.startswith("\n", end) else 0
    if not line.strip():
        return [Edit(start - len(line), end, "")]
    following = [other.start for other in own if other.start > child.start]
    return [Edit(start, min(following), "")] if following else [Edit(start, end, "")]
