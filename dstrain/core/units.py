"""Numbers as people read them."""

from __future__ import annotations

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DECIMAL = ("", "k", "M", "B", "T")


def bytes_text(count: float) -> str:
    """`1536` -> `1.5 KiB`."""
    value = float(count)
    for unit in _BINARY:
        if abs(value) < 1024 or unit == _BINARY[-1]:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def count_text(count: float) -> str:
    """`1_250_000` -> `1.25M`."""
    value = float(count)
    for unit in _DECIMAL:
        if abs(value) < 1000 or unit == _DECIMAL[-1]:
            return f"{value:.0f}{unit}" if unit == "" else f"{value:.3g}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def duration_text(seconds: float) -> str:
    """`75` -> `1:15`, `3700` -> `1:01:40`."""
    whole = max(0, round(seconds))
    hours, rest = divmod(whole, 3600)
    minutes, secs = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{secs:02d}" if hours else f"{minutes}:{secs:02d}"
