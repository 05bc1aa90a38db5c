"""Floor 3: the linter. One rule is one small function with an id, a severity and a docs page."""

from dstrain.rules import (
    batch,
    dtypes,
    host,
    hyper,
    keys,
    monitors,
    offload,
    optimizer,
    parallel,
    precision,
    schedule,
    scheduler,
    sections,
    zenflow,
    zero,
)
from dstrain.rules.registry import RULES, Report, Rule, lint, rule

__all__ = [
    "RULES",
    "Report",
    "Rule",
    "batch",
    "dtypes",
    "host",
    "hyper",
    "keys",
    "lint",
    "monitors",
    "offload",
    "optimizer",
    "parallel",
    "precision",
    "rule",
    "schedule",
    "scheduler",
    "sections",
    "zenflow",
    "zero",
]
