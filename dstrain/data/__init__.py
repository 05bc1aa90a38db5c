"""Floor 8: rows, their order, and the batches made of them."""

from dstrain.data.loader import default_collate, pad_collate

__all__ = ["default_collate", "pad_collate"]
