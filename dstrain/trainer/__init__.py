"""Floor 10: the Trainer facade."""

from dstrain.trainer.seeding import set_seed
from dstrain.trainer.trainer import Trainer

__all__ = ["Trainer", "set_seed"]
