"""A polite end: SIGTERM or SIGUSR1 to any rank makes all ranks save at the same step, and stop.

The wish travels with the sum that every step needs anyway (its label tokens), so that ranks agree at no extra cost.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

EXIT_CODE = 143
GRACE_S = 25.0  # DeepSpeed's launcher kills its ranks 30 s after it has asked them to end (launcher/launch.py)

_reason: str | None = None


def requested() -> bool:
    """Whether this rank was asked to end."""
    return _reason is not None


def request(reason: str) -> None:
    """Ask for the end of training at the next step; a process that is still there after the grace period is ended."""
    global _reason
    if _reason is not None:
        return
    _reason = reason
    timer = threading.Timer(GRACE_S, os._exit, (EXIT_CODE,))
    timer.daemon = True
    timer.start()
    rank = os.environ.get("RANK", "0")
    print(f"rank {rank}: {reason}: saving at the next step, then ending", file=sys.__stderr__, flush=True)


def _on_signal(number: int, frame: FrameType | None) -> None:
    del frame
    if requested():  # asked twice: at once
        os._exit(EXIT_CODE)
    request(signal.Signals(number).name)


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Hear signals for the time of the block; what they did before comes back at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = {number: signal.signal(number, _on_signal) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
