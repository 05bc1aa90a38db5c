"""DS5xx: the optimizer section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.core.nearest import nearest
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.removed import FORGOTTEN
from dstrain.rules.optimizers import DEEPSPEED, FOREIGN, REMOVED, TORCH, ZERO_TESTED, accepted, kind
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, drop, hit, move, number, put, stage, unread, zero_flag
from dstrain.rules.view import offload_optimizer as optimizer_device

_B = {"train_micro_batch_size_per_gpu": 1}
_SPELLINGS = {name: name.title() for name in DEEPSPEED} | {"adamw": "AdamW", "muadam": "MuAdam", "muadamw": "MuAdamW"}
_KNOWN = (*_SPELLINGS.values(), *TORCH)


def example(name: str = "AdamW", more: Mapping[str, Any] | None = None, **params: Any) -> dict[str, Any]:
    """A configuration with an optimizer, for the examples of rules."""
    return {**_B, "optimizer": {"type": name, "params": {"lr": 1e-4, **params}}, **(more or {})}


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


@rule(
    "DS501",
    Severity.ERROR,
    "This optimizer was removed from DeepSpeed",
    fires=example("OneBitAdam", freeze_step=400),
    quiet=example("AdamW"),
)
def removed(doc: Document) -> Iterator[Hit]:
    """OneBitAdam, ZeroOneAdam and OneBitLamb are gone since 0.19.

    The parser takes any name; `initialize` then asserts "not a supported DeepSpeed Optimizer"
    (`runtime/engine.py:2018`). Less traffic between nodes is what ZeRO++ offers now (`zero_quantized_gradients`).
    """
    name = doc.section("optimizer").get("type")
    if isinstance(name, str) and _plain(name) in REMOVED:
        instead = REMOVED[_plain(name)]
        message = f"optimizer {name} was removed from DeepSpeed (before 0.19.8)"
        yield hit("optimizer.type", message, f'"type": "{instead}"', put(doc, "optimizer.type", instead))


@rule(
    "DS502",
    Severity.ERROR,
    "DeepSpeed does not know this optimizer",
    fires=example("Adamm"),
    quiet=example("Adam"),
)
def unknown(doc: Document) -> Iterator[Hit]:
    """The name is one of DeepSpeed's own (any case) or exactly that of a class in `torch.optim` ("SGD", not "sgd").

    The parser takes any name; the assertion comes in `initialize` (`runtime/engine.py:2018`). Optimizers of other
    libraries are built in Python and passed to `initialize`.
    """
    name = doc.section("optimizer").get("type")
    if not isinstance(name, str) or kind(doc) is not None or _plain(name) in REMOVED:
        return
    match = FOREIGN.get(name.lower()) or nearest(name, _KNOWN)
    guess = f'; did you mean "{match}"?' if match else ""
    fix = f'"type": "{match}"' if match else "one of " + ", ".join(sorted(_KNOWN))
    patch = (put(doc, "optimizer.type", match),) if match else ()
    yield Hit("optimizer.type", f'"{name}" is no optimizer that DeepSpeed knows{guess}', fix, patch)


@rule(
    "DS503",
    Severity.ERROR,
    "The optimizer does not take this parameter",
    fires=example("AdamW", wieght_decay=0.1),
    quiet=example("AdamW", weight_decay=0.1),
)
def params(doc: Document) -> Iterator[Hit]:
    """`optimizer.params` goes to the constructor as it is: a key that it does not take is a TypeError in `initialize`.

    What is taken depends on what is built: Adam is `FusedAdam`, with offload `DeepSpeedCPUAdam`, with
    `torch_adam: true` torch's AdamW, which has no `bias_correction`. Muon is the exception: it copies the keys it
    knows and drops the rest in silence (`runtime/engine.py:2413`).
    """
    known, section = accepted(doc), doc.section("optimizer.params")
    if known is None:
        return
    name = doc.get("optimizer.type")
    for key in map(str, section):
        if key in known:
            continue
        full = f"optimizer.params.{key}"
        if key in ("beta1", "beta2") and "betas" in known:
            pair = [section.get("beta1", 0.9), section.get("beta2", 0.999)]
            yield Hit(full, f'"{key}" is no parameter of {name}, which takes both as one list', f'"betas": {pair}')
            continue
        told = FORGOTTEN.get(full, "").rpartition(".")[2]
        match = told if told in known else nearest(key, known - {"max_grad_norm"}, cutoff=0.75)
        ends = "is dropped in silence" if kind(doc) == "muon" else "is a TypeError when DeepSpeed builds it"
        message = f'"{key}" is no parameter of {name} as this file builds it; it {ends}'
        if match and match not in section:
            # A scalar such as beta1 is no pair of betas, however near its name is.
            movable = "." not in key and (match != "betas" or isinstance(section[key], list))
            patch = (move(full, f"optimizer.params.{match}"),) if movable else ()
            yield Hit(full, f"{message}; did you mean '{match}'?", f"rename it to {match}", patch)
        else:
            fix = f"leave it out; known are {', '.join(sorted(known - {'max_grad_norm'}))}"
            yield Hit(full, message, fix, () if "." in key else (drop(full),))


@rule(
    "DS504",
    Severity.ERROR,
    "The optimizer section names no optimizer",
    fires={**_B, "optimizer": {"name": "AdamW", "params": {"lr": 1e-4}}},
    quiet=example("AdamW"),
)
def no_type(doc: Document) -> Iterator[Hit]:
    """Without `type` the whole section is ignored (`runtime/config.py:288`), and no optimizer is built from it.

    The run then goes on with whatever Python passes, or with none: stage 3 turns into inference, stage 0 fails at
    the first backward.
    """
    section = doc.section("optimizer")
    if not section or isinstance(section.get("type"), str):
        return
    key = "optimizer.type"
    if "type" in section and section["type"] is not None:
        yield hit(key, f"optimizer.type is {section['type']!r}; expected a name such as AdamW", '"type": "AdamW"')
        return
    old = next((name for name in ("name", "optimizer", "Type", "kind", "class", "_type") if name in section), None)
    patch = (move(f"optimizer.{old}", key),) if old and "type" not in section else ()
    wrong = f' ("{old}" is not read)' if old else ""
    yield Hit(key, f"the optimizer section has no type{wrong}, so it is ignored", '"type": "AdamW"', patch)


@rule(
    "DS505",
    Severity.ERROR,
    "max_grad_norm is no optimizer parameter",
    fires=example("AdamW", max_grad_norm=1.0),
    quiet=example("AdamW", more={"gradient_clipping": 1.0}),
)
def max_grad_norm(doc: Document) -> Iterator[Hit]:
    """Clipping is `gradient_clipping` at the top level. In `optimizer.params` it is a ValueError, even 0.

    `runtime/engine.py:2482`; the parser only warns.
    """
    key = "optimizer.params.max_grad_norm"
    if doc.has(key):
        value = doc.get(key)
        patch = drop(key) if doc.has("gradient_clipping") else move(key, "gradient_clipping")
        yield hit(key, f"max_grad_norm {value} in optimizer.params is refused", f'"gradient_clipping": {value}', patch)


@rule(
    "DS506",
    Severity.ERROR,
    "ZeRO has not been tested with this optimizer",
    fires=example("SGD", {ZERO: {"stage": 1}}),
    quiet=example("SGD", {ZERO: {"stage": 1}, "zero_allow_untested_optimizer": True}),
)
def untested(doc: Document) -> Iterator[Hit]:
    """ZeRO takes Adam, AdamW, Adagrad, Lion and Muon; any other, Lamb too, needs `zero_allow_untested_optimizer`.

    Asserted when the engine is built (`runtime/engine.py:2299`). Element-wise optimizers such as SGD are safe to
    partition; Lamb takes norms per layer, which ZeRO cuts through.
    """
    name, at = kind(doc), stage(doc)
    if name is None or name in ZERO_TESTED or not at or doc.get("zero_allow_untested_optimizer"):
        return
    written = doc.get("optimizer.type")
    yield hit(
        "zero_allow_untested_optimizer",
        f"{written} under ZeRO stage {at} needs zero_allow_untested_optimizer",
        '"zero_allow_untested_optimizer": true',
        put(doc, "zero_allow_untested_optimizer", True),
    )


@rule(
    "DS507",
    Severity.WARNING,
    "No learning rate",
    fires={**_B, "optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}},
    quiet=example("AdamW"),
)
def no_lr(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Without `lr` the optimizer takes its own default, 0.001 for Adam, ten to a hundred times too high to fine-tune.

    transformers replaces "auto" only: with the key left out `learning_rate` has no effect. dstrain fills it.
    """
    if mode is Mode.DSTRAIN or kind(doc) is None or doc.has("optimizer.params.lr"):
        return
    if doc.has("optimizer.params.muon_lr") and doc.has("optimizer.params.adam_lr"):
        return
    if number(doc.get("scheduler.params.warmup_max_lr")) is not None:
        return
    key, value = "optimizer.params.lr", "auto" if mode is Mode.TRANSFORMERS else 1e-3
    patch = (put(doc, key, value),) if isinstance(doc.get("optimizer.params"), Mapping) else ()
    message = "optimizer.params.lr is left out: the optimizer's default is used"
    yield Hit(key, message, '"lr": "auto"' if value == "auto" else f'"lr": {value}', patch)


@rule(
    "DS511",
    Severity.ERROR,
    "Lamb needs dynamic loss scaling",
    fires=example("Lamb", {"fp16": {"enabled": True, "loss_scale": 128}}),
    quiet=example("Lamb", {"fp16": {"enabled": True, "loss_scale": 0}}),
)
def lamb_scale(doc: Document) -> Iterator[Hit]:
    """Asserted when the engine starts (`runtime/engine.py:2022`), whether fp16 is on or not."""
    scale = number(doc.get("fp16.loss_scale", 0))
    if kind(doc) == "lamb" and scale:
        message = f"Lamb needs dynamic loss scaling; fp16.loss_scale is {scale}"
        yield hit("fp16.loss_scale", message, '"loss_scale": 0', put(doc, "fp16.loss_scale", 0))


@rule(
    "DS512",
    Severity.ERROR,
    "Muon at stage 3 needs reduce_scatter off",
    fires=example("Muon", {ZERO: {"stage": 3}}),
    quiet=example("Muon", {ZERO: {"stage": 3, "reduce_scatter": False}}),
)
def muon_stage_3(doc: Document) -> Iterator[Hit]:
    """Muon needs whole matrices of gradients; with `reduce_scatter` (the default) each rank has a part.

    ValueError when the optimizer is built (`zero/stage3.py:361`).
    """
    key = f"{ZERO}.reduce_scatter"
    if kind(doc) == "muon" and stage(doc) == 3 and zero_flag(doc, "reduce_scatter", True) is not False:
        yield hit(key, "Muon at stage 3 needs reduce_scatter false", '"reduce_scatter": false', put(doc, key, False))


@rule(
    "DS514",
    Severity.WARNING,
    "Offload without a CPU version of the optimizer",
    fires=example(
        "SGD", {ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "zero_allow_untested_optimizer": True}
    ),
    quiet=example("AdamW", {ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}}),
)
def offload_kind(doc: Document) -> Iterator[Hit]:
    """Only Adam, AdamW, Adagrad, Lion and Muon's Adam have a vectorised CPU version.

    Any other optimizer of the file steps the offloaded states with plain torch on the CPU, slowly; Lamb's kernel
    runs on a GPU only and fails.
    """
    name = kind(doc)
    if name is None or name in ZERO_TESTED or optimizer_device(doc) not in ("cpu", "nvme"):
        return
    written = doc.get("optimizer.type")
    yield hit("optimizer.type", f"{written} has no CPU version for offload_optimizer", '"type": "AdamW"')


@rule(
    "DS518",
    Severity.ADVICE,
    "No optimizer in the file",
    fires={**_B, ZERO: {"stage": 1}},
    quiet=example("AdamW", {ZERO: {"stage": 1}}),
)
def none_given(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Without an `optimizer` section one has to be passed to `initialize`; DeepSpeed does not insist.

    With none at all, stage 3 turns into an inference engine, stage 1 and 2 fail when the engine is built, and stage 0
    at the first backward; a scheduler section is ignored.
    """
    if mode is Mode.DEEPSPEED and not unread(doc) and not doc.has("optimizer"):
        fix = "an optimizer section, or optimizer=... in deepspeed.initialize"
        yield hit("optimizer", "there is no optimizer section; Python has to pass an optimizer", fix)
