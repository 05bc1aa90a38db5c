"""Floor 8: parameter groups and learning-rate schedules."""

from dstrain.optim.groups import parameter_groups
from dstrain.optim.schedule import ClosedSchedule, factor

__all__ = ["ClosedSchedule", "factor", "parameter_groups"]
