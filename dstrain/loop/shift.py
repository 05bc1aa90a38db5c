"""Whether a model shifts its labels by one: asked of the model itself, once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dstrain import dist
from dstrain.backends.base import Backend
from dstrain.checkpoint import rng
from dstrain.loop.loss import IGNORED, find_loss


class ShiftProbe:
    """Finds out, with the first batch that can tell, whether the first label of each row counts.

    A causal language model never predicts the first token, so its mean is over one label less in each row; a token
    classifier's or an encoder-decoder's is not. Nothing but the loss itself says so for a module of a user's own.
    """

    def __init__(self, backend: Backend, names: tuple[str, ...]) -> None:
        self._backend, self._names = backend, names
        self.shifted: bool | None = None

    def look(self, batch: Mapping[str, Any]) -> None:
        """Ask the model about this rank's batch. Collective, until the answer is known."""
        if self.shifted is not None:
            return
        pair = _pair(batch, self._names)
        if dist.any_rank(pair is None):  # a batch that cannot tell: every rank tries again with its next one
            return
        with rng.kept(), self._backend.evaluating():
            losses = [find_loss(self._backend.forward(one)) for one in pair or ()]
        if all(loss is not None for loss in losses):
            first, second = losses
            same = first is not None and second is not None and torch.equal(first, second)
            self.shifted = not dist.any_rank(not same)


def _pair(batch: Mapping[str, Any], names: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Two batches that differ in the first label of each row only: a real one in the first, -100 in the second.

    None when the labels are no sequences of tokens.
    """
    name = next((name for name in names if isinstance(batch.get(name), Tensor)), None)
    if name is None:
        return None
    labels: Tensor = batch[name]
    if labels.is_floating_point() or labels.dim() < 2 or labels.shape[1] < 2:
        return None
    kept, ignored = labels.clone(), labels.clone()
    kept[:, 0] = labels[:, 0].clamp(min=0)
    # A real label beside it, so that the mean without the first one is over something.
    kept[:, 1] = ignored[:, 1] = labels[:, 1].clamp(min=0)
    ignored[:, 0] = IGNORED
    return {**batch, name: kept}, {**batch, name: ignored}
