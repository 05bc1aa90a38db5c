"""Settings that are the process's or the model's own, as the plan asks for them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from dstrain.args.training import TrainingArguments
from dstrain.core.errors import ModelError
from dstrain.loop.events import TrainerCallback
from dstrain.loop.state import TrainerState
from dstrain.resolve.plan import ProcessPlan, RunPlan

_LOGGERS = ("dstrain", "DeepSpeed", "transformers")
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextlib.contextmanager
def held(plan: ProcessPlan) -> Iterator[None]:
    """torch's switches as the plan asks, and back as they were: the next run of this process does not inherit them."""
    with contextlib.ExitStack() as stack:
        if plan.tf32 is not None:
            stack.enter_context(_attribute(torch.backends.cuda.matmul, "allow_tf32", plan.tf32))
            stack.enter_context(_attribute(torch.backends.cudnn, "allow_tf32", plan.tf32))
        if plan.full_determinism:
            stack.enter_context(_attribute(torch.backends.cudnn, "deterministic", True))
            stack.enter_context(_attribute(torch.backends.cudnn, "benchmark", False))
            stack.enter_context(_deterministic())
        yield


@contextlib.contextmanager
def _attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    before, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    # cuBLAS is deterministic with a workspace of one of two sizes only; it is read when a handle is made.
    ours = _CUBLAS not in os.environ
    os.environ.setdefault(_CUBLAS, ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warned)
        if ours:
            os.environ.pop(_CUBLAS, None)


def check_model(plan: ProcessPlan, model: nn.Module) -> None:
    """Whether the model can do what is asked of it.

    Raises:
        ModelError: gradient checkpointing is asked for, and the model does not offer it.
    """
    if plan.gradient_checkpointing and not callable(getattr(model, "gradient_checkpointing_enable", None)):
        raise ModelError(
            f"gradient_checkpointing is on, and {type(model).__name__} has no gradient_checkpointing_enable()",
            where="--gradient_checkpointing",
            fix="leave it out, or give the model that method (transformers' models have it)",
        )


def recompute(plan: ProcessPlan, model: nn.Module) -> None:
    """Turn gradient checkpointing on in the model, when it is asked for.

    Raises:
        ModelError: the model refuses, with its own words.
    """
    if not plan.gradient_checkpointing:
        return
    given = plan.gradient_checkpointing_kwargs
    try:
        enable: Any = model.gradient_checkpointing_enable
        enable(**({} if given is None else {"gradient_checkpointing_kwargs": dict(given)}))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ModelError(
            f"{type(model).__name__} refuses gradient checkpointing: {error}",
            where="--gradient_checkpointing",
            fix="leave it out, or change --gradient_checkpointing_kwargs",
        ) from error


def set_log_levels(args: TrainingArguments) -> None:
    """Levels of the loggers of dstrain, DeepSpeed and transformers on this rank."""
    if (args.log_level if args.should_log else args.log_level_replica) != "passive":
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(args.get_process_log_level())


class _EmptyCache(TrainerCallback):
    def __init__(self, every: int, device: str) -> None:
        self._every, self._device = every, device

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:  # noqa: ARG002
        if state.global_step % self._every == 0:
            torch.get_device_module(self._device).empty_cache()


def callbacks(plan: RunPlan) -> list[TrainerCallback]:
    """Callbacks that the plan's settings need."""
    every = plan.process.empty_cache_steps
    return [_EmptyCache(every, plan.device)] if every is not None and plan.device != "cpu" else []
