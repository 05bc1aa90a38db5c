"""Tiny data sets: ragged rows, regression and class rows, streams, and data sets that record what is asked of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from dstrain.testing.models import IGNORED

Row = dict[str, Any]


def padded_rows(rows: int = 32, length: int = 8, vocab: int = 64, seed: int = 0) -> list[Row]:
    """Rows of one length, as tensors `{input_ids, labels}`; the first 1 to 6 labels of each are -100.

    Rows that carry different numbers of labels: a mean of means over them is not the mean over all labels.
    """
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, vocab, (rows, length), generator=generator)
    without = torch.randint(1, 7, (rows,), generator=generator)
    labels = ids.masked_fill(torch.arange(length) < without[:, None], IGNORED)
    return [{"input_ids": one, "labels": two} for one, two in zip(ids, labels, strict=True)]


def ragged_rows(
    rows: int = 32, seed: int = 0, *, longest: int = 12, vocab: int = 64, tensors: bool = False
) -> list[Row]:
    """Rows of 3 to `longest` tokens, `{input_ids, attention_mask, labels}` as lists of integers, or as tensors.

    The first labels of a row, at least one and never all that count, are -100.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    made: list[Row] = []
    for _ in range(rows):
        length = int(draw(3, longest + 1))
        ids = draw(1, vocab, length)
        labels = ids.clone()
        labels[: int(draw(1, length - 1))] = IGNORED
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
        made.append(row if tensors else {name: value.tolist() for name, value in row.items()})
    return made


def xy_rows(rows: int, seed: int = 1) -> list[Row]:
    """`{x: 4 numbers, labels: their sum}`, all of `rows` drawn at once from `seed`. For `Mlp`."""
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed))
    return [{"x": one, "labels": total} for one, total in zip(x, x.sum(-1), strict=True)]


def class_rows(rows: int, classes: int = 3, seed: int = 1) -> list[Row]:
    """`{x: 4 numbers, labels: index of a class}`; the class follows from the sum of `x`. For `TinyClassifier`."""
    made = xy_rows(rows, seed)
    return [{"x": row["x"], "labels": (row["labels"].floor().long() % classes)} for row in made]


class Recording(Dataset[Row]):
    """A map data set over `rows` that keeps the indices it was asked for, in `asked` (of this process only)."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        # IndexError past the end: code that iterates over a map data set must come to an end (seen hanging elsewhere).
        row = self.rows[index]
        self.asked.append(int(index))
        return row


class Augmenting(Dataset[Row]):
    """`xy_rows` with noise of `torch.rand` on `x`, drawn on access: its rows depend on the random state of the process.

    A resumed run sees the same rows only if that state is restored too.
    """

    def __init__(self, rows: int, noise: float = 0.1) -> None:
        self._rows, self._noise = xy_rows(rows), noise

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        row = self._rows[index]
        return {**row, "x": row["x"] + self._noise * torch.rand(4)}


class Stream(IterableDataset[Row]):
    """An iterable of the rows of `xy_rows(n)`, or of `rows`, without a length; `yielded` keeps the indices given out.

    Each rank that iterates gets all of the rows; with DataLoader workers they share them, row i to worker i mod workers
    (what a worker yields is recorded in the worker's own copy). `passes` counts the starts.
    """

    def __init__(self, n: int = 10, rows: Iterable[Row] | None = None) -> None:
        self._rows = xy_rows(n) if rows is None else list(rows)
        self.yielded: list[int] = []
        self.passes = 0

    def __iter__(self) -> Iterator[Row]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self.passes += 1
        for index in range(first, len(self._rows), step):
            self.yielded.append(index)
            yield self._rows[index]


class UnevenStream(Stream):
    """A `Stream` that gives `per_rank[RANK]` rows: ranks run out of data at different times."""

    def __init__(self, per_rank: tuple[int, ...] = (5, 3)) -> None:
        super().__init__(per_rank[int(os.environ.get("RANK", "0"))])
