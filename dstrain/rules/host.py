"""DS8xx: what this machine, this number of ranks and this model can do."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import HostFacts, Mode, ModelFacts, WorldFacts
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.optimizers import kind
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, enabled, flag, hit, integer, is_auto, offload_param, precision_section, put, stage
from dstrain.rules.view import offload_optimizer as optimizer_device

_B = {"train_micro_batch_size_per_gpu": 1}
_GPU = {"device": "cuda", "device_count": 8, "supports_bf16": True, "supports_fp16": True}
_BF16_GPU = {"fp16": {"enabled": True}, "$facts": {"host": {"device": "cpu", "supports_fp16": False}}}
_CPU_OFFLOAD = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
_ADAM = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}


@rule(
    "DS801",
    Severity.ERROR,
    "The device lacks this precision",
    fires={**_B, **_BF16_GPU},
    quiet={**_B, "fp16": {"enabled": True}, "$facts": {"host": _GPU}},
)
def precision_support(doc: Document, host: HostFacts, mode: Mode) -> Iterator[Hit]:
    """DeepSpeed raises ValueError when the engine starts (`runtime/engine.py:2004`).

    fp16 needs a GPU (on the CPU DeepSpeed refuses it); bf16 needs Ampere or later, or a CPU.
    """
    for name, supported in (("fp16", host.supports_fp16), ("bf16", host.supports_bf16)):
        if supported is False and enabled(doc, name, mode):
            key = f"{precision_section(doc) if name == 'bf16' else name}.enabled"
            other = "bf16" if name == "fp16" and host.supports_bf16 is not False else "fp32"
            message = f"{name} is enabled, but {' '.join(host.device_names[:1]) or host.device} does not support it"
            last = key.rpartition(".")[0]
            fix = f'"{last}": {{"enabled": false}}' + (', "bf16": {"enabled": true}' if other == "bf16" else "")
            yield hit(key, message, f"train in {other}: {fix}")


@rule(
    "DS802",
    Severity.ERROR,
    "More ranks than devices",
    fires={**_B, "$facts": {"world_size": 4, "host": {"device": "cuda", "device_count": 2}}},
    quiet={**_B, "$facts": {"world_size": 4, "host": {"device": "cuda", "device_count": 4}}},
)
def device_count(world: WorldFacts, host: HostFacts) -> Iterator[Hit]:
    """Each rank of a machine takes the device of its local rank. A rank without a device fails in `set_device`.

    The `deepspeed` launcher does not check `--num_gpus` against the devices that are there.
    """
    if host.device != "cpu" and host.device_count < world.local_world_size:
        message = f"{world.local_world_size} ranks on this machine, but {host.device_count} {host.device} device(s)"
        yield hit("", message, f"--num_gpus {host.device_count}")


@rule(
    "DS803",
    Severity.ADVICE,
    "A compiled op will be built at the first start",
    fires={**_B, **_ADAM, ZERO: _CPU_OFFLOAD, "$facts": {"host": _GPU}},
    quiet={**_B, **_ADAM, ZERO: _CPU_OFFLOAD, "$facts": {"host": {**_GPU, "ready_ops": ["cpu_adam"]}}},
)
def ops(doc: Document, host: HostFacts, mode: Mode) -> Iterator[Hit]:
    """DeepSpeed compiles the ops that a configuration needs when they are first used: minutes that look like a hang.

    Every rank waits for the one that builds. Build ahead. dstrain does not compile in a run: it takes torch's
    equivalent where there is one, and says so.
    """
    for op, key in sorted(needed_ops(doc, host).items()):
        if op not in host.ready_ops:
            message = f"{key} needs the op {op}, which is not built"
            severity = Severity.WARNING if mode is Mode.DSTRAIN else None
            yield Hit(key, message, f"dstrain ops build {op}", severity=severity)


def needed_ops(doc: Document, host: HostFacts) -> dict[str, str]:
    """The compiled ops that a configuration makes DeepSpeed use, each with the key that asks for it."""
    name, found = kind(doc), dict[str, str]()
    offloaded = optimizer_device(doc) in ("cpu", "nvme")
    torch_adam = flag(doc.get("optimizer.params.torch_adam")) is True
    if name in ("adam", "adamw") and not torch_adam:
        found["cpu_adam" if offloaded else "fused_adam"] = "optimizer.type"
    if name == "lion":
        found["cpu_lion" if offloaded else "fused_lion"] = "optimizer.type"
    if name == "adagrad" and offloaded:
        found["cpu_adagrad"] = "optimizer.type"
    if name == "lamb":
        found["fused_lamb"] = "optimizer.type"
    if stage(doc) == 3 and optimizer_device(doc) == "nvme":
        found["async_io"] = f"{ZERO}.offload_optimizer.device"
    if stage(doc) == 3 and offload_param(doc) == "nvme":
        found["async_io"] = f"{ZERO}.offload_param.device"
    quantized = (f"{ZERO}.zero_quantized_weights", f"{ZERO}.zero_quantized_gradients")
    for key in quantized:
        if stage(doc) == 3 and flag(doc.get(key)) is True and host.device != "cpu":
            found["quantizer"] = key
    return found


@rule(
    "DS804",
    Severity.ERROR,
    "GPUDirect storage needs CUDA",
    fires={**_B, "aio": {"use_gds": True}, "$facts": {"host": {"device": "cpu"}}},
    quiet={**_B, "aio": {"use_gds": True}, "$facts": {"host": _GPU}},
)
def gds(doc: Document, host: HostFacts) -> Iterator[Hit]:
    """`aio.use_gds` reads from NVMe into GPU memory; DeepSpeed asserts CUDA in the parser (`aio_config.py:37`)."""
    if doc.get("aio.use_gds") and host.device != "cuda":
        key = "aio.use_gds"
        yield hit(
            key, f"aio.use_gds needs a CUDA device; this machine trains on {host.device}", "false", put(doc, key, False)
        )


@rule(
    "DS805",
    Severity.ERROR,
    "SuperOffload needs CUDA",
    fires={**_B, ZERO: {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
    quiet={
        **_B,
        ZERO: {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}},
        "$facts": {"host": _GPU},
    },
)
def super_offload(doc: Document, host: HostFacts) -> Iterator[Hit]:
    """SuperOffload asserts a CUDA device when it is imported (`superoffload_stage3.py:23`)."""
    key = f"{ZERO}.offload_optimizer.super_offload"
    if stage(doc) == 3 and flag(doc.get(key)) is True and host.device != "cuda":
        yield hit(
            key,
            f"super_offload needs a CUDA device; this machine trains on {host.device}",
            "false",
            put(doc, key, False),
        )


@rule(
    "DS806",
    Severity.ADVICE,
    "Offloading from the CPU to the CPU",
    fires={**_B, ZERO: _CPU_OFFLOAD, "$facts": {"host": {"device": "cpu"}}},
    quiet={**_B, ZERO: _CPU_OFFLOAD, "$facts": {"host": _GPU}},
)
def offload_on_cpu(doc: Document, host: HostFacts) -> Iterator[Hit]:
    """Without an accelerator the states are in host memory already; offloading them only asks for a compiled op."""
    for device, section in ((optimizer_device(doc), "offload_optimizer"), (offload_param(doc), "offload_param")):
        if host.device == "cpu" and device == "cpu":
            yield hit(f"{ZERO}.{section}", f"{section} to the CPU gains nothing on a CPU", "leave it out")


@rule(
    "DS807",
    Severity.ADVICE,
    "One rank partitions nothing",
    fires={**_B, ZERO: {"stage": 3}, "$facts": {"world_size": 1, "host": _GPU}},
    quiet={**_B, ZERO: {"stage": 3}, "$facts": {"world_size": 2, "host": _GPU}},
)
def one_rank(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """ZeRO divides states over the ranks: with one rank it only adds work, unless something is offloaded."""
    at = stage(doc)
    offloads = any(device != "none" for device in (optimizer_device(doc), offload_param(doc)))
    if at and world.world_size == 1 and not offloads:
        yield hit(f"{ZERO}.stage", f"ZeRO stage {at} on one rank saves no memory", '"stage": 0, or offload')


@rule(
    "DS808",
    Severity.ERROR,
    "auto bucket sizes need the model's hidden size",
    fires={**_B, ZERO: {"stage": 3, "reduce_bucket_size": "auto"}, "$facts": {"mode": "transformers"}},
    quiet={
        **_B,
        ZERO: {"stage": 3, "reduce_bucket_size": "auto"},
        "$facts": {"mode": "transformers", "model": {"hidden_size": 64}},
    },
)
def hidden_size(doc: Document, model: ModelFacts, mode: Mode) -> Iterator[Hit]:
    """transformers computes "auto" bucket sizes from `model.config.hidden_size` and raises ValueError without one."""
    if mode is not Mode.TRANSFORMERS or model.hidden_size is not None:
        return
    for name, usual in (
        ("reduce_bucket_size", 500_000_000),
        ("stage3_prefetch_bucket_size", 50_000_000),
        ("stage3_param_persistence_threshold", 100_000),
    ):
        key = f"{ZERO}.{name}"
        if is_auto(doc.get(key)):
            message = f'{name} is "auto", but {model.class_name} has no hidden_size to compute it from'
            yield hit(key, message, f'"{name}": {usual}', put(doc, key, usual))


@rule(
    "DS809",
    Severity.ERROR,
    "The model has nothing to train",
    fires={**_B, "$facts": {"model": {"trainable_parameters": 0}}},
    quiet={**_B, "$facts": {"model": {"trainable_parameters": 10}}},
)
def nothing_to_train(model: ModelFacts) -> Iterator[Hit]:
    """With every parameter frozen the optimizer has no group, and DeepSpeed fails on an empty list."""
    if model.trainable_parameters == 0:
        yield hit(
            "", f"{model.class_name} has {model.parameters} parameters, and none requires a gradient", "unfreeze some"
        )


@rule(
    "DS810",
    Severity.ADVICE,
    "zero_hpz_partition_size is not one node",
    fires={
        **_B,
        ZERO: {"stage": 3, "zero_hpz_partition_size": 2},
        "$facts": {"world_size": 16, "local_world_size": 8},
    },
    quiet={
        **_B,
        ZERO: {"stage": 3, "zero_hpz_partition_size": 8},
        "$facts": {"world_size": 16, "local_world_size": 8},
    },
)
def hpz_node(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """The second copy of the parameters is meant to stay inside a node: one node's ranks is the size that does it."""
    key = f"{ZERO}.zero_hpz_partition_size"
    size = integer(doc.get(key, 1)) or 1
    if (
        stage(doc) == 3
        and 1 < size <= world.world_size
        and world.local_world_size > 1
        and size != world.local_world_size
    ):
        message = f"zero_hpz_partition_size is {size}, and a node has {world.local_world_size} ranks"
        yield hit(key, message, str(world.local_world_size), put(doc, key, world.local_world_size))
