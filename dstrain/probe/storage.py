"""Folders that a run writes to, their speed, and the caches of compiled ops that environments share."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from dstrain.core.machine import Caches, Disk, Lock, Unknown
from dstrain.probe.op_cache import entries
from dstrain.probe.packages import software
from dstrain.probe.place import Place

_CHUNK_BYTES = 4 * 2**20
_MOST_BYTES = 256 * 2**20
_SPEED_S = 0.4  # for writing, and again for reading
_BUSY_NAMES = frozenset({"ninja", "nvcc", "cc1plus", "cicc", "ptxas", "c++", "g++"})


def disks(place: Place, folders: Mapping[str, Path] | None = None) -> tuple[tuple[Disk, ...], list[Unknown]]:
    """The cache of compiled ops, the temporary folder, and those that are given by role (`checkpoints`, `nvme`).

    A folder given as `nvme` is written to and read back for less than a second, to learn its speed.
    """
    chosen = {"cache": _cache(place), "temporary": Path(place.environ.get("TMPDIR") or place.at("/tmp"))}
    chosen |= folders or {}
    unknown: list[Unknown] = []
    return tuple(_disk(place, role, path, unknown) for role, path in chosen.items()), unknown


def _cache(place: Place) -> Path:
    if given := place.environ.get("DSTRAIN_OPS_DIR"):
        return Path(given)
    base = place.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else place.home() / ".cache") / "dstrain" / "ops"


def _disk(place: Place, role: str, path: Path, unknown: list[Unknown]) -> Disk:
    there = next((folder for folder in (path, *path.absolute().parents) if folder.exists()), Path("/"))
    trouble = ""
    if not there.is_dir():
        trouble = f"{there} is a file"
    elif role == "nvme" and there != path:
        trouble = "it does not exist"
    elif not os.access(there, os.W_OK):
        trouble = "this user may not write there"
    filesystem, options = _mount(place, there)
    try:
        stat = place.statvfs(there)
    except OSError as error:
        unknown.append(Unknown(f"the free space of {path}", str(error.strerror)))
        return Disk(role, str(path), filesystem=filesystem, trouble=trouble)
    if stat.f_flag & os.ST_RDONLY and not trouble:
        trouble = "it is mounted read-only"
    speed: tuple[float | None, float | None] = (None, None)
    if role == "nvme" and not trouble:
        speed = _speed(there, unknown)
    return Disk(
        role=role,
        path=str(path),
        free_bytes=stat.f_bavail * stat.f_frsize,
        free_inodes=stat.f_favail if stat.f_files else None,  # btrfs and others have no fixed number
        filesystem=filesystem,
        rotational=_rotational(place, there),
        noexec=bool(stat.f_flag & os.ST_NOEXEC) or "noexec" in options,
        trouble=trouble,
        write_bytes_s=speed[0],
        read_bytes_s=speed[1],
    )


def _mount(place: Place, folder: Path) -> tuple[str | None, list[str]]:
    """(type, options) of the filesystem that holds a folder: the longest mount point above it, the last of equals."""
    target, best = os.path.realpath(folder), (-1, "", "")
    for line in (place.text("/proc/mounts") or "").splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        point = words[1].replace("\\040", " ").rstrip("/")
        if (target == point or target.startswith(f"{point}/")) and len(point) >= best[0]:
            best = len(point), words[2], words[3]
    return best[1] or None, best[2].split(",")


def _rotational(place: Place, folder: Path) -> bool | None:
    try:
        device = folder.stat().st_dev
    except OSError:
        return None
    block = f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"
    for path in (f"{block}/queue/rotational", f"{block}/../queue/rotational"):  # a partition has its disk's queue
        if (text := place.text(path)) in ("0", "1"):
            return text == "1"
    return None


def _speed(folder: Path, unknown: list[Unknown]) -> tuple[float | None, float | None]:
    """(write, read) in bytes per second, past the page cache (O_DIRECT) as DeepSpeed's async_io goes."""
    path = folder / f".dstrain-speed-{os.getpid()}"
    direct = getattr(os, "O_DIRECT", 0)
    buffer = mmap.mmap(-1, _CHUNK_BYTES)  # page-aligned, as O_DIRECT wants it
    try:
        buffer.write(os.urandom(2**16) * (_CHUNK_BYTES // 2**16))
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | direct, 0o600)
        try:
            wrote, write_s = _repeat(lambda: os.write(file, buffer), lambda: os.fsync(file))
            os.lseek(file, 0, os.SEEK_SET)
            read, read_s = _repeat(lambda: os.readv(file, [buffer]), lambda: None)
        finally:
            os.close(file)
    except OSError as error:
        unknown.append(Unknown(f"the speed of {folder}", f"{error.strerror} (a file opened with O_DIRECT)"))
        return None, None
    finally:
        buffer.close()
        with contextlib.suppress(OSError):
            path.unlink()
    return (wrote / write_s if wrote else None), (read / read_s if read else None)


def _repeat(move: Callable[[], int], end: Callable[[], None]) -> tuple[int, float]:
    """Move chunks until the time or the size is spent; (bytes, seconds), with what `end` takes."""
    total, start = 0, time.perf_counter()
    while total < _MOST_BYTES and time.perf_counter() - start < _SPEED_S:
        moved = move()
        total += moved
        if moved < _CHUNK_BYTES:
            break
    end()
    return total, max(time.perf_counter() - start, 1e-9)


def caches(place: Place) -> tuple[Caches, list[Unknown]]:
    """Locks and foreign builds in torch's extension cache, which DeepSpeed compiles into when dstrain does not."""
    given = place.environ.get("TORCH_EXTENSIONS_DIR")
    base = place.environ.get("XDG_CACHE_HOME")
    default = (Path(base) if base else place.home() / ".cache") / "torch_extensions"
    root = Path(given) if given else default
    # The default has a folder per Python and CUDA version; a folder that was given holds the ops themselves.
    found = [path for path in root.glob("*" if given else "*/*") if path.is_dir()] if root.is_dir() else []
    locks, foreign = [], []
    for folder in sorted(found):
        with contextlib.suppress(OSError):
            age = time.time() - (folder / "lock").stat().st_mtime
            locks.append(Lock(str(folder / "lock"), max(0.0, age), _is_busy(place, folder)))
        if (other := _other_site(place, folder)) is not None:
            foreign.append((str(folder), other))
    return Caches(tuple(locks), tuple(foreign), tuple(_unused(place))), []


def _unused(place: Place) -> Iterator[tuple[str, str, int]]:
    """Builds in dstrain's cache for another torch or DeepSpeed; `dstrain ops list` knows the finer reasons."""
    here, _ = software(place)
    for entry in entries(_cache(place)):
        for name, version in (("deepspeed", here.deepspeed), ("torch", here.torch)):
            built_for = str(entry.record.get(name, "")).split(" ")[0]  # torch's version is followed by its commit
            if version and built_for and built_for != version:
                yield str(entry.folder), f"{name} {built_for}, here {version}", entry.bytes
                break


def _is_busy(place: Place, folder: Path) -> bool:
    """Whether a compiler or ninja works there; torch 2.13's lock is an empty file that names no owner."""
    for name in place.names("/proc"):
        if not name.isdigit() or place.text(f"/proc/{name}/comm") not in _BUSY_NAMES:
            continue
        with contextlib.suppress(OSError):
            if os.path.realpath(place.at(f"/proc/{name}/cwd")) == os.path.realpath(folder):
                return True
    return False


def _other_site(place: Place, folder: Path) -> str | None:
    """The torch that a build was made against, when it is not this environment's."""
    torch = place.package("torch")
    try:
        text = (folder / "build.ninja").read_text(errors="replace")
    except OSError:
        return None
    match = re.search(r"-isystem (\S+)/torch/include\b", text)
    if match is None or torch is None or os.path.realpath(match.group(1)) == os.path.realpath(torch.parent):
        return None
    return match.group(1)
