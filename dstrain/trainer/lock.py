"""One run at a time in an output folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dstrain import dist
from dstrain.core.errors import UsageError

NAME = ".lock"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold the folder for the time of the block. The lock dies with its process, however that ends. Collective.

    Raises:
        UsageError: on every rank: another process holds it, with its process id.
    """
    stream = None
    other: str | None = None
    if dist.is_main():
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / NAME).open("a+")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            stream.truncate(0)
            stream.write(f"{os.getpid()}\n")
            stream.flush()
        except BlockingIOError:
            stream.seek(0)
            other = stream.read().strip() or "?"
        except OSError:  # a file system without locks: nothing to hold
            other = None
    other = dist.broadcast_object(other)
    try:
        if other is not None:
            raise UsageError(
                f"another run is writing into this folder (process {other})",
                where=f"--output_dir {folder}",
                fix=f"wait for it, or end it: kill {other}",
            )
        yield
    finally:
        if stream is not None:
            stream.close()
