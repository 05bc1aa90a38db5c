"""Ending a build with all that it started.

Killing its process group is not enough: ninja (1.13) puts every compiler into its own. The session holds all of them.
"""

from __future__ import annotations

import os
import signal
import time

import psutil


def kill_session(leader: int, timeout_s: float = 5.0) -> None:
    """SIGKILL every process of the session that `leader` leads or led, but not the caller; return when they are gone.

    A session is looked up again until it is empty, since a process may start another while it is being ended.
    """
    until = time.monotonic() + timeout_s
    while (members := _members(leader)) and time.monotonic() < until:
        for pid in members:
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue
        time.sleep(0.02)


def _members(leader: int) -> list[int]:
    found = []
    for process in psutil.process_iter(["pid"]):
        try:
            inside = process.pid != os.getpid() and os.getsid(process.pid) == leader
            if inside and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return found
