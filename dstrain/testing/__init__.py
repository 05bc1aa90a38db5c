"""Helpers for tests of programs that train: ranks as real processes, launched scripts, tiny models and data.

Importing this package, `ranks` and `launching` loads no torch; `models` and `data` do.
"""

from __future__ import annotations

from dstrain.testing.launching import Completed, Running, launch, start
from dstrain.testing.ranks import RankPool, RanksFailed, run_ranks

__all__ = ["Completed", "RankPool", "RanksFailed", "Running", "launch", "run_ranks", "start"]
