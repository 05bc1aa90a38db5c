"""Who this process is, under the names that scripts read from their arguments. Nothing here imports torch itself."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import Any

from dstrain.args.sections import DeviceArguments, LoggingArguments
from dstrain.core.metal import metal

_LEVELS = {
    "detail": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


class ParallelMode(StrEnum):
    """How many processes train: one, or several with one device each."""

    NOT_PARALLEL = "not_parallel"
    DISTRIBUTED = "distributed"


class Placed(DeviceArguments, LoggingArguments):
    """Facts of the process. Each may raise UsageError when the launcher's environment contradicts itself."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return metal().world().world_size

    @property
    def process_index(self) -> int:
        """This process's rank."""
        return metal().world().rank

    @property
    def local_process_index(self) -> int:
        """This process's rank on its host."""
        return metal().world().local_rank

    @property
    def parallel_mode(self) -> ParallelMode:
        """Whether there are several ranks."""
        return ParallelMode.DISTRIBUTED if self.world_size > 1 else ParallelMode.NOT_PARALLEL

    @property
    def device(self) -> Any:
        """The `torch.device` of this rank (imports torch)."""
        return metal().device(use_cpu=self.use_cpu)

    @property
    def n_gpu(self) -> int:
        """Devices of this process: 1, or 0 on the CPU (imports torch)."""
        return 0 if self.device.type == "cpu" else 1

    @property
    def place_model_on_device(self) -> bool:
        """Always: the engine moves the model."""
        return True

    @property
    def ddp_timeout_delta(self) -> timedelta:
        """`ddp_timeout` as a time span."""
        return timedelta(seconds=self.ddp_timeout)

    @property
    def should_log(self) -> bool:
        """Whether this rank writes to the console: rank 0, or one of each host with `log_on_each_node`."""
        return (self.local_process_index if self.log_on_each_node else self.process_index) == 0

    @property
    def should_save(self) -> bool:
        """Whether this rank writes what one rank writes: rank 0."""
        return self.process_index == 0

    def get_process_log_level(self) -> int:
        """The level for `logging` on this rank; WARNING where the argument is `passive`."""
        return _LEVELS.get(self.log_level if self.should_log else self.log_level_replica, logging.WARNING)

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:  # noqa: ARG002
        """Rank 0 (of each host, when local) runs the block, then all others: what it writes to a cache they find.

        Collective; makes the process group when there is none yet.

        Raises:
            RankError: on the others, when the block failed on the first.
        """
        if self.world_size == 1:
            yield
            return
        with metal().main_first(use_cpu=self.use_cpu, local=local, timeout_s=self.ddp_timeout):
            yield
