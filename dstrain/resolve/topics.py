"""One pure function for each topic of the plan; each records its sources in the builder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dstrain.core.numbers import as_int
from dstrain.core.source import DEFAULT, Source, derived, fact
from dstrain.resolve._builder import Builder
from dstrain.resolve.plan import (
    BatchPlan,
    IntervalPlan,
    LengthPlan,
    LoaderPlan,
    Precision,
    ReportPlan,
    SchedulePlan,
)
from dstrain.rules.triangle import solve


def batch(b: Builder) -> BatchPlan:
    """The batch triangle; it must hold (a rule has checked it)."""
    triangle = solve(b.args, b.doc, b.world.world_size)
    micro = b.put("batch.micro_rows", triangle.micro, triangle.sources["micro"])
    accumulation = b.put("batch.accumulation", triangle.accumulation, triangle.sources["accumulation"])
    rows = b.put("batch.global_rows", triangle.train, triangle.sources["train"])
    return BatchPlan(micro, accumulation, rows, b.arg("batch.eval_rows", "per_device_eval_batch_size"))


def length(b: Builder, batch_plan: BatchPlan) -> LengthPlan:
    """Steps: `max_steps`, or epochs x steps per epoch. The last window of an epoch may be smaller, and is a step."""
    rows, per_epoch = b.data.train_rows, None
    if rows is not None:
        if b.args.dataloader_drop_last:
            per_epoch, formula = rows // batch_plan.global_rows, f"floor({rows} rows / {batch_plan.global_rows})"
        else:
            per_epoch = math.ceil(rows / batch_plan.global_rows)
            formula = f"ceil({rows} rows / {batch_plan.global_rows})"
        b.derive("length.steps_per_epoch", per_epoch, formula)
    if b.args.max_steps > 0:
        steps = b.arg("length.max_steps", "max_steps")
        epochs = steps / per_epoch if per_epoch else 1.0
        b.derive("length.epochs", epochs, "max_steps / steps per epoch")
        if b.args.sources["num_train_epochs"].kind != "default":
            b.notices.append(f"max_steps {steps} is given, so num_train_epochs {b.args.num_train_epochs:g} is not used")
        return LengthPlan(steps, per_epoch, epochs)
    epochs = b.arg("length.epochs", "num_train_epochs")
    # Without rows to train on (evaluation only) there are no steps.
    steps = math.ceil(epochs * per_epoch) if per_epoch else 0
    b.derive("length.max_steps", steps, f"ceil({epochs:g} epochs x {per_epoch or 0} steps per epoch)")
    return LengthPlan(steps, per_epoch, epochs)


def precision(b: Builder) -> Precision:
    """Number format: the file's bf16/fp16 sections if they state `enabled`, else the flags."""
    for name in ("bf16", "fp16"):
        alias = "bfloat16" if name == "bf16" and not b.doc.has("bf16") else name
        if (stated := b.truth(f"{alias}.enabled")) is not None:
            if stated:
                b.put("precision", name, b.from_file(f"{alias}.enabled"))
                return "bf16" if name == "bf16" else "fp16"
        elif getattr(b.args, name):
            b.put("precision", name, b.args.sources[name])
            return "bf16" if name == "bf16" else "fp16"
    b.put("precision", "fp32", DEFAULT)
    return "fp32"


def warmup(b: Builder, steps: int) -> int:
    """Warm-up in steps; a value below 1 is a fraction of all steps."""
    value = b.args.warmup_steps
    if isinstance(value, float) and 0 < value < 1:
        result = math.ceil(value * steps)
        return int(b.derive("schedule.warmup_steps", result, f"ceil({value:g} x {steps} steps)"))
    return int(b.put("schedule.warmup_steps", int(value), b.args.sources["warmup_steps"]))


def _stated_steps(b: Builder, name: str, key: str, otherwise: int) -> int:
    """A number of steps of the file's own scheduler, where the file gives one."""
    full = f"scheduler.params.{key}"
    value = as_int(b.doc.get(full)) if b.stated(full) else None
    return otherwise if value is None else int(b.put(name, value, b.from_file(full)))


def schedule(b: Builder, steps: int) -> SchedulePlan:
    """The schedule: DeepSpeed's own when the file names one, else our closed formula of the argument's name."""
    kind = b.doc.get("scheduler.type")
    warmup_steps = warmup(b, steps)
    total = b.put("schedule.total_steps", steps, derived("= length.max_steps"))
    if isinstance(kind, str) and kind != "auto":
        warmup_steps = _stated_steps(b, "schedule.warmup_steps", "warmup_num_steps", warmup_steps)
        total = _stated_steps(b, "schedule.total_steps", "total_num_steps", total)
        b.put("schedule.name", kind, b.from_file("scheduler.type"))
        b.put("schedule.runs_in", "deepspeed", b.from_file("scheduler.type"))
        return SchedulePlan(kind, warmup_steps, total, {}, "deepspeed")
    name = b.arg("schedule.name", "lr_scheduler_type")
    options: Mapping[str, Any] = dict(b.args.lr_scheduler_kwargs or {})
    b.put("schedule.options", options, b.args.sources["lr_scheduler_kwargs"])
    b.put("schedule.runs_in", "dstrain", derived("no scheduler section in the DeepSpeed file"))
    return SchedulePlan(name, warmup_steps, total, options, "dstrain")


def _interval(b: Builder, topic: str, strategy: str, value: float | int | None, source: Source, steps: int) -> Any:
    if strategy == "no":
        return b.put(f"report.{topic}", IntervalPlan(), b.args.sources[f"{_PREFIX[topic]}_strategy"])
    if strategy == "epoch":
        return b.put(f"report.{topic}", IntervalPlan(epoch=True), b.args.sources[f"{_PREFIX[topic]}_strategy"])
    if isinstance(value, float) and value < 1:
        every = max(1, math.ceil(value * steps))
        return b.derive(f"report.{topic}", IntervalPlan(every), f"ceil({value:g} x {steps} steps)")
    return b.put(f"report.{topic}", IntervalPlan(int(value or 1)), source)


_PREFIX = {"logging": "logging", "evaluation": "eval", "saving": "save"}


def report(b: Builder, steps: int) -> ReportPlan:
    """Intervals in steps; `eval_steps` follows `logging_steps` when it is not given."""
    a, s = b.args, b.args.sources
    eval_steps, eval_source = (a.eval_steps, s["eval_steps"])
    if eval_steps is None:
        eval_steps, eval_source = a.logging_steps, derived("= logging_steps")
    return ReportPlan(
        logging=_interval(b, "logging", a.logging_strategy, a.logging_steps, s["logging_steps"], steps),
        logging_first_step=b.arg("report.logging_first_step", "logging_first_step"),
        evaluation=_interval(b, "evaluation", a.eval_strategy, eval_steps, eval_source, steps),
        eval_on_start=b.arg("report.eval_on_start", "eval_on_start"),
        saving=_interval(b, "saving", a.save_strategy, a.save_steps, s["save_steps"], steps),
        save_total_limit=b.arg("report.save_total_limit", "save_total_limit"),
        eval_delay=b.arg("report.eval_delay", "eval_delay"),
        count_tokens=b.arg("report.count_tokens", "include_num_input_tokens_seen"),
        skip_nonfinite=b.arg("report.skip_nonfinite", "logging_nan_inf_filter"),
        save_only_model=b.arg("report.save_only_model", "save_only_model"),
    )


def loader(b: Builder) -> LoaderPlan:
    """The data loader and its seeds."""
    data_seed = b.args.data_seed
    if data_seed is None:
        data_seed = b.derive("loader.data_seed", b.args.seed, "= seed")
    else:
        b.arg("loader.data_seed", "data_seed")
    pin = b.args.dataloader_pin_memory and b.host.device != "cpu"
    if b.args.dataloader_pin_memory and not pin:
        b.put("loader.pin_memory", False, fact("the device is the CPU"))
    else:
        b.arg("loader.pin_memory", "dataloader_pin_memory")
    return LoaderPlan(
        seed=b.arg("loader.seed", "seed"),
        data_seed=data_seed,
        drop_last=b.arg("loader.drop_last", "dataloader_drop_last"),
        workers=b.arg("loader.workers", "dataloader_num_workers"),
        pin_memory=pin,
        prefetch_batches=b.arg("loader.prefetch_batches", "dataloader_prefetch_factor"),
        persistent_workers=b.arg("loader.persistent_workers", "dataloader_persistent_workers"),
        order=b.arg("loader.order", "train_sampling_strategy"),
        start_method=b.arg("loader.start_method", "dataloader_multiprocessing_context"),
    )
