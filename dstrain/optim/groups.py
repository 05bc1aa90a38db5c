"""Parameter groups: what weight decay applies to, and what not."""

from __future__ import annotations

from typing import Any

from torch import nn


def _dimensions(parameter: nn.Parameter) -> int:
    """A parameter that ZeRO-3 has partitioned is flat and empty; its true shape is `ds_shape`."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def decays(parameter: nn.Parameter) -> bool:
    """Matrices decay; biases, norms and scales do not, whatever they are called (they have one dimension or none)."""
    return _dimensions(parameter) >= 2


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of the trainable parameters, those that decay and those that do not; an empty one is left out."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if decays(p)], "weight_decay": weight_decay},
        {"params": [p for p in trainable if not decays(p)], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
