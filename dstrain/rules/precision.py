"""DS4xx: bf16, fp16, autocast, loss scale, gradient clipping, data types."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import drop, enabled, flag, hit, is_auto, number, precision, precision_section, put, unread

_B = {"train_micro_batch_size_per_gpu": 1}
_ON = {"enabled": True}


@rule(
    "DS401",
    Severity.ERROR,
    "fp16 and bf16 are both on",
    fires={**_B, "fp16": _ON, "bf16": _ON},
    quiet={**_B, "fp16": {"enabled": False}, "bf16": _ON},
)
def both(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A model has one compute type; DeepSpeed asserts that only one of the two is on (`runtime/config.py:511`).

    bf16 needs no loss scale and is the choice on any device that has it.
    """
    if enabled(doc, "fp16", mode) and enabled(doc, "bf16", mode):
        section = precision_section(doc)
        fix = f'"fp16": {{"enabled": false}} to train in bf16, or "{section}": {{"enabled": false}} to train in fp16'
        yield hit("fp16.enabled", f"fp16 and {section} are both enabled; expected one of them", fix)


@rule(
    "DS402",
    Severity.ERROR,
    "bf16 and bfloat16 disagree",
    fires={**_B, "bf16": {"enabled": False}, "bfloat16": _ON},
    quiet={**_B, "bf16": _ON},
)
def old_name(doc: Document) -> Iterator[Hit]:
    """`bfloat16` is the old name of `bf16`, read only when there is no `bf16` section (`precision_config.py:37`).

    With both written, `bf16` wins: a run asked for bfloat16 then trains in fp32, or the other way round.
    """
    if not (doc.has("bf16") and doc.has("bfloat16")):
        return
    new, old = (doc.section(name).get("enabled", False) for name in ("bf16", "bfloat16"))
    severity = Severity.WARNING if flag(new) == flag(old) else Severity.ERROR
    yield Hit(
        "bfloat16",
        f"bfloat16 (enabled: {old!r}) is ignored because bf16 (enabled: {new!r}) is there as well",
        "leave bfloat16 out",
        (drop("bfloat16"),),
        severity=severity,
        also=(doc.place("bf16"),),
    )


@rule(
    "DS403",
    Severity.WARNING,
    "torch_autocast together with a cast model",
    fires={**_B, "bf16": _ON, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    quiet={**_B, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
)
def autocast_and_cast(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`torch_autocast` keeps fp32 weights and casts per operation; `bf16` and `fp16` cast the whole model.

    DeepSpeed takes both at once. The weights are then low precision already, and autocast only adds casts. Choose one.
    """
    if not doc.section("torch_autocast").get("enabled"):
        return
    for name in ("bf16", "fp16"):
        if enabled(doc, name, mode):
            section = precision_section(doc) if name == "bf16" else name
            key = "torch_autocast.enabled"
            message = f"torch_autocast and {section} are both enabled: the model is cast to {name} before autocast acts"
            fix = f'"torch_autocast": {{"enabled": false}}, or "{section}": {{"enabled": false}}'
            yield hit(key, message, fix)


@rule(
    "DS404",
    Severity.WARNING,
    "torch_autocast without a dtype it can use",
    fires={**_B, "torch_autocast": {"enabled": True}},
    quiet={**_B, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
)
def autocast_dtype(doc: Document) -> Iterator[Hit]:
    """`torch_autocast.dtype` has no default in DeepSpeed: None goes on to `torch.autocast` (`torch_autocast.py:116`).

    torch then picks the device's own default, float16 on a GPU, without the loss scale that float16 needs. "int8"
    and "fp32" are accepted too and are no autocast types: torch warns and runs without autocast.
    """
    if not doc.section("torch_autocast").get("enabled"):
        return
    key, value = "torch_autocast.dtype", doc.get("torch_autocast.dtype")
    if value is None:
        yield hit(key, "torch_autocast is enabled without a dtype", '"dtype": "bfloat16"', put(doc, key, "bfloat16"))
    elif isinstance(value, str) and value.removeprefix("torch.") in ("int8", "fp32", "float32", "float"):
        message = f'torch_autocast.dtype "{value}" is no autocast type; expected "bfloat16" or "float16"'
        patch = (put(doc, key, "bfloat16"),)
        yield Hit(key, message, '"dtype": "bfloat16"', patch, severity=Severity.ERROR)


@rule(
    "DS405",
    Severity.ADVICE,
    "torch_autocast outlives its engine",
    fires={**_B, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
    quiet={**_B, "torch_autocast": {"enabled": False, "dtype": "bfloat16"}},
)
def autocast_state(doc: Document) -> Iterator[Hit]:
    """`torch_autocast` sets process-wide state that `engine.destroy()` does not reset (0.19.8, measured).

    A second engine in the same process (a sweep, a teacher and a student) then trains on other numbers than alone.
    `bf16` has no such effect.
    """
    if flag(doc.section("torch_autocast").get("enabled")) is True:
        message = "torch_autocast changes any later engine of the same process"
        yield hit("torch_autocast.enabled", message, "one engine per process, or bf16 instead")


@rule(
    "DS410",
    Severity.WARNING,
    "Gradients are clipped although nothing asks for it",
    fires=_B,
    quiet={**_B, "gradient_clipping": 0.0},
)
def clipping_unset(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Since 2026 `gradient_clipping` is 1.0 when left out (`runtime/constants.py`, GRADIENT_CLIPPING_DEFAULT).

    It used to be off, so an older configuration trains differently now. Under transformers `max_grad_norm` only
    replaces "auto": with the key left out the argument has no effect. dstrain always writes the key.
    """
    if mode is Mode.DSTRAIN or unread(doc) or doc.has("gradient_clipping"):
        return
    if mode is Mode.TRANSFORMERS:
        message = "gradient_clipping is left out: DeepSpeed clips at 1.0, whatever max_grad_norm says"
        patch = (put(doc, "gradient_clipping", "auto"),)
        yield Hit("gradient_clipping", message, '"gradient_clipping": "auto"', patch, severity=Severity.ADVICE)
    else:
        message = "gradient_clipping is left out, which means 1.0 in DeepSpeed 0.19.8, not off"
        fix = '"gradient_clipping": 1.0 to keep it, 0.0 to turn it off'
        yield hit("gradient_clipping", message, fix, put(doc, "gradient_clipping", 1.0))


@rule(
    "DS411",
    Severity.WARNING,
    "Negative gradient_clipping",
    fires={**_B, "gradient_clipping": -1},
    quiet={**_B, "gradient_clipping": 0},
)
def clipping_negative(doc: Document) -> Iterator[Hit]:
    """A negative norm is accepted and clips nothing. Off is written 0."""
    value = number(doc.get("gradient_clipping"))
    if value is not None and value < 0:
        patch = put(doc, "gradient_clipping", 0)
        yield hit("gradient_clipping", f"gradient_clipping {value} clips nothing; off is 0", "0", patch)


@rule(
    "DS412",
    Severity.ERROR,
    "gradient_clipping is no number",
    fires={**_B, "gradient_clipping": "1.0"},
    quiet={**_B, "gradient_clipping": 1.0},
)
def clipping_type(doc: Document, mode: Mode) -> Iterator[Hit]:
    """DeepSpeed does not look at the type of `gradient_clipping`; text and null raise a TypeError inside the step.

    dstrain reads a number in quotes as that number, so there it is no fault.
    """
    if not doc.has("gradient_clipping"):
        return
    value = doc.get("gradient_clipping")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return
    meant = number(value)
    if mode is Mode.DSTRAIN and (meant is not None or is_auto(value)):
        return
    if mode is Mode.TRANSFORMERS and is_auto(value):
        return
    right = 1.0 if meant is None else meant
    message = f"gradient_clipping is {value!r}; expected a number (0 turns clipping off)"
    yield hit("gradient_clipping", message, f'"gradient_clipping": {right}', put(doc, "gradient_clipping", right))


@rule(
    "DS420",
    Severity.ERROR,
    "fp16.loss_scale is no number",
    fires={**_B, "fp16": {"enabled": True, "loss_scale": "dynamic"}},
    quiet={**_B, "fp16": {"enabled": True, "loss_scale": 0}},
)
def loss_scale_type(doc: Document) -> Iterator[Hit]:
    """Dynamic loss scaling is written 0, not "dynamic" as in apex; DeepSpeed wants a number from 0 up.

    `precision_config.py:122`. The string "auto" is dropped and means 0.
    """
    key = "fp16.loss_scale"
    value = doc.get(key, 0)
    found = number(value)
    if is_auto(value):
        return
    if found is None or found < 0 or isinstance(value, bool):
        message = f"fp16.loss_scale is {value!r}; expected a number, 0 for dynamic scaling"
        yield hit(key, message, '"loss_scale": 0', put(doc, key, 0))


@rule(
    "DS421",
    Severity.ERROR,
    "Dynamic loss scaling cannot run like this",
    fires={**_B, "fp16": {"enabled": True, "loss_scale_window": 0}},
    quiet={**_B, "fp16": {"enabled": True, "loss_scale_window": 1000}},
)
def dynamic_scale(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With dynamic scaling `loss_scale_window` and `min_loss_scale` must be whole numbers from 1.

    `precision_config.py:183` refuses them when fp16 is on and `loss_scale` is 0. With `hysteresis` below 1 or a
    negative `initial_scale_power` the run starts, but the scale is of no use.
    """
    on = enabled(doc, "fp16", mode)
    if on is False or number(doc.get("fp16.loss_scale", 0)) not in (0, None):
        return
    for name, least, default in (("loss_scale_window", 1, 1000), ("min_loss_scale", 1, 1)):
        value = number(doc.get(f"fp16.{name}", default))
        if value is not None and value < least and on:
            message = f"fp16.{name} is {value}; expected a whole number from {least} with dynamic loss scaling"
            yield hit(f"fp16.{name}", message, f'"{name}": {default}', put(doc, f"fp16.{name}", default))
    for name, least, default in (("hysteresis", 1, 2), ("initial_scale_power", 0, 16)):
        value = number(doc.get(f"fp16.{name}", default))
        if value is not None and value < least:
            message = f"fp16.{name} is {value}; expected {least} or more"
            patch = (put(doc, f"fp16.{name}", default),)
            yield Hit(f"fp16.{name}", message, f'"{name}": {default}', patch, severity=Severity.WARNING)


@rule(
    "DS422",
    Severity.ADVICE,
    "The first loss scale is very high",
    fires={**_B, "fp16": {"enabled": True, "initial_scale_power": 32}},
    quiet={**_B, "fp16": {"enabled": True, "initial_scale_power": 16}},
)
def scale_power(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Dynamic scaling starts at 2 to the power of `initial_scale_power` and halves with every step that overflows.

    fp16 ends at 65504, so a start far above 2^16 means skipped steps first: DeepSpeed counts them in
    `global_steps`, although no weight moves. 32 was the default of old releases; it is 16 now.
    """
    power = number(doc.get("fp16.initial_scale_power"))
    if enabled(doc, "fp16", mode) is not False and power is not None and power > 24:
        key = "fp16.initial_scale_power"
        message = f"initial_scale_power {power}: expect about {int(power) - 16} skipped steps at the start"
        yield hit(key, message, '"initial_scale_power": 16', put(doc, key, 16))


@rule(
    "DS423",
    Severity.WARNING,
    "fp16 without loss scaling",
    fires={**_B, "fp16": {"enabled": True, "loss_scale": 1}},
    quiet={**_B, "fp16": {"enabled": True, "loss_scale": 0}},
)
def scale_one(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A `loss_scale` above 0 is static. At 1 or below small gradients underflow to zero in fp16, in silence."""
    scale = number(doc.get("fp16.loss_scale", 0))
    if enabled(doc, "fp16", mode) and scale is not None and 0 < scale <= 1:
        key = "fp16.loss_scale"
        message = f"fp16.loss_scale is {scale}, a static scale that scales nothing"
        yield hit(key, message, '"loss_scale": 0 (dynamic)', put(doc, key, 0))


@rule(
    "DS424",
    Severity.WARNING,
    "Steps with infinite gradients are not skipped",
    fires={**_B, "bf16": {"enabled": True, "check_grad_overflow": False}},
    quiet={**_B, "bf16": {"enabled": True}},
)
def overflow_check(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`bf16.check_grad_overflow: false` applies a step whose gradients are infinite or not a number.

    One such step makes every weight NaN. The default, true, skips the step and counts it.
    """
    key = f"{precision_section(doc)}.check_grad_overflow"
    if enabled(doc, "bf16", mode) is not False and flag(doc.get(key)) is False:
        message = "check_grad_overflow is false: one step with a NaN gradient makes every weight NaN"
        yield hit(key, message, '"check_grad_overflow": true', put(doc, key, True))


@rule(
    "DS425",
    Severity.WARNING,
    "Gradients are reduced in another 16-bit type",
    fires={**_B, "bf16": _ON, "communication_data_type": "fp16"},
    quiet={**_B, "bf16": _ON, "communication_data_type": "fp32"},
)
def reduce_type(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`communication_data_type: fp16` casts bf16 or fp32 gradients to fp16 for the reduction, with no loss scale.

    fp16 holds up to 65504 and down to 6e-8; gradients outside become inf or 0 on the wire.
    """
    wire, model = doc.get("communication_data_type"), precision(doc, mode)
    bf16 = enabled(doc, "bf16", mode)
    if isinstance(wire, str) and wire.lower() == "fp16" and (bf16 or model == "fp32"):
        key = "communication_data_type"
        message = f"communication_data_type is fp16, but the gradients are {'bf16' if bf16 else 'fp32'}"
        yield hit(key, message, "leave it out, or fp32", drop(key))
