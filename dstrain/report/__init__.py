"""Floor 8: where a run's records go."""

from dstrain.report.console import Console
from dstrain.report.jsonl import MetricsFile

__all__ = ["Console", "MetricsFile"]
