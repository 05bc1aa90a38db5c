"""`scheduler.params`, one block for each schedule that DeepSpeed 0.19.8 brings."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonNegativeInt, PositiveInt
from dstrain.dsconfig.blocks.notes import FILLED, STEPS, Required

WarmupType = Literal["log", "linear"]
Rates = float | list[float]
"""One learning rate, or one for each parameter group."""


class SchedulerParams(Block):
    """The arguments of a schedule. This base stands for a class of `torch.optim.lr_scheduler`."""

    free: ClassVar[bool] = True


class _DeepSpeedSchedule(SchedulerParams):
    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True

    last_batch_iteration: Annotated[int, STEPS] = -1
    """The step before the first one; leave it."""


class LrRangeTest(_DeepSpeedSchedule):
    """Raise the learning rate steadily, to find where training breaks."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/lr_schedules.py",
        lr_range_test_min_lr=352,
        lr_range_test_step_size=352,
        lr_range_test_step_rate=352,
        lr_range_test_staircase=352,
        last_batch_iteration=352,
    )

    lr_range_test_min_lr: Rates = 1e-3
    """Where the learning rate starts."""
    lr_range_test_step_size: Annotated[PositiveInt, STEPS] = 2000
    """How many steps each rise takes."""
    lr_range_test_step_rate: float = 1.0
    """How fast it rises."""
    lr_range_test_staircase: bool = False
    """Rise in stairs instead of steadily."""


class OneCycle(_DeepSpeedSchedule):
    """One rise and one fall of the learning rate, then a decay."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/lr_schedules.py",
        cycle_min_lr=483,
        cycle_max_lr=483,
        decay_lr_rate=483,
        cycle_first_step_size=483,
        cycle_second_step_size=483,
        cycle_first_stair_count=483,
        cycle_second_stair_count=483,
        decay_step_size=483,
        cycle_momentum=483,
        cycle_min_mom=483,
        cycle_max_mom=483,
        decay_mom_rate=483,
        last_batch_iteration=483,
    )

    cycle_min_lr: Annotated[Rates | None, Required()] = None
    """The lowest learning rate of the cycle."""
    cycle_max_lr: Annotated[Rates | None, Required()] = None
    """The highest learning rate of the cycle."""
    decay_lr_rate: float = 0.0
    """How fast the learning rate falls after the cycle."""
    cycle_first_step_size: Annotated[PositiveInt, STEPS] = 2000
    """How long the rise takes."""
    cycle_second_step_size: Annotated[PositiveInt | None, STEPS] = None
    """How long the fall takes; unset means as long as the rise."""
    cycle_first_stair_count: NonNegativeInt = 0
    """How many stairs the rise has; 0 is a straight line."""
    cycle_second_stair_count: NonNegativeInt | None = None
    """How many stairs the fall has; unset means as many as the rise."""
    decay_step_size: Annotated[NonNegativeInt, STEPS] = 0
    """How long each step of the decay takes; 0 means no decay."""
    cycle_momentum: bool = True
    """Move the momentum against the learning rate."""
    cycle_min_mom: float = 0.8
    """The lowest momentum."""
    cycle_max_mom: float = 0.9
    """The highest momentum."""
    decay_mom_rate: float = 0.0
    """How fast the momentum decays after the cycle."""


class WarmupLR(_DeepSpeedSchedule):
    """Rise to the full learning rate and stay there. The first two steps run at warmup_min_lr."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/lr_schedules.py",
        warmup_min_lr=725,
        warmup_max_lr=725,
        warmup_num_steps=725,
        warmup_type=725,
        last_batch_iteration=725,
    )

    warmup_min_lr: Annotated[Rates, FILLED] = 0.0
    """Where the learning rate starts."""
    warmup_max_lr: Annotated[Rates | None, FILLED] = None
    """Where it ends; it wins over optimizer.params.lr, which is used when this is unset."""
    warmup_num_steps: Annotated[PositiveInt, STEPS, FILLED] = 1000
    """How many optimizer steps the rise takes."""
    warmup_type: WarmupType = "log"
    """The shape of the rise; "log" is steep at first."""


class WarmupDecayLR(WarmupLR):
    """Rise to the full learning rate, then fall to 0 in a straight line."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/lr_schedules.py",
        total_num_steps=814,
        warmup_min_lr=814,
        warmup_max_lr=814,
        warmup_num_steps=814,
        warmup_type=814,
        last_batch_iteration=814,
    )

    total_num_steps: Annotated[PositiveInt | None, STEPS, FILLED, Required()] = None
    """How many optimizer steps the whole training takes; the learning rate is 0 at its end."""
    warmup_max_lr: Annotated[Rates, FILLED] = 1e-3
    """Where the rise ends; it wins over optimizer.params.lr, and its default is not that lr."""


class WarmupCosineLR(_DeepSpeedSchedule):
    """Rise to the optimizer's learning rate, then fall along a cosine."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/lr_schedules.py",
        total_num_steps=865,
        warmup_min_ratio=865,
        warmup_num_steps=865,
        cos_min_ratio=865,
        warmup_type=865,
        last_batch_iteration=865,
    )

    total_num_steps: Annotated[PositiveInt | None, STEPS, FILLED, Required()] = None
    """How many optimizer steps the whole training takes."""
    warmup_min_ratio: float = 0.0
    """Where the rise starts, as a share of the optimizer's lr."""
    warmup_num_steps: Annotated[PositiveInt, STEPS, FILLED] = 1000
    """How many optimizer steps the rise takes."""
    cos_min_ratio: float = 1e-4
    """Where the fall ends, as a share of the optimizer's lr."""
    warmup_type: WarmupType = "log"
    """The shape of the rise; "log" is steep at first."""


SCHEDULERS: Mapping[str, type[SchedulerParams]] = {
    "LRRangeTest": LrRangeTest,
    "OneCycle": OneCycle,
    "WarmupLR": WarmupLR,
    "WarmupDecayLR": WarmupDecayLR,
    "WarmupCosineLR": WarmupCosineLR,
}
"""The block of `scheduler.params` by `scheduler.type`."""


def scheduler_params(type_name: Any) -> type[SchedulerParams]:
    """The block of `scheduler.params` for a `scheduler.type` (exact, as DeepSpeed compares it)."""
    return SCHEDULERS.get(type_name, SchedulerParams) if isinstance(type_name, str) else SchedulerParams
