"""The manifest: written last, with size and hash of every file. A folder without a matching one is no checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstrain.core import atomic

NAME = "manifest.json"
SCHEMA = 1
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file of a checkpoint, by its path relative to the folder."""

    name: str
    size_bytes: int
    sha256: str


def sha256(path: Path) -> str:
    """The hash of a file's content, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def files_of(folder: Path) -> list[str]:
    """All files below the folder but the manifest, sorted, relative."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != NAME)


def record(folder: Path, names: Iterable[str]) -> list[FileRecord]:
    """Make the named files durable and read their sizes and hashes back."""
    records = []
    for name in names:
        path = folder / name
        atomic.fsync_file(path)
        records.append(FileRecord(name, path.stat().st_size, sha256(path)))
    return records


def write(folder: Path, records: Iterable[FileRecord], facts: Mapping[str, Any]) -> None:
    """Write the manifest; this is the last write into the folder."""
    files = [{"name": r.name, "size_bytes": r.size_bytes, "sha256": r.sha256} for r in records]
    atomic.write_json(folder / NAME, {"schema": SCHEMA, **facts, "files": files})


def read(folder: Path) -> dict[str, Any] | None:
    """The manifest, or None when it is missing or is no JSON object."""
    try:
        value = json.loads((folder / NAME).read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def problems(folder: Path) -> list[str]:
    """Everything that keeps this folder from being a whole checkpoint; empty when it is one."""
    manifest = read(folder)
    if manifest is None:
        return [f"no readable {NAME}: the save did not finish, or this is not a checkpoint of dstrain"]
    if manifest.get("schema") != SCHEMA:
        return [f"{NAME} has schema {manifest.get('schema')!r}, this version reads {SCHEMA}"]
    try:
        files = [FileRecord(**entry) for entry in manifest["files"]]
    except (KeyError, TypeError):
        return [f"{NAME} is damaged: its list of files cannot be read"]
    return [text for entry in files if (text := _problem(folder, entry))]


def _problem(folder: Path, entry: FileRecord) -> str | None:
    path = folder / entry.name
    if ".." in Path(entry.name).parts or Path(entry.name).is_absolute():
        return f"{entry.name}: a path that leaves the checkpoint"
    if not path.is_file():
        return f"{entry.name} is missing"
    size = path.stat().st_size
    if size != entry.size_bytes:
        return f"{entry.name} has {size} bytes, {entry.size_bytes} were written"
    if sha256(path) != entry.sha256:
        return f"{entry.name} has changed since it was written (hash differs)"
    return None
