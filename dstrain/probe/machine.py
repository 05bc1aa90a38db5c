"""The whole machine as facts, in well under two seconds: commands run side by side, torch is not imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstrain.core.machine import Cuda, Unknown
from dstrain.probe.cuda import compiler, cuda
from dstrain.probe.devices import read_mask
from dstrain.probe.nvidia import nvidia
from dstrain.probe.packages import software
from dstrain.probe.place import Place
from dstrain.probe.storage import caches, disks
from dstrain.probe.system import limits, memory, network, threads
from dstrain.rules.machine_view import GCC_RANGE, targets


@dataclass(frozen=True, slots=True)
class Reading:
    """Facts by the names under which rules ask for them (None: not known), and what could not be read."""

    facts: Mapping[str, Any]
    unknown: tuple[Unknown, ...]


def read_machine(place: Place | None = None, folders: Mapping[str, Path] | None = None) -> Reading:
    """Read a machine (default: this one).

    Args:
        place: what to read instead of this machine.
        folders: by role, `checkpoints` and `nvme`: judged too. A folder given as `nvme` is measured.
    """
    here = place or Place()
    readers: dict[str, Callable[[], tuple[Any, ...]]] = {
        "nvidia": lambda: nvidia(here),
        "cuda": lambda: cuda(here),
        "compiler": lambda: compiler(here),
        "software": lambda: software(here),
        "memory": lambda: memory(here),
        "limits": lambda: limits(here),
        "threads": lambda: threads(here),
        "network": lambda: network(here),
        "disks": lambda: disks(here, folders),
        "caches": lambda: caches(here),
    }
    facts: dict[str, Any] = {"environ": dict(here.environ)}
    unknown: list[Unknown] = []
    with ThreadPoolExecutor(len(readers)) as pool:
        pending = {name: pool.submit(reader) for name, reader in readers.items()}
        for name, future in pending.items():
            *values, missing = future.result()
            unknown += missing
            if name == "nvidia":
                facts["driver"], facts["gpus"] = values
            else:
                facts[name] = values[0]
    unknown += _untold(facts["cuda"])
    facts["mask"] = read_mask(here.environ, facts["gpus"])
    return Reading(facts, tuple(unknown))


def _untold(cuda: Cuda) -> list[Unknown]:
    """What the tables do not say of the toolkit that is used."""
    kit = cuda.chosen()
    if kit is None or kit.version is None:
        return []
    why = f"CUDA {kit.version} is not in dstrain's table"
    found = [] if kit.version in GCC_RANGE else [Unknown("which host compilers this nvcc takes", why)]
    return found if targets(kit.version) else [*found, Unknown("which architectures this nvcc targets", why)]
