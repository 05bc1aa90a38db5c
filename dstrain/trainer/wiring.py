"""From arguments, model and data to a plan, and from a plan to a prepared engine."""

from __future__ import annotations

import json
import os
import sys
import warnings
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import nn

from dstrain import dist, optim
from dstrain.args.training import TrainingArguments
from dstrain.backends.base import Backend, Recipe, Schedule
from dstrain.core.errors import PlanError
from dstrain.core.facts import HostFacts, WorldFacts
from dstrain.core.finding import Severity, render
from dstrain.dsconfig.reader import read
from dstrain.ops.load import activate
from dstrain.probe import host_facts, model_facts, world_facts
from dstrain.resolve import Resolution, RunPlan, resolve
from dstrain.resolve.show import as_json, as_text
from dstrain.trainer.facts import data_facts

PLAN_FORMAT = "DSTRAIN_PLAN"  # text or json: `dstrain plan` sets it, and a Trainer then prints its plan and exits
PLAN_WORLD = "DSTRAIN_PLAN_WORLD_SIZE"
_SHM = "deepspeed_shm_comm"


@dataclass(frozen=True)
class Planned:
    """A plan that can run, with the facts it was resolved against."""

    plan: RunPlan
    host: HostFacts


def plan_run(args: TrainingArguments, model: nn.Module, train: Any, evaluation: Any) -> Planned:
    """Resolve the run.

    Raises:
        PlanError: it cannot run; every reason is in it.
        SystemExit: only the plan was asked for; it has been printed.
    """
    args.check()
    wanted = os.environ.get(PLAN_FORMAT) or ("text" if args.plan_only else None)
    world = _planned_world() if wanted else world_facts()
    host = host_facts(use_cpu=args.use_cpu)
    doc = read(args.deepspeed) if args.deepspeed is not None else None
    resolution = resolve(
        args, doc, world=world, host=host, model=model_facts(model), data=data_facts(train, evaluation)
    )
    if wanted:
        _show(resolution, wanted, world)
    if resolution.plan is None:
        raise PlanError(resolution.findings)
    # Advice is for `dstrain plan`; what is not meant is said at every start.
    loud = [finding for finding in resolution.findings if finding.severity is Severity.WARNING]
    if loud and world.rank == 0:
        print(render(loud), file=sys.stderr)
    return Planned(resolution.plan, host)


def _planned_world() -> WorldFacts:
    """A plan is made for the ranks that are there, or for as many as were named."""
    named = os.environ.get(PLAN_WORLD)
    if named is None:
        return world_facts()
    return WorldFacts(world_size=int(named), local_world_size=int(named), launcher="deepspeed")


def _show(resolution: Resolution, wanted: str, world: WorldFacts) -> NoReturn:
    if world.rank == 0:
        if wanted == "json":
            print(json.dumps(as_json(resolution.plan, resolution.findings), indent=2))
        else:
            print(as_text(resolution.plan, resolution.findings))
        sys.stdout.flush()
    raise SystemExit(0 if resolution.plan is not None else 1)


def start_backend(planned: Planned, model: nn.Module, timeout_s: float) -> tuple[Backend, nn.Module]:
    """Process group, ops, engine, in that order. Returns the engine and the module that carries the weights."""
    plan = planned.plan
    device = torch.device(plan.device, plan.world.local_rank) if plan.device != "cpu" else torch.device("cpu")
    backend: Backend
    if plan.backend == "deepspeed":
        # DeepSpeed 0.19.8 calls collectives that torch 2.13 renames; nothing that a user could mend.
        warnings.filterwarnings("ignore", message=r"`torch\.distributed\..*is deprecated", category=FutureWarning)
        # Ops first: DeepSpeed compiles inside init_distributed on the CPU (comm/torch.py:207 of 0.19.8).
        names = [*plan.needed_ops, *([_SHM] if plan.device == "cpu" and plan.world.world_size > 1 else [])]
        activate(names, build_missing=True, world=plan.world)
        dist.ensure_initialized(plan.world, plan.device, timeout_s)
        from dstrain.backends.deepspeed import DeepSpeedBackend

        backend = DeepSpeedBackend(device)
    else:
        from dstrain.backends.single import SingleBackend

        backend = SingleBackend(device)
    dist.same_on_all_ranks(plan.identity(), "the plan")
    module = backend.prepare(model, plan, _recipe(plan, model))
    return backend, module


def _recipe(plan: RunPlan, model: nn.Module) -> Recipe:
    groups = optim.parameter_groups(model, plan.optimizer.weight_decay)
    if plan.schedule.runs_in == "deepspeed":
        return Recipe(groups, None)
    s = plan.schedule
    value = optim.factor(s.name, s.warmup_steps, s.total_steps, s.options, plan.optimizer.lr)

    def make(optimizer: torch.optim.Optimizer) -> Schedule:
        return optim.ClosedSchedule(optimizer, value)

    return Recipe(groups, make)
