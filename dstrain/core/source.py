"""Where a resolved value came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["flag", "file", "python", "derived", "default", "fact"]


@dataclass(frozen=True, slots=True)
class Source:
    """kind, and the text a person reads: `--bf16`, `ds_config.json:14`, `micro x accumulation x world = 2 x 4 x 2`."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return self.text

    def as_json(self) -> dict[str, Any]:
        """For plan.json."""
        return {"kind": self.kind, "text": self.text}


DEFAULT = Source("default", "default")


def derived(text: str) -> Source:
    """A value computed from others; `text` is the formula."""
    return Source("derived", text)


def fact(text: str) -> Source:
    """A value that the machine, the model or the data gave."""
    return Source("fact", text)
