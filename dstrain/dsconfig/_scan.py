"""The words of JSON and HJSON: white space, comments, quoted text, plain text. Values are those hjson 3.1.0 gives."""

from __future__ import annotations

import math
import re

from dstrain.dsconfig._tree import Stop

_SPACE = re.compile(r"[ \t\r\n]*")
_TO_LINE_END = re.compile(r"[^\r\n]*")
_CHUNK = re.compile(r"[^\"'\\\x00-\x1f]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d*))(\.\d+)?([eE][-+]?\d+)?[\t ]*")
_LITERAL = re.compile(r"(true|false|null)[^\S\r\n]*")
_LITERALS = {"true": True, "false": False, "null": None}
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_MAX_DIGITS = 308
"""Integers of more digits do not fit a double, which is what every number of a configuration ends up as."""


def skip(text: str, at: int, comments: list[int] | None = None) -> int:
    """The offset of the next word behind white space and comments; offsets of comments are noted in `comments`."""
    while True:
        at = _space_end(text, at)
        if text.startswith(("#", "//"), at):
            end = _line_end(text, at)
        elif text.startswith("/*", at):
            close = text.find("*/", at + 2)
            if close < 0:
                raise Stop(at, "this comment is not closed: '*/' is missing")
            end = close + 2
        else:
            return at
        if comments is not None:
            comments.append(at)
        at = end


def _space_end(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _line_end(text: str, at: int) -> int:
    match = _TO_LINE_END.match(text, at)
    return match.end() if match else at


def line_end(text: str, at: int) -> int:
    """The offset of the end of the line (its \\r or \\n, or the end of the text)."""
    return _line_end(text, at)


def is_stop(text: str, at: int) -> bool:
    """Whether a number or literal may end here: the end of the line, punctuation, or a comment."""
    return at >= len(text) or text[at] in "\r\n,}]#" or text.startswith(("//", "/*"), at)


def number(integer: str, fraction: str | None, exponent: str | None) -> int | float | None:
    """The value of a JSON number as hjson gives it (`5e8` is the integer 500000000); None when it fits no double.

    hjson 3.1.0 turns every integral float below 1e10 into an integer, and dies with OverflowError on `1e400`.
    """
    if not fraction and not exponent:
        return int(integer) if len(integer) <= _MAX_DIGITS else None
    value = float(integer + (fraction or "") + (exponent or ""))
    if math.isinf(value):
        return None
    return int(value) if value.is_integer() and abs(value) < 1e10 else value


def simple(text: str, at: int) -> tuple[int | float | bool | None, int, int] | None:
    """A number or literal at an offset, the offset behind it, and where reading goes on; None when there is none.

    Raises:
        Stop: a number that fits no double (DS006).
    """
    match = _LITERAL.match(text, at)
    if match and is_stop(text, match.end()):
        return _LITERALS[match[1]], match.end(1), match.end()
    match = _NUMBER.match(text, at)
    if match and is_stop(text, match.end()):
        value = number(match[1], match[2], match[3])
        if value is None:
            raise Stop(at, "a number too large for a double", "DS006")
        return value, match.start() + len(match[0].rstrip("\t ")), match.end()
    return None


def plain(text: str, at: int) -> tuple[str, int]:
    """An HJSON text without quotes: to the end of its line."""
    raw = text[at : _line_end(text, at)]
    return raw.strip(), at + len(raw.rstrip())


def escape(text: str, at: int) -> tuple[str, int]:
    """The character that the escape at `at` (its backslash) stands for, and the offset behind it.

    Raises:
        Stop: no such escape.
    """
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES:
        return _ESCAPES[letter], at + 2
    if letter != "u":
        raise Stop(at, f"'\\{letter}' is no escape of JSON")
    unit = _hex(text, at)
    if unit & 0xFC00 == 0xD800 and text.startswith("\\u", at + 6):
        low = _hex(text, at + 6)
        if low & 0xFC00 == 0xDC00:
            return chr(0x10000 + (((unit - 0xD800) << 10) | (low - 0xDC00))), at + 12
    return chr(unit), at + 6


def _hex(text: str, at: int) -> int:
    digits = text[at + 2 : at + 6]
    if not re.fullmatch(r"[0-9a-fA-F]{4}", digits):
        raise Stop(at, f"'\\u' needs four hexadecimal digits, not {digits!r}")
    return int(digits, 16)


def quoted(text: str, at: int) -> tuple[str, int]:
    """A text in quotes that start at `at`, and the offset behind it.

    Raises:
        Stop: it is not closed, or holds a bad escape or a control character.
    """
    quote = text[at]
    parts: list[str] = []
    position = at + 1
    while True:
        match = _CHUNK.match(text, position)
        end = match.end() if match else position
        parts.append(text[position:end])
        mark = text[end : end + 1]
        if mark == "":
            raise Stop(at, f"this text is not closed: {quote} is missing")
        if mark == quote:
            return "".join(parts), end + 1
        if mark == "\\":
            character, position = escape(text, end)
            parts.append(character)
        elif mark in "\"'":
            parts.append(mark)
            position = end + 1
        elif mark in "\r\n":
            raise Stop(at, f"this text is not closed on its line: {quote} is missing")
        else:
            raise Stop(end, f"the control character {mark!r} stands in a text")


def multiline(text: str, at: int) -> tuple[str, int]:
    """An HJSON text between three single quotes: lines lose the indentation of the opening quotes.

    Raises:
        Stop: it is not closed.
    """
    before = text.rfind("\n", 0, at)
    # hjson 3.1.0 looks back for the start of the line with an index that wraps round at the start of the text.
    indent = at - before - 1 if before >= 0 else at + len(text) - 1 - text.rfind("\n")
    if before < 0 and "\n" not in text:
        raise Stop(at, "a text in ''' must hold a line break (hjson 3.1.0 fails on this one)")
    position = _skip_indent(text, at + 3, len(text))
    if text.startswith("\n", position):
        position = _skip_indent(text, position + 1, indent)
    end = text.find("'''", position)
    if end < 0:
        raise Stop(at, "this text is not closed: ''' is missing")
    lines = text[position:end].split("\n")
    kept = [lines[0], *(line[_skip_indent(line, 0, indent) :] for line in lines[1:])]
    value = "\n".join(kept).replace("\r", "")
    return value.removesuffix("\n"), end + 3


def _skip_indent(text: str, at: int, limit: int) -> int:
    end = min(len(text), at + limit)
    while at < end and text[at] in " \t\r":
        at += 1
    return at
