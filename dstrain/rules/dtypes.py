"""DS43x: master weights, optimizer states and accumulation in low precision."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.optimizers import kind
from dstrain.rules.registry import rule
from dstrain.rules.view import enabled, flag, hit, integer, precision, precision_section, put, stage
from dstrain.rules.view import offload_optimizer as optimizer_device

_B = {"train_micro_batch_size_per_gpu": 1}
_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
_CPU = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
_SPELLINGS = {
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "int8": "int8",
}


def dtype(value: object) -> str | None:
    """A type name as DeepSpeed's DtypeEnum reads it (`runtime/config.py:145`), or None if it would refuse it."""
    return _SPELLINGS.get(value.removeprefix("torch.")) if isinstance(value, str) else None


@rule(
    "DS430",
    Severity.ERROR,
    "16-bit master weights need ZeRO and CPU Adam",
    fires={
        **_B,
        **_ADAM,
        "bf16": {"enabled": True, "bf16_master_weights_and_grads": True},
        "zero_optimization": {"stage": 2},
    },
    quiet={**_B, **_ADAM, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, "zero_optimization": _CPU},
)
def master_weights(doc: Document) -> Iterator[Hit]:
    """Master weights in 16 bits need ZeRO stage 1 to 3, and optimizer states that DeepSpeed's CPU Adam keeps.

    The stage is asserted by the parser (`runtime/config.py:702`). The offload is asserted when the optimizer is
    built (`base_optimizer.py:484`): always for fp16; for bf16 unless `bf16_optimizer_states` is on too and nothing
    is offloaded.
    """
    bf16 = precision_section(doc)
    states = flag(doc.get(f"{bf16}.bf16_optimizer_states")) is True
    keys = (f"{bf16}.bf16_master_weights_and_grads", "fp16.fp16_master_weights_and_grads")
    on = [key for key in keys if flag(doc.get(key)) is True]
    if len(on) == 2:
        yield hit(
            on[1], "fp16 and bf16 master weights are both on; expected one of them", "false", put(doc, on[1], False)
        )
    at, device = stage(doc), optimizer_device(doc)
    for key in on:
        name = key.split(".")[-1]
        if at == 0:
            yield hit(
                key, f"{name} is refused at ZeRO stage 0; it needs stage 1, 2 or 3", "false", put(doc, key, False)
            )
            continue
        offloaded = device in ("cpu", "nvme")
        if key.startswith("fp16") or not states or offloaded:
            cpu_adam = kind(doc) in ("adam", "adamw", None) and flag(doc.get("optimizer.params.torch_adam")) is not True
            if device == "none" or (offloaded and not cpu_adam):
                yield hit(
                    key,
                    f"{name} needs offload_optimizer to the CPU with Adam or AdamW (without torch_adam)",
                    '"offload_optimizer": {"device": "cpu"}, or leave it out',
                )


@rule(
    "DS431",
    Severity.ERROR,
    "bf16_optimizer_states needs bf16 master weights",
    fires={**_B, "bf16": {"enabled": True, "bf16_optimizer_states": True}, "zero_optimization": {"stage": 2}},
    quiet={
        **_B,
        "bf16": {"enabled": True, "bf16_optimizer_states": True, "bf16_master_weights_and_grads": True},
        "zero_optimization": {"stage": 2},
    },
)
def bf16_states(doc: Document) -> Iterator[Hit]:
    """bf16 optimizer states without bf16 master weights, or without ZeRO, are refused (`runtime/config.py:710`)."""
    section = precision_section(doc)
    key, master = f"{section}.bf16_optimizer_states", f"{section}.bf16_master_weights_and_grads"
    if flag(doc.get(key)) is not True:
        return
    if flag(doc.get(master, False)) is False:
        yield hit(
            key, f"bf16_optimizer_states needs {master}", f'"{master.split(".")[-1]}": true', put(doc, master, True)
        )
    elif stage(doc) == 0:
        yield hit(key, "bf16_optimizer_states is refused at ZeRO stage 0", '"stage": 1', put(doc, key, False))


@rule(
    "DS432",
    Severity.WARNING,
    "16-bit master weights while that precision is off",
    fires={**_B, "bf16": {"enabled": False, "bf16_master_weights_and_grads": True}, "zero_optimization": _CPU},
    quiet={**_B, "bf16": {"enabled": True, "bf16_master_weights_and_grads": True}, "zero_optimization": _CPU},
)
def master_off(doc: Document, mode: Mode) -> Iterator[Hit]:
    """The master-weight switches are read even when their section is off: the model trains in fp32 from 16-bit masters.

    The weights lose half of their bits at every step. Turn the section on, or the switch off.
    """
    bf16 = precision_section(doc)
    for name, key in (
        ("bf16", f"{bf16}.bf16_master_weights_and_grads"),
        ("fp16", "fp16.fp16_master_weights_and_grads"),
    ):
        if flag(doc.get(key)) is True and enabled(doc, name, mode) is False:
            last = key.rpartition(".")[2]
            fix = f'"{name}": {{"enabled": true}} to train in {name}, or "{last}": false'
            yield hit(key, f"{key} is true, but {name} is not enabled", fix)


@rule(
    "DS433",
    Severity.ERROR,
    "grad_accum_dtype cannot be used here",
    fires={**_B, "bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}},
    quiet={
        **_B,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 2},
    },
)
def accumulation_type(doc: Document, mode: Mode) -> Iterator[Hit]:
    """At stage 0 gradients are accumulated in the model's own type only (`runtime/engine.py:2323`).

    The name itself is not checked by the parser; a misspelt one is a ValueError when the engine starts.
    """
    key = "data_types.grad_accum_dtype"
    if doc.get(key) is None:
        return
    found, model = dtype(doc.get(key)), precision(doc, mode)
    if model is None and enabled(doc, "bf16", mode):
        model = "bf16"
    if found is None or found == "int8":
        yield hit(
            key, f"grad_accum_dtype is {doc.get(key)!r}; expected fp32, bf16 or fp16", '"fp32"', put(doc, key, "fp32")
        )
    elif stage(doc) == 0 and model is not None and found != model:
        yield hit(
            key,
            f"at ZeRO stage 0 gradients accumulate in the model's type, {model}; grad_accum_dtype is {found}",
            '"stage": 1, or leave grad_accum_dtype out',
        )


@rule(
    "DS434",
    Severity.ADVICE,
    "Gradients accumulate in bf16",
    fires={**_B, "gradient_accumulation_steps": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}},
    quiet={
        **_B,
        "gradient_accumulation_steps": 8,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": 2},
    },
)
def accumulation_bits(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With bf16 and `grad_accum_dtype` left out, micro-batches are summed in bf16 (`runtime/engine.py:1806`).

    bf16 keeps 8 bits: late micro-batches lose part of their gradient against the sum. fp32 costs 4 bytes per
    gradient kept on the rank.
    """
    steps = integer(doc.get("gradient_accumulation_steps"))
    if mode is not Mode.DSTRAIN and stage(doc) in (1, 2, 3) and enabled(doc, "bf16", mode) and steps and steps > 1:
        key = "data_types.grad_accum_dtype"
        if doc.get(key) is None:
            fix = '"data_types": {"grad_accum_dtype": "fp32"}'
            yield hit(key, f"{steps} micro-batches are summed in bf16 per optimizer step", fix)


@rule(
    "DS435",
    Severity.ERROR,
    "param_dtype is not the type that is enabled",
    fires={**_B, "bf16": {"enabled": True}, "data_types": {"param_dtype": "fp16"}},
    quiet={**_B, "bf16": {"enabled": True}, "data_types": {"param_dtype": "bf16"}},
)
def param_type(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`param_dtype` selects nothing: it must say what `bf16`/`fp16` already say (`runtime/engine.py:1827`)."""
    key = "data_types.param_dtype"
    if doc.get(key) is None:
        return
    found, model = dtype(doc.get(key)), precision(doc, mode)
    if model is None and enabled(doc, "bf16", mode):
        model = "bf16"
    if model is not None and found != model:
        fix = f'"bf16": {{"enabled": true}} or leave param_dtype out (now {model})'
        yield hit(key, f"param_dtype is {doc.get(key)!r}, but the model trains in {model}", fix)


@rule(
    "DS436",
    Severity.ERROR,
    "keep_in_fp32_modules is no list of names",
    fires={**_B, "data_types": {"keep_in_fp32_modules": "norm"}},
    quiet={**_B, "data_types": {"keep_in_fp32_modules": ["norm"]}},
)
def keep_fp32(doc: Document) -> Iterator[Hit]:
    """`data_types.keep_in_fp32_modules` is "auto" or a list of name patterns (`runtime/config.py:564`)."""
    key = "data_types.keep_in_fp32_modules"
    value = doc.get(key, "auto")
    if value != "auto" and not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        right = [value] if isinstance(value, str) else "auto"
        yield hit(
            key,
            f'keep_in_fp32_modules is {value!r}; expected "auto" or a list of names',
            '["norm"]',
            put(doc, key, right),
        )
