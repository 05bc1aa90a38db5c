"""Floor 6: the process group and the collectives that the rest may use, over torch.distributed alone."""

from dstrain.dist.collectives import (
    all_gather_object,
    all_reduce_max,
    all_reduce_sum,
    any_rank,
    barrier,
    broadcast_object,
    main_first,
    same_on_all_ranks,
)
from dstrain.dist.group import destroy, ensure_initialized, is_initialized, is_main, rank, world_size

__all__ = [
    "all_gather_object",
    "all_reduce_max",
    "all_reduce_sum",
    "any_rank",
    "barrier",
    "broadcast_object",
    "destroy",
    "ensure_initialized",
    "is_initialized",
    "is_main",
    "main_first",
    "rank",
    "same_on_all_ranks",
    "world_size",
]
