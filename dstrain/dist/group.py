"""The process group: made once, by the facts of the world; and who this rank is."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from dstrain.core.errors import RankError, UsageError
from dstrain.core.facts import DeviceKind, WorldFacts

# gloo beside the device's own library: small facts travel as CPU tensors, without a detour over the device.
_BACKENDS: dict[DeviceKind, str] = {
    "cpu": "gloo",
    "mps": "gloo",
    "cuda": "cpu:gloo,cuda:nccl",
    "xpu": "cpu:gloo,xpu:xccl",
    "npu": "cpu:gloo,npu:hccl",
}

_made_here = False
_variables_set_here: list[str] = []


def ensure_initialized(world: WorldFacts, device: DeviceKind, timeout_s: float = 1800.0) -> None:
    """Make the default process group, unless there is one. A world of one needs no address and no port.

    On CUDA the device of this rank is made current and given to the group, so that no collective guesses it.

    Args:
        timeout_s: how long the ranks wait for each other, at the start and in every collective.

    Raises:
        UsageError: no address to meet at, or no device for this rank.
        RankError: the ranks did not meet, or an existing group is of another world.
    """
    global _made_here
    if dist.is_initialized():
        _check_existing(world)
        return
    _complete_environment(world)
    device_id = torch.device("cuda", _use_device(world)) if device == "cuda" else None
    timeout, backend = timedelta(seconds=timeout_s), _BACKENDS[device]
    if world.world_size == 1:
        store = dist.HashStore()  # type: ignore[attr-defined]  # not in torch's list of exported names
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout, device_id=device_id)
    else:
        address = _meeting_point()
        try:
            dist.init_process_group(
                backend,
                init_method="env://",
                rank=world.rank,
                world_size=world.world_size,
                timeout=timeout,
                device_id=device_id,
            )
        except RuntimeError as error:  # DistStoreError, DistNetworkError and gloo's own are all of this kind
            raise _did_not_meet(world, address, timeout_s, error) from error
    _made_here = True


def _complete_environment(world: WorldFacts) -> None:
    # DeepSpeed 0.19.8 reads these in many places (LOCAL_RANK in runtime/engine.py and runtime/zero/utils.py, for two).
    for name, value in (
        ("RANK", world.rank),
        ("LOCAL_RANK", world.local_rank),
        ("WORLD_SIZE", world.world_size),
        ("LOCAL_SIZE", world.local_world_size),
    ):
        if name not in os.environ:
            os.environ[name] = str(value)
            _variables_set_here.append(name)


def _check_existing(world: WorldFacts) -> None:
    there = (dist.get_rank(), dist.get_world_size())
    if there != (world.rank, world.world_size):
        raise RankError(
            f"this process is already rank {there[0]} of {there[1]} in torch.distributed, but the launcher says"
            f" rank {world.rank} of {world.world_size}",
            fix="call torch.distributed.destroy_process_group() first, or start with the world that was launched",
        )


def _use_device(world: WorldFacts) -> int:
    count = torch.cuda.device_count()
    # A launcher may also give each rank a mask with its own device only, which is then number 0.
    index = 0 if count == 1 else world.local_rank
    if index >= count:
        mask = os.environ.get("CUDA_VISIBLE_DEVICES")
        shown = f" (CUDA_VISIBLE_DEVICES={mask})" if mask is not None else ""
        raise UsageError(
            f"rank {world.rank} has LOCAL_RANK={world.local_rank}, but this process sees {count} CUDA devices{shown}",
            fix=f"start {max(count, 1)} processes on this host, or train with --use_cpu",
        )
    torch.cuda.set_device(index)
    return index


def _meeting_point() -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise UsageError(
            f"several ranks, but {' and '.join(missing)} not set: the ranks cannot find each other",
            where="environment",
            fix="start with `deepspeed train.py` or `torchrun train.py`, or export MASTER_ADDR and MASTER_PORT",
        )
    return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"


def _did_not_meet(world: WorldFacts, address: str, timeout_s: float, error: RuntimeError) -> RankError:
    text = str(error)
    if "EADDRINUSE" in text or "address already in use" in text.lower():
        message, fix = f"the port of {address} is in use by another run", "choose another with --master_port"
    else:
        message = (
            f"rank {world.rank} did not meet the other {world.world_size - 1} ranks at {address} in {timeout_s:g} s"
        )
        fix = "look at the first error of the other ranks; on several hosts check that the address is reachable"
    return RankError(f"{message} ({first_line(text)})", fix=fix)


def first_line(text: str) -> str:
    """The first line of an error of torch, whose rest is a stack of C++ frames."""
    return text.strip().splitlines()[0][:300] if text.strip() else "no reason given"


def destroy() -> None:
    """End the process group that `ensure_initialized` made; one that was there before is left alone."""
    global _made_here
    if _made_here and dist.is_initialized():
        dist.destroy_process_group()
        while _variables_set_here:  # what this process starts later must not think that it is a rank of ours
            os.environ.pop(_variables_set_here.pop(), None)
    _made_here = False


def is_initialized() -> bool:
    """Whether there is a process group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """This process's rank; before there is a group, what the launcher says."""
    return dist.get_rank() if dist.is_initialized() else _from_environment("RANK", 0)


def world_size() -> int:
    """The number of ranks; before there is a group, what the launcher says."""
    return dist.get_world_size() if dist.is_initialized() else _from_environment("WORLD_SIZE", 1)


def is_main() -> bool:
    """Whether this is rank 0."""
    return rank() == 0


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default
