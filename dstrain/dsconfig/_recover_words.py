"""Keys and scalars of a faulty text, and the note of each fault. The containers are in `_recover`."""

from __future__ import annotations

import json
import re

from dstrain.dsconfig import _words as words
from dstrain.dsconfig._scan import line_end, multiline, skip
from dstrain.dsconfig._tree import Edit, Fault, Node, Stop
from dstrain.dsconfig.document import Path

MAX_FAULTS = 60
"""A text with more faults than this is not a configuration that somebody mistyped."""


class Words:
    """Reads keys and scalars of `text`; `stack` holds the open containers, for the path of a fault."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.faults: list[Fault] = []
        self.extensions: dict[str, list[int]] = {}
        self.stack: list[Node] = []

    # ---- bookkeeping

    def path(self, key: str | None = None) -> Path:
        found: list[str | int] = []
        for node in self.stack[:-1]:
            last = node.children[-1]
            found.append(last.key if last.key is not None else len(node.children) - 1)
        return (*found, key) if key is not None else tuple(found)

    def fault(
        self, at: int, message: str, fix: str = "", *edits: Edit, id: str = "DS002", key: str | None = None
    ) -> None:
        self.faults.append(Fault(id, at, message, fix, edits, self.path(key)))
        if len(self.faults) > MAX_FAULTS:
            raise Stop(self.faults[0].at, self.faults[0].message)

    def note(self, kind: str, at: int) -> None:
        self.extensions.setdefault(kind, []).append(at)

    def skip(self, at: int) -> int:
        comments: list[int] = []
        try:
            at = skip(self.text, at, comments)
        except Stop as stop:
            self.fault(stop.at, stop.message, "close it with */", Edit(len(self.text), len(self.text), " */"))
            at = len(self.text)
        for comment in comments:
            self.note("a comment", comment)
        space = words.SPACE.match(self.text, at)
        if space is None:
            return at
        edit = Edit(at, space.end(), " ")
        self.fault(at, f"the white space {space[0][0]!r} is none of JSON", "write plain spaces", edit, id="DS007")
        return self.skip_more(space.end())

    def skip_more(self, at: int) -> int:
        """Past the rest of a stretch of white space of another kind, without a fault for each piece."""
        while True:
            at = skip(self.text, at) if "/*" not in self.text[at : at + 200] else at
            space = words.SPACE.match(self.text, at)
            if space is None:
                return at
            self.faults[-1].edits += (Edit(at, space.end(), " "),)
            at = space.end()

    def _key(self, at: int) -> tuple[str, int] | None:
        text = self.text
        if text[at] in words.SMART_OPEN:
            value, end = words.smart(text, at)
            self.fault(*words.SMART_TEXT(at, text[at]), Edit(at, end, json.dumps(value)), id="DS007", key=value)
            return value, end
        if text[at] in "\"'":
            if text[at] == "'":
                self.note("single quotes", at)
            return self._quoted(at, None)
        match = words.KEY.match(text, at)
        if match is None:
            what = words.brief(text[at : words.junk_end(text, at)].strip())
            self.fault(at, f"a key was expected, not {what}", 'write "key": value')
            return None
        key = match[1].rstrip()
        end = at + len(key)
        if re.search(r"\s", key):
            fix, edit = "write quotes around it", Edit(at, end, json.dumps(key))
            self.fault(at, f"the key {key!r} holds white space and no quotes are around it", fix, edit, key=key)
        else:
            self.note("a key without quotes", at)
        return key, end

    def _colon(self, key: str, key_end: int) -> int | None:
        at = self.skip(key_end)
        text = self.text
        match = words.COLON.match(text, at)
        if match:
            if match[0] != ":":
                edit = Edit(at, match.end(), ":")
                self.fault(at, f"{match[0]!r} stands after the key {key!r}, ':' is due", "write :", edit, key=key)
            return self.skip(match.end())
        if at >= len(text) or text[at] in ",}])" or "\n" in text[key_end:at]:
            self.fault(key_end, f"the key {key!r} has no value", f'write "{key}": value', key=key)
            return None
        self.fault(key_end, f"':' is missing after the key {key!r}", "write :", Edit(key_end, key_end, ":"), key=key)
        return at

    # ---- scalars

    def _scalar(self, at: int, key: str | None, in_array: bool) -> Node:
        text = self.text
        if text.startswith("'''", at):
            try:
                value, end = multiline(text, at)
                self.note("text in '''", at)
                return Node("scalar", at, end, value, style="quoted")
            except Stop:
                pass
        if text[at] in "\"'":
            if text[at] == "'":
                self.note("single quotes", at)
            value, end = self._quoted(at, key)
            return Node("scalar", at, end, value, style="quoted")
        if text[at] in words.SMART_OPEN:
            value, end = words.smart(text, at)
            self.fault(*words.SMART_TEXT(at, text[at]), Edit(at, end, json.dumps(value)), id="DS007", key=key)
            return Node("scalar", at, end, value, style="quoted")
        found = words.word(text, at)
        if found is not None:
            if found.message:
                edits = (Edit(at, found.end, found.mend),) if found.mend else ()
                self.fault(at, found.message, found.fix, *edits, id=found.id, key=key)
            return Node("scalar", at, found.end, found.value)
        return self._plain(at, key, in_array)

    def _plain(self, at: int, key: str | None, in_array: bool) -> Node:
        value, end = words.plain(self.text, at, in_array)
        whole = self.text[at : line_end(self.text, at)].strip()
        if value == whole:
            self.note("text without quotes", at)
        else:
            self.fault(
                at,
                f"the text {words.brief(value)} has no quotes: DeepSpeed reads {words.brief(whole)}",
                f"write {json.dumps(value, ensure_ascii=False)}",
                Edit(at, end, json.dumps(value, ensure_ascii=False)),
                id="DS011",
                key=key,
            )
        return Node("scalar", at, end, value, style="plain")

    def _quoted(self, at: int, key: str | None) -> tuple[str, int]:
        value, end, faults = words.quoted(self.text, at)
        for where, message, fix, edit in faults:
            self.fault(where, message, fix, edit, key=key)
        return value, end
