"""The child process that compiles one op: `python -m dstrain.ops.worker BUILDER NAME MARCH`.

Started by `build.py` only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Any

from dstrain.ops.session import kill_session

_PR_SET_PDEATHSIG = 1
_SIMD = {"x86-64-v3": "-D__AVX256__", "armv8-a": "-D__NEON__"}


def _end_session(_signal: int, _frame: FrameType | None) -> None:
    if os.getsid(0) == os.getpid():  # as `build.py` starts it; never the session of somebody's shell
        kill_session(os.getpid())
    os._exit(128 + signal.SIGTERM)


def _die_with_parent() -> None:
    """End when the parent dies, with ninja and the compilers (Linux; elsewhere they finish for nothing)."""
    signal.signal(signal.SIGTERM, _end_session)
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    expected = os.environ.get("DSTRAIN_PARENT_PID")
    if expected is not None and os.getppid() != int(expected):  # it died before the line above
        _end_session(signal.SIGTERM, None)


def make_portable(builder: Any, march: str) -> None:
    """Have a builder compile for a named cpu level: these methods of 0.19.8 OpBuilder give its flags for the cpu."""
    builder.cpu_arch = lambda: f"-march={march}"
    builder.simd_width = lambda: _SIMD[march]


def main(builder_name: str, name: str, march: str) -> int:
    """Build and import the op in this process. What goes wrong is printed: stdout is the build log."""
    _die_with_parent()
    from deepspeed.accelerator import get_accelerator

    builder = get_accelerator().create_op_builder(builder_name)
    if builder is None or builder.name != name:
        print(f"error: DeepSpeed has no builder {builder_name} for {name} on {get_accelerator()._name}")
        return 3
    if march != "native":
        make_portable(builder, march)
    if not builder.is_compatible(verbose=True):
        print(
            f"error: DeepSpeed finds {name} not compatible with this machine: {builder.error_log or 'no reason given'}"
        )
        return 4
    if name == "async_io":
        _preload_pin_memory()
    builder.jit_load(verbose=True)
    return 0


def _preload_pin_memory() -> None:
    # async_io takes the pin manager from pin_memory's library, which must be in the global namespace before it
    # (0.19.8).
    from dstrain.ops.load import import_library
    from dstrain.probe.op_cache import find

    if entry := find("pin_memory"):
        import_library("pin_memory", entry.library)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
