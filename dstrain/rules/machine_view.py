"""What the machine rules share: a healthy machine to tell examples from, versions, and what each CUDA release takes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import (
    Caches,
    Compiler,
    Cuda,
    Disk,
    Driver,
    Gpu,
    Library,
    Limits,
    Lock,
    Mask,
    Memory,
    Network,
    Software,
    Threads,
    Toolkit,
)

GIB = 2**30

# nvcc release -> lowest version it takes, and the first that is too new (torch 2.13 `CUDA_GCC_VERSIONS`, which follows
# `include/crt/host_config.h` of each toolkit). A release that is not here is not known, and nothing is said.
GCC_RANGE: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("11.4", "11.5", "11.6", "11.7", "11.8"), (6, 12)),
    **dict.fromkeys(("12.0", "12.1", "12.2"), (6, 13)),
    **dict.fromkeys(("12.3", "12.4", "12.5", "12.6", "12.7"), (6, 14)),
    **dict.fromkeys(("12.8", "12.9"), (6, 15)),
    "13.0": (6, 16),
}
CLANG_RANGE: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("12.0", "12.1"), (7, 15)),
    **dict.fromkeys(("12.2", "12.3"), (7, 16)),
    "12.4": (7, 17),
    **dict.fromkeys(("12.5", "12.6"), (7, 18)),
    **dict.fromkeys(("12.7", "12.8", "12.9"), (7, 19)),
    "13.0": (7, 21),
}

# (first nvcc release, oldest and newest architecture it targets), newest first.
_TARGETS: tuple[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], ...] = (
    ((13, 0), (7, 5), (12, 1)),
    ((12, 9), (5, 0), (12, 1)),
    ((12, 8), (5, 0), (12, 0)),
    ((12, 0), (5, 0), (9, 0)),
    ((11, 8), (3, 5), (9, 0)),
    ((11, 4), (3, 5), (8, 7)),
    ((11, 1), (3, 5), (8, 6)),
    ((11, 0), (3, 5), (8, 0)),
)


def targets(version: str) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """(oldest, newest) architecture that an nvcc of this release targets; None when not known (newer than 13.0)."""
    asked = pair(version)
    if asked > (13, 0):
        return None
    return next(((low, high) for first, low, high in _TARGETS if asked >= first), None)


def pair(version: str) -> tuple[int, int]:
    """`13.0` -> (13, 0); (0, 0) for what is no version."""
    parts = version.split("+")[0].split(".")
    major, minor = (whole(part) for part in [*parts, ""][:2])
    return (major, minor) if major is not None and minor is not None else (0, 0)


def whole(text: str) -> int | None:
    """A count of at most nine digits, else None."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def numbers(version: str) -> tuple[int, ...]:
    """`2.13.0+cpu` -> (2, 13, 0); () for what does not start with a number."""
    match = re.match(r"[0-9]{1,6}(\.[0-9]{1,6})*", version)
    return tuple(map(int, match.group(0).split("."))) if match else ()


def machine(**changes: object) -> dict[str, object]:
    """The example of a rule: a healthy machine with these changes (see `machine_facts`)."""
    return {"$facts": {"machine": changes}}


def dotted(version: tuple[int, ...]) -> str:
    """(13, 0) -> `13.0`."""
    return ".".join(map(str, version))


def plural(count: int, word: str) -> str:
    """`1 card`, `2 cards`."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def seen(key: str, message: str, fix: str, *proof: str, severity: Severity | None = None) -> Hit:
    """A hit with its proof; empty proofs are left out."""
    return Hit(key, message, fix, severity=severity, proof=tuple(line for line in proof if line))


_CARDS = tuple(
    Gpu(place, "NVIDIA H100", f"GPU-{place}a", f"0000:0{place + 1}:00.0", 80 * GIB, 0, "9.0") for place in range(2)
)
_KIT = Toolkit("/usr/local/cuda-13.0", ("PATH", "folder"), "13.0", "Cuda compilation tools, release 13.0, V13.0.88")

HEALTHY: Mapping[str, Any] = {
    "environ": {"PATH": "/usr/local/cuda-13.0/bin:/usr/bin", "OMP_NUM_THREADS": "8"},
    "software": Software(
        torch="2.13.0",
        torch_cuda="13.0",
        deepspeed="0.19.8",
        ninja="/usr/bin/ninja",
        python_header="/usr/include/python3.11/Python.h",
        libaio_header="/usr/include/libaio.h",
    ),
    "cuda": Cuda((_KIT,), _KIT.root, "nvcc on PATH", f"{_KIT.root}/bin/nvcc"),
    "compiler": Compiler(path="/usr/bin/c++", kind="gcc", version=(12, 2, 0), said="c++ (Debian) 12.2.0"),
    "driver": Driver("580.65.06", "13.0", kernel="580.65.06", pci_cards=2, device_files=True),
    "gpus": _CARDS,
    "mask": Mask("", ("0", "1"), _CARDS),
    "memory": Memory(256 * GIB, 250 * GIB, None, None, 128 * GIB),
    "limits": Limits((1048576, 1048576), (-1, -1), (1048576, 1048576)),
    "disks": tuple(
        Disk(role, path, 500 * GIB, 10**7, "ext4", False)
        for role, path in (("cache", "/home/me/.cache/dstrain/ops"), ("temporary", "/tmp"), ("checkpoints", "/data"))
    ),
    "caches": Caches(),
    "threads": Threads(16, 16, None, 1, "/usr/bin/numactl"),
    "network": Network("node1", (("eth0", True), ("lo", True)), (), "10.0.0.1"),
}
"""Every fact of a machine on which no rule fires: two H100, CUDA 13.0 in torch, toolkit and driver."""

_PARTS: Mapping[str, Any] = {
    "toolkits": _KIT,
    "first_libraries": Library("", ""),
    "gpus": _CARDS[0],
    "cards": _CARDS[0],
    "disks": HEALTHY["disks"][0],
    "locks": Lock("", 0.0, False),
}


def machine_facts(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of a healthy machine with changes, as the examples of rules write them (plain JSON values).

    A list of mappings changes the first of its kind into each; None makes a fact unknown.

    Raises:
        KeyError: a fact that does not exist.
    """
    facts = dict(HEALTHY)
    for name, change in changes.items():
        facts[name] = _changed(name, facts[name], change)
    return facts


def _changed(name: str, value: Any, change: Any) -> Any:
    if isinstance(change, Mapping) and dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner = {key: _changed(key, getattr(value, key), part) for key, part in change.items()}
        return dataclasses.replace(value, **inner)
    if isinstance(change, Mapping) and isinstance(value, Mapping):
        return {**value, **change}
    if isinstance(change, list):
        model = _PARTS.get(name)
        return tuple(_changed(name, model, part) if isinstance(part, Mapping) else _frozen(part) for part in change)
    return change


def _frozen(part: Any) -> Any:
    return tuple(map(_frozen, part)) if isinstance(part, list) else part
