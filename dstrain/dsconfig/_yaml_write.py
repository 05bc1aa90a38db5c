"""Scalars as YAML that our reader and every YAML 1.1 and 1.2 reader take for the same value."""

from __future__ import annotations

import json
import re
from typing import Any

LOOSE_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers of YAML 1.2 that YAML 1.1 takes for text unless they have a dot and a signed exponent."""

_SAFE_TEXT = re.compile(r"[A-Za-z_/][\w/.-]*", re.ASCII)
_WORDS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def yaml_number(value: float) -> str:
    """A number as every YAML reader takes it for one: `1.0e-05`, with a dot and a signed exponent."""
    text = repr(value)
    if "e" not in text:
        return text
    mantissa, exponent = text.split("e")
    mantissa = mantissa if "." in mantissa else mantissa + ".0"
    return f"{mantissa}e{exponent if exponent[0] in '+-' else '+' + exponent}"


def yaml_scalar(value: Any) -> str:
    """A scalar as YAML that our own reader and PyYAML read to the same value."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (int, float)):
        return yaml_number(value)
    text = str(value)
    if _SAFE_TEXT.fullmatch(text) and text.lower() not in _WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(_yaml_character(character) for character in quoted)


def _yaml_character(character: str) -> str:
    code = ord(character)
    if 0x20 <= code < 0x7F or (0xA0 <= code < 0xD800 and code not in (0x2028, 0x2029)) or 0xE000 <= code < 0xFEFF:
        return character
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
