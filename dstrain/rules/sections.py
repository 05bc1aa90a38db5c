"""DS7xx: the sections beside ZeRO, precision, optimizer and scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, flag, hit, integer, is_auto, number, offload_param, put, stage
from dstrain.rules.view import offload_optimizer as optimizer_device

_B = {"train_micro_batch_size_per_gpu": 1}
# Plain-dict booleans that DeepSpeed 0.19.8 tests for truth: any text, "false" too, is true.
TRUTHY = (
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "managed_gradient_accumulation",
    "prescale_gradients",
    "dump_state",
    "memory_breakdown",
    "disable_python_gc",
    "dataloader_drop_last",
    "use_data_before_expert_parallelism",
    "checkpoint.load_universal",
    "checkpoint.use_node_local_storage",
    "checkpoint.checkpoint_serialization",
    "torch_autocast.enabled",
    "flops_profiler.enabled",
    "flops_profiler.detailed",
    "activation_checkpointing.partition_activations",
    "activation_checkpointing.cpu_checkpointing",
    "activation_checkpointing.contiguous_memory_optimization",
    "activation_checkpointing.synchronize_checkpoint_boundary",
    "activation_checkpointing.profile",
    "aio.single_submit",
    "aio.overlap_events",
    "aio.use_gds",
    "autotuning.enabled",
    "data_efficiency.enabled",
    "data_efficiency.data_sampling.enabled",
    "data_efficiency.data_routing.enabled",
    "optimizer.legacy_fusion",
    "optimizer.params.adam_w_mode",
    "optimizer.params.torch_adam",
    "optimizer.params.amsgrad",
    "optimizer.params.bias_correction",
    "optimizer.params.nesterov",
)


@rule(
    "DS701",
    Severity.ERROR,
    "Text where a boolean is due is taken as true",
    fires={**_B, "zero_allow_untested_optimizer": "false"},
    quiet={**_B, "zero_allow_untested_optimizer": False},
)
def text_as_boolean(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Outside its typed blocks DeepSpeed tests these values for truth, so "false" and "no" switch them on.

    Write `true` or `false` without quotes. dstrain reads the words as what they say.
    """
    for key in TRUTHY:
        value = doc.get(key)
        if not isinstance(value, str) or (mode is Mode.DSTRAIN and flag(value) is not None):
            continue
        meant = flag(value)
        severity = Severity.ERROR if value and meant is not True else Severity.WARNING
        right = "false" if not meant else "true"
        patch = () if meant is None and not is_auto(value) else (put(doc, key, bool(meant)),)
        effect = "DeepSpeed takes any text as true" if value else "DeepSpeed takes an empty text as false"
        message = f'{key} is the text "{value}"; {effect}'
        yield Hit(key, message, f'"{key.split(".")[-1]}": {right}', patch, severity=severity)


@rule(
    "DS702",
    Severity.ADVICE,
    "activation_checkpointing acts only on models that call DeepSpeed's checkpoint",
    fires={**_B, "activation_checkpointing": {"partition_activations": True}},
    quiet={**_B, "activation_checkpointing": {"partition_activations": False}},
)
def activation_checkpointing(doc: Document) -> Iterator[Hit]:
    """The section configures `deepspeed.checkpointing.checkpoint`; it does not make a model checkpoint anything.

    Models of transformers use `torch.utils.checkpoint` (`gradient_checkpointing`), which does not read it.
    """
    section = doc.section("activation_checkpointing")
    on = [
        key for key in ("partition_activations", "cpu_checkpointing") if section.get(key) not in (None, False, "auto")
    ]
    if on:
        message = f"activation_checkpointing.{on[0]} acts only where the model calls deepspeed.checkpointing.checkpoint"
        yield hit(
            f"activation_checkpointing.{on[0]}", message, "gradient_checkpointing of the trainer, or leave it out"
        )


@rule(
    "DS703",
    Severity.WARNING,
    "contiguous_memory_optimization lacks what it needs",
    fires={**_B, "activation_checkpointing": {"contiguous_memory_optimization": True}},
    quiet={
        **_B,
        "activation_checkpointing": {
            "partition_activations": True,
            "contiguous_memory_optimization": True,
            "number_checkpoints": 4,
        },
    },
)
def contiguous(doc: Document) -> Iterator[Hit]:
    """It needs `partition_activations` and `number_checkpoints`, asserted at the first checkpoint of the model.

    `runtime/activation_checkpointing/checkpointing.py:1229`.
    """
    key = "activation_checkpointing.contiguous_memory_optimization"
    section = doc.section("activation_checkpointing")
    if flag(section.get("contiguous_memory_optimization")) is not True:
        return
    lacking = [] if section.get("partition_activations") else ["partition_activations: true"]
    if integer(section.get("number_checkpoints")) is None:
        lacking.append("number_checkpoints: <the model's layers>")
    if lacking:
        yield hit(
            key,
            f"contiguous_memory_optimization needs {' and '.join(lacking)}",
            f'add {" and ".join(lacking)}, or "contiguous_memory_optimization": false',
        )


@rule(
    "DS704",
    Severity.ADVICE,
    "aio without NVMe offload",
    fires={**_B, "aio": {"block_size": 1048576}, ZERO: {"stage": 3}},
    quiet={
        **_B,
        "aio": {"block_size": 1048576},
        ZERO: {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}},
    },
)
def aio_unused(doc: Document) -> Iterator[Hit]:
    """The `aio` section tunes reads and writes of NVMe offload and of the fast checkpoint writer; else nothing."""
    swaps = stage(doc) == 3 and "nvme" in (optimizer_device(doc), offload_param(doc))
    if doc.section("aio") and not swaps and not doc.has("checkpoint.writer"):
        yield hit("aio", "aio has no effect without NVMe offload at stage 3", "leave aio out")


@rule(
    "DS705",
    Severity.WARNING,
    "An aio value is no positive whole number",
    fires={**_B, "aio": {"block_size": "1MB"}},
    quiet={**_B, "aio": {"block_size": 1048576}},
)
def aio_numbers(doc: Document) -> Iterator[Hit]:
    """`block_size` is in bytes, `queue_depth` in requests, `intra_op_parallelism` in threads: whole numbers from 1.

    DeepSpeed does not check them; text such as "1MB" fails inside the C++ op, at the first swap.
    """
    swaps = stage(doc) == 3 and "nvme" in (optimizer_device(doc), offload_param(doc))
    for name, usual in (("block_size", 1_048_576), ("queue_depth", 8), ("intra_op_parallelism", 1)):
        key = f"aio.{name}"
        value = doc.get(key, usual)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            continue
        whole = integer(value)
        if isinstance(value, float) and whole is not None and whole > 0:
            continue
        right = _sized(value) or (whole if whole is not None and whole > 0 else usual)
        severity = Severity.ERROR if swaps else Severity.WARNING
        message = f"{key} is {value!r}; expected a whole number from 1"
        yield Hit(key, message, f'"{name}": {right}', (put(doc, key, right),), severity=severity)


def _sized(value: object) -> int | None:
    """`"1MB"` and `"512 KiB"` as bytes."""
    text = value.strip().upper().removesuffix("B").removesuffix("I") if isinstance(value, str) else ""
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:])
    count = number(text[:-1].strip()) if unit else None
    return int(count * unit) if unit and count is not None and 0 < count < 1 << 40 else None


@rule(
    "DS713",
    Severity.ERROR,
    "data_efficiency lacks a setting that it needs",
    fires={
        **_B,
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {"enabled": True, "curriculum_learning": {"enabled": True}},
        },
    },
    quiet={
        **_B,
        "data_efficiency": {
            "enabled": True,
            "data_sampling": {"enabled": True, "curriculum_learning": {"enabled": False}},
        },
    },
)
def data_efficiency(doc: Document) -> Iterator[Hit]:
    """Curriculum learning needs `curriculum_metrics`, dynamic batching `max_tokens` (`data_pipeline/config.py:79`).

    Random-LTD wants as many `random_ltd_layer_id` as `random_ltd_layer_num`, and its own lr schedule is not
    implemented ('not yet support', `runtime/engine.py:1444`). Inner sections do nothing while the outer one is off.
    """
    sampling, routing = "data_efficiency.data_sampling", "data_efficiency.data_routing"
    learn, dynamic, ltd = f"{sampling}.curriculum_learning", f"{sampling}.dynamic_batching", f"{routing}.random_ltd"
    if doc.get(f"{learn}.enabled") and not doc.has(f"{learn}.curriculum_metrics"):
        yield hit(
            f"{learn}.curriculum_metrics",
            "curriculum_learning is enabled without curriculum_metrics",
            '"curriculum_metrics": {"<metric>": {…}}, or "enabled": false',
        )
    if doc.get(f"{dynamic}.enabled") and not doc.has(f"{dynamic}.max_tokens"):
        yield hit(
            f"{dynamic}.max_tokens",
            "dynamic_batching is enabled without max_tokens",
            '"max_tokens": <tokens per micro-batch>',
        )
    active = all(doc.get(f"{key}.enabled") for key in ("data_efficiency", routing, ltd))
    layers, count = doc.get(f"{ltd}.random_ltd_layer_id"), integer(doc.get(f"{ltd}.random_ltd_layer_num"))
    if active and isinstance(layers, list) and count is not None and len(layers) != count:
        yield hit(
            f"{ltd}.random_ltd_layer_num",
            f"random_ltd_layer_num is {count}, but {len(layers)} layer ids are given",
            str(len(layers)),
            put(doc, f"{ltd}.random_ltd_layer_num", len(layers)),
        )
    if active and doc.get(f"{ltd}.layer_token_lr_schedule.enabled"):
        key = f"{ltd}.layer_token_lr_schedule.enabled"
        yield hit(key, "random_ltd's own lr schedule is not implemented", "false", put(doc, key, False))


@rule(
    "DS714",
    Severity.WARNING,
    "An inner data_efficiency section is on, the outer one is off",
    fires={**_B, "data_efficiency": {"enabled": False, "data_sampling": {"enabled": True}}},
    quiet={**_B, "data_efficiency": {"enabled": True, "data_sampling": {"enabled": True}}},
)
def data_efficiency_off(doc: Document) -> Iterator[Hit]:
    """Each level of `data_efficiency` has its own `enabled`, off by default, and all on the way must be on."""
    if not isinstance(doc.get("data_efficiency"), Mapping):
        return
    paths = (
        ("data_efficiency", "data_sampling", "curriculum_learning"),
        ("data_efficiency", "data_sampling", "dynamic_batching"),
        ("data_efficiency", "data_routing", "random_ltd"),
    )
    seen: set[str] = set()
    for path in paths:
        keys = [".".join(path[: depth + 1]) + ".enabled" for depth in range(len(path))]
        for outer, inner in pairwise(keys):
            if flag(doc.get(inner)) is True and flag(doc.get(outer, False)) is False and inner not in seen:
                seen.add(inner)
                yield hit(
                    inner,
                    f"{inner} is true, but {outer} is not: it has no effect",
                    f'"{outer}": true',
                    put(doc, outer, True),
                )
