"""From rows to batches: torch's DataLoader over shares of the order, with a random state of its own for each row."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dstrain.core.errors import DataError
from dstrain.data.order import Share, Split, epoch_order, seed_of, step_shares, train_shares
from dstrain.resolve.plan import LoaderPlan

Collate = Callable[[list[Any]], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch of one rank and its share of the rows."""

    batch: Mapping[str, Any]
    share: Share


_Key = tuple[int, int, int]  # epoch, position in its order, row


class _Rows(Dataset[Any]):
    """Rows by key, each drawn under a random state made of seed, epoch and position.

    A dataset that draws random numbers in `__getitem__` then gives the same row after a resume, whatever was drawn
    before, and whichever rank or process loads it.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed

    def __getitems__(self, keys: Sequence[_Key]) -> list[Any]:
        with _random_state_kept():
            return [self._row(*key) for key in keys]

    def _row(self, epoch: int, position: int, row: int) -> Any:
        value = seed_of("row", self._seed, epoch, position)
        torch.default_generator.manual_seed(value)
        random.seed(value)
        np.random.seed(value & 0xFFFFFFFF)
        return self._dataset[row]


class _random_state_kept:
    """Torch's CPU, Python's and NumPy's global states as they were before."""

    def __enter__(self) -> None:
        self._torch, self._python, self._numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()

    def __exit__(self, *_: object) -> None:
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        np.random.set_state(self._numpy)


def default_collate(rows: list[Any]) -> Mapping[str, Any]:
    """Rows that are mappings of equal shapes become a mapping of stacked tensors; `label`/`label_ids` become `labels`.

    Raises:
        DataError: a row that is no mapping, or shapes that differ, with the column's name and the shapes.
    """
    first = rows[0]
    if not isinstance(first, Mapping):
        raise DataError(
            f"a row of the dataset is of type {type(first).__name__}, expected a mapping of column to value",
            fix="return a dict from __getitem__, or pass data_collator=…",
        )
    batch: dict[str, Any] = {}
    for name, value in first.items():
        if value is None or isinstance(value, str):
            continue
        column = [row[name] for row in rows]
        target = "labels" if name in ("label", "label_ids") else name
        batch[target] = _stack(str(name), column)
    return batch


def _stack(name: str, column: list[Any]) -> Tensor:
    tensors = [value if isinstance(value, Tensor) else torch.as_tensor(value) for value in column]
    shapes = {tuple(tensor.shape) for tensor in tensors}
    if len(shapes) > 1:
        shown = ", ".join(str(shape) for shape in sorted(shapes)[:4])
        raise DataError(
            f"column {name!r} has rows of different shapes in one batch: {shown}",
            fix="pad the rows: pass a data_collator that does, such as dstrain.data.pad_collate(pad_token_id=0)",
        )
    return torch.stack(tensors)


def pad_collate(pad_token_id: int = 0, label_pad_id: int = -100) -> Collate:
    """A collator that pads columns of one dimension to the longest row, and adds an `attention_mask`."""

    return functools.partial(_padded, pad_token_id, label_pad_id)


def _padded(pad_token_id: int, label_pad_id: int, rows: list[Any]) -> Mapping[str, Any]:
    padded: dict[str, Any] = {}
    for name in rows[0]:
        column = [torch.as_tensor(row[name]) for row in rows]
        if column[0].dim() != 1:
            padded[name] = _stack(name, column)
            continue
        fill = label_pad_id if name.startswith("label") else 0 if name.endswith("mask") else pad_token_id
        padded[name] = torch.nn.utils.rnn.pad_sequence(column, batch_first=True, padding_value=fill)
    if "input_ids" in padded and "attention_mask" not in padded:
        lengths = torch.tensor([len(row["input_ids"]) for row in rows])
        padded["attention_mask"] = (torch.arange(padded["input_ids"].shape[1])[None] < lengths[:, None]).long()
    return padded


class _Keys:
    """The keys of each share, made as the loader asks for them; remembers the shares it has handed out."""

    def __init__(self) -> None:
        self.shares: Iterable[Share] = ()
        self.order: npt.NDArray[np.int64] | None = None
        self.epoch = 0
        self.pending: deque[Share] = deque()

    def __iter__(self) -> Iterator[list[_Key]]:
        self.pending.clear()
        for share in self.shares:
            self.pending.append(share)
            order = self.order
            rows = (int(order[position]) if order is not None else position for position in share.positions)
            yield [(self.epoch, position, row) for position, row in zip(share.positions, rows, strict=True)]


class RowLoader:
    """Micro-batches of a map dataset, loaded by the plan's worker processes (or here), one epoch after the other."""

    def __init__(self, dataset: Any, plan: LoaderPlan, collate: Collate) -> None:
        self._keys = _Keys()
        self._loader: DataLoader[Any] = DataLoader(
            _Rows(dataset, plan.data_seed),
            batch_sampler=self._keys,
            collate_fn=collate,
            num_workers=plan.workers,
            pin_memory=plan.pin_memory,
            prefetch_factor=plan.prefetch_batches if plan.workers else None,
            persistent_workers=plan.persistent_workers,
            multiprocessing_context=plan.start_method if plan.workers else None,
            # Without one the loader draws its base seed from the global generator, which would move dropout's state.
            generator=torch.Generator(),
        )

    def batches(
        self, shares: Iterable[Share], order: npt.NDArray[np.int64] | None = None, epoch: int = 0
    ) -> Iterator[MicroBatch]:
        """The micro-batches of `shares`.

        Args:
            order: row by position; None when a position is the row itself.
        """
        self._keys.shares, self._keys.order, self._keys.epoch = shares, order, epoch
        for batch in self._loader:
            yield MicroBatch(batch, self._keys.pending.popleft())


class TrainWindows:
    """The optimizer steps of a map dataset on this rank, epoch by epoch, from any step, without replay."""

    def __init__(self, dataset: Any, split: Split, rank: int, plan: LoaderPlan, collate: Collate) -> None:
        self._rows, self._split, self._rank, self._plan = len(dataset), split, rank, plan
        self._loader = RowLoader(dataset, plan, collate)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[MicroBatch]]:
        """Lists of micro-batches, one list for each optimizer step from `start` on."""
        order = epoch_order(self._rows, self._plan.data_seed, epoch) if self._plan.order == "random" else None
        shares = train_shares(self._rows, self._split, self._rank, start=start, drop_last=self._plan.drop_last)
        window: list[MicroBatch] = []
        for micro in self._loader.batches(shares, order, epoch):
            window.append(micro)
            if micro.share.last:
                yield window
                window = []


class StreamWindows:
    """The same for a dataset without length. Every rank reads the whole stream and keeps its share.

    A stream that ends begins again with the next epoch. Going on from a step replays the stream up to there.
    """

    def __init__(self, dataset: Any, split: Split, rank: int, plan: LoaderPlan, collate: Collate) -> None:
        self._dataset, self._split, self._rank = dataset, split, rank
        self._plan, self._collate = plan, collate

    def epoch(self, epoch: int, start: int = 0) -> Iterator[list[MicroBatch]]:
        """Lists of micro-batches, one list for each optimizer step from `start` on."""
        if hasattr(self._dataset, "set_epoch"):
            self._dataset.set_epoch(epoch)
        size = self._split.global_rows
        held: list[Any] = []
        step = 0
        for row in self._dataset:
            held.append(row)
            if len(held) == size:
                if step >= start:
                    yield self._window(held)
                step, held = step + 1, []
        if held and not self._plan.drop_last and step >= start:
            yield self._window(held)

    def _window(self, rows: list[Any]) -> list[MicroBatch]:
        shares = step_shares(0, len(rows), self._split, self._rank)
        return [MicroBatch(self._collate([rows[position] for position in s.positions]), s) for s in shares]
