"""Floor 8: checkpoints that are whole or not there, random states, and the exported model."""

from dstrain.checkpoint.store import CheckpointStore

__all__ = ["CheckpointStore"]
