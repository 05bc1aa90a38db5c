"""The `RunPlan`: the whole run as a frozen value. A reader who sees only this knows what will run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dstrain.core.facts import DataFacts, DeviceKind, ModelFacts, WorldFacts
from dstrain.core.source import Source

BackendName = Literal["single", "deepspeed"]
Precision = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """Rows: `global_rows` make one optimizer step on all ranks."""

    micro_rows: int
    accumulation: int
    global_rows: int
    eval_rows: int


@dataclass(frozen=True, slots=True)
class LengthPlan:
    """Steps are optimizer steps. `steps_per_epoch` is None for a stream of unknown length."""

    max_steps: int
    steps_per_epoch: int | None
    epochs: float


@dataclass(frozen=True, slots=True)
class OptimizerPlan:
    """`engine_class` is the class that will run; `substitute_for` the op that would run if it were built."""

    name: str
    engine_class: str
    lr: float
    weight_decay: float
    betas: tuple[float, float]
    eps: float
    max_grad_norm: float
    fused: bool = False
    substitute_for: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """`runs_in` is `dstrain` for our closed formulas, `deepspeed` when the file's `scheduler` section decides."""

    name: str
    warmup_steps: int
    total_steps: int
    options: Mapping[str, Any]
    runs_in: Literal["dstrain", "deepspeed"]


@dataclass(frozen=True, slots=True)
class IntervalPlan:
    """When something happens: every `steps`, at the end of each epoch, or never (both unset)."""

    steps: int | None = None
    epoch: bool = False


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """Logging, evaluation and saving. `eval_delay` is in steps or in epochs, as evaluation is."""

    logging: IntervalPlan
    logging_first_step: bool
    evaluation: IntervalPlan
    eval_on_start: bool
    saving: IntervalPlan
    save_total_limit: int | None
    eval_delay: float = 0
    count_tokens: Literal["no", "all", "non_padding"] = "no"
    skip_nonfinite: bool = False
    save_only_model: bool = False


@dataclass(frozen=True, slots=True)
class LoaderPlan:
    """The data loader of one rank."""

    seed: int
    data_seed: int
    drop_last: bool
    workers: int
    pin_memory: bool
    prefetch_batches: int | None
    persistent_workers: bool
    order: Literal["random", "sequential"] = "random"
    start_method: str | None = None


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """Settings of the process and of the model's memory; `tf32` None leaves torch's setting."""

    full_determinism: bool = False
    tf32: bool | None = None
    gradient_checkpointing: bool = False
    gradient_checkpointing_kwargs: Mapping[str, Any] | None = None
    empty_cache_steps: int | None = None


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that will run, with the source of every value in `sources` (by dotted name, `batch.micro_rows`).

    `deepspeed` is the exact JSON handed to `deepspeed.initialize`, {} for another backend.
    """

    output_dir: str
    backend: BackendName
    device: DeviceKind
    precision: Precision
    zero_stage: int
    world: WorldFacts
    model: ModelFacts
    data: DataFacts
    batch: BatchPlan
    length: LengthPlan
    optimizer: OptimizerPlan
    schedule: SchedulePlan
    report: ReportPlan
    loader: LoaderPlan
    process: ProcessPlan = ProcessPlan()
    run_name: str = ""
    deepspeed: Mapping[str, Any] = field(default_factory=dict)
    needed_ops: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    sources: Mapping[str, Source] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain JSON, the same text in `dstrain plan`, every checkpoint and the report."""
        plain = {
            item.name: _plain(getattr(self, item.name)) for item in dataclasses.fields(self) if item.name != "sources"
        }
        # Ranks differ only in who they are; the plan they share does not.
        plain["world"] = {"world_size": self.world.world_size, "launcher": self.world.launcher}
        plain["sources"] = {name: source.as_json() for name, source in self.sources.items()}
        return plain

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the run that wrote the checkpoint, or its meaning changes."""
        return {
            "backend": self.backend,
            "zero_stage": self.zero_stage,
            "precision": self.precision,
            "world_size": self.world.world_size,
            "model.class_name": self.model.class_name,
            "model.parameters": self.model.parameters,
            "data.train_rows": self.data.train_rows,
            "batch.global_rows": self.batch.global_rows,
            "loader.data_seed": self.loader.data_seed,
            "loader.drop_last": self.loader.drop_last,
            "loader.order": self.loader.order,
            "optimizer.name": self.optimizer.name,
            "schedule.runs_in": self.schedule.runs_in,
        }


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [_plain(inner) for inner in value]
    return value
