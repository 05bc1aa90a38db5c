"""Seeds of a rank."""

from __future__ import annotations

import random

import numpy as np
import torch

from dstrain.data.order import seed_of


def set_seed(seed: int) -> None:
    """Seed Python, NumPy and torch alike; call it before the model is made, so that all ranks make the same one."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def seed_rank(seed: int, rank: int) -> None:
    """Seed this rank for training: ranks draw different dropout masks, and each the same at every start."""
    set_seed(seed_of("rank", seed, rank))
