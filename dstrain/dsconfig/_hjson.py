"""The strict half of reading: exactly what hjson 3.1.0 (which DeepSpeed uses) reads, with the span of every value.

Written without recursion. Where hjson stops, `parse` raises `Stop`, and `_recover` takes over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dstrain.dsconfig._scan import line_end, multiline, plain, quoted, simple, skip
from dstrain.dsconfig._tree import MAX_DEPTH, Child, Node, Stop, shown

_KEY = re.compile(r"[^ \t\r\n{}\[\],:]+")
_SPACE = re.compile(r"[ \t\r\n]*")
_CLOSER = {"object": "}", "array": "]"}

PYTHON_WORDS = ("True", "False", "None")
NOT_A_NUMBER = re.compile(r"[+-]?(?:nan|infinity|inf)", re.IGNORECASE)
PYTHON_NUMBER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?)")
_SUSPECT_KEY = re.compile(r"[“”„‟«»‘’`\"'=;()]|[^\S \t\r\n]")
_SUSPECT = re.compile(
    r"[(“”„‟«»‘’`]"  # a tuple, or typographic quotes
    r"|(?:True|False|None)\b"
    r"|.*[,;]$"
    r"|.*,\s*[\"'“‘]?\w+[\"'”’]?\s*[:=]"
    r"|.*\s(?:#|//|/\*)"
    r"|[^\[\]]*\]|[^{}]*\}",
    re.DOTALL,
)


@dataclass
class Tree:
    """The tree, and where the text uses what only HJSON allows (`extensions`: kind to offsets)."""

    root: Node
    extensions: dict[str, list[int]] = field(default_factory=dict)
    suspects: list[int] = field(default_factory=list)
    """Texts without quotes that hjson accepts and that are hardly meant (`cpu,`, `True`, `“x”`)."""


def looks_wrong(value: str) -> bool:
    """Whether a text without quotes is hardly what its writer meant."""
    return bool(_SUSPECT.match(value) or NOT_A_NUMBER.fullmatch(value) or PYTHON_NUMBER.fullmatch(value))


def parse(text: str) -> Tree:
    """The tree of a JSON or HJSON text.

    Raises:
        Stop: where hjson 3.1.0 would stop, and at more than `MAX_DEPTH` levels.
    """
    comments: list[int] = []
    at = skip(text, 0, comments)
    if at == len(text):
        return Tree(Node("object", at, at, style="bare"), {})
    if text[at] in "{[":
        parser = _Parser(text, comments)
        root, at = parser.container(at)
    else:
        parser, root, at = _without_braces(text, at, comments)
    at = skip(text, at, comments)
    if at != len(text):
        raise Stop(at, f"the configuration ends before this, but there is more: {shown(text, at)}")
    return Tree(root, parser.extensions(), parser.suspects)


def _without_braces(text: str, at: int, comments: list[int]) -> tuple[_Parser, Node, int]:
    parser = _Parser(text, list(comments))
    try:
        root, end = parser.container(at, bare=True)
        return parser, root, end
    except Stop as stop:
        if stop.id == "DS017":
            raise
        parser = _Parser(text, comments)
        try:
            root, end = parser.scalar(at)
            end_of_all = skip(text, end)
        except Stop:
            raise stop from None
        # A text such as `name = {"a": 1}` is a configuration with something before it, not a single value.
        meant = root.style == "plain" and any(mark in root.value for mark in "{:=")
        if end_of_all != len(text) or meant:
            raise stop from None
        return parser, root, end


class _Parser:
    def __init__(self, text: str, comments: list[int]) -> None:
        self.text, self.comments = text, comments
        self.suspects: list[int] = []
        self.noted: dict[str, list[int]] = {}

    def extensions(self) -> dict[str, list[int]]:
        found = {"a comment": self.comments, **self.noted}
        return {kind: places for kind, places in found.items() if places}

    def note(self, kind: str, at: int) -> None:
        self.noted.setdefault(kind, []).append(at)

    def skip(self, at: int) -> int:
        return skip(self.text, at, self.comments)

    def container(self, at: int, *, bare: bool = False) -> tuple[Node, int]:
        """The container that starts at `at` with all that is in it, and the offset behind it."""
        text = self.text
        root = self._opened(at, bare)
        stack, at, comma = [root], at if bare else at + 1, -1
        while True:
            node, at = stack[-1], self.skip(at)
            if at == len(text) and node.style == "bare":
                root.end = at
                self.note("no braces around the whole", root.start)
                return root, at
            if node.style != "bare" and text.startswith(_CLOSER[node.kind], at):
                if comma >= 0:
                    self.note("a trailing comma", comma)
                at += 1
                node.end = at
                stack.pop()
                if not stack:
                    return root, at
            else:
                if node.children and comma < 0:
                    self.note("a missing comma", at)
                comma = -1
                child, at = self._child(node, at)
                node.children.append(child)
                if child.node.kind != "scalar":
                    stack.append(child.node)
                    if len(stack) > MAX_DEPTH:
                        raise Stop(at, f"nested deeper than {MAX_DEPTH} levels", "DS017")
                    continue
            at = self.skip(at)
            comma = at if text.startswith(",", at) else -1
            at += comma >= 0

    def _opened(self, at: int, bare: bool) -> Node:
        kind = "array" if not bare and self.text[at] == "[" else "object"
        return Node("array" if kind == "array" else "object", at, at, style="bare" if bare else "braces")

    def _child(self, node: Node, at: int) -> tuple[Child, int]:
        key, start, key_end = None, at, at
        if node.kind == "object":
            key, key_end = self._key(at)
            at = self.skip(key_end)
            if not self.text.startswith(":", at):
                raise Stop(at, f"':' was expected after the key {key!r}, not {shown(self.text, at)}")
            at = self.skip(at + 1)
        if self.text.startswith(("{", "["), at):
            return Child(key, start, key_end, self._opened(at, False)), at + 1
        value, at = self.scalar(at)
        return Child(key, start, key_end, value), at

    def _key(self, at: int) -> tuple[str, int]:
        text = self.text
        if text.startswith(('"', "'"), at):
            if text[at] == "'":
                self.note("single quotes", at)
            return quoted(text, at)
        match = _KEY.match(text, at)
        if match is None:
            raise Stop(at, f"a key was expected, not {shown(text, at)}")
        space = _SPACE.match(text, match.end())
        colon = space.end() if space else match.end()
        if not text.startswith(":", colon):
            raise Stop(colon, f"':' was expected after the key {match[0][:40]!r}, not {shown(text, colon)}")
        if _SUSPECT_KEY.search(match[0]):
            self.suspects.append(at)
        self.note("a key without quotes", at)
        # hjson strips what Python calls white space only when the white space of JSON follows it.
        return (match[0].rstrip() if colon > match.end() else match[0]), match.end()

    def scalar(self, at: int) -> tuple[Node, int]:
        """The value without children that starts at `at`, and the offset where reading goes on."""
        text = self.text
        if text.startswith("'''", at):
            self.note("text in '''", at)
            words, end = multiline(text, at)
            return Node("scalar", at, end, words, style="quoted"), end
        if text.startswith(('"', "'"), at):
            if text[at] == "'":
                self.note("single quotes", at)
            words, end = quoted(text, at)
            return Node("scalar", at, end, words, style="quoted"), end
        if at >= len(text) or text[at] in "{}[],:":
            raise Stop(at, f"a value was expected, not {shown(text, at)}")
        found = simple(text, at)
        if found is not None:
            value, end, go_on = found
            return Node("scalar", at, end, value), go_on
        words, end = plain(text, at)
        self.note("text without quotes", at)
        if looks_wrong(words):
            self.suspects.append(at)
        return Node("scalar", at, end, words, style="plain"), line_end(text, end)
