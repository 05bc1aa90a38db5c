"""Open a shard without running anything that is in it: `weights_only=True` and stand-ins for DeepSpeed's classes."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from dstrain.core.errors import CheckpointError
from dstrain.core.shard_globals import SHARD_FAULTS, SHARD_GLOBALS, shard_fault


class _Plain:
    """What a class of DeepSpeed becomes here: its values and nothing of its code. An enum keeps its number."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __int__(self) -> int:
        return int(self.values[0])


def open_shard(path: Path) -> dict[str, Any]:
    """The content of a shard, its tensors mapped from the file: they cost memory only where they are read.

    deepspeed is not imported: the few classes that its shards name are replaced by inert ones.

    Raises:
        CheckpointError: the file is damaged, or asks for something that is not on the allow list. It was not run.
    """
    allowed: list[Any] = [(type(name.rpartition(".")[2], (_Plain,), {}), name) for name in SHARD_GLOBALS]
    try:
        with torch.serialization.safe_globals(allowed):
            # Only the zip format can be mapped; DeepSpeed writes the older one with `use_zipfile_serialization: false`.
            value = torch.load(path, map_location="cpu", mmap=is_mappable(path), weights_only=True)
    except SHARD_FAULTS as error:
        raise CheckpointError(shard_fault(error), where=str(path), fix=_fix(error)) from None
    if not isinstance(value, dict):
        raise CheckpointError(f"holds a {type(value).__name__}, no dictionary of weights", where=str(path))
    return value


def is_mappable(path: Path) -> bool:
    """Whether the tensors of this file can be read in place."""
    return zipfile.is_zipfile(path)


def _fix(error: BaseException) -> str:
    if isinstance(error, pickle.UnpicklingError):
        return "take another checkpoint; a client_state must hold plain values only"
    return "take another checkpoint: `dstrain ckpt verify FOLDER` says which files are whole"
