"""Which compiled ops a DeepSpeed configuration makes DeepSpeed 0.19.8 load, and which setting is the cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dstrain.dsconfig.document import Document
from dstrain.ops.catalogue import available, with_required

_OFFLOADED = {"adam": "cpu_adam", "adamw": "cpu_adam", "adagrad": "cpu_adagrad", "lion": "cpu_lion"}
_FUSED = {"adam": "fused_adam", "adamw": "fused_adam", "lion": "fused_lion", "lamb": "fused_lamb"}


def needed_ops(document: Document, accelerator: str, world_size: int = 1) -> dict[str, str]:
    """Op -> the setting that needs it, in the order they must be loaded. Ops that this accelerator lacks are left out.

    Where the configuration names no optimizer, the caller's is unknown here; offloading then needs `cpu_adam`, which is
    what DeepSpeed wants of it (0.19.8 `zero_force_ds_cpu_optimizer`).
    """
    offered = {op.name for op in available(accelerator)}
    causes: dict[str, str] = {}
    for name, key in _causes(document, accelerator, world_size):
        for op in with_required([name]):
            if op in offered:
                causes.setdefault(op, key)
    return causes


def _causes(document: Document, accelerator: str, world_size: int) -> Iterator[tuple[str, str]]:
    yield from _optimizer(document)
    yield from _offload(document)
    zero = "zero_optimization"
    for key in (f"{zero}.zero_quantized_weights", f"{zero}.zero_quantized_gradients", "weight_quantization"):
        if document.get(key):
            yield "quantizer", key
    for key, name in (
        ("compile.deepcompile", "dc"),
        ("data_efficiency.data_routing.random_ltd.enabled", "random_ltd"),
        ("aio.use_gds", "gds"),
    ):
        if document.get(key):
            yield name, key
    if document.get("checkpoint.writer.type") == "fast":
        yield "async_io", "checkpoint.writer.type"
    if accelerator == "cpu" and world_size > 1:
        yield "deepspeed_shm_comm", "several ranks on CPU"


def _stage(document: Document) -> int:
    try:
        return int(document.get("zero_optimization.stage", 0))  # DeepSpeed takes "3", 3.0 and true as well
    except (TypeError, ValueError):
        return 0


def _optimizer(document: Document) -> Iterator[tuple[str, str]]:
    kind = str(document.get("optimizer.type", "")).lower()
    device = document.get("zero_optimization.offload_optimizer.device")
    if document.get("zero_optimization.cpu_offload") is True:  # the old spelling, still read by 0.19.8
        device = "cpu"
    if document.get("zero_optimization.zenflow"):
        yield "cpu_adam", "zero_optimization.zenflow"
    if document.get("optimizer.params.torch_adam") is True:
        return
    if _stage(document) >= 1 and _is_offload(device):
        key = "zero_optimization.offload_optimizer"
        if name := _OFFLOADED.get(kind, None if kind else "cpu_adam"):
            yield name, key
    elif name := _FUSED.get(kind):
        yield name, "optimizer.type"


def _offload(document: Document) -> Iterator[tuple[str, str]]:
    # Below stage 3 DeepSpeed reads `nvme` as plain CPU offload, so no file is written (0.19.8).
    if _stage(document) < 3:
        return
    for key in ("zero_optimization.offload_optimizer", "zero_optimization.offload_param"):
        if document.get(f"{key}.device") == "nvme":
            yield "async_io", f"{key}.device"


def _is_offload(device: Any) -> bool:
    return device in ("cpu", "nvme")
