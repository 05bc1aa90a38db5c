"""Evaluation and prediction: n rows in, n rows out, in order, for every n and every number of ranks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dstrain import dist
from dstrain.backends.base import Backend, Batch
from dstrain.data.loader import MicroBatch
from dstrain.loop import loss as losses
from dstrain.loop.events import CallbackHandler

Array = np.ndarray[Any, Any]
PAD = -100


@dataclass(frozen=True)
class EvalRun:
    """What an evaluation works with.

    Args:
        batches: this rank's micro-batches; each rank has the same number of them.
        look: shown each batch before it is run.
        keep: whether outputs and labels are kept, for metrics or for predictions.
    """

    backend: Backend
    batches: Iterable[MicroBatch]
    events: CallbackHandler
    label_names: tuple[str, ...]
    weigh: Callable[[Batch], int]
    look: Callable[[Batch], None]
    keep: bool


@dataclass(frozen=True)
class EvalResult:
    """`loss` is the mean over all items; None when no batch had labels. Arrays are None when nothing was kept."""

    loss: float | None
    rows: int
    predictions: Any
    label_ids: Any
    seconds: float


def evaluate(run: EvalRun) -> EvalResult:
    """Run every row once.

    ```
    for each micro-batch of this rank:
        forward, without gradients
        sum += mean loss x items                        # fillers weigh nothing
        keep outputs and labels by row                  # when asked
    sum over ranks; rows of all ranks in order
    ```
    """
    begin = time.perf_counter()
    sums = torch.zeros(2, dtype=torch.float64)  # loss x items, items
    kept: dict[int, tuple[Any, Any]] = {}
    rows = 0
    with run.backend.evaluating():
        for micro in run.batches:
            run.look(micro.batch)
            output = run.backend.forward(micro.batch)
            run.events.fire("on_prediction_step")
            if micro.share.filler:
                continue
            rows += len(micro.share.positions)
            labels = losses.label_of(micro.batch, run.label_names)
            loss = losses.find_loss(output) if labels is not None else None
            if loss is not None:
                items = run.weigh(micro.batch)
                sums += torch.tensor([float(loss.double()) * items if items else 0.0, items], dtype=torch.float64)
            if run.keep:
                _keep(kept, micro, _logits(output, had_loss=loss is not None), labels)
    sums = dist.all_reduce_sum(sums)
    rows = int(dist.all_reduce_sum(torch.tensor([rows])).item())
    predictions, label_ids = _gathered(kept) if run.keep else (None, None)
    loss_value = float(sums[0] / sums[1]) if sums[1] > 0 else None
    return EvalResult(loss_value, rows, predictions, label_ids, time.perf_counter() - begin)


def _logits(output: Any, *, had_loss: bool) -> Any:
    """The output without its loss, as transformers hands it to metrics: one array, or a tuple of several."""
    if isinstance(output, Mapping) or hasattr(output, "loss"):
        items = output.items() if isinstance(output, Mapping) else vars(output).items()
        values = tuple(value for name, value in items if name != "loss" and _is_tree_of_tensors(value))
    elif isinstance(output, tuple | list):
        values = tuple(output[1:] if had_loss else output)
    else:
        values = () if had_loss else (output,)
    return values[0] if len(values) == 1 else values


def _is_tree_of_tensors(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return bool(value) and all(_is_tree_of_tensors(inner) for inner in value)
    return isinstance(value, Tensor)


def _keep(kept: dict[int, tuple[Any, Any]], micro: MicroBatch, outputs: Any, labels: Tensor | None) -> None:
    outputs, target = _to_numpy(outputs), _to_numpy(labels)
    for index, position in enumerate(micro.share.positions):
        kept[position] = (_row(outputs, index), _row(target, index))


def _to_numpy(value: Any) -> Any:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()
    if isinstance(value, tuple | list):
        return tuple(_to_numpy(inner) for inner in value)
    return None


def _row(value: Any, index: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_row(inner, index) for inner in value)
    if value is None or value.ndim == 0:
        return value
    return value[index].copy()


def _gathered(kept: dict[int, tuple[Any, Any]]) -> tuple[Any, Any]:
    everything: dict[int, tuple[Any, Any]] = {}
    for part in dist.all_gather_object(kept):
        everything.update(part)
    if not everything:
        return np.zeros((0,)), None
    ordered = [everything[position] for position in sorted(everything)]
    return _stack([row[0] for row in ordered]), _stack([row[1] for row in ordered])


def _stack(rows: list[Any]) -> Any:
    """Rows of one kind as one array; those of different lengths are padded with -100 at the end."""
    if isinstance(rows[0], tuple):
        return tuple(_stack([row[index] for row in rows]) for index in range(len(rows[0])))
    if rows[0] is None:
        return None
    shape = tuple(max(sizes) for sizes in zip(*(row.shape for row in rows), strict=True))
    if all(row.shape == shape for row in rows):
        return np.stack(rows)
    full = np.full((len(rows), *shape), PAD, dtype=rows[0].dtype)
    for index, row in enumerate(rows):
        inside = tuple(slice(0, size) for size in row.shape)
        full[index][inside] = row
    return full
