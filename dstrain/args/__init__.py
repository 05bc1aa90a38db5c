"""Floor 2: what a user may say in Python, in flags or in an arguments file."""

from dstrain.args.parse import parse_args
from dstrain.args.training import TrainingArguments

__all__ = ["TrainingArguments", "parse_args"]
