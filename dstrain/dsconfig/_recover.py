"""The forgiving half of reading: a text at which hjson stops is read as it seems to be meant, and every fault is noted.

A fault carries the edit that mends the text where that is mechanical. Written without recursion.
"""

from __future__ import annotations

import re

from dstrain.dsconfig import _words as words
from dstrain.dsconfig._recover_words import Words
from dstrain.dsconfig._tree import MAX_DEPTH, Child, Edit, Fault, Node, Stop, shown

_OPENERS = {"{": "object", "[": "array", "(": "array"}
_CLOSER = {"object": "}", "array": "]"}
_FENCE = re.compile(r"^[ \t]*(```|~~~)[^\r\n]*$", re.MULTILINE)
_BARE_START = re.compile(r"[\"'“”‘’]|[^\s{}\[\],:=]+[ \t]*:")
_PREFIX_END = re.compile(r"[{]")
_ELLIPSIS = re.compile(r"\.\.\.|…")


def recover(text: str) -> tuple[Node, list[Fault], dict[str, list[int]]]:
    """The tree of a faulty text, its faults, and the HJSON extensions that it uses.

    Raises:
        Stop: too little can be understood, or it is nested too deep.
    """
    parser = _Recovery(text)
    return parser.whole(), parser.faults, parser.extensions


class _Recovery(Words):
    # ---- around the root

    def whole(self) -> Node:
        start, end = self._inside_fence()
        self.text = self.text[:end]
        at = self.skip(start)
        if self.text.startswith(("{", "[", "("), at):
            root, at = self._open(at), at + 1
        elif _BARE_START.match(self.text, at):
            root = Node("object", at, at, style="bare")
        else:
            root, at = self._after_prefix(at)
        self.stack = [root]
        at = self._body(at)
        root.end = max(root.end, root.start)
        self._after_root(at)
        return root

    def _inside_fence(self) -> tuple[int, int]:
        """Where the configuration starts and ends, the lines of a markdown fence and what is around them left out."""
        marks = list(_FENCE.finditer(self.text))
        if not marks:
            return 0, len(self.text)
        first, before = marks[0], self.text[: marks[0].start()].strip()
        if before.startswith(("{", "[")):
            return 0, len(self.text)
        start = min(first.end() + 1, len(self.text))
        end = marks[1].start() if len(marks) > 1 else len(self.text)
        edits = [Edit(0, start, "")]
        if end < len(self.text):
            edits.append(Edit(end, len(self.text), ""))
        self.fault(
            first.start(1),
            "the configuration stands in a fence of markdown (```)",
            "delete the lines with ``` and all that is outside them",
            *edits,
            id="DS005",
        )
        return start, end

    def _after_prefix(self, at: int) -> tuple[Node, int]:
        match = _PREFIX_END.search(self.text, at)
        if match is None:
            raise Stop(at, f"a key or '{{' was expected, not {shown(self.text, at)}")
        prefix = self.text[at : match.start()].strip()
        self.fault(
            at,
            f"there is text before the configuration: {words.brief(prefix)}",
            "delete it: the file starts with {",
            Edit(at, match.start(), ""),
            id="DS005",
        )
        return self._open(match.start()), match.end()

    def _after_root(self, at: int) -> None:
        at = self.skip(at)
        rest = self.text[at:].strip()
        if not rest:
            return
        edit = Edit(at, len(self.text), "")
        if rest.startswith(("{", "[")):
            self.fault(at, "a second configuration follows the first", "keep one configuration in a file")
        elif not rest.strip("}])`~,; \t\r\n"):
            fence = rest.startswith(("```", "~~~"))
            what = "a fence of markdown" if fence else words.brief(rest)
            code = "DS005" if fence else "DS002"
            self.fault(at, f"the configuration ends before this, but {what} follows", "delete it", edit, id=code)
        else:
            self.fault(at, f"there is text after the configuration: {words.brief(rest)}", "delete it", edit, id="DS005")

    # ---- containers

    def _open(self, at: int) -> Node:
        kind = _OPENERS[self.text[at]]
        return Node("array" if kind == "array" else "object", at, at, style="braces")

    def _body(self, at: int) -> int:
        comma, comma_at = False, -1
        while self.stack:
            node, at = self.stack[-1], self.skip(at)
            mark = self.text[at : at + 1]
            if mark == "":
                return self._end_of_text(at)
            if mark in "}])":
                if comma:
                    self.note("a trailing comma", comma_at)
                at, comma = self._close(mark, at), False
            elif mark in ",;":
                if comma or not node.children or mark == ";":
                    self.fault(at, f"{mark!r} stands here and nothing before it", "delete it", Edit(at, at + 1, ""))
                comma, comma_at, at = True, at, at + 1
                continue
            elif match := _ELLIPSIS.match(self.text, at):
                self.fault(at, "'...' stands for something that was left out", "delete it", Edit(at, match.end(), ""))
                at = match.end()
            elif node.kind == "array" and len(self.stack) > 1 and words.QUOTED_KEY.match(self.text, at):
                self._missing_closer(at)
                continue
            else:
                self._between(node, at, comma)
                at, comma = self._child(node, at), False
                if self.stack[-1] is not node:
                    continue
            after = self.skip(at)
            if self.stack and self.text.startswith((",", ";"), after):
                if self.text[after] == ";":
                    self.fault(after, "';' stands where a comma is due", "write ,", Edit(after, after + 1, ","))
                comma, comma_at, at = True, after, after + 1
        return at

    def _between(self, node: Node, at: int, comma: bool) -> None:
        if not node.children or comma:
            return
        end = node.children[-1].node.end
        if "\n" in self.text[end:at]:
            self.note("a missing comma", at)
        else:
            self.fault(at, "a comma is missing before this", "write , between the two", Edit(end, end, ","))

    def _close(self, mark: str, at: int) -> int:
        node = self.stack[-1]
        kind = {"}": "object", "]": "array", ")": "array"}[mark]
        if node.style == "bare":
            self.fault(at, f"{mark!r} closes what was never opened", "write { at the start", *self._opening(mark))
            node.end = at
            self.stack.pop()
            return at + 1
        if node.kind != kind:
            outer = [other for other in self.stack if other.kind == kind and other.style != "bare"]
            if not outer:
                closer = _CLOSER[node.kind]
                edit = Edit(at, at + 1, closer)
                self.fault(at, f"{mark!r} stands where {closer!r} is due", f"write {closer}", edit)
            else:
                while self.stack[-1] is not outer[-1]:
                    self._missing_closer(at)
        elif mark == ")" or self.text[node.start] == "(":
            self._tuple(node, at)
        self.stack.pop().end = at + 1
        return at + 1

    def _opening(self, mark: str) -> tuple[Edit, ...]:
        start = self.stack[0].start
        return (Edit(start, start, "{\n"),) if mark == "}" else ()

    def _tuple(self, node: Node, at: int) -> None:
        edits = (Edit(node.start, node.start + 1, "["), Edit(at, at + 1, "]"))
        self.fault(node.start, "a list is written ( ) as in Python", "write [ ]", *edits, id="DS004")

    def _missing_closer(self, at: int) -> None:
        node = self.stack[-1]
        closer = _CLOSER[node.kind]
        end = max(node.children[-1].node.end if node.children else node.start + 1, node.start + 1)
        self.fault(node.start, f"this is not closed: {closer!r} is missing", f"write {closer}", Edit(end, end, closer))
        node.end = at
        self.stack.pop()

    def _end_of_text(self, at: int) -> int:
        if self.stack[-1].style == "bare":
            self.note("no braces around the whole", self.stack[-1].start)
            self.stack.pop().end = at
            return at
        unclosed = [node for node in self.stack if node.style != "bare"]
        closers = "".join(_CLOSER[node.kind] for node in reversed(unclosed))
        end = len(self.text.rstrip())
        last = self.text.rfind("\n", 0, end) + 1
        lead = "\n" if skip_safe(self.text, last, end) else ""
        self.fault(
            unclosed[-1].start,
            f"the text ends and this is not closed: {closers!r} is missing",
            f"write {closers} at the end",
            Edit(end, end, lead + closers),
        )
        for node in self.stack:
            node.end = at
        self.stack = []
        return at

    # ---- members and items

    def _child(self, node: Node, at: int) -> int:
        key, start, key_end = None, at, at
        if node.kind == "object":
            found = self._key(at)
            if found is None:
                return words.junk_end(self.text, at)
            key, key_end = found
            value = self._colon(key, key_end)
            if value is None:
                return self.skip(key_end)
            at = value
        mark = self.text[at : at + 1]
        if mark in _OPENERS and mark:
            inner = self._open(at)
            node.children.append(Child(key, start, key_end, inner))
            self.stack.append(inner)
            if len(self.stack) > MAX_DEPTH:
                raise Stop(at, f"nested deeper than {MAX_DEPTH} levels", "DS017")
            return at + 1
        if mark == "" or mark in "}]),:;":
            self.fault(at, f"a value was expected, not {shown(self.text, at)}", "write a value", key=key)
            return at + (mark in ":;" and mark != "")
        scalar = self._scalar(at, key, node.kind == "array")
        node.children.append(Child(key, start, key_end, scalar))
        return scalar.end


def skip_safe(text: str, start: int, end: int) -> bool:
    """Whether a closer that is written behind text[start:end] would be swallowed by what that line ends with."""
    line = text[start:end]
    return "#" in line or "//" in line or bool(re.search(r":\s*[^\s\"'{}\[\]\d]+$", line))
