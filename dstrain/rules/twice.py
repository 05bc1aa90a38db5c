"""DS901 and DS911: one quantity in two places, the arguments and the DeepSpeed file."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from dstrain.args.training import TrainingArguments
from dstrain.core.facts import DataFacts, WorldFacts
from dstrain.core.finding import Hit, Place, Severity
from dstrain.core.numbers import as_bool, as_float, as_int
from dstrain.dsconfig.document import Document, pointer
from dstrain.rules.registry import rule
from dstrain.rules.triangle import solve

# (key of the file, argument): two places for one quantity. Betas are compared one by one below.
PAIRS: tuple[tuple[str, str], ...] = (
    ("train_micro_batch_size_per_gpu", "per_device_train_batch_size"),
    ("gradient_accumulation_steps", "gradient_accumulation_steps"),
    ("gradient_clipping", "max_grad_norm"),
    ("optimizer.params.lr", "learning_rate"),
    ("optimizer.params.weight_decay", "weight_decay"),
    ("optimizer.params.eps", "adam_epsilon"),
    ("scheduler.params.warmup_max_lr", "learning_rate"),
    ("scheduler.params.warmup_num_steps", "warmup_steps"),
    ("scheduler.params.total_num_steps", "max_steps"),
    ("bf16.enabled", "bf16"),
    ("bfloat16.enabled", "bf16"),
    ("fp16.enabled", "fp16"),
)
# (key of the file, argument, the words of the file that mean the argument's): names, of which "auto" is none.
_NAMES: tuple[tuple[str, str, dict[str, tuple[str, ...]]], ...] = (
    (
        "optimizer.type",
        "optim",
        {
            "adamw_torch": ("adam", "adamw"),
            "adamw_torch_fused": ("adam", "adamw"),
            "sgd": ("sgd",),
            "adagrad": ("adagrad",),
        },
    ),
    (
        "scheduler.type",
        "lr_scheduler_type",
        {
            "linear": ("warmupdecaylr",),
            "cosine": ("warmupcosinelr",),
            "constant": ("warmuplr",),
            "constant_with_warmup": ("warmuplr",),
        },
    ),
)
_WARMUP, _TOTAL = "scheduler.params.warmup_num_steps", "scheduler.params.total_num_steps"


def _given(args: TrainingArguments, name: str) -> bool:
    return args.sources[name].kind != "default"


def _argued(args: TrainingArguments, file: Document, key: str, name: str) -> Any:
    """What an argument comes to in the file's terms; None where it says nothing about this quantity."""
    value = getattr(args, name)
    if key == _TOTAL:
        return value if value > 0 else None
    if key == _WARMUP:
        if 0 < value < 1:
            total = args.max_steps if args.max_steps > 0 else as_int(file.get(_TOTAL))
            return math.ceil(value * total) if total else value
        return max(1, value)  # DeepSpeed >= 0.19.6 refuses 0, so a file that means none writes 1
    return value


def _differ(stated: Any, argued: Any) -> bool:
    if isinstance(argued, bool):
        return as_bool(stated) is not argued
    number = as_float(stated)
    return number is None or number != float(argued)


@rule(
    "DS901",
    Severity.ERROR,
    "The DeepSpeed file and the arguments disagree",
    fires={"gradient_clipping": 0.3, "$facts": {"args": {"max_grad_norm": 0.5}}},
    quiet={"gradient_clipping": 0.3, "$facts": {"args": {"max_grad_norm": 0.3}}},
)
def two_places_disagree(args: TrainingArguments, file: Document) -> Iterator[Hit]:
    """One quantity, two places, two values: nobody can know which was meant, so neither is used.

    Only values that were really given count. A value in the file wins over an argument that was left at its default,
    and `auto` in the file means: take the argument. `optimizer.type` stands beside `optim`, `scheduler.type` beside
    `lr_scheduler_type`: WarmupDecayLR is linear, WarmupCosineLR is cosine, WarmupLR is constant_with_warmup.
    """
    betas = file.get("optimizer.params.betas")
    both = isinstance(betas, list) and len(betas) == 2
    indexed = dict(zip(("adam_beta1", "adam_beta2"), betas, strict=True)) if both else {}
    for key, name in (*PAIRS, *(("optimizer.params.betas", name) for name in indexed)):
        stated = indexed.get(name, file.get(key))
        if stated is None or stated == "auto" or not _given(args, name):
            continue
        argued = _argued(args, file, key, name)
        if argued is not None and _differ(stated, argued):
            patch = ({"op": "replace", "path": pointer(key), "value": "auto"},)
            fix = f'give it once: write "auto" for {key} in the file, or leave out {name}'
            yield _two(args, key, stated, name, fix, patch)
    yield from _two_names(args, file)


def _two_names(args: TrainingArguments, file: Document) -> Iterator[Hit]:
    for key, name, words in _NAMES:
        stated = file.get(key)
        if not isinstance(stated, str) or stated == "auto" or not _given(args, name):
            continue
        if stated.lower() not in words.get(getattr(args, name), ()):
            section = key.partition(".")[0]
            fix = f"give it once: leave out {name}, or leave the section {section} out of the file"
            yield _two(args, key, stated, name, fix)


def _two(args: TrainingArguments, key: str, stated: Any, name: str, fix: str, patch: Any = ()) -> Hit:
    source = args.sources[name]
    message = f"{key} is {stated!r} in the file, and {name} is {getattr(args, name)!r} ({source})"
    return Hit(key, message, fix, patch, also=(Place(flag=str(source)),))


@rule(
    "DS911",
    Severity.WARNING,
    "The schedule does not end where the run ends",
    fires={
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 4}},
        "$facts": {"args": {"per_device_train_batch_size": 1, "num_train_epochs": 1}, "train_rows": 64},
    },
    quiet={
        "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 64}},
        "$facts": {"args": {"per_device_train_batch_size": 1, "num_train_epochs": 1}, "train_rows": 64},
    },
)
def schedule_and_run(args: TrainingArguments, file: Document, world: WorldFacts, data: DataFacts) -> Iterator[Hit]:
    """WarmupDecayLR and WarmupCosineLR fall to (almost) 0 at `total_num_steps` and stay there (`lr_schedules.py:826`).

    A run that is longer trains its rest at lr 0: nothing is learnt. One that is shorter stops before the lr is down.
    Written as "auto", the number is that of the run.
    """
    total, steps = as_int(file.get(_TOTAL)), _steps(args, file, world, data)
    if total is None or steps is None or total <= 0 or total == steps:
        return
    if args.max_steps > 0 and _given(args, "max_steps"):
        return  # DS901 says it
    effect = f"the last {steps - total} run at the end of the curve" if total < steps else "the lr is not down by then"
    yield Hit(
        _TOTAL,
        f"total_num_steps is {total}, and the run has {steps} steps: {effect}",
        f'"total_num_steps": "auto", or {steps}',
        ({"op": "replace", "path": pointer(_TOTAL), "value": "auto"},),
    )


def _steps(args: TrainingArguments, file: Document, world: WorldFacts, data: DataFacts) -> int | None:
    if args.max_steps > 0:
        return args.max_steps
    rows, batch = data.train_rows, solve(args, file, world.world_size).train
    if not rows or batch < 1:
        return None
    per_epoch = rows // batch if args.dataloader_drop_last else math.ceil(rows / batch)
    return math.ceil(args.num_train_epochs * per_epoch)
