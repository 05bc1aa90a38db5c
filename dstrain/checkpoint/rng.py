"""Random states of one rank, in a file that loads with `weights_only=True` (plain values and tensors)."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dstrain.core.errors import CheckpointError
from dstrain.core.shard_globals import SHARD_FAULTS, shard_fault


def capture() -> dict[str, Any]:
    """The states of Python, NumPy, torch's CPU generator and this rank's CUDA device."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state: dict[str, Any] = {
        "python": [version, list(words), gauss],
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():  # of this rank's device only: to ask the others would put a context on each
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """The reverse of `capture`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Whatever happens inside, the random states are afterwards what they were before."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def name(rank: int) -> str:
    """The file of one rank."""
    return f"rng_state_{rank}.pth"


def save(folder: Path, rank: int) -> None:
    """Write this rank's states."""
    torch.save(capture(), folder / name(rank))


def load(folder: Path, rank: int) -> None:
    """Restore this rank's states.

    Raises:
        CheckpointError: the file of this rank is not there, damaged, or holds something else than plain values.
    """
    path = folder / name(rank)
    if not path.is_file():
        raise CheckpointError(
            f"{path.name} is missing, so dropout and sampling could not go on as they were", where=str(folder)
        )
    try:
        restore(torch.load(path, weights_only=True))
    except SHARD_FAULTS as error:
        raise CheckpointError(shard_fault(error), where=str(path)) from None
