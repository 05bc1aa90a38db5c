"""What the Trainer's methods return, under the names that users know."""

from __future__ import annotations

from typing import Any, NamedTuple


class TrainOutput(NamedTuple):
    """Optimizer steps done, mean training loss of the steps of this call, and metrics."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class EvalPrediction(NamedTuple):
    """What `compute_metrics` is given: arrays of all rows, in order."""

    predictions: Any
    label_ids: Any


class PredictionOutput(NamedTuple):
    """Arrays of all rows, in order, and metrics."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float]
