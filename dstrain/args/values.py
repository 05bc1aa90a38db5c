"""Types of arguments that can be written in more than one way; all ways give the same value."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt
from pydantic_core import PydanticCustomError

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0", "")
_SAMPLING_NOT_YET = ("group_by_length", "batch_rebalance")
SAMPLING = ("random", "sequential")


def truth(value: Any) -> bool:
    """A boolean, or its text in a flag.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise ValueError(f"got {value!r}, expected true or false")


def _expected(text: str) -> PydanticCustomError:
    return PydanticCustomError("dstrain", "{expected}", {"expected": text})


def _no(value: Any) -> Any:
    """YAML 1.1 reads an unquoted `no` as false; older transformers had booleans here."""
    return "no" if value is False else value


def _whole(value: Any) -> Any:
    """`1e3` and `100.0` are whole numbers, also as text."""
    if isinstance(value, bool) or not isinstance(value, str | float):
        return value
    try:
        number = float(value)
    except ValueError:
        return value
    return int(number) if number.is_integer() and abs(number) >= 1 else number


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise _expected(f"a mapping, or JSON text ({error.msg} at character {error.pos + 1})") from None


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _seen(value: Any) -> Any:
    """transformers 4.x had a boolean here."""
    return {True: "all", False: "no", "true": "all", "false": "no"}.get(
        value.lower() if isinstance(value, str) else value, value
    )


def _trackers(value: Any) -> str:
    names = [value] if isinstance(value, str) else list(value or ())
    wanted = [name for name in names if name not in ("none", "")]
    if wanted:
        raise _expected(
            f"'none': reporting to {', '.join(map(str, wanted))} is not yet there (metrics.jsonl in output_dir holds "
            "every record)"
        )
    return "none"


def _sampling(value: Any) -> Any:
    if value in _SAMPLING_NOT_YET:
        raise _expected(f"'random' or 'sequential' ('{value}' is not yet there)")
    return value


IntervalStrategy = Annotated[Literal["no", "steps", "epoch"], BeforeValidator(_no)]
Interval = Annotated[PositiveInt | Annotated[float, Field(gt=0.0, lt=1.0)], BeforeValidator(_whole)]
Steps = Annotated[int, BeforeValidator(_whole)]
Mapping = Annotated[dict[str, Any], BeforeValidator(_json)]
Names = Annotated[list[str], BeforeValidator(_one_or_many)]
TokensSeen = Annotated[Literal["no", "all", "non_padding"], BeforeValidator(_seen)]
Trackers = Annotated[str, BeforeValidator(_trackers)]
Sampling = Annotated[Literal["random", "sequential"], BeforeValidator(_sampling)]
LogLevel = Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]
