"""Learning-rate schedules as closed formulas of the step, the same on every engine.

The lr of optimizer step k (from 0) is peak x factor(k). Formulas of the names are those of transformers 5.24
(optimization.py); the numbers are checked against it in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dstrain.core.errors import UsageError

Factor = Callable[[int], float]


def factor(name: str, warmup_steps: int, total_steps: int, options: Mapping[str, Any], peak_lr: float) -> Factor:
    """The factor by step.

    Args:
        options: `num_cycles`, `min_lr`, `min_lr_rate`, `power`, `lr_end`, `timescale`, by name.

    Raises:
        UsageError: an option that this schedule does not take.
    """
    make = _SCHEDULES[name]
    known = _OPTIONS.get(name, ())
    unknown = [key for key in options if key not in known]
    if unknown:
        takes = ", ".join(known) or "no options"
        raise UsageError(f"lr_scheduler_kwargs: {name} does not take {', '.join(unknown)}; it takes {takes}")
    decay = make(_Spec(max(1, total_steps - warmup_steps), warmup_steps, dict(options), peak_lr))

    def value(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        return decay(step - warmup_steps)

    return value


@dataclass(frozen=True, slots=True)
class _Spec:
    """span: steps after warm-up."""

    span: int
    warmup: int
    options: dict[str, Any]
    peak_lr: float

    def relative(self, lr: float) -> float:
        """An lr as a factor of the peak."""
        return lr / self.peak_lr if self.peak_lr else 0.0


_Decay = Callable[[int], float]


def _linear(spec: _Spec) -> _Decay:
    return lambda step: max(0.0, (spec.span - step) / spec.span)


def _constant(_: _Spec) -> _Decay:
    return lambda _: 1.0


def _cosine(spec: _Spec) -> _Decay:
    cycles = float(spec.options.get("num_cycles", 0.5))
    return lambda step: max(0.0, 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * step / spec.span)))


def _cosine_with_min_lr(spec: _Spec) -> _Decay:
    if "min_lr" in spec.options:
        floor = spec.relative(float(spec.options["min_lr"]))
    elif "min_lr_rate" in spec.options:
        floor = float(spec.options["min_lr_rate"])
    else:
        raise UsageError("lr_scheduler_kwargs: cosine_with_min_lr needs min_lr or min_lr_rate")
    cosine = _cosine(spec)
    return lambda step: max(0.0, cosine(step) * (1.0 - floor) + floor)


def _polynomial(spec: _Spec) -> _Decay:
    end, power = spec.relative(float(spec.options.get("lr_end", 1e-7))), float(spec.options.get("power", 1.0))
    return lambda step: end if step >= spec.span else (1.0 - end) * (1.0 - step / spec.span) ** power + end


def _inverse_sqrt(spec: _Spec) -> _Decay:
    timescale = int(spec.options.get("timescale") or spec.warmup or 10_000)
    return lambda step: 1.0 / math.sqrt((step + timescale) / timescale)


_SCHEDULES: dict[str, Callable[[_Spec], _Decay]] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "constant": _constant,
    "constant_with_warmup": _constant,
    "polynomial": _polynomial,
    "inverse_sqrt": _inverse_sqrt,
}
_OPTIONS: dict[str, tuple[str, ...]] = {
    "cosine": ("num_cycles",),
    "cosine_with_min_lr": ("num_cycles", "min_lr", "min_lr_rate"),
    "polynomial": ("lr_end", "power"),
    "inverse_sqrt": ("timescale",),
}


class ClosedSchedule:
    """Sets each group's lr to its peak x factor(step). Its only state is the step: a longer horizon just goes on."""

    def __init__(self, optimizer: torch.optim.Optimizer, value: Factor) -> None:
        self.optimizer = optimizer
        self._value = value
        self._peaks = [float(group["lr"]) for group in optimizer.param_groups]
        self._step = 0
        self.apply()

    def apply(self) -> None:
        """Set the lr of the current step."""
        scale = self._value(self._step)
        for group, peak in zip(self.optimizer.param_groups, self._peaks, strict=True):
            group["lr"] = peak * scale

    def step(self, *_: Any, **__: Any) -> None:
        """Go on by one applied optimizer step."""
        self._step += 1
        self.apply()

    def get_last_lr(self) -> list[float]:
        """The lr of each group, as torch's schedulers say it."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def state_dict(self) -> dict[str, Any]:
        """The step, which is all."""
        return {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a step."""
        self._step = int(state["step"])
        self.apply()
