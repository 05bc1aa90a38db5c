"""The answers of `dstrain.core.metal`. At the top of the package, because it knows probe and dist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dstrain.core.errors import RankError
from dstrain.core.facts import WorldFacts


class Machine:
    """This process, as the launcher and torch see it."""

    def world(self) -> WorldFacts:
        """The ranks, from the environment."""
        from dstrain.probe.world import world_facts

        return world_facts()

    def device(self, *, use_cpu: bool) -> Any:
        """The device of this rank."""
        import torch

        from dstrain.probe.host import device_kind

        kind = device_kind(use_cpu=use_cpu)
        return torch.device("cpu") if kind == "cpu" else torch.device(kind, self.world().local_rank)

    @contextlib.contextmanager
    def main_first(self, *, use_cpu: bool, local: bool, timeout_s: float) -> Iterator[None]:
        """See `TrainingArguments.main_process_first`."""
        from dstrain import dist
        from dstrain.probe.host import device_kind

        world = self.world()
        dist.ensure_initialized(world, device_kind(use_cpu=use_cpu), timeout_s)
        if (world.local_rank if local else world.rank) == 0:
            done = False
            try:
                yield
                done = True
            finally:
                dist.any_rank(not done)
            return
        if dist.any_rank(False):
            raise RankError("the first rank failed in what it does before the others")
        yield
