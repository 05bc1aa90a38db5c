"""Floor 6: the collectives that the rest may use. Each is a no-op in a run of one rank without a process group."""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor

from dstrain.core.errors import RankError
from dstrain.core.facts import DeviceKind, WorldFacts

T = TypeVar("T")
_BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl", "xpu": "cpu:gloo,xpu:xccl"}


def is_initialized() -> bool:
    """Whether there is a process group."""
    return torch_dist.is_available() and torch_dist.is_initialized()


def ensure_initialized(world: WorldFacts, device: DeviceKind, timeout_s: float) -> None:
    """Make the process group if there is none: gloo on the CPU, beside it NCCL on GPUs.

    One rank without a launcher meets itself through a file: no port, no address, and no search for MPI.
    """
    if is_initialized():
        return
    # DeepSpeed 0.19.8 reads these in many places (LOCAL_RANK in zero/utils.py:85, for one).
    for name, value in (
        ("RANK", world.rank),
        ("LOCAL_RANK", world.local_rank),
        ("WORLD_SIZE", world.world_size),
        ("LOCAL_SIZE", world.local_world_size),
    ):
        os.environ.setdefault(name, str(value))
    options: dict[str, Any] = {
        "backend": _BACKENDS.get(device, "gloo"),
        "timeout": datetime.timedelta(seconds=timeout_s),
        "rank": world.rank,
        "world_size": world.world_size,
    }
    if device == "cuda":
        torch.cuda.set_device(world.local_rank)
        options["device_id"] = torch.device("cuda", world.local_rank)
    if world.launcher is None and world.world_size == 1:
        path = os.path.join(tempfile.mkdtemp(prefix="dstrain-"), "store")  # noqa: PTH118
        options["store"] = torch_dist.FileStore(path, 1)
    torch_dist.init_process_group(**options)


def destroy() -> None:
    """Leave the process group."""
    if is_initialized():
        torch_dist.destroy_process_group()


def rank() -> int:
    """This rank; 0 without a group."""
    return torch_dist.get_rank() if is_initialized() else 0


def world_size() -> int:
    """Number of ranks; 1 without a group."""
    return torch_dist.get_world_size() if is_initialized() else 1


def is_main() -> bool:
    """Whether this is rank 0."""
    return rank() == 0


def barrier() -> None:
    """Wait for all ranks."""
    if world_size() > 1:
        torch_dist.barrier()


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """The sum over ranks, in place."""
    if world_size() > 1:
        torch_dist.all_reduce(tensor)
    return tensor


def all_reduce_max(tensor: Tensor) -> Tensor:
    """The maximum over ranks, in place."""
    if world_size() > 1:
        torch_dist.all_reduce(tensor, op=torch_dist.ReduceOp.MAX)
    return tensor


def any_rank(flag: bool) -> bool:
    """Whether any rank says true."""
    if world_size() == 1:
        return flag
    return bool(all_reduce_max(torch.tensor([int(flag)])).item())


def all_gather_object(value: T) -> list[T]:
    """Every rank's value, by rank."""
    if world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * world_size()
    torch_dist.all_gather_object(gathered, value)
    return gathered


def broadcast_object(value: T, source: int = 0) -> T:
    """The value of rank `source`, on every rank."""
    if world_size() == 1:
        return value
    box: list[Any] = [value]
    torch_dist.broadcast_object_list(box, src=source)
    result: T = box[0]
    return result


def same_on_all_ranks(value: Any, what: str) -> None:
    """Check that the ranks agree.

    Raises:
        RankError: on every rank, with the values and who has them.
    """
    values = all_gather_object(value)
    if any(other != values[0] for other in values):
        shown = ", ".join(f"rank {index}: {other!r}" for index, other in enumerate(values))
        raise RankError(f"the ranks do not agree on {what}: {shown}")


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """Rank 0 goes through the block before the others do."""
    if not is_main():
        barrier()
    yield
    if is_main():
        barrier()
