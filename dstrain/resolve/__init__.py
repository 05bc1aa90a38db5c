"""Floor 4: arguments, DeepSpeed file and facts become one frozen RunPlan."""

from dstrain.resolve.plan import RunPlan
from dstrain.resolve.resolve import Resolution, resolve

__all__ = ["Resolution", "RunPlan", "resolve"]
