"""Tiny models in plain torch, one for each way of returning a loss. Weights are those of a seed, wherever built.

Shapes: B batch, T tokens, D width, H heads, K width of a head, V vocabulary, F features, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORED = -100
_POSITIONS = 256


@contextmanager
def _weights_of(seed: int) -> Iterator[None]:
    """Draw initial weights from `seed` and leave the caller's random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def shifted_loss(logits_BTV: Tensor, labels_BT: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy in nats of each next token, averaged over the labels that are not -100.

    With `num_items` the sum is divided by it instead. No label at all gives 0, still attached to the graph.
    """
    logits, labels = logits_BTV[:, :-1].flatten(0, 1).float(), labels_BT[:, 1:].flatten()
    total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return total / ((labels != IGNORED).sum().clamp(min=1) if num_items is None else num_items)


class _Block(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 2 * hidden), nn.Linear(2 * hidden, hidden)
        self.drop = nn.Dropout(dropout)

    def forward(self, x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self._attend(x_BTD, mask_BT)
        grown: Tensor = x_BTD + self.drop(self.down(F.gelu(self.up(self.ln_2(x_BTD)))))
        return grown

    def _attend(self, x_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
        B, T, D = x_BTD.shape
        q, k, v = self.qkv(self.ln_1(x_BTD)).view(B, T, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        seen = torch.ones(T, T, dtype=torch.bool, device=x_BTD.device).tril()
        if mask_BT is not None:  # a token always sees itself: a row of padding must not become NaN
            own = torch.eye(T, dtype=torch.bool, device=x_BTD.device)
            seen = (seen & mask_BT[:, None, None, :].bool()) | own
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        attended: Tensor = self.drop(self.proj(mixed.transpose(1, 2).reshape(B, T, D)))
        return attended


class TinyLM(nn.Module):
    """A causal language model (20,000 weights by default, 256 positions) that returns `{"loss", "logits"}`.

    The labels are shifted inside; the loss is the mean over labels that are not -100. `attention_mask` is 0 at padding.
    """

    def __init__(
        self,
        vocab: int = 64,
        hidden: int = 32,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.0,
        tied: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with _weights_of(seed):
            self.embed, self.position = nn.Embedding(vocab, hidden), nn.Embedding(_POSITIONS, hidden)
            self.blocks = nn.ModuleList(_Block(hidden, heads, dropout) for _ in range(layers))
            self.ln_f, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def logits(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Scores of the next token, (B, T, V)."""
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x_BTD = self.embed(input_ids) + self.position(positions)
        for block in self.blocks:
            x_BTD = block(x_BTD, attention_mask)
        scores: Tensor = self.head(self.ln_f(x_BTD))
        return scores

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        """`logits`, and `loss` in nats when labels are given."""
        logits_BTV = self.logits(input_ids, attention_mask)
        if labels is None:
            return {"logits": logits_BTV}
        return {"loss": shifted_loss(logits_BTV, labels), "logits": logits_BTV}


class TinyLMItems(TinyLM):
    """`TinyLM` that takes `num_items_in_batch`, as transformers models do: the sum of the losses divided by it."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> dict[str, Tensor]:
        """As `TinyLM.forward`; the mean if `num_items_in_batch` is not given."""
        logits_BTV = self.logits(input_ids, attention_mask)
        if labels is None:
            return {"logits": logits_BTV}
        return {"loss": shifted_loss(logits_BTV, labels, num_items_in_batch), "logits": logits_BTV}


class Mlp(nn.Module):
    """Linear(4, 16), tanh, dropout, Linear(16, 1); the mean squared error to `labels`. Returns a dict."""

    def __init__(self, dropout: float = 0.0, seed: int = 0) -> None:
        super().__init__()
        with _weights_of(seed):
            self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1))

    def predict(self, x_BF: Tensor) -> Tensor:
        """The prediction of each row, (B,)."""
        predicted: Tensor = self.net(x_BF).squeeze(-1)
        return predicted

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """`logits` (B,), and `loss` when labels are given."""
        predicted = self.predict(x)
        return {"logits": predicted} if labels is None else {"loss": F.mse_loss(predicted, labels), "logits": predicted}


class TupleMlp(Mlp):
    """`Mlp` that returns `(loss, logits)`, or `(logits,)` without labels."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> tuple[Tensor, ...]:  # type: ignore[override]
        """A tuple with the loss first."""
        return tuple(Mlp.forward(self, x, labels).values())


@dataclass
class MlpOutput:
    """What `ObjectMlp` returns: attributes, no mapping, no tuple."""

    logits: Tensor
    loss: Tensor | None = None


class ObjectMlp(Mlp):
    """`Mlp` that returns an object with the attributes `loss` and `logits`."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> MlpOutput:  # type: ignore[override]
        """An `MlpOutput`."""
        return MlpOutput(**Mlp.forward(self, x, labels))


class LosslessMlp(Mlp):
    """`Mlp` that returns its prediction as a bare tensor and never a loss."""

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:  # type: ignore[override]  # noqa: ARG002
        """The predictions, (B,)."""
        return self.predict(x)


class TinyClassifier(nn.Module):
    """A classifier of `features` numbers without batch statistics, so that any split of a batch gives the same loss."""

    def __init__(
        self, features: int = 4, classes: int = 3, hidden: int = 16, dropout: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__()
        with _weights_of(seed):
            self.inner, self.norm = nn.Linear(features, hidden), nn.LayerNorm(hidden)
            self.drop, self.outer = nn.Dropout(dropout), nn.Linear(hidden, classes)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """`logits` (B, C), and with class indices (B,) their mean cross-entropy `loss` in nats."""
        logits_BC = self.outer(self.drop(F.relu(self.norm(self.inner(x)))))
        if labels is None:
            return {"logits": logits_BC}
        return {"loss": F.cross_entropy(logits_BC, labels, ignore_index=IGNORED), "logits": logits_BC}
