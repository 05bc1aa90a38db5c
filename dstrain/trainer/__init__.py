"""Floor 10: the Trainer facade."""

from dstrain.trainer import errors
from dstrain.trainer.seeding import set_seed
from dstrain.trainer.trainer import Trainer

# At import: the flags of a script are read, and may be wrong, before there is a Trainer.
errors.install()

__all__ = ["Trainer", "set_seed"]
