"""Steps on text with braces: JSON, HJSON, and the flow style of YAML."""

from __future__ import annotations

import re
from typing import Any

from dstrain.dsconfig._edit_steps import Step
from dstrain.dsconfig._scan import skip
from dstrain.dsconfig._tree import Child, Edit, Node, Stop
from dstrain.dsconfig._write import flow, key_text

_LINE_TAIL = re.compile(r"[ \t]*(?://[^\r\n]*|\#[^\r\n]*|/\*[^\r\n]*?\*/)?[ \t]*(?=\r?\n|\Z)")
_INDENTED = re.compile(r"^([ \t]+)[^\s]", re.MULTILINE)
_LEAD = re.compile(r"[ \t]*(?:/\*[^\r\n]*?\*/[ \t]*)*")
_BARE_KEY = re.compile(r"[A-Za-z_]\w*")


def change(text: str, root: Node, parent: Node, step: Step, *, yaml: bool) -> list[Edit] | None:
    """The edits that make a step in `parent`, a container with braces (or an HJSON root without)."""
    matching = [index for index, child in enumerate(parent.children) if _is_at(parent, index, child, step)]
    writer = _Writer(text, root, yaml)
    if step.kind == "insert" or (step.kind == "set" and not matching):
        index = step.path[-1] if isinstance(step.path[-1], int) else len(parent.children)
        return _insert(writer, parent, index, step)
    if any(parent.children[index].merged for index in matching):
        return None
    child = parent.children[matching[-1]]
    if step.kind == "rename":
        bare = text[child.start] not in "\"'" and _BARE_KEY.fullmatch(step.value)
        return [Edit(child.start, child.key_end, step.value if bare else key_text(step.value))]
    if step.kind == "set":
        value = writer.value(step.value, _indent_at(text, child.start), "\n" in text)
        return [Edit(child.node.start, child.node.end, value)]
    return [edit for index in matching for edit in _delete(text, parent, index)]


def _is_at(parent: Node, index: int, child: Child, step: Step) -> bool:
    return (child.key if parent.kind == "object" else index) == step.path[-1]


class _Writer:
    """Writes values in the manner of the text: its indentation, its line ends, YAML's scalars when it is YAML."""

    def __init__(self, text: str, root: Node, yaml: bool) -> None:
        self.text = text
        self.newline = "\r\n" if "\r\n" in text else "\n"
        found = _INDENTED.search(text, root.start)
        self.unit = found[1] if found else "  "
        self.yaml = yaml

    def value(self, value: Any, indent: str, many_lines: bool) -> str:
        return flow(value, self.unit if many_lines else "", indent, newline=self.newline, yaml=self.yaml)

    def member(self, step: Step, indent: str, many_lines: bool) -> str:
        value = self.value(step.value, indent, many_lines)
        return value if isinstance(step.path[-1], int) else f"{key_text(step.path[-1])}: {value}"


def _indent_at(text: str, at: int) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at]
    return line[: len(line) - len(line.lstrip(" \t"))]


def _first_on_line(text: str, at: int) -> bool:
    return bool(_LEAD.fullmatch(text[text.rfind("\n", 0, at) + 1 : at]))


def _comma_after(text: str, at: int) -> int | None:
    try:
        at = skip(text, at)
    except Stop:
        return None
    return at if text.startswith(",", at) else None


def _insert(writer: _Writer, parent: Node, index: int, step: Step) -> list[Edit] | None:
    own = [child for child in parent.children if not child.merged]
    if not own:
        return _insert_first(writer, parent, step)
    if index < len(own):
        return _insert_before(writer, own[index], step)
    return _insert_last(writer, own[-1], step)


def _insert_first(writer: _Writer, parent: Node, step: Step) -> list[Edit] | None:
    text = writer.text
    if parent.style == "bare":
        return None
    inner = text[parent.start + 1 : parent.end - 1]
    indent = _indent_at(text, parent.start)
    if inner.strip():
        start = parent.end - 1
        member = writer.member(step, indent + writer.unit, True)
        lead = writer.unit if _first_on_line(text, start) else writer.newline + indent + writer.unit
        return [Edit(start, start, f"{lead}{member}{writer.newline}{indent}")]
    if isinstance(step.path[-1], int) or "\n" not in text.strip():
        return [Edit(parent.start + 1, parent.end - 1, writer.member(step, indent, False))]
    member = writer.member(step, indent + writer.unit, True)
    lead = writer.newline + indent
    return [Edit(parent.start + 1, parent.end - 1, f"{lead}{writer.unit}{member}{lead}")]


def _insert_before(writer: _Writer, child: Child, step: Step) -> list[Edit]:
    text = writer.text
    many = _first_on_line(text, child.start)
    indent = _indent_at(text, child.start)
    between = "," + writer.newline + indent if many else ", "
    return [Edit(child.start, child.start, writer.member(step, indent, many) + between)]


def _insert_last(writer: _Writer, last: Child, step: Step) -> list[Edit]:
    text = writer.text
    end, comma = last.node.end, _comma_after(text, last.node.end)
    behind = end if comma is None else comma + 1
    plain = last.node.style == "plain" and not writer.yaml
    if not _first_on_line(text, last.start) and not plain:
        member = writer.member(step, _indent_at(text, last.start), "\n" in text.strip())
        return [Edit(behind, behind, f", {member}" if comma is None else f" {member},")]
    indent = _indent_at(text, last.start)
    member = writer.member(step, indent, True)
    tail = _LINE_TAIL.match(text, behind)
    behind = tail.start() + len(tail[0].rstrip()) if tail else behind
    edits = [Edit(end, end, ",")] if comma is None and not plain else []
    return [*edits, Edit(behind, behind, writer.newline + indent + member + ("," if comma is not None else ""))]


def _delete(text: str, parent: Node, index: int) -> list[Edit]:
    child = parent.children[index]
    start, end = child.start, child.node.end
    comma = _comma_after(text, end)
    before: list[Edit] = []
    end = end if comma is None else comma + 1
    previous = _comma_after(text, parent.children[index - 1].node.end) if index else None
    if comma is None and previous is not None:
        if not text[previous + 1 : start].strip() and "\n" not in text[previous:start]:
            return [Edit(previous, end, "")]
        before = [Edit(previous, previous + 1, "")]
    tail = _LINE_TAIL.match(text, end)
    line = text.rfind("\n", 0, start) + 1
    if tail and _first_on_line(text, start) and line > 0:
        after = tail.end()
        after += 2 if text.startswith("\r\n", after) else 1 if text.startswith("\n", after) else 0
        return [*before, Edit(line, after, "")]
    spaces = len(text[end:]) - len(text[end:].lstrip(" \t")) if comma is not None else 0
    return [*before, Edit(start, end + spaces, "")]
