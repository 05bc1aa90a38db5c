"""The tree of a text: every value with its span, so that findings have places and edits keep the rest of the text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from dstrain.dsconfig.document import Path

MAX_DEPTH = 100
"""Containers inside each other that we still read. DeepSpeed's own reader recurses, and dies at a few hundred."""


@dataclass(slots=True)
class Node:
    """A value and its span.

    Args:
        kind: what it is.
        start: offset of its first character.
        end: offset behind its last character.
        value: a scalar's value.
        children: members or items, in the order of the text.
        style: `braces`, `bare` (an HJSON root without braces), `block` (YAML), `alias` (YAML, written elsewhere);
            for a scalar `quoted` or `plain` (an HJSON text that runs to the end of its line).
    """

    kind: Literal["object", "array", "scalar"]
    start: int
    end: int
    value: Any = None
    children: list[Child] = field(default_factory=list)
    style: str = ""

    def data(self) -> Any:
        """The plain Python value. The last of two equal keys wins."""
        if self.kind == "object":
            return {child.key: child.node.data() for child in self.children}
        if self.kind == "array":
            return [child.node.data() for child in self.children]
        return self.value

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Child]]:
        """Every child with its path; containers before what they hold."""
        for index, child in enumerate(self.children):
            inner = (*path, child.key if child.key is not None else index)
            yield inner, child
            yield from child.node.walk(inner)


@dataclass(slots=True)
class Child:
    """A member of an object (key is its text) or an item of an array (key is None).

    Args:
        key: the key, None for an item.
        start: offset of the key, or of the item.
        key_end: offset behind the key as written, quotes included; equal to `start` for an item.
        node: the value.
        merged: it came through a YAML merge key (`<<`), so that it stands in another section's text.
    """

    key: str | None
    start: int
    key_end: int
    node: Node
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace text[start:end] by `text`."""

    start: int
    end: int
    text: str


@dataclass(slots=True)
class Fault:
    """A reading fault before it has a line: the offset, the words, and the mend of the text where it is mechanical."""

    id: str
    at: int
    message: str
    fix: str = ""
    edits: tuple[Edit, ...] = ()
    path: Path = ()
    also: tuple[int, ...] = ()


class Stop(Exception):
    """Reading cannot go on. Never leaves this room.

    Args:
        at: the offset.
        message: what was expected and what is there.
        id: the code of the finding it becomes.
    """

    def __init__(self, at: int, message: str, id: str = "DS001") -> None:
        self.at, self.message, self.id = at, message, id
        super().__init__(message)


class Lines:
    """Offsets to lines and columns, both from 1. A line ends with a line feed, as in every editor."""

    def __init__(self, text: str) -> None:
        self._starts = [0]
        position = text.find("\n")
        while position >= 0:
            self._starts.append(position + 1)
            position = text.find("\n", position + 1)

    def place(self, at: int) -> tuple[int, int]:
        """Line and column of an offset."""
        line = bisect_right(self._starts, at)
        return line, at - self._starts[line - 1] + 1


def apply_edits(text: str, edits: list[Edit]) -> str:
    """The text with all edits made; of two that overlap the later one is left out."""
    parts: list[str] = []
    position = 0
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end)):
        if edit.start < position:
            continue
        parts += (text[position : edit.start], edit.text)
        position = edit.end
    return "".join((*parts, text[position:]))


def shown(text: str, at: int) -> str:
    """What stands at an offset, for a message: `'x'`, `the end of the line`, `the end of the text`."""
    if at >= len(text):
        return "the end of the text"
    if text[at] in "\r\n":
        return "the end of the line"
    return repr(text[at])


def brief(text: str, limit: int = 40) -> str:
    """A text for a message: one line, quoted, cut when it is long."""
    flat = text if len(text) <= limit else text[: limit - 1] + "…"
    return repr(flat)
