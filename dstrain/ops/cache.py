"""The write side of the op cache: keys, the lock of a key, records.

`probe/op_cache.py` is the read side and the layout.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstrain.core import atomic
from dstrain.core.errors import OpError
from dstrain.core.units import duration_text
from dstrain.probe.op_cache import LOCK, LOG, RECORD, Entry, Environment, cache_root, misfit, read_entry

FAILURE = "failed.json"
_KEY = re.compile(r"[0-9a-f]{16}")
_HOLDER_BYTES = 512
_POLL_S = 0.1
_GRACE_S = 0.3  # `is_locked` takes the lock for an instant: that is no build to speak of
_REMIND_S = 60.0

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one op for one environment lives, whether it is built or not."""

    op: str
    folder: Path
    fields: dict[str, str]

    @property
    def log(self) -> Path:
        """What the compiler said, of the newest attempt."""
        return self.folder / LOG

    def entry(self) -> Entry | None:
        """The whole build, or None."""
        return read_entry(self.op, self.folder)


def slot(op: str, env: Environment, march: str = "native", root: Path | None = None) -> Slot:
    """The slot of `op` in `env` for `march`; its folder's name is a digest of all that the build depends on."""
    fields = env.fields(march)
    key = hashlib.sha256(json.dumps([op, fields], sort_keys=True).encode()).hexdigest()[:16]
    return Slot(op, (root or cache_root()) / op / key, fields)


@contextlib.contextmanager
def locked(where: Slot, *, timeout_s: float | None, say: Say) -> Iterator[float]:
    """Hold the slot's lock. Yields the seconds that were waited.

    The lock is `flock`: the kernel frees it when its owner dies, however it dies, so no build that was killed blocks
    another. While it is held elsewhere, `say` gets the holder's pid and the log, after an instant and then every
    minute.

    Raises:
        OpError: `timeout_s` seconds passed, or the cache folder cannot be written.
    """
    started = time.monotonic()
    while True:
        descriptor = _open(where)
        try:
            _acquire(descriptor, where, started, timeout_s, say)
            if _is_current(descriptor, where):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # `clean` removed the folder between our open and our lock: that lock guards nothing
    try:
        waited_s = time.monotonic() - started
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.time()}
        # One write of one size: those who read it see this holder or the one before, never a mixture.
        os.pwrite(descriptor, json.dumps(holder).ljust(_HOLDER_BYTES).encode(), 0)
        yield waited_s
    finally:
        os.close(descriptor)


def _is_current(descriptor: int, where: Slot) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(where.folder / LOCK))  # noqa: PTH116
    except OSError:
        return False


def _open(where: Slot) -> int:
    try:
        where.folder.mkdir(parents=True, exist_ok=True)
        return os.open(where.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OpError(
            f"cannot write the op cache: {error.strerror}",
            where=str(error.filename or where.folder),
            fix="set DSTRAIN_OPS_DIR to a folder that this user can write",
        ) from error


def _acquire(descriptor: int, where: Slot, started: float, timeout_s: float | None, say: Say) -> None:
    reminder_s = _GRACE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        waited_s = time.monotonic() - started
        if timeout_s is not None and waited_s >= timeout_s:
            raise OpError(
                f"{where.op} is still being built by {holder_text(where)}; waited {timeout_s:g} s",
                fix=f"wait for it, or end that process and run `dstrain ops build {where.op}` again",
            )
        if waited_s >= reminder_s:
            say(f"{where.op} is being built by {holder_text(where)}: waiting for it; log {where.log}")
            reminder_s = waited_s + _REMIND_S
        time.sleep(_POLL_S)


def is_locked(where: Slot) -> bool:
    """Whether somebody holds the slot's lock now."""
    try:
        descriptor = os.open(where.folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def holder_text(where: Slot) -> str:
    """`process 4711 on this host, for 0:42`, from what the holder wrote into the lock file."""
    try:
        holder = json.loads((where.folder / LOCK).read_text())
        pid, host, since = int(holder["pid"]), str(holder["host"]), float(holder["since"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
    place = "this host" if host == socket.gethostname() else host
    return f"process {pid} on {place}, for {duration_text(time.time() - since)}"


def new_staging(where: Slot) -> Path:
    """A fresh folder to compile in. Only the lock's holder may call it: what killed builds left is removed here."""
    for stale in where.folder.glob("staging-*"):
        shutil.rmtree(stale, ignore_errors=True)
    staging = where.folder / f"staging-{os.getpid()}-{time.monotonic_ns()}"
    staging.mkdir()
    return staging


def commit(where: Slot, library: Path, *, seconds: float, jobs: int) -> Entry:
    """Move a library into its slot and write the record, which makes it count. The record comes last, and in one step.

    Args:
        seconds: how long the build took, for `ops list` and for the estimate of the next one.
    """
    (where.folder / RECORD).unlink(missing_ok=True)  # the old record must not vouch for the new file
    target = where.folder / f"{where.op}.so"
    atomic.fsync_file(library)
    os.replace(library, target)  # noqa: PTH105
    atomic.fsync_folder(where.folder)
    record: dict[str, Any] = {
        "op": where.op,
        **where.fields,
        "bytes": target.stat().st_size,
        "seconds": round(seconds, 1),
        "jobs": jobs,
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    atomic.write_json(where.folder / RECORD, record)
    (where.folder / FAILURE).unlink(missing_ok=True)
    return Entry(where.op, where.folder, record)


def note_failure(where: Slot, message: str, fix: str | None) -> None:
    """Leave word for those who wait on the lock, so that ten ranks do not fail one after the other for minutes each."""
    atomic.write_json(where.folder / FAILURE, {"at": time.time(), "message": message, "fix": fix})


def failure_since(where: Slot, moment: float) -> OpError | None:
    """The failure of a build that ended after `moment` (`time.time()`), if there was one."""
    try:
        noted = json.loads((where.folder / FAILURE).read_text())
        if float(noted["at"]) < moment:
            return None
        return OpError(str(noted["message"]), where=str(where.log), fix=noted["fix"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clean(env: Environment | None, *, root: Path | None = None) -> tuple[list[Entry], list[Path]]:
    """Remove builds that do not fit `env` (all, if None), and what killed builds left. Folders that are locked stay.

    Returns:
        The entries that were removed, and the leftovers that were removed.
    """
    base = root or cache_root()
    removed: list[Entry] = []
    leftovers: list[Path] = []
    for folder in sorted(base.glob("*/*")):
        # Only what is ours: DSTRAIN_OPS_DIR may be a folder with other things in it.
        if not (_KEY.fullmatch(folder.name) and (folder / LOCK).is_file()):
            continue
        where = Slot(folder.parent.name, folder, {})
        with _try_lock(where) as free:
            if not free:
                continue
            entry = where.entry()
            if entry is None:
                leftovers.append(folder)
            elif env is None or misfit(entry, env) is not None:
                removed.append(entry)
            else:
                stale = list(folder.glob("staging-*"))
                leftovers += stale
                for half in stale:
                    shutil.rmtree(half, ignore_errors=True)
                continue
            shutil.rmtree(folder, ignore_errors=True)
    return removed, leftovers


@contextlib.contextmanager
def _try_lock(where: Slot) -> Iterator[bool]:
    descriptor = os.open(where.folder / LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
    finally:
        os.close(descriptor)
