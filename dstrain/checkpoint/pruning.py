"""Remove old checkpoints of a run: never the newest or the best, never what dstrain did not write whole."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from dstrain.checkpoint import manifest
from dstrain.checkpoint.inspect import Info, checkpoints_in
from dstrain.core.errors import CheckpointError, UsageError


@dataclass(frozen=True, slots=True)
class Pruning:
    """What goes, what stays, and what was left alone, with the reason of each."""

    remove: list[Info]
    keep: list[tuple[Info, str]]
    left_alone: list[tuple[Info, str]]

    @property
    def freed_bytes(self) -> int:
        """Bytes of the files that go."""
        return sum(item.size_bytes for item in self.remove)


def plan_pruning(folder: Path, keep: int) -> Pruning:
    """Keep the newest `keep` whole checkpoints and the best one. Nothing is removed yet.

    The newest that are kept are read in full first: a checkpoint goes only when one that verifies stays.

    Raises:
        UsageError: `keep` is below one.
        CheckpointError: no checkpoint of the folder verifies, so none may go.
    """
    if keep < 1:
        raise UsageError(f"{keep}: at least one checkpoint stays", where="--keep", fix="--keep 1")
    owned: list[Info] = []
    left: list[tuple[Info, str]] = []
    for item in checkpoints_in(folder):
        reason = _not_ours(folder, item)
        if reason is None:
            owned.append(item)
        else:
            left.append((item, reason))
    kept: list[tuple[Info, str]] = []
    remove: list[Info] = []
    for item in owned:
        place = len([1 for _, why in kept if why != "the best"])
        if place < keep:
            if manifest.problems(item.path):
                left.append((item, "damaged: its bytes are not those that were written"))
            else:
                kept.append((item, "the newest" if place == 0 else f"of the newest {keep}"))
        elif item.is_best:
            kept.append((item, "the best"))
        else:
            remove.append(item)
    if owned and not kept:
        raise CheckpointError("no checkpoint here verifies, so none is removed", where=str(folder))
    return Pruning(remove, kept, left)


def _not_ours(folder: Path, item: Info) -> str | None:
    if item.path.is_symlink() or item.path.resolve().parent != folder.resolve():
        return "a link to another place"
    if item.kind == "unfinished":
        return "a save that did not end, or has not ended yet"
    if item.kind != "dstrain" or item.path.name != f"checkpoint-{item.step}":
        return "not written by dstrain"
    return f"damaged: {item.faults[0]}" if item.faults else None


def prune(pruning: Pruning) -> list[Path]:
    """Remove what the plan says; gives the folders that are gone.

    Raises:
        CheckpointError: a folder could not be removed; those before it are gone.
    """
    gone = []
    for item in pruning.remove:
        try:
            # The manifest goes first: a removal that is cut short leaves no folder that looks whole.
            (item.path / manifest.NAME).unlink(missing_ok=True)
            shutil.rmtree(item.path)
        except OSError as error:
            raise CheckpointError(
                f"could not be removed: {error.strerror or error}", where=str(error.filename or item.path)
            ) from error
        gone.append(item.path)
    return gone
