"""DS5xx: hyper-parameters of the optimizer, and what its name hides."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.optimizer import example
from dstrain.rules.optimizers import kind
from dstrain.rules.registry import rule
from dstrain.rules.view import flag, hit, is_auto, number, put


@rule(
    "DS508",
    Severity.WARNING,
    "adam_w_mode false has no effect on AdamW",
    fires=example("AdamW", adam_w_mode=False),
    quiet=example("Adam", adam_w_mode=False),
)
def adam_w_mode(doc: Document) -> Iterator[Hit]:
    """The name AdamW always means decoupled decay (`runtime/engine.py:2491`). L2 decay is type "Adam" with the flag."""
    key = "optimizer.params.adam_w_mode"
    if kind(doc) == "adamw" and flag(doc.get(key)) is False:
        patch = put(doc, "optimizer.type", "Adam")
        yield hit(key, "adam_w_mode false is ignored for AdamW", '"type": "Adam", or leave adam_w_mode out', patch)


@rule(
    "DS509",
    Severity.ADVICE,
    "Adam means AdamW",
    fires=example("Adam", weight_decay=0.1),
    quiet=example("Adam", weight_decay=0.1, adam_w_mode=True),
)
def adam_means_adamw(doc: Document) -> Iterator[Hit]:
    """Type "Adam" decays weights as AdamW does unless `adam_w_mode` is false (`runtime/config.py:73`).

    With a weight decay of 0 the two are the same.
    """
    decay = number(doc.get("optimizer.params.weight_decay"))
    if kind(doc) == "adam" and decay and not doc.has("optimizer.params.adam_w_mode"):
        message = f"type Adam with weight_decay {decay} is AdamW in DeepSpeed"
        yield hit(
            "optimizer.type", message, '"type": "AdamW", or "adam_w_mode": false', put(doc, "optimizer.type", "AdamW")
        )


@rule(
    "DS510",
    Severity.ERROR,
    "AMSGrad is not there",
    fires=example("AdamW", amsgrad=True),
    quiet=example("AdamW", amsgrad=False),
)
def amsgrad(doc: Document) -> Iterator[Hit]:
    """FusedAdam, DeepSpeedCPUAdam and FusedLamb raise on `amsgrad: true` (`ops/adam/fused_adam.py:88`).

    torch's own Adam has it: `torch_adam: true`.
    """
    key = "optimizer.params.amsgrad"
    torch_adam = flag(doc.get("optimizer.params.torch_adam")) is True
    if kind(doc) in ("adam", "adamw", "lamb") and flag(doc.get(key)) is True and not torch_adam:
        fix = '"torch_adam": true, or leave amsgrad out'
        yield hit(key, "amsgrad is not supported by DeepSpeed's own optimizers", fix)


@rule(
    "DS513",
    Severity.ERROR,
    "A hyper-parameter is out of its range",
    fires=example("AdamW", betas=[0.9, 1.0]),
    quiet=example("AdamW", betas=[0.9, 0.999]),
)
def ranges(doc: Document) -> Iterator[Hit]:
    """lr, eps and weight decay cannot be negative, and betas are two numbers from 0 up to but not including 1.

    torch's optimizers raise; DeepSpeed's fused ones take the values and train on them. An lr of 0 trains nothing.
    """
    for name in ("lr", "eps", "weight_decay", "momentum", "muon_lr", "adam_lr"):
        key = f"optimizer.params.{name}"
        value = number(doc.get(key))
        if value is not None and value < 0:
            yield hit(key, f"{name} is {value}; expected 0 or more", f'"{name}": {-value}', put(doc, key, -value))
    lr = number(doc.get("optimizer.params.lr"))
    if lr == 0 and not doc.has("scheduler"):
        yield Hit("optimizer.params.lr", "lr is 0: nothing is trained", '"lr": 1e-4', severity=Severity.WARNING)
    betas = doc.get("optimizer.params.betas")
    if betas is None or is_auto(betas):
        return
    values = [number(value) for value in betas] if isinstance(betas, list | tuple) else []
    if len(values) != 2 or any(value is None or not 0 <= value < 1 for value in values):
        message = f"betas is {betas!r}; expected two numbers from 0 up to but not including 1"
        yield hit("optimizer.params.betas", message, '"betas": [0.9, 0.999]')


@rule(
    "DS515",
    Severity.ADVICE,
    "Weight decay on biases and norms",
    fires={**example("AdamW", weight_decay=0.1), "$facts": {"mode": "transformers"}},
    quiet={**example("AdamW", weight_decay=0.0), "$facts": {"mode": "transformers"}},
)
def decay_groups(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With an optimizer in the file, DeepSpeed builds one group of all parameters: biases and norms are decayed too.

    Without the section the trainer makes two groups and leaves them out. dstrain makes the groups in either case.
    """
    decay = doc.get("optimizer.params.weight_decay")
    if mode is Mode.TRANSFORMERS and kind(doc) and (number(decay) or is_auto(decay)):
        message = "weight_decay of an optimizer in the file acts on biases and norms as well"
        yield hit(
            "optimizer.params.weight_decay", message, "leave the optimizer section out, and let the trainer build it"
        )


@rule(
    "DS516",
    Severity.ADVICE,
    "torch_adam changes the default weight decay",
    fires=example("AdamW", torch_adam=True),
    quiet=example("AdamW", torch_adam=True, weight_decay=0.0),
)
def torch_adam_decay(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With `weight_decay` left out, torch's AdamW takes 0.01 and DeepSpeed's fused and CPU Adam take 0."""
    torch_adam = flag(doc.get("optimizer.params.torch_adam")) is True
    written = doc.has("optimizer.params.weight_decay")
    if mode is not Mode.DSTRAIN and kind(doc) in ("adam", "adamw") and torch_adam and not written:
        key = "optimizer.params.weight_decay"
        yield hit(
            key, "weight_decay is left out: 0.01 with torch_adam, 0 without", '"weight_decay": 0.0', put(doc, key, 0.0)
        )


@rule(
    "DS517",
    Severity.WARNING,
    "DeepSpeed cannot drive this torch optimizer",
    fires=example("SparseAdam", {"bf16": {"enabled": True}}),
    quiet=example("AdamW", {"bf16": {"enabled": True}}),
)
def unsuited(doc: Document) -> Iterator[Hit]:
    """SparseAdam wants sparse gradients and LBFGS a closure; DeepSpeed gives dense ones and calls `step()` bare."""
    name = kind(doc)
    if name in ("SparseAdam", "LBFGS"):
        needs = "sparse gradients" if name == "SparseAdam" else "a closure"
        yield hit("optimizer.type", f"{name} needs {needs}, which DeepSpeed does not give it", '"type": "AdamW"')
