"""DS6xx: the learning-rate schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.core.nearest import nearest
from dstrain.dsconfig.document import Document
from dstrain.rules.optimizers import NOT_FROM_A_FILE, REQUIRED, SCHEDULERS, TORCH_SCHEDULERS
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, drop, enabled, filled, hit, integer, is_auto, move, number, put, stage

_P = "scheduler.params"
_LR = 1e-4


def example(name: str, more: Mapping[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    """A configuration with a scheduler, for the examples of rules."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": _LR}},
        "scheduler": {"type": name, "params": params},
        **(more or {}),
    }


def kind(doc: Document) -> str | None:
    """The scheduler's name if it is one of DeepSpeed's own."""
    name = doc.section("scheduler").get("type")
    return name if isinstance(name, str) and name in SCHEDULERS else None


def _constructed(doc: Document) -> str | None:
    """The scheduler's name if DeepSpeed gets as far as calling its constructor with the file's params."""
    name = doc.section("scheduler").get("type")
    if isinstance(name, str) and name in TORCH_SCHEDULERS and name not in NOT_FROM_A_FILE:
        return name
    return kind(doc)


@rule(
    "DS601",
    Severity.ERROR,
    "DeepSpeed does not know this scheduler",
    fires=example("WarmupLr", warmup_num_steps=10),
    quiet=example("WarmupLR", warmup_num_steps=10),
)
def unknown(doc: Document) -> Iterator[Hit]:
    """A scheduler is one of DeepSpeed's five or a class of `torch.optim.lr_scheduler`, spelt exactly so.

    The parser takes any name; the assertion comes in `initialize` (`runtime/engine.py:1929`).
    """
    name = doc.section("scheduler").get("type")
    if not isinstance(name, str) or name in SCHEDULERS or name in TORCH_SCHEDULERS:
        return
    match = nearest(name, (*SCHEDULERS, *TORCH_SCHEDULERS))
    patch = (put(doc, "scheduler.type", match),) if match else ()
    guess = f'; did you mean "{match}"?' if match else ""
    fix = f'"type": "{match}"' if match else "one of " + ", ".join(SCHEDULERS)
    yield Hit("scheduler.type", f'"{name}" is no scheduler that DeepSpeed knows{guess}', fix, patch)


@rule(
    "DS602",
    Severity.ERROR,
    "The scheduler has no params",
    fires={"train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "WarmupLR"}},
    quiet={"train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "WarmupLR", "params": {}}},
)
def no_params(doc: Document) -> Iterator[Hit]:
    """Left out, `params` is None, and unpacking it is a bare TypeError (`runtime/engine.py:1935`). Write `{}`."""
    section = doc.section("scheduler")
    if isinstance(section.get("type"), str) and section.get("params") is None:
        old = next((name for name in ("param", "parameters", "kwargs", "args") if name in section), None)
        required = REQUIRED.get(section["type"], ())
        patch = (put(doc, _P, {}),) if not required else ()
        if old and "params" not in section:
            patch = (move(f"scheduler.{old}", _P),)
        message = "scheduler has no params" + (f' ("{old}" is not read)' if old else "")
        fix = '"params": {' + ", ".join(f'"{name}": …' for name in required) + "}"
        yield Hit(_P, f"{message}: DeepSpeed fails on unpacking None", fix, patch)


@rule(
    "DS603",
    Severity.ERROR,
    "The scheduler section names no scheduler",
    fires={"train_micro_batch_size_per_gpu": 1, "scheduler": {"name": "WarmupLR", "params": {}}},
    quiet=example("WarmupLR"),
)
def no_type(doc: Document) -> Iterator[Hit]:
    """Without `type` the section is ignored (`runtime/config.py:326`): the learning rate stays constant."""
    section = doc.section("scheduler")
    if not section or isinstance(section.get("type"), str):
        return
    old = next((name for name in ("name", "scheduler", "Type", "kind") if isinstance(section.get(name), str)), None)
    patch = (move(f"scheduler.{old}", "scheduler.type"),) if old and "type" not in section else ()
    wrong = f' ("{old}" is not read)' if old else ""
    message = f"the scheduler section has no type{wrong}, so it is ignored"
    yield Hit("scheduler.type", message, '"type": "WarmupDecayLR"', patch)


@rule(
    "DS604",
    Severity.ERROR,
    "The scheduler does not take this parameter",
    fires=example("WarmupCosineLR", total_num_steps=100, warmup_max_lr=1e-3),
    quiet=example("WarmupCosineLR", total_num_steps=100, warmup_num_steps=10),
)
def params(doc: Document) -> Iterator[Hit]:
    """`scheduler.params` goes to the constructor as it is; a key that it does not take is a TypeError in `initialize`.

    A frequent one: WarmupCosineLR has ratios of the optimizer's lr (`warmup_min_ratio`, `cos_min_ratio`) and no
    `warmup_max_lr`; the peak is `optimizer.params.lr`.
    """
    name, section = _constructed(doc), doc.section(_P)
    if name is None:
        return
    known = SCHEDULERS.get(name) or TORCH_SCHEDULERS[name]
    for key in map(str, section):
        if key in known:
            continue
        full, match = f"{_P}.{key}", nearest(key, known, cutoff=0.8)
        message = f'"{key}" is no parameter of {name}'
        if match and match not in section and "." not in key:
            yield hit(full, f"{message}; did you mean '{match}'?", f"rename it to {match}", move(full, f"{_P}.{match}"))
        else:
            fix = f"leave it out; known are {', '.join(sorted(known))}"
            if key == "warmup_ratio" and "warmup_num_steps" in known:
                fix = f'"warmup_num_steps": {_of_ratio(section)}'
                yield Hit(full, f"{message}, which counts the warm-up in steps", fix)
                continue
            yield Hit(full, message, fix, () if "." in key else (drop(full),))


def _of_ratio(section: Mapping[str, Any]) -> str:
    ratio, total = number(section.get("warmup_ratio")), integer(section.get("total_num_steps"))
    return f"{max(1, round(ratio * total))}" if ratio and total else "<number of optimizer steps>"


@rule(
    "DS605",
    Severity.ERROR,
    "The scheduler lacks a parameter",
    fires=example("WarmupDecayLR", warmup_max_lr=_LR),
    quiet=example("WarmupDecayLR", warmup_max_lr=_LR, total_num_steps=10_000),
)
def required(doc: Document, mode: Mode) -> Iterator[Hit]:
    """WarmupDecayLR and WarmupCosineLR need `total_num_steps`, OneCycle both ends of its cycle: else a TypeError.

    transformers replaces "auto" only. dstrain fills the steps.
    """
    name, section = _constructed(doc), doc.get(_P)
    if name is None or section is None:
        return
    for key in REQUIRED.get(name, ()):
        if key == "total_num_steps" and mode is Mode.DSTRAIN:
            continue
        if doc.get(f"{_P}.{key}") is None:
            value = "auto" if mode is Mode.TRANSFORMERS and key == "total_num_steps" else None
            patch = (put(doc, f"{_P}.{key}", value),) if value and isinstance(section, Mapping) else ()
            fix = f'"{key}": "auto"' if value else f'"{key}": <number of optimizer steps>' if "steps" in key else key
            yield Hit(f"{_P}.{key}", f"{name} needs {key}", fix, patch)


@rule(
    "DS609",
    Severity.WARNING,
    "warmup_type is not known",
    fires=example("WarmupLR", warmup_num_steps=10, warmup_type="cosine"),
    quiet=example("WarmupLR", warmup_num_steps=10, warmup_type="log"),
)
def warmup_type(doc: Document) -> Iterator[Hit]:
    """Anything but "log" and "linear" is replaced by "log", with a line in the log (`runtime/lr_schedules.py:747`)."""
    key = f"{_P}.warmup_type"
    value = doc.get(key)
    if kind(doc) and doc.has(key) and value not in ("log", "linear"):
        yield hit(key, f'warmup_type is {value!r}; expected "linear" or "log"', '"linear"', put(doc, key, "linear"))


# DeepSpeed computes with these two as floats; the others must be of type int.
_FLOATS = ("total_num_steps", "cycle_first_step_size")


def _exact(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@rule(
    "DS610",
    Severity.ERROR,
    "A number of steps is not a positive whole number",
    fires=example("WarmupLR", warmup_num_steps=0),
    quiet=example("WarmupLR", warmup_num_steps=1),
)
def step_counts(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Steps are counted in optimizer steps and must be integers from 1: 0, 10.0 and "10" raise ValueError.

    `runtime/lr_schedules.py:734`. For no warm-up write 1. A `total_num_steps` that is not positive is accepted, and
    the lr is 0 (or the floor) from the end of the warm-up on.
    """
    if kind(doc) is None:
        return
    for name in ("warmup_num_steps", "total_num_steps", "lr_range_test_step_size", "cycle_first_step_size"):
        key = f"{_P}.{name}"
        if name not in SCHEDULERS[kind(doc) or ""] or not doc.has(key):
            continue
        value = doc.get(key)
        if is_auto(value) and filled(mode):
            continue
        whole = integer(value)
        good = whole is not None and whole > 0
        if good and (mode is Mode.DSTRAIN or _exact(value) or (name in _FLOATS and isinstance(value, float))):
            continue
        right = whole if good else 1
        patch = () if name == "total_num_steps" and right == 1 else (put(doc, key, right),)
        fix = f'"{name}": {right}' if patch else f'"{name}": <number of optimizer steps>'
        yield Hit(key, f"{name} is {value!r}; expected a whole number from 1", fix, patch)


@rule(
    "DS613",
    Severity.ERROR,
    "A torch scheduler by name cannot run here",
    fires=example("CosineAnnealingLR", {ZERO: {"stage": 1}}, T_max=100),
    quiet=example("WarmupCosineLR", {ZERO: {"stage": 1}}, total_num_steps=100, warmup_num_steps=10),
)
def torch_scheduler(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A scheduler of torch named in the file is given DeepSpeed's wrapper, and torch refuses that as no Optimizer.

    It happens under ZeRO and with a cast model (`runtime/engine.py:1924`); in fp32 at stage 0 there is no wrapper.
    ReduceLROnPlateau needs a metric that the engine does not pass; LambdaLR and its like need Python objects. Pass a
    function `lambda optimizer: CosineAnnealingLR(optimizer, ...)` to `initialize` instead.
    """
    name = doc.section("scheduler").get("type")
    if not isinstance(name, str) or name not in TORCH_SCHEDULERS:
        return
    at = stage(doc)
    fix = '"type": "WarmupCosineLR", or pass a function to deepspeed.initialize(lr_scheduler=...)'
    if name in NOT_FROM_A_FILE:
        yield hit("scheduler.type", f"{name} is built from Python objects, which a file cannot hold", fix)
    elif at or enabled(doc, "bf16", mode) or enabled(doc, "fp16", mode):
        where = f"ZeRO stage {at}" if at else "a 16-bit model"
        yield hit("scheduler.type", f"torch's {name} by name fails with {where}: the wrapper is no Optimizer", fix)
    elif name == "ReduceLROnPlateau":
        yield hit("scheduler.type", f"{name} needs a metric at each step, which DeepSpeed does not pass", fix)


@rule(
    "DS614",
    Severity.ADVICE,
    "A schedule without an optimizer",
    fires={"train_micro_batch_size_per_gpu": 1, "scheduler": {"type": "WarmupLR", "params": {}}},
    quiet=example("WarmupLR"),
)
def no_optimizer(doc: Document, mode: Mode) -> Iterator[Hit]:
    """The scheduler section needs an optimizer, of the file or passed to `initialize`; with none it is ignored."""
    if mode is Mode.DEEPSPEED and doc.section("scheduler") and not doc.has("optimizer"):
        message = "there is a scheduler but no optimizer section: it is ignored unless Python passes an optimizer"
        yield hit("scheduler", message, "an optimizer section, or optimizer=... in deepspeed.initialize")
