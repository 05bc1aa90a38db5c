"""Floor 3: the linter. One rule is one small function with an id, a severity and a docs page."""

from dstrain.rules.registry import RULES, Report, Rule, lint, rule

__all__ = ["RULES", "Report", "Rule", "lint", "rule"]
