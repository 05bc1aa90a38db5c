"""The loss of a model's output, and what it is the mean of.

A model returns a mean over its own label tokens (or rows). To make the loss of a step the mean over all label tokens of
the global batch, each micro-batch's mean is weighted by its share: n_i / sum of n over micro-batches and ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dstrain.core.errors import DataError, ModelError

IGNORED = -100


def loss_of(output: Any) -> Tensor:
    """The loss in an output that is a mapping, an object with `.loss`, or a tuple whose first item it is.

    Raises:
        ModelError: there is none, or it is no single number.
    """
    loss = find_loss(output)
    if loss is None:
        raise ModelError(
            f"the model returned no loss ({_shape_of(output)})",
            fix='when labels are given, return {"loss": …}, (loss, …) or an object with .loss',
        )
    if loss.numel() != 1:
        raise ModelError(
            f"the model's loss has shape {tuple(loss.shape)}, expected one number", fix="return the mean: loss.mean()"
        )
    return loss.reshape(())


def find_loss(output: Any) -> Tensor | None:
    """The loss in an output, or None."""
    if isinstance(output, Tensor):
        found: Any = output if output.numel() == 1 else None
    elif isinstance(output, Mapping):
        found = output.get("loss")
    elif hasattr(output, "loss"):
        found = output.loss
    else:
        found = output[0] if isinstance(output, tuple | list) and output else None
    return found if isinstance(found, Tensor) and found.is_floating_point() else None


def _shape_of(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"a {type(output).__name__} with {', '.join(map(str, output)) or 'nothing'}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {len(output)}"
    return f"a {type(output).__name__}"


def rows_of(batch: Mapping[str, Any]) -> int:
    """Rows of a batch: the first dimension of its first tensor.

    Raises:
        DataError: the batch holds no tensor.
    """
    for value in batch.values():
        if isinstance(value, Tensor) and value.dim() > 0:
            return value.shape[0]
    raise DataError(
        f"a batch holds no tensors (columns: {', '.join(map(str, batch)) or 'none'})",
        fix="check that the dataset's columns are those of the model's forward, or pass data_collator=…",
    )


def label_of(batch: Mapping[str, Any], names: tuple[str, ...]) -> Tensor | None:
    """The first label column that the batch has."""
    for name in names:
        value = batch.get(name)
        if isinstance(value, Tensor):
            return value
    return None


def weight_of(batch: Mapping[str, Any], names: tuple[str, ...], *, shifted: bool) -> int:
    """How many items the model's mean loss was taken over.

    Class or token labels: those that are not -100, without the first of each row when the model shifts them by one
    (a causal language model never predicts the first token). Real-valued labels: their elements. No labels: rows.
    """
    labels = label_of(batch, names)
    if labels is None:
        return rows_of(batch)
    if labels.is_floating_point():
        return labels.numel()
    if shifted and labels.dim() >= 2:
        labels = labels[:, 1:]
    return int((labels != IGNORED).sum())


def weighted(loss: Tensor, weight: float) -> Tensor:
    """loss x weight in float32 at least; a mean over nothing (NaN) with weight 0 is 0, with a gradient of 0."""
    loss = loss if loss.dtype == torch.float64 else loss.float()
    if weight == 0:
        loss = torch.nan_to_num(loss)
    return loss * weight
