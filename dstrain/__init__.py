"""dstrain: a DeepSpeed-first training toolkit. Importing it loads neither torch nor deepspeed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dstrain.core.errors import DstrainError
from dstrain.core.metal import introduce

if TYPE_CHECKING:
    from dstrain.args import TrainingArguments, parse_args
    from dstrain.loop.events import TrainerCallback
    from dstrain.loop.state import TrainerControl, TrainerState
    from dstrain.trainer import Trainer, set_seed
    from dstrain.trainer.outputs import EvalPrediction, PredictionOutput, TrainOutput

__version__ = "0.1.0"
__all__ = [
    "DstrainError",
    "EvalPrediction",
    "PredictionOutput",
    "TrainOutput",
    "Trainer",
    "TrainerCallback",
    "TrainerControl",
    "TrainerState",
    "TrainingArguments",
    "parse_args",
    "set_seed",
]

_HOMES = {
    "TrainingArguments": "dstrain.args",
    "parse_args": "dstrain.args",
    "Trainer": "dstrain.trainer",
    "set_seed": "dstrain.trainer",
    "TrainerCallback": "dstrain.loop.events",
    "TrainerControl": "dstrain.loop.state",
    "TrainerState": "dstrain.loop.state",
    "EvalPrediction": "dstrain.trainer.outputs",
    "PredictionOutput": "dstrain.trainer.outputs",
    "TrainOutput": "dstrain.trainer.outputs",
}


def _machine() -> Any:
    import importlib

    return importlib.import_module("dstrain._metal").Machine()


introduce(_machine)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dstrain' has no attribute {name!r}")
