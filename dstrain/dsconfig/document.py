"""A DeepSpeed configuration as it was written: plain data, with the place of every key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dstrain.core.finding import Finding, Place

Path = tuple[str | int, ...]

_ABSENT = object()


def dotted(path: Path) -> str:
    """`("zero_optimization", "stage")` -> `zero_optimization.stage`."""
    return ".".join(str(part) for part in path)


def parts(key: str) -> Path:
    """The reverse of `dotted` for keys that hold no dot."""
    return tuple(key.split(".")) if key else ()


def pointer(key: str) -> str:
    """A dotted key as an RFC 6901 JSON pointer, for patches."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts(key))


@dataclass(frozen=True)
class Document:
    """What `read()` returns.

    Args:
        name: the path as the user typed it, or `<dict>`, `<base64>`.
        data: the configuration as plain Python values, exactly as written (nothing coerced, nothing dropped).
        places: line and column (from 1) of each key, by its path; empty for dicts.
        findings: what reading itself found (syntax, duplicate keys). `data` is {} when nothing could be read.
        text: the text that was read, for edits that keep comments; None for dicts.
        format: `json`, `hjson`, `yaml`, `dict`.
        mended: the text with the mechanical mends of what reading found; None when there are none.
    """

    name: str
    data: Mapping[str, Any]
    places: Mapping[Path, tuple[int, int]] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    text: str | None = None
    format: str = "dict"
    mended: str | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """The value at a dotted key as it was written, or `default` when any part of the way is missing."""
        value: Any = self.data
        for part in parts(key):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return value

    def has(self, key: str) -> bool:
        """Whether the key was written, whatever its value."""
        return self.get(key, _ABSENT) is not _ABSENT

    def section(self, key: str) -> Mapping[str, Any]:
        """The mapping at a key; {} when it is missing or is no mapping."""
        value = self.get(key)
        return value if isinstance(value, Mapping) else {}

    def place(self, key: str) -> Place:
        """Where the key stands; the nearest enclosing key that has a place, else the file alone."""
        path = parts(key)
        while path:
            if path in self.places:
                line, column = self.places[path]
                return Place(self.name, line, column)
            path = path[:-1]
        return Place(self.name)

    def walk(self) -> Iterator[tuple[str, Any]]:
        """Every key, dotted, with its value; sections before what they hold."""
        yield from _walk(self.data, ())


def _walk(value: Any, path: Path) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield dotted((*path, key)), inner
            yield from _walk(inner, (*path, key))
