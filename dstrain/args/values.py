"""Types of arguments that can be written in more than one way; all ways give the same value."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PositiveInt
from pydantic_core import PydanticCustomError

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0", "")

IntervalName = Literal["no", "steps", "epoch"]
ScheduleName = Literal[
    "linear", "cosine", "cosine_with_min_lr", "constant", "constant_with_warmup", "polynomial", "inverse_sqrt"
]
OptimName = Literal["adamw_torch", "adamw_torch_fused", "sgd", "adagrad"]
SamplingName = Literal["random", "sequential"]

# What transformers knows and dstrain does not yet, or will not.
SAMPLING_NOT_YET = ("group_by_length", "batch_rebalance")
SCHEDULES_NOT_YET = (
    *("cosine_with_restarts", "reduce_lr_on_plateau", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
OPTIMS_NOT_YET = (
    *("adafactor", "adamw_anyprecision", "adamw_torch_4bit", "adamw_torch_8bit", "adamw_bnb_8bit", "adamw_8bit"),
    *("ademamix", "ademamix_8bit", "paged_ademamix_32bit", "paged_ademamix_8bit", "lion_8bit", "lion_32bit"),
    *("paged_adamw_32bit", "paged_adamw_8bit", "paged_lion_32bit", "paged_lion_8bit", "rmsprop", "rmsprop_bnb"),
    *("rmsprop_bnb_8bit", "rmsprop_bnb_32bit", "schedule_free_radam", "schedule_free_adamw", "schedule_free_sgd"),
    "stable_adamw",
)
OPTIMS_ABSENT = (
    *("adamw_torch_xla", "adamw_torch_npu_fused", "galore_adamw", "galore_adamw_8bit", "galore_adafactor"),
    *("galore_adamw_layerwise", "galore_adamw_8bit_layerwise", "galore_adafactor_layerwise", "lomo", "adalomo"),
    *("grokadamw", "apollo_adamw", "apollo_adamw_layerwise", "adamw_hf", "adamw_apex_fused"),
)


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


def _choice(names: Any, not_yet: tuple[str, ...], absent: tuple[str, ...] = ()) -> BeforeValidator:
    """Says of a name that transformers knows whether it will come."""

    def check(value: Any) -> Any:
        text = getattr(value, "value", value)
        if text in (*not_yet, *absent):
            *first, last = (repr(name) for name in get_args(names))
            why = "is not yet there" if text in not_yet else "is not supported"
            raise _expected(f"{', '.join(first)} or {last} ('{text}' {why})")
        return value

    return BeforeValidator(check)


Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
IntervalStrategy = Annotated[IntervalName, BeforeValidator(_no)]
SaveStrategy = Annotated[IntervalName, _choice(IntervalName, ("best",)), BeforeValidator(_no)]
Schedule = Annotated[ScheduleName, _choice(ScheduleName, SCHEDULES_NOT_YET, ("greedy",))]
Optim = Annotated[OptimName, _choice(OptimName, OPTIMS_NOT_YET, OPTIMS_ABSENT)]
Interval = Annotated[PositiveInt | Annotated[float, Field(gt=0.0, lt=1.0)], BeforeValidator(_whole)]
Steps = Annotated[int, BeforeValidator(_whole)]
Mapping = Annotated[dict[str, Any], BeforeValidator(_json)]
Names = Annotated[list[str], BeforeValidator(_one_or_many)]
TokensSeen = Annotated[Literal["no", "all", "non_padding"], BeforeValidator(_seen)]
Trackers = Annotated[str | list[str], BeforeValidator(_trackers)]
Sampling = Annotated[SamplingName, _choice(SamplingName, SAMPLING_NOT_YET)]
LogLevel = Literal["detail", "debug", "info", "warning", "error", "critical", "passive"]
