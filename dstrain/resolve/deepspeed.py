"""The exact JSON for `deepspeed.initialize`: canonical order, no "auto", hidden defaults that change training written.

DeepSpeed 0.19.8 clips at 1.0 when `gradient_clipping` is not written (runtime/constants.py), so it always is.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from dstrain.core.numbers import as_int
from dstrain.core.source import Source, derived, fact
from dstrain.resolve._builder import AUTO, Builder
from dstrain.resolve.plan import BatchPlan, OptimizerPlan, Precision, SchedulePlan

_WRITTEN_OUT = Source("default", "DeepSpeed's default, written out")
_ORDER = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "bf16",
    "fp16",
    "torch_autocast",
    "data_types",
    "zero_optimization",
    "optimizer",
    "scheduler",
)


def zero_stage(b: Builder) -> int:
    """The ZeRO stage that the file asks for (0 when it asks for none; true means 1, as DeepSpeed reads it)."""
    section = b.doc.get("zero_optimization")
    if isinstance(section, bool):
        return int(b.put("zero_stage", int(section), b.from_file("zero_optimization")))
    if b.stated("zero_optimization.stage"):
        stage = as_int(b.doc.get("zero_optimization.stage"))
        return int(b.put("zero_stage", stage or 0, b.from_file("zero_optimization.stage")))
    if isinstance(section, Mapping) and section.get("stage") == AUTO:
        return int(b.derive("zero_stage", 2, "auto: 2, which keeps weights whole and shards the rest"))
    return int(b.derive("zero_stage", 0, "no zero_optimization.stage in the DeepSpeed file"))


def emit(
    b: Builder,
    batch: BatchPlan,
    precision: Precision,
    stage: int,
    optimizer: OptimizerPlan,
    optimizer_section: dict[str, Any],
    schedule: SchedulePlan,
) -> dict[str, Any]:
    """The JSON. Keys of the file that no topic owns are passed on as written."""
    config: dict[str, Any] = {
        key: value for key, value in copy.deepcopy(dict(b.doc.data)).items() if value is not None and value != AUTO
    }
    config.pop("bfloat16", None)
    config |= {
        "train_batch_size": batch.global_rows,
        "train_micro_batch_size_per_gpu": batch.micro_rows,
        "gradient_accumulation_steps": batch.accumulation,
        "gradient_clipping": optimizer.max_grad_norm,
        "bf16": _precision(b, "bf16" if b.doc.has("bf16") else "bfloat16", precision == "bf16", _BF16_DEFAULTS),
        "fp16": _precision(b, "fp16", precision == "fp16", _FP16_DEFAULTS),
        "zero_optimization": _zero(b, stage),
        "optimizer": optimizer_section,
    }
    if accumulation := _accumulation_dtype(b, precision, stage):
        config["data_types"] = {**b.doc.section("data_types"), "grad_accum_dtype": accumulation}
    if schedule.runs_in == "deepspeed":
        config["scheduler"] = _scheduler(b, optimizer, schedule)
    else:
        config.pop("scheduler", None)
    if optimizer.engine_class.startswith("torch.optim.") and stage > 0 and optimizer.name not in _TESTED:
        config["zero_allow_untested_optimizer"] = True
        b.notices.append(f"optimizer {optimizer.name} under ZeRO {stage} is not among those DeepSpeed tests")
    ordered = {key: config.pop(key) for key in _ORDER if key in config}
    return {key: _without_auto(value) for key, value in {**ordered, **config}.items()}


# What DeepSpeed 0.19.8 does when these are not written (runtime/precision_config.py); all of them decide which steps
# count. `check_grad_overflow` was off in older releases.
_BF16_DEFAULTS: dict[str, Any] = {"check_grad_overflow": True}
_FP16_DEFAULTS: dict[str, Any] = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
}


def _precision(b: Builder, section: str, on: bool, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """A section of a number format; where it is on, with the defaults that decide which steps are skipped."""
    stated = _without_auto({key: value for key, value in b.doc.section(section).items() if value is not None})
    result: dict[str, Any] = {**stated, "enabled": on}
    if on:
        name = "bf16" if section == "bfloat16" else section
        for key, value in defaults.items():
            if key not in result:
                result[key] = b.put(f"deepspeed.{name}.{key}", value, _WRITTEN_OUT)
    return {"enabled": result.pop("enabled"), **result}


_TESTED = {"Adam", "AdamW", "Adagrad", "adam", "adamw", "adagrad"}


def _without_auto(value: Any) -> Any:
    """Drop what is left of `auto` below the top: DeepSpeed's typed sections read it as 'the default' anyway."""
    if isinstance(value, Mapping):
        return {key: _without_auto(inner) for key, inner in value.items() if inner != AUTO}
    return value


def _accumulation_dtype(b: Builder, precision: Precision, stage: int) -> str | None:
    if b.stated("data_types.grad_accum_dtype"):
        return str(b.doc.get("data_types.grad_accum_dtype"))
    if precision == "fp32":
        return None
    # Unset means the model's dtype: bf16 sums lose bits with each micro-batch. Stage 0 has no fp32 sum in 0.19.8
    # (NotImplementedError in runtime/engine.py), so it stays as it is there.
    dtype = "fp32" if stage > 0 else precision
    name = "deepspeed.data_types.grad_accum_dtype"
    return str(b.derive(name, dtype, f"{precision} at ZeRO {stage}; sums of gradients stay in {dtype}"))


def _zero(b: Builder, stage: int) -> dict[str, Any]:
    section = b.doc.get("zero_optimization")
    stated = dict(section) if isinstance(section, Mapping) else {}
    zero = {key: copy.deepcopy(value) for key, value in stated.items() if value is not None}
    zero["stage"] = stage
    for key in [key for key, value in zero.items() if value == AUTO]:
        filled = _bucket(b, key, stage)
        if filled is None:
            del zero[key]
        else:
            zero[key] = filled
    return {"stage": zero.pop("stage"), **zero}


_DEFAULT_BUCKET = 500_000_000


def _bucket(b: Builder, key: str, stage: int) -> int | None:
    """`auto` bucket sizes follow the hidden size, as transformers fills them; None keeps DeepSpeed's default.

    Without a hidden size a bucket of the whole model will do: DeepSpeed's own default of 500 million elements is
    allocated whole, on every rank, however small the model is.
    """
    hidden, name = b.model.hidden_size, f"deepspeed.zero_optimization.{key}"
    if hidden is None and key in ("reduce_bucket_size", "allgather_bucket_size"):
        whole = b.model.parameters + b.model.parameters % 2
        size = min(_DEFAULT_BUCKET, max(2, whole))
        return int(b.derive(name, size, "the model's parameters, since it has no hidden size; at most 500000000"))
    if hidden is None:
        b.put(name, None, fact("auto, and the model has no hidden size: DeepSpeed's default"))
        return None
    if key in ("reduce_bucket_size", "allgather_bucket_size"):
        # DeepSpeed 0.19.8 asserts an even allgather bucket (runtime/zero/stage_1_and_2.py:389).
        size = hidden * hidden + (hidden * hidden) % 2
        return int(b.derive(name, size, f"hidden size {hidden} squared"))
    if key == "stage3_prefetch_bucket_size" and stage == 3:
        return int(b.derive(name, int(0.9 * hidden * hidden), f"0.9 x hidden size {hidden} squared"))
    if key == "stage3_param_persistence_threshold" and stage == 3:
        return int(b.derive(name, 10 * hidden, f"10 x hidden size {hidden}"))
    return None


_SCHEDULER = "deepspeed.scheduler.params"


def _scheduler(b: Builder, optimizer: OptimizerPlan, schedule: SchedulePlan) -> dict[str, Any]:
    """DeepSpeed's scheduler with `auto` filled, and the defaults that change the curve written out."""
    asked = b.doc.section("scheduler.params")
    params = {key: value for key, value in asked.items() if value != AUTO and value is not None}
    named = f"{_SCHEDULER}.{{}}".format

    def fill(key: str, value: Any, why: Source) -> None:
        if key not in params:
            params[key] = b.put(named(key), value, why)

    if schedule.name in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        # DeepSpeed >= 0.19.6 refuses warmup_num_steps 0.
        fill("warmup_num_steps", max(1, schedule.warmup_steps), b.sources["schedule.warmup_steps"])
        linear = asked.get("warmup_type") == AUTO
        fill("warmup_type", "linear" if linear else "log", derived("auto: linear") if linear else _WRITTEN_OUT)
    if schedule.name in ("WarmupLR", "WarmupDecayLR"):
        fill("warmup_min_lr", 0.0, _WRITTEN_OUT)
        # WarmupDecayLR's own default is 0.001, whatever the optimizer's lr (runtime/lr_schedules.py).
        fill("warmup_max_lr", optimizer.lr, derived("= the optimizer's lr"))
    if schedule.name == "WarmupCosineLR":
        fill("warmup_min_ratio", 0.0, _WRITTEN_OUT)
        fill("cos_min_ratio", 0.0001, _WRITTEN_OUT)
    if schedule.name in ("WarmupDecayLR", "WarmupCosineLR"):
        fill("total_num_steps", schedule.total_steps, derived("= length.max_steps"))
    for key in ("warmup_num_steps", "total_num_steps"):
        if (number := as_int(params.get(key))) is not None:
            params[key] = number
    return {"type": schedule.name, "params": params}
