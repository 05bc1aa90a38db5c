"""The words that people paste: typographic quotes, Python literals, texts that are not closed. For `_recover` only."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from dstrain.dsconfig._hjson import NOT_A_NUMBER, PYTHON_NUMBER
from dstrain.dsconfig._scan import escape, line_end, number
from dstrain.dsconfig._tree import Edit, Stop, brief

__all__ = ["brief"]

SMART_OPEN = "“”„‟«»‘’`"
KEY = re.compile(r"([^\"'“”„‟«»‘’{}\[\](),:;=\r\n#]+?)[ \t]*(?=[:=])")
SPACE = re.compile(r"[^\S \t\r\n]+|[\u200b\u200c\u200d\u2060\ufeff]+")
QUOTED_KEY = re.compile(r"\"[^\"\r\n]*\"\s*:|'[^'\r\n]*'\s*:")
COLON = re.compile(r":=|=>|=|:")

_SMART_CLOSE = re.compile(r"[“”„‟«»‘’`\"'](?=\s*(?:[,:;=}\])]|$))", re.MULTILINE)
_CHUNK = re.compile(r"[^\"'\\\x00-\x1f]*")
_AFTER_WORD = re.compile(r"[ \t]*(?:$|[,}\])\r\n#;]|//|/\*|[\"'])|[ \t]+\S", re.MULTILINE)
_JSON_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_NAME = re.compile(r"[-+]?[A-Za-z]+")
_LITERALS: dict[str, tuple[Any, str]] = {
    "true": (True, "true"),
    "false": (False, "false"),
    "null": (None, "null"),
    "True": (True, "true"),
    "False": (False, "false"),
    "None": (None, "null"),
    "TRUE": (True, "true"),
    "FALSE": (False, "false"),
    "NULL": (None, "null"),
    "undefined": (None, "null"),
}
_WINDOWS = re.compile(r"\"[A-Za-z]:\\[^\"\r\n]*\"|'[A-Za-z]:\\[^'\r\n]*'")
_JUNK = re.compile(r"[^,}\r\n]+|.", re.DOTALL)
_PLAIN_END = re.compile(
    r"[ \t]*(?:$|,[ \t]*(?:$|\r|#|//|[\"'“‘]?[A-Za-z_][\w.]*[\"'”’]?[ \t]*[:=])"
    r"|[ \t](?:#|//|/\*)|[}\]][ \t}\],]*(?:$|\r|#|//)|;?[ \t]*\r?$)",
    re.MULTILINE,
)
_ITEM_END = re.compile(r"[ \t]*(?:$|[,\]\r])", re.MULTILINE)


def SMART_TEXT(at: int, quote: str) -> tuple[int, str, str]:
    """Place, words and mend of a typographic quote."""
    return at, f"the quote {quote} is typographic: DeepSpeed makes it part of the text", 'write straight quotes: "'


def junk_end(text: str, at: int) -> int:
    """Behind a word that is no key: at the next comma, brace or line."""
    match = _JUNK.match(text, at)
    return match.end() if match else at + 1


def smart(text: str, at: int) -> tuple[str, int]:
    """A text in typographic quotes, closed by any quote before punctuation, or by the end of the line."""
    end = line_end(text, at)
    match = _SMART_CLOSE.search(text, at + 1, end)
    if match:
        return text[at + 1 : match.start()], match.end()
    raw = text[at + 1 : end].rstrip(" \t,;}])")
    return raw, at + 1 + len(raw)


@dataclass(frozen=True, slots=True)
class Word:
    """A literal or number: its value and, where it is none of JSON, what is wrong and how it is written."""

    value: Any
    end: int
    message: str = ""
    fix: str = ""
    mend: str = ""
    id: str = "DS004"


def word(text: str, at: int) -> Word | None:
    """The literal or number at an offset, in the spelling of JSON or of Python; None for anything else."""
    for pattern, read in ((NOT_A_NUMBER, _not_a_number), (_NAME, _literal), (PYTHON_NUMBER, _number)):
        match = pattern.match(text, at)
        if match and match[0] and _AFTER_WORD.match(text, match.end()):
            found = read(match[0], match.end())
            if found is not None:
                return found
    return None


def _not_a_number(raw: str, end: int) -> Word | None:
    return Word(raw, end, f"{raw} is no number of JSON", "write a number, or leave the key out", id="DS006")


def _literal(raw: str, end: int) -> Word | None:
    if raw not in _LITERALS:
        return None
    value, mend = _LITERALS[raw]
    if raw == mend:
        return Word(value, end)
    return Word(value, end, f"{raw} is not JSON: DeepSpeed reads the text '{raw}'", f"write {mend}", mend)


def _number(raw: str, end: int) -> Word | None:
    match = _JSON_NUMBER.fullmatch(raw)
    if match:
        value = number(match[1], match[2], match[3])
        if value is not None:
            return Word(value, end)
        return Word(raw, end, f"{brief(raw)} is too large for a number", "write a number below 1e308", id="DS006")
    python = _python_number(raw)
    if python is None:
        return Word(raw, end, f"{brief(raw)} is no number of JSON", "write a plain number", id="DS006")
    mend = json.dumps(python)
    return Word(python, end, f"{brief(raw)} is no number of JSON: DeepSpeed reads a text", f"write {mend}", mend)


def _python_number(raw: str) -> int | float | None:
    cleaned = raw.replace("_", "")
    if cleaned.lstrip("+-").isdigit():
        cleaned = cleaned.replace(cleaned.lstrip("+-"), cleaned.lstrip("+-").lstrip("0") or "0")
    try:
        value = ast.literal_eval(cleaned)
    except (ValueError, SyntaxError, OverflowError, MemoryError):
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        again = json.loads(json.dumps(value))
        return value if again == value and abs(float(value)) != float("inf") else None
    except (ValueError, OverflowError):
        return None


def plain(text: str, at: int, in_array: bool) -> tuple[str, int]:
    """A text without quotes as it was meant: up to a comma before another key, a bracket, a comment, the line."""
    pattern = _ITEM_END if in_array else _PLAIN_END
    match = pattern.search(text, at + 1)
    end = match.start() if match else line_end(text, at)
    end = min(end, line_end(text, at))
    value = text[at:end].rstrip()
    return value, max(at + len(value), at + 1)


QuotedFault = tuple[int, str, str, Edit]


def quoted(text: str, at: int) -> tuple[str, int, list[QuotedFault]]:
    """A text in quotes with its faults: not closed on its line, a bad escape, a control character."""
    quote, parts, position = text[at], [], at + 1
    faults: list[QuotedFault] = []
    folder = _windows_path(text, at)
    if folder is not None:
        return folder
    while True:
        match = _CHUNK.match(text, position)
        end = match.end() if match else position
        parts.append(text[position:end])
        mark = text[end : end + 1]
        if mark == quote:
            return "".join(parts), end + 1, faults
        if mark == "" or mark in "\r\n":
            return _unclosed(text, at, end)
        position = end + 1
        if mark == "\\":
            try:
                character, position = escape(text, end)
                parts.append(character)
            except Stop as stop:
                parts.append("\\")
                faults.append((end, stop.message, "write \\\\ for a backslash", Edit(end, end, "\\")))
        else:
            parts.append(mark)
            if mark < " ":
                mend = json.dumps(mark)[1:-1]
                faults.append((end, f"the control character {mark!r} stands in a text", f"write {mend}",
                               Edit(end, end + 1, mend)))  # fmt: skip


def _windows_path(text: str, at: int) -> tuple[str, int, list[QuotedFault]] | None:
    """`"C:\\new\\data"` with single backslashes: all are meant, although \\n happens to be an escape."""
    match = _WINDOWS.match(text, at)
    if match is None or "\\\\" in match[0]:
        return None
    value = match[0][1:-1]
    mend = json.dumps(value, ensure_ascii=False)
    fault = (at, f"the backslashes of {brief(value)} start escapes", f"write {mend}", Edit(at, match.end(), mend))
    return value, match.end(), [fault]


def _unclosed(text: str, at: int, end: int) -> tuple[str, int, list[QuotedFault]]:
    quote = text[at]
    raw = text[at + 1 : end]
    key = re.match(r"([\w.]+)\s*:", raw)
    value = key[1] if key else raw.rstrip(" \t,;}])")
    if not key and value.count("[") > value.count("]"):
        value = raw.rstrip(" \t,;")
    stop = at + 1 + len(value)
    message = f"this text is not closed on its line: {quote} is missing"
    mend = json.dumps(value, ensure_ascii=False)
    return value, stop, [(at, message, f"write {mend}", Edit(at, stop, mend))]
