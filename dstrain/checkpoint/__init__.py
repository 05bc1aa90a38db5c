"""Floor 8: checkpoints that are whole or not there, random states, and the exported model.

What looks at checkpoints without opening shards (`inspect`, `pruning`, `manifest`, `layout`) imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dstrain.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore"]


def __getattr__(name: str) -> Any:
    if name == "CheckpointStore":
        from dstrain.checkpoint.store import CheckpointStore

        return CheckpointStore
    raise AttributeError(f"module 'dstrain.checkpoint' has no attribute {name!r}")
