"""This machine: the device that will be trained on, what it can do, and memory. Imports torch when it is called."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, get_args

import psutil

from dstrain.core.errors import UsageError
from dstrain.core.facts import DeviceKind, HostFacts
from dstrain.probe.op_cache import ready_ops

_KINDS: tuple[str, ...] = get_args(DeviceKind)
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def host_facts(*, use_cpu: bool = False) -> HostFacts:
    """What this process can train on. Half precision is judged as DeepSpeed's accelerator judges it.

    Args:
        use_cpu: train on the CPU even if there is an accelerator.

    Raises:
        UsageError: `DS_ACCELERATOR` names a device that is unknown to dstrain, is not there, or contradicts `use_cpu`.
    """
    kind = device_kind(use_cpu=use_cpu)
    count, names, memory_bytes = _devices(kind)
    bf16, fp16 = _half_precision(kind)
    return HostFacts(
        device=kind,
        device_count=count,
        device_names=names,
        device_memory_bytes=memory_bytes,
        host_memory_bytes=host_memory_bytes(),
        supports_bf16=bf16,
        supports_fp16=fp16,
        ready_ops=ready_ops(kind),
    )


def device_kind(*, use_cpu: bool = False) -> DeviceKind:
    """The device that will be used: `DS_ACCELERATOR`, else what torch finds, else the CPU.

    Raises:
        UsageError: see `host_facts`.
    """
    import torch

    forced = os.environ.get("DS_ACCELERATOR", "")
    if forced and forced not in _KINDS:
        raise UsageError(
            f"'{forced}' is not a device that dstrain knows (it knows {', '.join(_KINDS)})",
            where="DS_ACCELERATOR",
            fix="unset DS_ACCELERATOR",
        )
    if use_cpu:
        if forced not in ("", "cpu"):
            raise UsageError(f"use_cpu is on, but DS_ACCELERATOR={forced}", fix="unset DS_ACCELERATOR, or drop use_cpu")
        return "cpu"
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kind = found.type if found is not None else "cpu"
    if forced and forced not in ("cpu", kind):
        raise UsageError(
            f"DS_ACCELERATOR={forced}, but torch {torch.__version__} finds {kind} only",
            fix="unset DS_ACCELERATOR, or install a torch and a driver for it",
        )
    return _known(forced or kind)


def _known(kind: str) -> DeviceKind:
    for known in get_args(DeviceKind):
        if kind == known:
            return known  # type: ignore[no-any-return]
    raise UsageError(
        f"torch finds the accelerator '{kind}', which dstrain does not know (it knows {', '.join(_KINDS)})",
        fix="--use_cpu",
    )


def _devices(kind: DeviceKind) -> tuple[int, tuple[str, ...], int | None]:
    """Count, names, and the memory in bytes of the smallest. The CPU is no device: (0, its model, None)."""
    import torch

    if kind == "cpu":
        return 0, (_cpu_name(),), None
    if kind == "mps":
        return 1, ("Apple GPU",), int(torch.mps.recommended_max_memory())
    module: Any = getattr(torch, kind)
    count = int(module.device_count())
    properties = [module.get_device_properties(index) for index in range(count)]
    memories = [int(item.total_memory) for item in properties]
    return count, tuple(str(item.name) for item in properties), min(memories, default=None)


def _half_precision(kind: DeviceKind) -> tuple[bool | None, bool | None]:
    """(bf16, fp16), by the rules of DeepSpeed 0.19.8 `accelerator/*_accelerator.py`.

    None where only the driver knows.
    """
    import torch

    if kind == "cpu":
        # bf16 is always accepted; fp16 only where oneDNN has fp16 instructions, else `initialize` raises ValueError.
        try:
            return True, bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
        except (AttributeError, RuntimeError):
            return True, False
    if kind == "cuda":
        oldest = min(torch.cuda.get_device_capability(index)[0] for index in range(torch.cuda.device_count()))
        deprecated = oldest == 6 and os.environ.get("DS_ALLOW_DEPRECATED_FP16", "0") == "1"
        return bool(torch.cuda.is_bf16_supported()), oldest >= 7 or deprecated
    if kind == "mps":
        return bool(torch.backends.mps.is_macos_or_newer(14, 0)), True
    return (True, True) if kind == "xpu" else (None, None)


def host_memory_bytes() -> int:
    """Memory of this host in bytes, or the limit of this process's control group where that is less."""
    total = int(psutil.virtual_memory().total)
    for path in _CGROUP_LIMITS:
        try:
            return min(total, int(Path(path).read_text()))
        except (OSError, ValueError):  # another cgroup version, or no limit ("max")
            continue
    return total


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "cpu")
