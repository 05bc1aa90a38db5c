"""The manifest: written last, with size and hash of every file. A folder without a matching one is no checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstrain.core import atomic

NAME = "manifest.json"
SCHEMA = 1
_BLOCK_BYTES = 1 << 20
_THREADS = 4


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


def problems(folder: Path, *, hashes: bool = True, only: Container[str] | None = None) -> list[str]:
    """Everything that keeps this folder from being a whole checkpoint; empty when it is one.

    Without `hashes` only names and sizes are looked at, which takes no time on a large checkpoint. `only`: names of the
    files to look at, when not all of them will be read.
    """
    manifest = read(folder)
    if manifest is None:
        return [f"no readable {NAME}: the save did not finish, or this is not a checkpoint of dstrain"]
    if manifest.get("schema") != SCHEMA:
        return [f"{NAME} has schema {manifest.get('schema')!r}, this version reads {SCHEMA}"]
    try:
        files = [_entry(value) for value in manifest["files"]]
    except (KeyError, TypeError, ValueError):
        return [f"{NAME} is damaged: its list of files cannot be read"]
    looked_at = [entry for entry in files if only is None or entry.name in only]
    with ThreadPoolExecutor(_THREADS) as pool:  # hashing leaves the interpreter's lock
        found = [text for text in pool.map(lambda entry: _problem(folder, entry, hashes=hashes), looked_at) if text]
    return found + _unlisted(folder, {entry.name for entry in files})


def _entry(value: Any) -> FileRecord:
    entry = FileRecord(**value)
    if not (isinstance(entry.name, str) and isinstance(entry.size_bytes, int) and isinstance(entry.sha256, str)):
        raise TypeError
    if not entry.name or "\0" in entry.name:
        raise ValueError
    return entry


def _unlisted(folder: Path, known: set[str]) -> list[str]:
    """Files that an engine could load although nobody verified them; a person's notes may lie here as they like."""
    return [
        f"{name} is not in {NAME}: it was put here afterwards"
        for name in files_of(folder)
        if name not in known and name.endswith((".pt", ".pth", ".distcp"))
    ]


def _problem(folder: Path, entry: FileRecord, *, hashes: bool) -> str | None:
    path = folder / entry.name
    if ".." in Path(entry.name).parts or not path.resolve().is_relative_to(folder.resolve()):
        return f"{entry.name}: a path that leaves the checkpoint"
    if not path.is_file():
        return f"{entry.name} is missing"
    size = path.stat().st_size
    if size != entry.size_bytes:
        return f"{entry.name} has {size} bytes, {entry.size_bytes} were written"
    if hashes and sha256(path) != entry.sha256:
        return f"{entry.name} has changed since it was written (hash differs)"
    return None
