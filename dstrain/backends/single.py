"""One device, plain torch: the reference that the other engines are held against, and the laptop's engine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dstrain.backends.base import Batch, Capabilities, Output, Recipe, Schedule, StepOutcome, move
from dstrain.core.errors import CheckpointError
from dstrain.core.shard_globals import SHARD_FAULTS, shard_fault
from dstrain.resolve.plan import RunPlan

_STATE = "single_state.pt"


class SingleBackend:
    """float32, or autocast to bf16/fp16 over float32 weights."""

    capabilities = Capabilities(several_ranks=False, shards_weights=False)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.optimizer: torch.optim.Optimizer
        self.schedule: Schedule
        self._module: nn.Module
        self._parameters: list[nn.Parameter] = []
        self._max_norm = 0.0
        self._autocast: torch.dtype | None = None
        self._scaler: torch.amp.GradScaler | None = None

    def prepare(self, model: nn.Module, plan: RunPlan, recipe: Recipe) -> nn.Module:
        """Move the model, build torch's optimizer of the plan's name."""
        self._module = model.to(self.device)
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._max_norm = plan.optimizer.max_grad_norm
        self._autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(plan.precision)
        self._scaler = torch.amp.GradScaler(self.device.type) if plan.precision == "fp16" else None
        self.optimizer = _optimizer(plan, recipe.groups)
        if recipe.make_schedule is None:
            raise CheckpointError("this engine runs dstrain's schedules only")
        self.schedule = recipe.make_schedule(self.optimizer)
        return model

    def forward(self, batch: Batch) -> Output:
        """The model's output, under autocast when the plan asks for it."""
        with torch.autocast(self.device.type, dtype=self._autocast, enabled=self._autocast is not None):
            return self._module(**move(batch, self.device))

    def backward(self, loss: Tensor, *, last: bool) -> None:  # noqa: ARG002  (one device: every micro-batch alike)
        """Add the gradient of this micro-batch."""
        scaled: Tensor = self._scaler.scale(loss) if self._scaler else loss
        torch.autograd.backward(scaled)

    def step(self) -> StepOutcome:
        """Clip and step; a gradient whose norm is not finite changes nothing."""
        if self._scaler:
            self._scaler.unscale_(self.optimizer)
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        value = float(norm)
        lr = float(self.optimizer.param_groups[0]["lr"])
        applied = math.isfinite(value)
        if applied and self._max_norm > 0:
            torch.nn.utils.clip_grads_with_norm_(self._parameters, self._max_norm, norm)
        if self._scaler:
            self._scaler.step(self.optimizer)
            self._scaler.update()
        elif applied:
            self.optimizer.step()
        if applied:
            self.schedule.step()
        self.optimizer.zero_grad(set_to_none=True)
        scale = float(self._scaler.get_scale()) if self._scaler else None
        return StepOutcome(applied, value, lr, scale)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients."""
        training = self._module.training
        self._module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._module.train(training)

    def save(self, folder: Path) -> None:
        """Weights, optimizer, schedule and scaler in one file that loads with `weights_only=True`."""
        state: dict[str, Any] = {
            "model": self._module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self._scaler.state_dict() if self._scaler else None,
        }
        torch.save(state, folder / _STATE)

    def load(self, folder: Path) -> None:
        """The reverse of `save`."""
        path = folder / _STATE
        if not path.is_file():
            raise CheckpointError(f"no {_STATE} in the checkpoint", where=str(folder))
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except SHARD_FAULTS as error:
            raise CheckpointError(shard_fault(error), where=str(path)) from None
        self._module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self._scaler and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The state dict, tensor by tensor."""
        for name, tensor in self._module.state_dict().items():
            yield name, tensor.detach().cpu().clone()

    def close(self) -> None:
        """Nothing to release."""


def _optimizer(plan: RunPlan, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    o = plan.optimizer
    cls = getattr(torch.optim, o.name)
    options: dict[str, Any] = {"lr": o.lr, "weight_decay": o.weight_decay}
    if o.name in ("AdamW", "Adam"):
        options |= {"betas": o.betas, "eps": o.eps, "fused": o.fused or None}
    optimizer: torch.optim.Optimizer = cls(groups, **options)
    return optimizer
