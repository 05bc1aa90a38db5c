"""How an error of ours ends a program: its message on rank 0, exit code 2, no traceback."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

from dstrain.core.errors import DstrainError

# Rank 0 meets nearly every error of ours at the same moment and says it; the launcher then ends the other ranks.
# A rank that is still alive after this long met an error of its own, and says it itself.
_WAIT_S = 3.0
_previous = sys.excepthook


def install() -> None:
    """Show errors of ours as messages; any other exception as before."""
    if sys.excepthook is not _hook:
        global _previous
        _previous = sys.excepthook
        sys.excepthook = _hook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not isinstance(error, DstrainError):
        _previous(kind, error, trace)
        return
    rank = os.environ.get("RANK", "0")
    if rank != "0":
        time.sleep(_WAIT_S)
    prefix = "error: " if rank == "0" else f"error on rank {rank}: "
    sys.stdout.flush()
    # torch.distributed wraps this hook and puts a buffer in place of sys.stderr to number its lines by rank, which is
    # never shown if the process ends here (distributed_c10d.py of 2.13): so to the stream itself.
    print(prefix + str(error), file=sys.__stderr__, flush=True)
    # Not sys.exit: threads of a process group whose peers are gone must not hold this process.
    os._exit(error.exit_code)
