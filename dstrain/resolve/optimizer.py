"""The optimizer: which class really runs on this machine, with which numbers, and its section of the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dstrain.core.source import derived
from dstrain.dsconfig.document import Document
from dstrain.resolve._builder import Builder
from dstrain.resolve.plan import BackendName, OptimizerPlan
from dstrain.rules.optimizers import accepted

_NAMES = {"adamw_torch": "AdamW", "adamw_torch_fused": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}
_ADAM = {"adam", "adamw"}
_SECTION = "optimizer.params"


@dataclass(frozen=True)
class _Choice:
    engine_class: str
    extra: dict[str, Any]
    needed_op: str | None = None
    substitute_for: str | None = None


def optimizer(b: Builder, backend: BackendName, stage: int) -> tuple[OptimizerPlan, dict[str, Any], tuple[str, ...]]:
    """The plan, the `optimizer` section for DeepSpeed, and the compiled ops that it needs."""
    stated = b.doc.get("optimizer.type") if b.stated("optimizer.type") else None
    if isinstance(stated, str):
        name = b.put("optimizer.name", stated, b.from_file("optimizer.type"))
    else:
        name = b.put("optimizer.name", _NAMES[b.args.optim], b.args.sources["optim"])
    lr = b.number("optimizer.lr", f"{_SECTION}.lr", "learning_rate")
    decay = b.number("optimizer.weight_decay", f"{_SECTION}.weight_decay", "weight_decay")
    eps = b.number("optimizer.eps", f"{_SECTION}.eps", "adam_epsilon")
    betas = _betas(b)
    choice = _choose(b, backend, name, stage)
    b.derive("optimizer.engine_class", choice.engine_class, _why(b, choice))
    clip = b.number("optimizer.max_grad_norm", "gradient_clipping", "max_grad_norm")
    fused = bool(choice.extra.get("fused"))
    plan = OptimizerPlan(name, choice.engine_class, lr, decay, betas, eps, clip, fused, choice.substitute_for)
    return plan, _section(b, plan, choice), (choice.needed_op,) if choice.needed_op else ()


def _betas(b: Builder) -> tuple[float, float]:
    value = b.doc.get(f"{_SECTION}.betas")
    if b.stated(f"{_SECTION}.betas") and isinstance(value, list) and len(value) == 2:
        first, second = (float(item) for item in value)
        b.put("optimizer.betas", (first, second), b.from_file(f"{_SECTION}.betas"))
        return first, second
    first, second = b.args.adam_beta1, b.args.adam_beta2
    b.put("optimizer.betas", (first, second), b.args.sources["adam_beta1"])
    return first, second


def _choose(b: Builder, backend: BackendName, name: str, stage: int) -> _Choice:
    """Built ops are used; what is not built is replaced by the torch equivalent; nothing is compiled by surprise."""
    kind, ready = name.lower(), b.host.ready_ops
    fused = {"fused": True} if b.args.optim == "adamw_torch_fused" and b.host.device in ("cpu", "cuda") else {}
    if backend == "single":
        return _Choice(f"torch.optim.{name}", fused if kind in _ADAM else {})
    offloaded = stage > 0 and b.doc.get("zero_optimization.offload_optimizer.device") in ("cpu", "nvme")
    if kind in _ADAM:
        torch_name = "AdamW" if _adam_w_mode(b, kind) else "Adam"
        if b.truth(f"{_SECTION}.torch_adam"):
            return _Choice(f"torch.optim.{torch_name}", {"torch_adam": True})
        op, cls = ("cpu_adam", "DeepSpeedCPUAdam") if offloaded else ("fused_adam", "FusedAdam")
        if op in ready:
            return _Choice(f"deepspeed.ops.adam.{cls}", {}, needed_op=op)
        # An offloaded torch optimizer works on host tensors; fused=True is the vectorised kernel on both kinds.
        return _Choice(f"torch.optim.{torch_name}", {"torch_adam": True, **fused}, substitute_for=op)
    if kind == "lion":
        op, cls = ("cpu_lion", "DeepSpeedCPULion") if offloaded else ("fused_lion", "FusedLion")
        return _Choice(f"deepspeed.ops.lion.{cls}", {}, needed_op=op)
    if kind == "adagrad":
        if offloaded and "cpu_adagrad" in ready:
            return _Choice("deepspeed.ops.adagrad.DeepSpeedCPUAdagrad", {}, needed_op="cpu_adagrad")
        if offloaded:
            return _Choice("deepspeed.ops.adagrad.DeepSpeedCPUAdagrad", {}, needed_op="cpu_adagrad")
        return _Choice("torch.optim.Adagrad", {})
    if kind == "lamb":
        return _Choice("deepspeed.ops.lamb.FusedLamb", {}, needed_op="fused_lamb")
    if kind == "muon":
        return _Choice("deepspeed.runtime.zero.muon.MuonWithAuxAdam", {})
    return _Choice(f"torch.optim.{name}", {})


def _adam_w_mode(b: Builder, kind: str) -> bool:
    return kind == "adamw" or b.truth(f"{_SECTION}.adam_w_mode") is not False


def _why(b: Builder, choice: _Choice) -> str:
    if choice.substitute_for:
        text = f"the op {choice.substitute_for} is not built; to use it: dstrain ops build {choice.substitute_for}"
        b.notices.append(f"optimizer: {choice.engine_class}; {text}")
        return text
    if choice.needed_op:
        return f"the op {choice.needed_op} is built"
    return "the torch class of this name"


def _given(b: Builder, plan: OptimizerPlan, written: Mapping[str, Any]) -> dict[str, Any]:
    """What the arguments add to any optimizer: "auto" is filled, and what was given is not dropped in silence."""
    takes = accepted(Document("", {**b.doc.data, "optimizer": {"type": plan.name, "params": dict(written)}}))
    params: dict[str, Any] = {}
    for key, value, names in (
        ("betas", list(plan.betas), ("adam_beta1", "adam_beta2")),
        ("eps", plan.eps, ("adam_epsilon",)),
        ("weight_decay", plan.weight_decay, ("weight_decay",)),
    ):
        given = [name for name in names if b.args.sources[name].kind != "default"]
        if written.get(key) == "auto" or (given and (takes is None or key in takes)):
            params[key] = value
        elif given:
            b.notices.append(f"{' and '.join(given)} has no effect: {plan.name} takes no {key}")
    return params


def _section(b: Builder, plan: OptimizerPlan, choice: _Choice) -> dict[str, Any]:
    """The JSON section: what the file says, and written out what DeepSpeed or torch would else choose unseen."""
    written = b.doc.section(_SECTION)
    stated = {key: value for key, value in written.items() if value != "auto" and value is not None}
    params: dict[str, Any] = {**stated, "lr": plan.lr}
    kind = plan.name.lower()
    params |= _given(b, plan, written)
    if kind in _ADAM:
        params |= {"betas": list(plan.betas), "eps": plan.eps, "weight_decay": plan.weight_decay}
        params["adam_w_mode"] = _adam_w_mode(b, kind)
        b.sources.setdefault(f"deepspeed.{_SECTION}.adam_w_mode", derived("AdamW is decoupled weight decay"))
    elif kind in ("lion", "muon", "sgd"):
        params["weight_decay"] = plan.weight_decay
    return {"type": plan.name, "params": {**params, **choice.extra}}
