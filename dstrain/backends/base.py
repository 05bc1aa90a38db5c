"""The seam: what the loop knows of an engine. Nine verbs; the loop never asks which engine it has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dstrain.resolve.plan import RunPlan

Batch = Mapping[str, Any]
Output = Any


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an engine can do: read by rules and wiring, never branched on in the loop."""

    several_ranks: bool
    shards_weights: bool


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """What an optimizer step did.

    Args:
        applied: False when the step was skipped because the norm of the gradient was not finite.
        grad_norm: norm of the global gradient before clipping.
        lr: learning rate of the first group that this step used.
        loss_scale: for fp16; else None.
    """

    applied: bool
    grad_norm: float
    lr: float
    loss_scale: float | None = None


class Schedule(Protocol):
    """A learning-rate schedule that an engine steps once for each applied optimizer step."""

    def step(self) -> None:
        """Go on by one step."""

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""

    def apply(self) -> None:
        """Set the groups' lr anew; needed after an optimizer's state was loaded over it."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an engine needs beside the plan: parameter groups, and a schedule for the optimizer it will own.

    `make_schedule` is None when the plan leaves the schedule to DeepSpeed.
    """

    groups: list[dict[str, Any]]
    make_schedule: Callable[[torch.optim.Optimizer], Schedule] | None


class Backend(Protocol):
    """One engine."""

    capabilities: Capabilities
    device: torch.device

    def prepare(self, model: nn.Module, plan: RunPlan, recipe: Recipe) -> nn.Module:
        """Model, optimizer and schedule, jointly. Returns the module that carries the weights."""

    def forward(self, batch: Batch) -> Output:
        """The model's output; precision and autocast are inside."""

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Accumulate gradients of a scalar loss; the mean over ranks is taken. `last`: final micro-batch of a step."""

    def step(self) -> StepOutcome:
        """Clip, step, zero the gradients, advance the schedule."""

    def evaluating(self) -> AbstractContextManager[None]:
        """No gradients, evaluation mode; the training mode comes back at the end."""

    def save(self, folder: Path) -> None:
        """Write this rank's shards. Collective. `checkpoint/` owns names, commit and manifest."""

    def load(self, folder: Path) -> None:
        """Read this rank's shards. Collective.

        Raises:
            CheckpointError: when the folder does not hold what this engine wrote.
        """

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full tensors on the CPU, one at a time, in the order of the state dict. Collective."""

    def close(self) -> None:
        """Release the engine."""


def move(value: Any, device: torch.device, *, floats: torch.dtype | None = None) -> Any:
    """Tensors of a nested batch on `device`; floating-point ones also as `floats`, when given."""
    if isinstance(value, Tensor):
        dtype = floats if floats is not None and value.is_floating_point() else None
        return value.to(device=device, dtype=dtype, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: move(inner, device, floats=floats) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(move(inner, device, floats=floats) for inner in value)
    return value
