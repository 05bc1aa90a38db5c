"""Fixtures of every tier. Nothing here imports torch: the paper tier shares this file."""

from __future__ import annotations

from dstrain.testing.plugin import rank1, ranks2

__all__ = ["rank1", "ranks2"]
