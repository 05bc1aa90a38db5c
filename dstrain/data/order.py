"""Which rows make which step: a pure function of seed, epoch and sizes, so that a resume needs no replay.

The rows of one optimizer step (the global batch) do not depend on how it is split: micro-batch x accumulation x ranks
that give the same number of rows give the same rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch


def seed_of(*parts: int | str) -> int:
    """A 63-bit seed that depends on all its parts (sums such as seed + epoch collide)."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def epoch_order(rows: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The rows of one epoch in the order they are trained on: the row by position."""
    generator = torch.Generator().manual_seed(seed_of("order", seed, epoch))
    return torch.randperm(rows, generator=generator).numpy()


@dataclass(frozen=True, slots=True)
class Split:
    """How a global batch is dealt out: `micro_rows` x `accumulation` x `world_size` rows."""

    micro_rows: int
    accumulation: int
    world_size: int

    @property
    def global_rows(self) -> int:
        """Rows of one optimizer step."""
        return self.micro_rows * self.accumulation * self.world_size


@dataclass(frozen=True, slots=True)
class Share:
    """The rows of one micro-batch on one rank, as positions in the epoch's order.

    Args:
        last: the final micro-batch of its optimizer step.
        filler: it is run, but weighs nothing.
    """

    positions: tuple[int, ...]
    last: bool
    filler: bool = False


def train_shares(rows: int, split: Split, rank: int, *, start: int = 0, drop_last: bool = False) -> Iterator[Share]:
    """The micro-batches of this rank from optimizer step `start` of the epoch on.

    The last step of an epoch has only as many micro-batches as its rows need. A rank that has no row left in one of
    them runs the first row of the step as a filler, so that collectives meet on every rank.
    """
    step = split.global_rows
    end = rows - rows % step if drop_last else rows
    for first in range(start * step, end, step):
        yield from step_shares(first, min(first + step, end), split, rank)


def step_shares(first: int, end: int, split: Split, rank: int) -> Iterator[Share]:
    """The micro-batches of this rank for the rows from `first` to `end` (exclusive)."""
    stride = split.micro_rows * split.world_size
    for begin in range(first, end, stride):
        mine = begin + rank * split.micro_rows
        positions = tuple(range(mine, min(mine + split.micro_rows, end)))
        last = begin + stride >= end
        yield Share(positions, last) if positions else Share((first,), last, filler=True)


def eval_shares(rows: int, batch_rows: int, world_size: int, rank: int) -> Iterator[Share]:
    """Rows in order, dealt out in rounds; every rank has the same number of rounds, with fillers at the end."""
    yield from step_shares(0, rows, Split(batch_rows, 1, world_size), rank)
