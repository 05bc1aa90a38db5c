"""A DeepSpeed configuration read as DeepSpeed 0.19.8 reads it. Nothing here raises on a wrong type.

A wrong type is the finding of another rule (DS101 and on); here it reads as None, which means "cannot be told".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit
from dstrain.dsconfig.document import Document, pointer

AUTO = "auto"
_TRUE = frozenset({"true", "1", "yes", "on", "t", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "f", "n"})
_DEVICES = frozenset({"none", "cpu", "nvme"})
_LONGEST_DIGITS = 300
ZERO = "zero_optimization"


def number(value: Any) -> int | float | None:
    """A finite number, also when it was written as text (`"5e8"`); None for anything else, booleans included."""
    if isinstance(value, str):
        value = _from_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if value.bit_length() < 1000 else None
    return value if math.isfinite(value) else None


def _from_text(text: str) -> int | float | None:
    if len(text) > _LONGEST_DIGITS:
        return None
    for convert in (int, float):
        try:
            return convert(text)
        except (ValueError, OverflowError):
            continue
    return None


def integer(value: Any) -> int | None:
    """A whole number (`4`, `4.0`, `"5e8"`), else None."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def flag(value: Any) -> bool | None:
    """A boolean as pydantic reads it (`true`, `"yes"`, `1`); None for `"auto"` and for what it would refuse."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        word = value.lower()
        return True if word in _TRUE else False if word in _FALSE else None
    return None


def is_auto(value: Any) -> bool:
    """Whether the value is the text `"auto"`."""
    return isinstance(value, str) and value == AUTO


def filled(mode: Mode) -> bool:
    """Whether a trainer replaces `"auto"` before DeepSpeed sees it."""
    return mode is not Mode.DEEPSPEED


def stage(doc: Document) -> int | None:
    """The ZeRO stage, 0 when there is none; None when it cannot be told.

    DeepSpeed 0.19.8 takes `true` as stage 1 (`zero/config.py:62`), `"3"` and `3.0` as 3, and drops `"auto"`
    (`config_utils.py:56`), which leaves 0. No trainer fills the stage.
    """
    section = doc.get(ZERO)
    if isinstance(section, bool):
        return int(section)
    if section is not None and not isinstance(section, Mapping):
        return None
    value = doc.section(ZERO).get("stage", 0)
    if is_auto(value):
        return 0
    found = int(value) if isinstance(value, bool) else integer(value)
    return found if found in (0, 1, 2, 3) else None


def zero_flag(doc: Document, key: str, default: bool) -> bool | None:
    """A boolean of `zero_optimization` with its default; `"auto"` is dropped by DeepSpeed and means the default."""
    value = doc.get(f"{ZERO}.{key}", default)
    return default if is_auto(value) else flag(value)


def zero_number(doc: Document, key: str, default: int | float) -> int | float | None:
    """A number of `zero_optimization` with its default."""
    value = doc.get(f"{ZERO}.{key}", default)
    return default if is_auto(value) else number(value)


def _device(doc: Document, section: str, old: str) -> str | None:
    if flag(doc.get(f"{ZERO}.{old}")) is True:
        return "cpu"
    value = doc.section(f"{ZERO}.{section}").get("device", "none")
    if is_auto(value):
        return "none"
    return value if isinstance(value, str) and value in _DEVICES else None


def offload_optimizer(doc: Document) -> str | None:
    """Where optimizer states are asked to live: `none`, `cpu`, `nvme`; None when it cannot be told."""
    return _device(doc, "offload_optimizer", "cpu_offload")


def offload_param(doc: Document) -> str | None:
    """Where parameters are asked to live: `none`, `cpu`, `nvme`; None when it cannot be told."""
    return _device(doc, "offload_param", "cpu_offload_param")


def offload_key(doc: Document, what: str) -> str:
    """The key that asks for the offload: the section's `device`, or the old name (`cpu_offload`)."""
    section, old = ("offload_param", "cpu_offload_param") if what == "param" else ("offload_optimizer", "cpu_offload")
    key = f"{ZERO}.{section}.device"
    return key if doc.has(key) else f"{ZERO}.{old}"


def precision_section(doc: Document) -> str:
    """`bf16`, or the old name `bfloat16` when only that one is written (`precision_config.py:37`)."""
    return "bfloat16" if doc.has("bfloat16") and not doc.has("bf16") else "bf16"


def enabled(doc: Document, section: str, mode: Mode) -> bool | None:
    """Whether `bf16` or `fp16` is on; None when a trainer decides (`"auto"`) or the value cannot be read."""
    name = precision_section(doc) if section == "bf16" else section
    value = doc.section(name).get("enabled", False)
    if is_auto(value):
        return None if filled(mode) else False
    return flag(value)


def precision(doc: Document, mode: Mode) -> str | None:
    """`fp16`, `bf16` or `fp32`: the type DeepSpeed casts the model to; None when it cannot be told."""
    bf16, fp16 = enabled(doc, "bf16", mode), enabled(doc, "fp16", mode)
    if bf16 and fp16:
        return None
    if bf16 or fp16:
        return "bf16" if bf16 else "fp16"
    return "fp32" if bf16 is False and fp16 is False and not filled(mode) else None


def clipping(doc: Document, mode: Mode) -> int | float | None:
    """The gradient norm that is clipped at; 1.0 when unset (`constants.py` GRADIENT_CLIPPING_DEFAULT).

    None when dstrain fills it, when it is left to a trainer, or when it cannot be read.
    """
    if not doc.has("gradient_clipping"):
        return None if mode is Mode.DSTRAIN else 1.0
    return number(doc.get("gradient_clipping"))


def optional_integer(doc: Document, key: str, default: int) -> int | None:
    """A whole number anywhere in the tree, with its default; None for `"auto"` and wrong types."""
    return integer(doc.get(key, default))


def unread(doc: Document) -> bool:
    """Whether nothing could be read: a file with a fault of syntax must not be told what it lacks."""
    return not doc.data and bool(doc.findings)


def put(doc: Document, key: str, value: Any) -> dict[str, Any]:
    """The patch operation that gives a key a value, whether it is written already or not.

    Sections that are missing on the way are added with it; a section that is no mapping (null) is replaced.
    """
    if doc.has(key):
        return {"op": "replace", "path": pointer(key), "value": value}
    parent, _, last = key.rpartition(".")
    if parent and not isinstance(doc.get(parent), Mapping):
        return put(doc, parent, {last: value})
    return {"op": "add", "path": pointer(key), "value": value}


def drop(key: str) -> dict[str, Any]:
    """The patch operation that takes a key out."""
    return {"op": "remove", "path": pointer(key)}


def move(key: str, to: str) -> dict[str, Any]:
    """The patch operation that renames or moves a key."""
    return {"op": "move", "from": pointer(key), "path": pointer(to)}


def hit(key: str, message: str, fix: str, *patch: Mapping[str, Any]) -> Hit:
    """A `Hit` in one line, for rules."""
    return Hit(key, message, fix, tuple(patch))
