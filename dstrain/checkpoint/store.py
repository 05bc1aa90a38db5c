"""The checkpoints of one run: stage in a sibling folder, manifest last, rename, then `latest`.

A reader sees a whole checkpoint or none: `checkpoint-N` comes into being by one rename of a folder whose files and
manifest are durable already. Several ranks share the file system.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dstrain import dist
from dstrain.checkpoint import manifest, rng
from dstrain.checkpoint.inspect import best_in
from dstrain.core import atomic
from dstrain.core.errors import CheckpointError

_PATTERN = re.compile(r"^checkpoint-(\d+)$")
_STAGING = ".staging-"


class CheckpointStore:
    """Checkpoints below one output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, step: int) -> Path:
        """Where the checkpoint of an optimizer step is."""
        return self.folder / f"checkpoint-{step}"

    def steps(self) -> list[int]:
        """Steps of the folders that look like checkpoints, newest first; not yet verified."""
        if not self.folder.is_dir():
            return []
        found = [int(match[1]) for path in self.folder.iterdir() if (match := _PATTERN.match(path.name))]
        return sorted(found, reverse=True)

    def save(
        self, step: int, write_shards: Callable[[Path], None], documents: Mapping[str, Any], facts: Mapping[str, Any]
    ) -> Path:
        """Write a checkpoint. Collective: every rank writes its shards and random state before any of it is published.

        Args:
            write_shards: writes this rank's files into the folder it is given (the engine's own save).
            documents: JSON files by name, written by rank 0.
            facts: what the manifest says beside the files (step, world size, stage, identity of the run).

        Raises:
            CheckpointError: nothing was published, and the checkpoints that were there still are.
        """
        staging = self.folder / f"{_STAGING}{step}"
        # Each phase ends in an agreement, not in a bare barrier: a rank that fails must not leave the others waiting.
        self._phase(step, staging, lambda: self._begin(staging, documents) if dist.is_main() else None)
        self._phase(step, staging, lambda: self._write(staging, write_shards))
        mine = self._phase(step, staging, lambda: self._record(staging))
        records = sorted((r for part in dist.all_gather_object(mine) for r in part), key=lambda r: r.name)
        self._phase(step, staging, lambda: self._close(staging, records, step, facts) if dist.is_main() else None)
        return self.path(step)

    def _phase(self, step: int, staging: Path, work: Callable[[], Any]) -> Any:
        """Do a part of a save on this rank; when it failed on any, clean up and raise the same error on all."""
        result, failure = None, None
        try:
            result = work()
        except OSError as error:
            failure = f"{error.strerror or error} ({error.filename or staging})"
        except CheckpointError as error:
            failure = error.message
        except RuntimeError as error:  # how torch 2.13 says that a file could not be written
            failure = str(error).strip().splitlines()[0][:200]
        failures = [(rank, text) for rank, text in enumerate(dist.all_gather_object(failure)) if text]
        if failures:
            if dist.is_main():
                shutil.rmtree(staging, ignore_errors=True)
            rank, text = failures[0]
            raise CheckpointError(
                f"checkpoint of step {step} could not be written (rank {rank}): {text}",
                fix="make room or mend the folder; the checkpoints that were there are untouched",
            )
        return result

    def _begin(self, staging: Path, documents: Mapping[str, Any]) -> None:
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        for name, document in documents.items():
            atomic.write_json(staging / name, document)

    def _write(self, staging: Path, write_shards: Callable[[Path], None]) -> None:
        write_shards(staging)
        rng.save(staging, dist.rank())

    def _record(self, staging: Path) -> list[manifest.FileRecord]:
        """Each rank makes durable and hashes its part of the files, whoever wrote them."""
        names = manifest.files_of(staging)
        mine = manifest.record(staging, names[dist.rank() :: dist.world_size()])
        for folder in (path for path in staging.rglob("*") if path.is_dir()):
            atomic.fsync_folder(folder)
        return mine

    def _close(self, staging: Path, records: list[manifest.FileRecord], step: int, facts: Mapping[str, Any]) -> None:
        manifest.write(staging, records, {"step": step, **facts})
        self._publish(staging, step)

    def _publish(self, staging: Path, step: int) -> None:
        atomic.fsync_folder(staging)
        target = self.path(step)
        aside = self._aside(step)
        if target.exists():  # a damaged one that was passed over at resume, or one of the same step
            shutil.rmtree(aside, ignore_errors=True)
            target.rename(aside)  # cut short here, `_mend` brings it back
        staging.rename(target)
        atomic.fsync_folder(self.folder)
        atomic.write_text(self.folder / "latest", f"{target.name}\n")
        shutil.rmtree(aside, ignore_errors=True)

    def _aside(self, step: int) -> Path:
        return self.folder / f"{_STAGING}old-{step}"

    def _mend(self) -> None:
        """Bring back a checkpoint that was being replaced by another of its step when its rank was killed."""
        for aside in self.folder.glob(f"{_STAGING}old-*"):
            step = aside.name.rpartition("-")[2]
            target = self.path(int(step)) if step.isdecimal() else aside
            if not target.exists():
                aside.rename(target)

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest whole checkpoint, the same on every rank, and a line for each damaged one that was passed over."""
        found: tuple[Path | None, list[str]] = (None, [])
        if dist.is_main():
            notes: list[str] = []
            self._mend()
            for step in self.steps():
                faults = manifest.problems(self.path(step))
                if not faults:
                    found = (self.path(step), notes)
                    break
                notes.append(f"{self.path(step)} is damaged and is passed over: {'; '.join(faults[:3])}")
            else:
                found = (None, notes)
        return dist.broadcast_object(found)

    def verified(self, folder: Path) -> Path:
        """The folder itself, when it is a whole checkpoint.

        Raises:
            CheckpointError: with everything that is wrong with it.
        """
        faults = dist.broadcast_object(manifest.problems(folder) if dist.is_main() else [])
        if faults:
            raise CheckpointError(
                "Can't find a valid checkpoint: " + "; ".join(faults[:5]),
                where=str(folder),
                fix="--resume_from_checkpoint auto takes the newest whole one",
            )
        return folder

    def prune(self, keep: int | None) -> None:
        """Remove the oldest checkpoints of this run until `keep` are left; the newest and the best always stay."""
        if keep is None or not dist.is_main():
            return
        owned = [step for step in self.steps() if manifest.read(self.path(step)) is not None]
        owned = [step for step in owned if not self.path(step).is_symlink()]
        best = best_in(self.folder)
        for step in owned[max(1, keep) :]:
            if self.path(step).name == best:
                continue
            # The manifest goes first: a removal that is cut short leaves no folder that looks whole.
            (self.path(step) / manifest.NAME).unlink(missing_ok=True)
            shutil.rmtree(self.path(step), ignore_errors=True)

    def sweep(self) -> None:
        """Remove what a killed save left behind."""
        if dist.is_main() and self.folder.is_dir():
            for path in self.folder.glob(f"{_STAGING}*"):
                shutil.rmtree(path, ignore_errors=True)


def read_document(folder: Path, name: str) -> Any:
    """A JSON file of a verified checkpoint.

    Raises:
        CheckpointError: it is not there or is no JSON.
    """
    try:
        return json.loads((folder / name).read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{name} cannot be read: {error}", where=str(folder)) from None
