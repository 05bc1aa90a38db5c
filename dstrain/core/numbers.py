"""Numbers as people write them in configuration files: `5e8`, `"5e8"` and `500000000.0` mean the integer 500000000."""

from __future__ import annotations

import math
from typing import Any


def as_float(value: Any) -> float | None:
    """The finite number that `value` means, or None. Booleans are no numbers."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        number = value
    elif isinstance(value, str):
        try:
            number = float(value.strip())
        except ValueError:
            return None
    else:
        return None
    try:
        return float(number) if math.isfinite(number) else None
    except OverflowError:
        return None


def as_int(value: Any) -> int | None:
    """The integer that `value` means, or None when it is no number or has a fraction."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = as_float(value)
    return int(number) if number is not None and number.is_integer() else None


def as_bool(value: Any) -> bool | None:
    """The truth that `value` means: true/false, 1/0, or these words as text; None for anything else."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        return {"true": True, "1": True, "false": False, "0": False}.get(value.strip().lower())
    return None
