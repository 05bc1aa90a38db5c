"""Values as text: JSON with a given indentation, and YAML."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from dstrain.core.errors import UsageError
from dstrain.dsconfig._yaml_write import yaml_scalar


def json_scalar(value: Any) -> str:
    """A scalar as JSON; a large integral float as the integer that is meant (`500000000`).

    Raises:
        UsageError: NaN, an infinity, or an object that JSON does not have.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{value} cannot be written to a configuration: it is no number of JSON")
        return str(int(value)) if value.is_integer() and 1000 <= abs(value) < 1e10 else repr(value)
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair can be written as an escape only
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{value!r:.60} cannot be written to a configuration") from error
    return text


def flow(value: Any, unit: str, indent: str, *, newline: str = "\n", yaml: bool = False) -> str:
    """A value in JSON's form, its first line not indented, the others by `indent`.

    Args:
        value: what to write.
        unit: one level of indentation; "" puts everything on one line.
        indent: the indentation of the line that the value starts on.
        newline: how the text ends its lines.
        yaml: write scalars as YAML reads them (`1.0e-05`).
    """
    scalar: Callable[[Any], str] = yaml_scalar if yaml else json_scalar
    if isinstance(value, Mapping):
        pairs = [
            f"{key_text(key)}: {flow(inner, unit, indent + unit, newline=newline, yaml=yaml)}"
            for key, inner in value.items()
        ]
        return _joined("{", pairs, "}", unit, indent, newline)
    if isinstance(value, (list, tuple)):
        items = [flow(item, unit, indent + unit, newline=newline, yaml=yaml) for item in value]
        plain = not any(isinstance(item, (Mapping, list, tuple)) for item in value)
        return _joined("[", items, "]", "" if plain else unit, indent, newline)
    return scalar(value)


def _joined(opener: str, parts: list[str], closer: str, unit: str, indent: str, newline: str) -> str:
    if not parts or not unit:
        return opener + ", ".join(parts) + closer
    lead = newline + indent + unit
    return opener + lead + ("," + lead).join(parts) + newline + indent + closer


def key_text(key: Any) -> str:
    """A key in double quotes."""
    if not isinstance(key, str):
        raise UsageError(f"the key {key!r} is no text; keys of a configuration are")
    return json_scalar(key)


def block(value: Any, indent: str, unit: str = "  ", newline: str = "\n") -> str:
    """A value behind `key:` of a YAML block, with the space or line break before it."""
    if isinstance(value, Mapping) and value:
        lines = [
            f"{indent}{unit}{yaml_key(key)}:{block(inner, indent + unit, unit, newline)}"
            for key, inner in value.items()
        ]
        return newline + newline.join(lines)
    return " " + flow(value, "", "", yaml=True)


def yaml_key(key: Any) -> str:
    """A key of YAML: bare where it is a name, quoted elsewhere."""
    if not isinstance(key, str):
        raise UsageError(f"the key {key!r} is no text; keys of a configuration are")
    return key if re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII) else yaml_scalar(key)


def json_document(data: Any) -> str:
    """A whole configuration as JSON, two spaces a level, with a line end."""
    return flow(data, "  ", "") + "\n"


def yaml_document(data: Mapping[str, Any]) -> str:
    """A whole configuration as YAML."""
    if not data:
        return "{}\n"
    return "\n".join(f"{yaml_key(key)}:{block(value, '')}" for key, value in data.items()) + "\n"
