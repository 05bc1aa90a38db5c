"""DS6xx: the curve that a schedule describes: rates, warm-up and length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.scheduler import example, kind
from dstrain.rules.view import filled, hit, integer, is_auto, number, put

_P = "scheduler.params"
_LR = 1e-4


@rule(
    "DS606",
    Severity.ERROR,
    "warmup_max_lr left out is 0.001, not the optimizer's lr",
    fires=example("WarmupDecayLR", total_num_steps=10_000),
    quiet=example("WarmupDecayLR", total_num_steps=10_000, warmup_max_lr=_LR),
)
def decay_max_lr(doc: Document, mode: Mode) -> Iterator[Hit]:
    """WarmupDecayLR alone has a fixed default peak of 0.001 (`runtime/lr_schedules.py:814`).

    WarmupLR and WarmupCosineLR take the optimizer's lr. So the same file with another type trains at another rate,
    and `optimizer.params.lr` has no effect. dstrain writes the value out.
    """
    lr = doc.get("optimizer.params.lr")
    value = number(lr)
    if kind(doc) != "WarmupDecayLR" or mode is Mode.DSTRAIN or doc.has(f"{_P}.warmup_max_lr"):
        return
    if value == 1e-3 or not isinstance(doc.get(_P), Mapping):
        return
    right = lr if value is not None or (is_auto(lr) and filled(mode)) else None
    shown = f" and optimizer lr {lr} has no effect" if lr is not None else ""
    message = f"WarmupDecayLR without warmup_max_lr peaks at 0.001{shown}"
    patch = (put(doc, f"{_P}.warmup_max_lr", right),) if right is not None else ()
    fix = f'"warmup_max_lr": {right!r}'.replace("'", '"') if right is not None else '"warmup_max_lr": 0.001'
    severity = None if value is not None else Severity.WARNING
    yield Hit(f"{_P}.warmup_max_lr", message, fix, patch, severity=severity)


@rule(
    "DS607",
    Severity.WARNING,
    "Two peak learning rates",
    fires=example("WarmupLR", warmup_max_lr=5e-4, warmup_num_steps=10),
    quiet=example("WarmupLR", warmup_max_lr=_LR, warmup_num_steps=10),
)
def two_rates(doc: Document, mode: Mode) -> Iterator[Hit]:
    """WarmupLR and WarmupDecayLR set the lr of every step: `warmup_max_lr` wins, `optimizer.params.lr` is overwritten.

    Two numbers for one quantity: write the same one, or leave the optimizer's out. One number beside one "auto" is two
    numbers as well: transformers fills in `learning_rate`, 5e-5 unless given.
    """
    if kind(doc) not in ("WarmupLR", "WarmupDecayLR"):
        return
    written = {key: doc.get(key) for key in ("optimizer.params.lr", f"{_P}.warmup_max_lr")}
    lr, peak = (number(value) for value in written.values())
    autos = [key for key, value in written.items() if is_auto(value)]
    if mode is Mode.TRANSFORMERS and len(autos) == 1 and (lr is None) != (peak is None):
        (key,) = (key for key in written if key not in autos)
        message = f'{key} is {written[key]}, but {autos[0]} is "auto", which becomes learning_rate (5e-5 unless given)'
        yield Hit(key, message, f'"auto" in both, with --learning_rate {written[key]}', (put(doc, key, "auto"),))
    if lr is not None and peak is not None and lr != peak:
        yield Hit(
            "optimizer.params.lr",
            f"optimizer lr is {lr}, scheduler warmup_max_lr is {peak}; the scheduler wins",
            f'"lr": {peak}, or "warmup_max_lr": {lr}',
            (put(doc, "optimizer.params.lr", peak),) if peak > 0 else (),
            also=(doc.place(f"{_P}.warmup_max_lr"),),
        )


@rule(
    "DS608",
    Severity.ADVICE,
    "The warm-up is logarithmic, and its first steps are at lr 0",
    fires=example("WarmupLR", warmup_max_lr=_LR, warmup_num_steps=100),
    quiet=example("WarmupLR", warmup_max_lr=_LR, warmup_num_steps=100, warmup_type="linear"),
)
def log_warmup(doc: Document) -> Iterator[Hit]:
    """`warmup_type` is "log" when left out: steep at first, flat later; most recipes mean linear.

    Either way the first optimizer step runs at `warmup_min_lr` (0 by default), with "log" the first two: the
    schedule starts at iteration -1, and log(1) is 0 (`runtime/lr_schedules.py:784`). WarmupDecayLR and
    WarmupCosineLR also end at (almost) 0 and stay there. What was left out stays "log"
    under dstrain too; the plan shows it.
    """
    if kind(doc) not in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        return
    if not doc.has(f"{_P}.warmup_type") and isinstance(doc.get(_P), Mapping):
        message = "warmup_type is left out: the warm-up is logarithmic, and its first two steps are at the minimum"
        yield hit(f"{_P}.warmup_type", message, '"warmup_type": "linear", or "log" to keep it')


@rule(
    "DS611",
    Severity.WARNING,
    "The warm-up takes the whole run",
    fires=example("WarmupDecayLR", warmup_max_lr=_LR, total_num_steps=500),
    quiet=example("WarmupDecayLR", warmup_max_lr=_LR, total_num_steps=500, warmup_num_steps=50),
)
def warmup_whole(doc: Document) -> Iterator[Hit]:
    """`warmup_num_steps` is 1000 when left out. With a `total_num_steps` not above it the peak is never reached.

    DeepSpeed warns in the log and trains on (`runtime/lr_schedules.py:826`).
    """
    if kind(doc) not in ("WarmupDecayLR", "WarmupCosineLR"):
        return
    warm, total = integer(doc.get(f"{_P}.warmup_num_steps", 1000)), integer(doc.get(f"{_P}.total_num_steps"))
    if warm is not None and total is not None and 0 < total <= warm:
        key = f"{_P}.warmup_num_steps"
        shown = f"{warm}" if doc.has(key) else f"{warm} (the default)"
        message = f"warmup_num_steps {shown} is not below total_num_steps {total}"
        yield hit(key, message, f'"warmup_num_steps": {max(1, total // 10)}, or any number below {total}')


@rule(
    "DS612",
    Severity.ERROR,
    "A learning rate of the schedule is out of its range",
    fires=example("WarmupLR", warmup_min_lr=0, warmup_max_lr=-1, warmup_num_steps=10),
    quiet=example("WarmupLR", warmup_min_lr=0, warmup_max_lr=1e-4, warmup_num_steps=10),
)
def rates(doc: Document) -> Iterator[Hit]:
    """A negative rate climbs the loss: DeepSpeed sets it without a check. A minimum above the maximum warms down."""
    name = kind(doc)
    if name is None:
        return
    for key in ("warmup_min_lr", "warmup_max_lr", "cycle_min_lr", "cycle_max_lr", "lr_range_test_min_lr"):
        value = number(doc.get(f"{_P}.{key}"))
        if value is not None and value < 0:
            yield hit(f"{_P}.{key}", f"{key} is {value}; expected 0 or more", f'"{key}": 1e-4')
    for low, high in (("warmup_min_lr", "warmup_max_lr"), ("cycle_min_lr", "cycle_max_lr")):
        least, most = number(doc.get(f"{_P}.{low}")), number(doc.get(f"{_P}.{high}"))
        if least is not None and most is not None and 0 <= most < least:
            message, fix = f"{low} {least} is above {high} {most}", f'"{low}": 0'
            yield Hit(f"{_P}.{low}", message, fix, (put(doc, f"{_P}.{low}", 0),), severity=Severity.WARNING)


@rule(
    "DS615",
    Severity.ADVICE,
    "OneCycle turns the momentum too",
    fires=example("OneCycle", cycle_min_lr=0, cycle_max_lr=_LR),
    quiet=example("OneCycle", cycle_min_lr=0, cycle_max_lr=_LR, cycle_momentum=False),
)
def cycle_momentum(doc: Document) -> Iterator[Hit]:
    """`cycle_momentum` is on by default: Adam's first beta runs between 0.8 and 0.9, whatever `betas` says."""
    if kind(doc) == "OneCycle" and not doc.has(f"{_P}.cycle_momentum") and isinstance(doc.get(_P), Mapping):
        key = f"{_P}.cycle_momentum"
        yield hit(
            key,
            "OneCycle overwrites beta 1 (0.8 to 0.9) unless told not to",
            '"cycle_momentum": false, or true to keep it',
        )
