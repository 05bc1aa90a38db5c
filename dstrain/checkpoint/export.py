"""The model for use elsewhere: `model.safetensors` (or shards with an index) and `config.json`, from a live engine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dstrain import dist
from dstrain.checkpoint import safetensors_file as st
from dstrain.core import atomic
from dstrain.core.errors import CheckpointError

WEIGHTS = st.WEIGHTS
MAX_SHARD_BYTES = 5_000_000_000


def save_model(
    weights: Iterator[tuple[str, Tensor]],
    model: nn.Module,
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write the full model and give the path of its first file. Collective: weights may be gathered from all ranks.

    Rank 0 holds one output file and one weight at a time, never the model. A model that is in the folder is replaced
    when the new one is whole, and left alone when it cannot be written.

    Args:
        weights: full tensors by name; every rank iterates.
        dtype: of floating-point weights; None leaves them as they are.
        max_shard_bytes: bytes of tensors per file; a larger tensor has a file of its own.

    Raises:
        CheckpointError: on all ranks, when rank 0 could not write.
    """
    sink = _Sink(folder, dtype, max_shard_bytes) if dist.is_main() else None
    failure: str | None = None
    for name, tensor in weights:
        if sink is None or failure is not None:
            continue  # gathering goes on: the other ranks are in the same collectives
        failure = _attempt(lambda name=name, tensor=tensor: sink.add(name, tensor))
    if sink is not None:
        failure = failure or _attempt(lambda: sink.finish(config_of(model)))
        if failure is not None:
            sink.discard()
    failure = dist.broadcast_object(failure)
    if failure is not None:
        raise CheckpointError(
            f"the model could not be written: {failure}", where=str(folder), fix="make room there, or name another"
        )
    return folder / dist.broadcast_object(sink.first if sink is not None else "")


def _attempt(work: Any) -> str | None:
    try:
        work()
    except OSError as error:
        return f"{error.strerror or error} ({error.filename})" if error.filename else str(error.strerror or error)
    except CheckpointError as error:
        return error.message
    return None


class _Sink:
    """Collects weights until a file is full; how many files there are is known at the end, so they are named then."""

    def __init__(self, folder: Path, dtype: torch.dtype | None, max_shard_bytes: int) -> None:
        self._folder, self._dtype, self._max_bytes = folder, dtype, max_shard_bytes
        self._kept: dict[str, Tensor] = {}
        self._kept_bytes = self._total_bytes = 0
        self._files: list[tuple[st.ShardFile, list[str]]] = []
        self.first = WEIGHTS

    def add(self, name: str, tensor: Tensor) -> None:
        """Take one weight."""
        dtype = self._dtype if self._dtype is not None and tensor.is_floating_point() else tensor.dtype
        if not st.supports(dtype):
            raise CheckpointError(f"{name} is of {dtype}, which safetensors has no code for")
        size = tensor.numel() * dtype.itemsize
        if self._kept and self._kept_bytes + size > self._max_bytes:
            self._flush()
        self._kept[name] = tensor.to(dtype).contiguous()
        self._kept_bytes += size

    def _flush(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        entries = [st.Entry(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._kept.items()]
        file = st.ShardFile(self._folder / f"model-part-{len(self._files) + 1:05d}", entries)
        self._files.append((file, list(self._kept)))
        for name in list(self._kept):
            file.write(name, 0, self._kept.pop(name).reshape(-1))
        self._total_bytes += self._kept_bytes
        self._kept_bytes = 0

    def finish(self, config: dict[str, Any]) -> None:
        """The last file, the names of all, the index, `config.json`."""
        self._flush()
        held = st.models_in(self._folder)
        names = st.shard_names(len(self._files))
        placed: dict[str, str] = {}
        for (file, weights), name in zip(self._files, names, strict=True):
            file.publish(name)
            placed |= dict.fromkeys(weights, name)
        self.first = names[0]
        atomic.write_json(self._folder / "config.json", config)
        st.finish(self._folder, held, placed, self._total_bytes)

    def discard(self) -> None:
        """Nothing of it stays, except what has its name already."""
        for file, _ in self._files:
            file.discard()


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
