"""The processes of a test: their environment, a free port, and an end to all of them, orphans included."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

# Every process that a test starts carries this variable, and its descendants inherit it, so that they are found
# even after their parent has died and left them to init (DeepSpeed 0.19.8's launcher does so on SIGTERM).
TAG = "DSTRAIN_TEST_PROCESS"
CPU_ONLY = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
_RANK_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_SIZE",
    "CROSS_RANK",
    "CROSS_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    TAG,
)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def new_tag() -> str:
    """A fresh value for `TAG`."""
    return secrets.token_hex(8)


def base_environment(tag: str, env: Mapping[str, str] | None) -> dict[str, str]:
    """This process's environment without the variables of a rank, one thread per process, `env` on top.

    The folder that holds this `dstrain` comes first in PYTHONPATH, so that the code under test is the code here.
    """
    home = str(Path(__file__).resolve().parents[2])
    inherited = {name: value for name, value in os.environ.items() if name not in _RANK_VARIABLES}
    paths = [home, *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    inherited["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    inherited["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)))
    return inherited | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"} | dict(env or {}) | {TAG: tag}


def environment_of(process: psutil.Process) -> dict[str, str]:
    """The environment a process was started with; empty if it is gone or not ours to read."""
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


def tagged(tag: str) -> list[psutil.Process]:
    """The live processes that carry `tag`, oldest first; zombies are not alive."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid() or environment_of(process).get(TAG) != tag:
            continue
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), process.pid, process))
    return [process for _, _, process in sorted(found, key=lambda entry: entry[:2])]


def kill_tagged(tag: str, *, within_s: float = 10.0) -> None:
    """SIGKILL everything that carries `tag` until nothing does.

    Raises:
        TimeoutError: something still carries it after `within_s`.
    """
    deadline = time.monotonic() + within_s
    while alive := tagged(tag):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(alive, timeout=0.5)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[p.pid for p in alive]} do not end on SIGKILL")


def tail(text: str, lines: int = 40) -> str:
    """The last lines of an output, for a message."""
    kept = text.rstrip().splitlines()
    cut = [f"… {len(kept) - lines} lines before"] if len(kept) > lines else []
    return "\n".join(cut + kept[-lines:])
