"""Reading a DeepSpeed configuration from a file or a dict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstrain.core.errors import UsageError
from dstrain.dsconfig.document import Document


def read(source: str | Path | Mapping[str, Any]) -> Document:
    """Read a configuration file (or take a dict) as a `Document`. Nothing is coerced and nothing is dropped."""
    if isinstance(source, Mapping):
        return Document("<dict>", source)
    try:
        text = Path(source).read_text()
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}", where=str(source)) from error
    try:
        return Document(str(source), json.loads(text), text=text, format="json")
    except json.JSONDecodeError as error:
        raise UsageError(error.msg, where=f"{source}:{error.lineno}:{error.colno}") from error
