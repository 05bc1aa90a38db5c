"""The facts of a run, gathered for `resolve()`."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

from dstrain.core.errors import DataError
from dstrain.core.facts import DataFacts


def rows_of(dataset: Any) -> int | None:
    """Rows of a dataset; None for a stream."""
    if isinstance(dataset, Mapping):
        raise DataError(
            f"a dataset is a mapping with the keys {', '.join(map(str, dataset)) or '(none)'}, expected rows by index",
            fix="one dataset at a time: trainer.evaluate(datasets[name], metric_key_prefix=name)",
        )
    if dataset is None or not isinstance(dataset, Sized) or not hasattr(dataset, "__getitem__"):
        return None
    try:
        return len(dataset)
    except TypeError:  # a wrapper class that has __len__ but wraps a stream
        return None


def data_facts(train: Any, evaluation: Any) -> DataFacts:
    """Row counts of both datasets."""
    return DataFacts(
        train_rows=rows_of(train),
        eval_rows=rows_of(evaluation) if evaluation is not None else None,
        train_is_stream=train is not None and rows_of(train) is None,
    )
