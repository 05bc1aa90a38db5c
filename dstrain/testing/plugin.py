"""Pytest fixtures: pools of CPU ranks that live as long as the session. `from dstrain.testing.plugin import ranks2`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dstrain.testing._processes import CPU_ONLY
from dstrain.testing.ranks import RankPool


@pytest.fixture(scope="session")
def rank1() -> Iterator[RankPool]:
    """One rank in a process of its own, on the CPU, kept from test to test."""
    with RankPool(1, env=CPU_ONLY) as pool:
        yield pool


@pytest.fixture(scope="session")
def ranks2() -> Iterator[RankPool]:
    """Two ranks on the CPU (gloo), kept from test to test."""
    with RankPool(2, env=CPU_ONLY) as pool:
        yield pool
