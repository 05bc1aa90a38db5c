"""The model for use elsewhere: `model.safetensors` and `config.json`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from dstrain import dist
from dstrain.core import atomic

WEIGHTS = "model.safetensors"


def save_model(weights: Iterator[tuple[str, Tensor]], model: nn.Module, folder: Path) -> Path:
    """Write the full model. Collective, since weights may be gathered from all ranks; rank 0 keeps and writes them."""
    kept: dict[str, Tensor] = {}
    for name, tensor in weights:
        if dist.is_main():
            kept[name] = tensor.contiguous()
    path = folder / WEIGHTS
    if dist.is_main():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{WEIGHTS}.part"
        save_file(kept, temporary, metadata={"format": "pt"})
        atomic.fsync_file(temporary)
        temporary.replace(path)
        atomic.write_json(folder / "config.json", config_of(model))
        atomic.fsync_folder(folder)
    dist.barrier()
    return path


def config_of(model: nn.Module) -> dict[str, Any]:
    """The model's own configuration as plain JSON: `config.to_dict()`, a dataclass, a dict, or its class name alone."""
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_diff_dict"):
        # What `from_pretrained` needs to choose the class.
        return {"architectures": [type(model).__name__], **_plain(config.to_diff_dict())}
    if hasattr(config, "to_dict"):
        return {"architectures": [type(model).__name__], **_plain(config.to_dict())}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return {"architectures": [type(model).__name__], **_plain(dataclasses.asdict(config))}
    if isinstance(config, dict):
        return {"architectures": [type(model).__name__], **_plain(config)}
    return {"architectures": [type(model).__name__]}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))
