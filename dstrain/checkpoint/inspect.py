"""What checkpoints a folder holds, and how they are. Reads names, sizes, JSON and, if asked, bytes; opens no shard."""

from __future__ import annotations

import json
import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dstrain.checkpoint import manifest
from dstrain.checkpoint.layout import ENGINE_FOLDER, LATEST, Layout, at, checked_tag, find
from dstrain.core.errors import CheckpointError

_STAGING = ".staging-"
_STEP = re.compile(r"(\d+)$")
_STATE = "trainer_state.json"
_NAMED = re.compile(r"(checkpoint-|global_step)\d+")


@dataclass(frozen=True, slots=True)
class Info:
    """One checkpoint as a person asks about it. `None`: cannot be known without opening its shards.

    Args:
        kind: "dstrain" has a manifest; "deepspeed" was written by an engine alone; "unfinished" is what a save that
            did not end left behind, or one that is being written now.
        age_s: seconds since its last file was written.
        zero_stage: "1 or 2" cannot be told apart by the files of plain DeepSpeed.
        faults: what is wrong with it, as far as was looked.
    """

    path: Path
    kind: Literal["dstrain", "deepspeed", "unfinished"]
    step: int | None
    size_bytes: int
    files: int
    age_s: float
    world_size: int | None
    zero_stage: str | None
    precision: str | None
    is_latest: bool
    is_best: bool
    faults: tuple[str, ...]

    @property
    def health(self) -> str:
        """One word."""
        return "unfinished" if self.kind == "unfinished" else "damaged" if self.faults else "whole"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        names = [name for name in self.__slots__ if name not in ("path", "faults")]
        values = {name: getattr(self, name) for name in names}
        return {
            "path": str(self.path),
            **values,
            "age_s": round(self.age_s, 1),
            "health": self.health,
            "faults": list(self.faults),
        }


def checkpoints_in(folder: Path, *, deep: bool = False) -> list[Info]:
    """All checkpoints of a run's folder, newest first, and what unfinished saves left; or the one that the folder is.

    Args:
        deep: read every byte and hold it against the manifest (or, of plain DeepSpeed, the file's own checksums).
    """
    if not folder.is_dir():
        return []
    if _layout(folder) is not None and not _named_by_latest(folder.resolve()):
        return [info(folder, deep=deep)]
    found = [info(path, deep=deep) for path in sorted(folder.iterdir()) if path.is_dir() and _is_one(path)]
    return sorted(found, key=lambda item: (item.step is not None, item.step or 0, -item.age_s), reverse=True)


def info(folder: Path, *, deep: bool = False) -> Info:
    """One checkpoint. A folder that is none has the reason among its faults."""
    shown, folder = folder, folder.resolve()  # "." has no name of its own
    files = list(_files(folder))
    newest = max((path.stat().st_mtime for path in files), default=folder.stat().st_mtime)
    layout, kind = _layout(folder), "deepspeed"
    identity: dict[str, Any] = {}
    written = manifest.read(folder)
    if folder.name.startswith(_STAGING):
        kind, faults = "unfinished", []
    elif written is not None or _ours(folder):
        kind, identity = "dstrain", (written or {}).get("identity") or {}
        faults = manifest.problems(folder, hashes=deep)
    else:
        faults = _plain_faults(folder, layout, deep=deep)
    stage, precision, world = _told_by_files(layout)
    return Info(
        path=shown,
        kind=kind,  # type: ignore[arg-type]
        step=_step(folder, written),
        size_bytes=sum(path.stat().st_size for path in files),
        files=len(files),
        age_s=max(0.0, time.time() - newest),
        world_size=(written or {}).get("world_size", world),
        zero_stage=str(identity["zero_stage"]) if identity.get("zero_stage") is not None else stage,
        precision=identity.get("precision", precision),
        is_latest=_named_by_latest(folder.parent) == folder.name,
        is_best=folder.name == best_in(folder.parent),
        faults=tuple(faults),
    )


def best_in(folder: Path) -> str | None:
    """The name of the best checkpoint of a run, as its newest `trainer_state.json` has it."""
    states = [folder / _STATE, *folder.glob(f"checkpoint-*/{_STATE}")]
    for path in sorted((p for p in states if p.is_file()), key=lambda p: p.stat().st_mtime, reverse=True):
        best = (_json(path) or {}).get("best_model_checkpoint")
        if isinstance(best, str) and best:
            return Path(best).name
    return None


def shard_faults(paths: Sequence[Path], *, deep: bool) -> list[str]:
    """What is wrong with files that have no manifest: empty, cut short, or (deep) changed since they were written."""

    def fault(path: Path) -> str | None:
        try:
            if path.stat().st_size == 0:
                return f"{path.name} is empty"
            if not zipfile.is_zipfile(path):
                head = path.read_bytes()[:2] if path.stat().st_size < 1 << 20 else _head(path)
                return f"{path.name} is cut short" if head == b"PK" else None
            if deep:
                with zipfile.ZipFile(path) as archive:
                    bad = archive.testzip()
                return f"{path.name} has changed since it was written (checksum of {bad} differs)" if bad else None
        except (OSError, zipfile.BadZipFile) as error:
            return f"{path.name} cannot be read: {error}"
        return None

    with ThreadPoolExecutor(4) as pool:
        return [text for text in pool.map(fault, paths) if text]


def _head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(2)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _ours(folder: Path) -> bool:
    """Whether a folder without a readable manifest was nevertheless written by dstrain."""
    if (folder / manifest.NAME).exists():
        return True
    marks = ("plan.json", ENGINE_FOLDER)
    return _NAMED.fullmatch(folder.name) is not None and any((folder / mark).exists() for mark in marks)


def _is_one(folder: Path) -> bool:
    if folder.name.startswith(_STAGING):
        return True
    return _NAMED.fullmatch(folder.name) is not None or manifest.read(folder) is not None or at(folder) is not None


def _layout(folder: Path) -> Layout | None:
    try:
        return find(folder)
    except CheckpointError:
        return None


def _named_by_latest(folder: Path) -> str | None:
    """What `latest` names, when that is a checkpoint of its own and not a part of this one."""
    latest = folder / LATEST
    if manifest.read(folder) is not None or not latest.is_file():
        return None
    try:
        tag = checked_tag(latest.read_text(errors="replace")[:300], latest)
    except (CheckpointError, OSError):
        return None
    # A transformers checkpoint-N holds `latest` and one global_stepN: together they are one checkpoint.
    return None if re.fullmatch(r"checkpoint-\d+", folder.name) and tag.startswith("global_step") else tag


def _plain_faults(folder: Path, layout: Layout | None, *, deep: bool) -> list[str]:
    if layout is None:
        try:
            find(folder)
        except CheckpointError as error:
            return [error.message]
        return []
    faults = []
    for what, paths in (("model", layout.model_states), ("optimizer", layout.optim_states)):
        ranks = [int(found[1]) for path in paths if (found := re.search(r"pp_rank_(\d+)_", path.name))]
        if ranks and ranks != list(range(len(ranks))):
            missing = sorted(set(range(max(ranks) + 1)) - set(ranks))
            faults.append(f"the {what} files of ranks {missing} are missing")
    if layout.sharded_weights and len(layout.model_states) != len(layout.optim_states):
        faults.append(f"{len(layout.model_states)} model files, but {len(layout.optim_states)} optimizer files")
    return faults + shard_faults([*layout.model_states, *layout.optim_states], deep=deep)


def _told_by_files(layout: Layout | None) -> tuple[str | None, str | None, int | None]:
    """Stage, precision and world size, as far as the names of plain DeepSpeed's files say."""
    if layout is None or layout.engine == "single":
        return None, None, 1 if layout is not None else None
    stage = "3" if layout.sharded_weights else "1 or 2" if layout.optim_states else "0"
    precision = "bf16" if any(path.name.startswith("bf16_") for path in layout.optim_states) else None
    return stage, precision, len(layout.optim_states) or None


def _step(folder: Path, written: dict[str, Any] | None) -> int | None:
    step = (written or {}).get("step")
    if isinstance(step, int):
        return step
    found = _STEP.search(folder.name)
    return int(found[1]) if found else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
