"""Ranks that outlive their launcher save and end themselves.

DeepSpeed 0.19.8's single-node launcher is two processes, and a signal to the first (SIGTERM from a scheduler, SIGKILL
from a person) ends only that one: the second and all ranks go on, holding devices, port and output folder.
"""

from __future__ import annotations

import threading
import time

import psutil

from dstrain.core.facts import WorldFacts
from dstrain.loop import preempt

_POLL_S = 1.0
_started = False


def watch(world: WorldFacts) -> None:
    """Look after the launcher from a thread, once per process; nothing without a launcher."""
    global _started
    if _started or world.launcher not in ("deepspeed", "torchrun"):
        return
    _started = True
    parents = _parents(2 if world.launcher == "deepspeed" else 1)
    if parents:
        threading.Thread(target=_watch, args=(parents,), name="dstrain-orphans", daemon=True).start()


def _parents(depth: int) -> list[int]:
    """Process ids of the parents, nearest first; those that were init's at the start cannot be told from orphans."""
    try:
        found = [process.pid for process in psutil.Process().parents()[:depth]]
    except psutil.Error:
        return []
    return found[: found.index(1)] if 1 in found else found


def _watch(parents: list[int]) -> None:
    while True:
        time.sleep(_POLL_S)
        if _parents(len(parents)) != parents:
            preempt.request("the launcher is gone")
            return
