"""The shape of a model: counts of elements, and the sizes that `auto` values of a DeepSpeed configuration follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dstrain.core.facts import ModelFacts

if TYPE_CHECKING:
    from torch import nn

_HIDDEN = ("hidden_size", "n_embd", "d_model")


def model_facts(model: nn.Module) -> ModelFacts:
    """Count a model's parameters, each once, and read its configuration. Works on the meta device and under ZeRO-3."""
    unique = {id(parameter): parameter for parameter in model.parameters()}.values()
    original = getattr(model, "_orig_mod", model)  # torch.compile
    config = getattr(original, "config", None)
    return ModelFacts(
        class_name=type(original).__name__,
        parameters=_elements(unique),
        trainable_parameters=_elements(parameter for parameter in unique if parameter.requires_grad),
        hidden_size=hidden_size(config),
        vocab_size=_whole(_get(config, "vocab_size")) or _whole(_get(_get(config, "text_config"), "vocab_size")),
    )


def hidden_size(config: Any) -> int | None:
    """The hidden size as DeepSpeed's users expect it for `auto` bucket sizes, or None.

    In this order: `hidden_size`, the largest of `hidden_sizes`, both of `text_config`; then the names that some
    architectures use instead (`n_embd`, `d_model`), for configurations that have no alias.
    """
    for part in (config, _get(config, "text_config")):
        if size := _whole(_get(part, "hidden_size")):
            return size
        several = _get(part, "hidden_sizes")
        if isinstance(several, (list, tuple)) and (sizes := [size for size in map(_whole, several) if size]):
            return max(sizes)
    for part in (config, _get(config, "text_config")):
        for name in _HIDDEN:
            if size := _whole(_get(part, name)):
                return size
    return None


def _elements(parameters: Iterable[Any]) -> int:
    # A parameter that ZeRO-3 has partitioned has 0 elements here; `ds_numel` keeps the count (0.19.8 zero.Init).
    return sum(int(getattr(parameter, "ds_numel", None) or parameter.numel()) for parameter in parameters)


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
