"""The DeepSpeed engine behind the seam. All facts about DeepSpeed are of 0.19.8, with file and line."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from torch import Tensor, nn

from dstrain.backends import deepspeed_checkpoint
from dstrain.backends import deepspeed_mends as mends
from dstrain.backends.base import Batch, Capabilities, Output, Recipe, Schedule, StepOutcome, move
from dstrain.core.errors import CheckpointError
from dstrain.resolve.plan import RunPlan

_TAG = "engine"
_FLOATS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class DeepSpeedBackend:
    """ZeRO stages 0 to 3. The process group must be there; ops are chosen (`dstrain.ops`) before `prepare`."""

    capabilities = Capabilities(several_ranks=True, shards_weights=True)

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._engine: Any = None
        self._plan: RunPlan
        self._schedule: Schedule | None = None
        self._floats: torch.dtype | None = None

    def prepare(self, model: nn.Module, plan: RunPlan, recipe: Recipe) -> nn.Module:
        """`deepspeed.initialize` with exactly the plan's JSON."""
        self._plan, self._floats = plan, _FLOATS.get(plan.precision)
        mends.forget_earlier_engines()
        made: list[Schedule] = []

        def make(optimizer: torch.optim.Optimizer) -> Schedule:
            # A callable is given the basic optimizer; a schedule object would not know ZeRO's wrapper (engine.py:1150).
            if recipe.make_schedule is None:
                raise CheckpointError("the plan leaves the schedule to DeepSpeed")
            made.append(recipe.make_schedule(optimizer))
            return made[0]

        # A deep copy: parts of DeepSpeed write into nested dicts of the configuration they are given.
        self._engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=recipe.groups,
            lr_scheduler=make if recipe.make_schedule is not None else None,
            config=copy.deepcopy(dict(plan.deepspeed)),
            dist_init_required=False,
        )
        deepspeed_checkpoint.install(self._engine)
        mends.undo_first_step(self._engine.optimizer)
        mends.keep_groups(self._engine.optimizer, self._engine.basic_optimizer)
        self._schedule = made[0] if made else None
        self.device = self._engine.device
        self._engine.train()
        module: nn.Module = self._engine.module
        return module

    def forward(self, batch: Batch) -> Output:
        """Through the engine. bf16/fp16 engines do not cast floating-point inputs themselves, so they are cast here."""
        return self._engine(**move(batch, self.device, floats=self._floats))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """The loss is weighted by the loop, so the engine must not divide it by the accumulation steps once more."""
        # Sticky in 0.19.8: what is set here holds until it is set again, so it is set before every backward.
        self._engine.set_gradient_accumulation_boundary(last)
        self._engine.backward(loss, scale_wrt_gas=False)
        if not last:
            self._engine.step()

    def step(self) -> StepOutcome:
        """The engine's step at a boundary."""
        lr = float(self._groups()[0]["lr"])
        if self._unprotected:
            norm = self._local_norm()
            if not math.isfinite(norm):
                self._skip()
                return StepOutcome(False, norm, lr)
            self._engine.step()
            return StepOutcome(True, norm, lr)
        self._engine.step()
        applied = bool(self._engine.was_step_applied())
        found = self._engine.get_global_grad_norm()
        norm = float(found) if found is not None else math.nan
        if not applied and math.isfinite(norm) and norm < 0:
            norm = math.inf  # -1 is how the fp16 optimizers of 0.19.8 write 'overflow'
        scale = getattr(self._engine.optimizer, "cur_scale", None) if self._plan.precision == "fp16" else None
        return StepOutcome(applied, norm, lr, float(scale) if scale is not None else None)

    @property
    def _unprotected(self) -> bool:
        """Stage 0 in fp32 has no overflow check and reports no norm (engine.py:3505): both are done here."""
        return self._plan.zero_stage == 0 and self._plan.precision == "fp32"

    def _local_norm(self) -> float:
        gradients = [parameter.grad for parameter in self._engine.module.parameters() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(gradients))

    def _skip(self) -> None:
        """What the engine does for an overflow: gradients away, counters on, weights and schedule as they were."""
        self._engine.zero_grad()
        self._engine.skipped_steps += 1
        self._engine.global_steps += 1
        self._engine.micro_steps += 1

    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._engine.optimizer.param_groups
        return groups

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Evaluation mode without gradients."""
        training = self._engine.module.training
        self._engine.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self._engine.train(training)

    def save(self, folder: Path) -> None:
        """The engine's own shards, all of them, under one tag."""
        deepspeed_checkpoint.save(self._engine, folder, _TAG)

    def load(self, folder: Path) -> None:
        """The engine's own load, with what it gets wrong put right."""
        if not (folder / _TAG).is_dir():
            raise CheckpointError("the checkpoint holds no shards of a DeepSpeed engine", where=str(folder))
        deepspeed_checkpoint.check_openable(folder / _TAG)
        with deepspeed_checkpoint.weights_only():
            path, _ = self._engine.load_checkpoint(str(folder), tag=_TAG)
        if path is None:  # (None, None) and a warning is how 0.19.8 says that nothing was there
            raise CheckpointError("DeepSpeed found nothing to load", where=str(folder))
        # Stages 1 and 2 take the clip norm from the checkpoint (stage_1_and_2.py:3671); the plan decides.
        if hasattr(self._engine.optimizer, "clip_grad"):
            self._engine.optimizer.clip_grad = self._plan.optimizer.max_grad_norm
        if self._schedule is not None:
            self._schedule.apply()

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Gathered one parameter at a time, so that stage 3 never holds a whole model on one rank."""
        module: nn.Module = self._engine.module
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for name, shown in module.state_dict().items():
            parameter = parameters.get(name)
            if parameter is None or not hasattr(parameter, "ds_id"):
                yield name, shown.detach().cpu().clone()
                continue
            with deepspeed.zero.GatheredParameters([parameter]):
                full = parameter.detach().cpu().clone()
            yield name, full

    def close(self) -> None:
        """Release the engine's hooks and buffers."""
        if self._engine is not None:
            self._engine.destroy()
            self._engine = None
