"""DeepSpeed's checkpoint engine with an allow list: nothing in a shard is run when it is loaded.

DeepSpeed 0.19.8 loads with `weights_only=False` (torch_checkpoint_engine.py:37): a shard from a stranger runs what it
likes on every rank. The `checkpoint.writer` engines cannot load what they saved.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointCommitInfo, CheckpointEngine
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from dstrain import dist
from dstrain.core.errors import CheckpointError
from dstrain.core.shard_globals import MASTER_NAMES, SHARD_FAULTS, SHARD_GLOBALS, shard_fault

_FORCE, _FORCE_NOT = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


class SafeCheckpointEngine(CheckpointEngine):  # type: ignore[misc]  # deepspeed has no annotations
    """Writes as DeepSpeed's own engine does, and reads weights and plain values only."""

    def __init__(self, *, zipped: bool = True) -> None:
        super().__init__()
        self.name, self._zipped = type(self).__name__, zipped
        self._failure: str | None = None

    def create(self, info: CheckpointCommitInfo) -> None:
        """Nothing to prepare: `dstrain.checkpoint.store` has made the folder."""

    def save(self, state_dict: Any, path: str) -> None:
        """One file. A failure is kept for `raise_failure`: raised here, others would wait in DeepSpeed's barriers."""
        try:
            torch.save(state_dict, path, _use_new_zipfile_serialization=self._zipped)
        except (OSError, RuntimeError) as error:  # torch 2.13 says RuntimeError for a disk that is full
            lines = str(error).strip().splitlines() or [type(error).__name__]
            self._failure = f"{Path(path).name}: {lines[0][:200]}"

    def raise_failure(self) -> None:
        """Raise what kept a file from being written since the last call.

        Raises:
            CheckpointError: with the file and the reason.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(failure)

    def load(self, path: str, map_location: Any = None) -> Any:
        """One file, without running anything in it.

        Raises:
            CheckpointError: the file is damaged, or asks for what is not on the allow list.
        """
        return _load(Path(path), map_location, mapped=False)

    def commit(self, info: CheckpointCommitInfo) -> bool:  # noqa: ARG002  (the interface's)
        """The store publishes, when the shards of all ranks are durable."""
        return True


def install(engine: Any) -> None:
    """Put `SafeCheckpointEngine` in the place of the engine that DeepSpeed made by default.

    One that the user asked for (`checkpoint.writer`) stays: it decides which ranks write. Its loads are held to the
    allow list by `weights_only`.
    """
    if isinstance(engine.checkpoint_engine, TorchCheckpointEngine):
        engine.checkpoint_engine = SafeCheckpointEngine(zipped=bool(engine.checkpoint_serialization_enabled()))


def save(engine: Any, folder: Path, tag: str) -> None:
    """The engine's own save. Collective: a rank that cannot write goes through all of it, and raises at the end.

    Raises:
        CheckpointError: on the ranks that could not write.
    """
    optimizer = engine.optimizer
    state: dict[str, Any] = {}
    if hasattr(optimizer, "fp32_groups") and hasattr(optimizer, "fp16_groups"):
        # Stage 0 in 16 bit: 0.19.8 saves the fp32 weights as lists without names, so export could not tell them apart.
        state[MASTER_NAMES] = [[engine.param_names[p] for p in group] for group in optimizer.fp16_groups]
    engine.save_checkpoint(str(folder), tag=tag, client_state=state, save_latest=True)
    if isinstance(engine.checkpoint_engine, SafeCheckpointEngine):
        engine.checkpoint_engine.raise_failure()


def check_openable(folder: Path) -> None:
    """Open every shard of a folder, by turns on the ranks, and fail on all ranks alike. Collective; reads no tensors.

    Raises:
        CheckpointError: naming each file that is damaged or asks for what is not on the allow list.
    """
    paths = sorted(folder.glob("*.pt"))
    faults = []
    for path in paths[dist.rank() :: dist.world_size()]:
        try:
            _load(path, "cpu", mapped=True)
        except CheckpointError as error:
            faults.append(f"{path.name} {error.message}")
    if found := [text for part in dist.all_gather_object(faults) for text in part]:
        raise CheckpointError(
            "; ".join(found),
            where=str(folder),
            fix="take another checkpoint; nothing of these files was run",
        )


@contextlib.contextmanager
def weights_only() -> Iterator[None]:
    """Every `torch.load` inside is held to the allow list, those with `weights_only=False` in DeepSpeed's code too.

    Universal checkpoints are read past the checkpoint engine (universal_checkpoint.py:251, base_optimizer.py:337).
    """
    before = {name: os.environ.pop(name, None) for name in (_FORCE, _FORCE_NOT)}
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals(_allowed()):
            yield
    finally:
        del os.environ[_FORCE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def _load(path: Path, map_location: Any, *, mapped: bool) -> Any:
    try:
        with torch.serialization.safe_globals(_allowed()):
            in_place = mapped and zipfile.is_zipfile(path)
            return torch.load(path, map_location=map_location, weights_only=True, mmap=in_place)
    except SHARD_FAULTS as error:
        raise CheckpointError(shard_fault(error), where=str(path)) from None


def _allowed() -> list[Any]:
    found = []
    for name in SHARD_GLOBALS:
        module, _, attribute = name.rpartition(".")
        found.append((getattr(importlib.import_module(module), attribute), name))
    return found
