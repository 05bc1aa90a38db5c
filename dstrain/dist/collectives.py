"""Collectives. Called by all ranks or by none; in a run of one rank each gives back what it was given.

A rank that fails inside one of them makes it fail on the others too, as `RankError`, when the group's timeout is over
at the latest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from dstrain.core.errors import RankError
from dstrain.dist.group import first_line, is_main, rank, world_size

T = TypeVar("T")


def _alone() -> bool:
    if world_size() == 1:
        return True
    if not dist.is_initialized():
        raise RankError(
            f"a collective was called on rank {rank()} of {world_size()} before there is a process group",
            fix="call dstrain.dist.ensure_initialized(world_facts(), device) first",
        )
    return False


@contextlib.contextmanager
def _with_peers(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # what gloo, nccl and the store raise when a peer is gone or late
        reason = first_line(str(error))
        raise RankError(f"rank {rank()}: another rank failed or did not come to {what} ({reason})") from error


def _place(tensor: torch.Tensor) -> torch.device:
    """Where a tensor can be reduced: where it is, or on the device of a group that has no backend for that.

    Ours have gloo beside the device's library; a group made elsewhere may have nccl alone (`cuda:nccl`).
    """
    served = [part.partition(":")[0] for part in str(dist.get_backend_config()).split(",")]
    if tensor.device.type in served:
        return tensor.device
    return (
        torch.device(served[0], torch.get_device_module(served[0]).current_device())
        if served[0] != "cpu"
        else torch.device("cpu")
    )


def barrier() -> None:
    """Wait until every rank is here."""
    if not _alone():
        _reduced(torch.zeros(1), dist.ReduceOp.SUM, "a barrier")


def all_reduce_sum(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over all ranks, on the device and in the dtype of `tensor`, which itself is not changed."""
    return tensor if _alone() else _reduced(tensor, dist.ReduceOp.SUM, "a sum")


def all_reduce_max(tensor: torch.Tensor) -> torch.Tensor:
    """The maximum over all ranks, element by element; `tensor` itself is not changed."""
    return tensor if _alone() else _reduced(tensor, dist.ReduceOp.MAX, "a maximum")


def any_rank(flag: bool) -> bool:
    """Whether `flag` is true on at least one rank."""
    if _alone():
        return flag
    return bool(_reduced(torch.tensor([int(flag)]), dist.ReduceOp.MAX, "a common decision").item())


def _reduced(tensor: torch.Tensor, operation: Any, what: str) -> torch.Tensor:
    moved = tensor.detach().to(_place(tensor), copy=True)
    with _with_peers(what):
        dist.all_reduce(moved, op=operation)
        if moved.is_cuda:
            torch.cuda.current_stream().synchronize()  # a barrier is over, and a failure is seen, here and not later
    return moved.to(tensor.device)


def all_gather_object(value: T) -> list[T]:
    """The values of all ranks, in the order of ranks. They are pickled; meant for small ones."""
    if _alone():
        return [value]
    gathered: list[Any] = [None] * world_size()
    with _with_peers("a gathering"):
        dist.all_gather_object(gathered, value)
    return cast("list[T]", gathered)


def broadcast_object(value: T, source: int = 0) -> T:
    """The value of rank `source`, on every rank. It is pickled."""
    if _alone():
        return value
    if not 0 <= source < world_size():
        raise ValueError(f"source={source}: there are {world_size()} ranks")
    held: list[Any] = [value if rank() == source else None]
    with _with_peers("a broadcast"):
        dist.broadcast_object_list(held, src=source, device=_place(torch.empty(0)))
    return cast("T", held[0])


def same_on_all_ranks(value: Any, what: str) -> None:
    """Check that all ranks hold an equal value.

    Args:
        what: what the value is, for the message (`the number of training rows`).

    Raises:
        RankError: on every rank, with the ranks that differ and their values.
    """
    values = all_gather_object(value)
    kinds: list[tuple[Any, list[int]]] = []
    for index, theirs in enumerate(values):
        for known, ranks in kinds:
            if _equal(known, theirs):
                ranks.append(index)
                break
        else:
            kinds.append((theirs, [index]))
    if len(kinds) == 1:
        return
    kinds.sort(key=lambda kind: len(kind[1]), reverse=True)  # stable: at a tie the group of the lower rank is the first
    (common, many), *others = kinds
    shown = "; ".join(f"{_ranks_text(ranks)} {_short(theirs)}" for theirs, ranks in others)
    raise RankError(
        f"{what} is not the same on all ranks: {_ranks_text(many)} {_short(common)}; {shown}",
        fix="give every rank the same arguments, files and environment",
    )


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and torch.equal(left.cpu(), right.cpu())
    try:
        return bool(left == right)
    except (TypeError, ValueError, RuntimeError):  # arrays and the like, with no single truth value
        return repr(left) == repr(right)


def _ranks_text(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"ranks {shown} have"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


@contextlib.contextmanager
def main_first() -> Iterator[None]:
    """Rank 0 runs the body, then all others do: what it writes (a cache, a download) they find.

    Raises:
        RankError: on the others, when the body failed on rank 0; they do not run it then.
    """
    if _alone():
        yield
    elif is_main():
        try:
            yield
        except BaseException as error:
            with contextlib.suppress(RankError):  # the error of the body is the one to see
                broadcast_object(f"{type(error).__name__}: {error}")
            raise
        broadcast_object(None)
    else:
        failure: str | None = broadcast_object(None)
        if failure is not None:
            raise RankError(f"rank 0 failed in what it does first ({first_line(failure)})")
        yield
