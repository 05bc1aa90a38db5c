"""Callbacks that carry a state from one run to the next: in transformers' form, `state()` gives args and attributes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dstrain.core.errors import CheckpointError, UsageError


def collect(callbacks: Sequence[Any]) -> dict[str, Any]:
    """The state of each callback that has one, by class name; of several of one class, a list in their order.

    Raises:
        UsageError: a state that cannot be written as JSON.
    """
    found: dict[str, list[Any]] = {}
    for callback in callbacks:
        if callable(getattr(callback, "state", None)):
            name, state = type(callback).__name__, callback.state()
            try:
                found.setdefault(name, []).append(json.loads(json.dumps(state)))
            except (TypeError, ValueError) as error:
                raise UsageError(
                    f"the state() of callback {name} cannot be saved: {error}",
                    fix="return plain numbers, truth values, text, lists and mappings",
                ) from None
    return {name: states[0] if len(states) == 1 else states for name, states in found.items()}


def restore(callbacks: Sequence[Any], saved: dict[str, Any]) -> list[str]:
    """Give each callback the state that was saved for its class; the objects stay the same. Returns lines to print.

    Raises:
        CheckpointError: a saved state that its callback cannot take.
    """
    left = {name: list(state) if isinstance(state, list) else [state] for name, state in saved.items()}
    notes: list[str] = []
    for callback in callbacks:
        if not callable(getattr(callback, "state", None)):
            continue
        name = type(callback).__name__
        if left.get(name):
            _give(callback, left[name].pop(0))
        else:
            notes.append(f"callback {name} begins anew: the checkpoint holds no state of it")
    notes += [f"the checkpoint's state of callback {name} is not used: there is none" for name in left if left[name]]
    return notes


def _give(callback: Any, state: Any) -> None:
    try:
        made = type(callback)(**state.get("args", {}))
        callback.__dict__.update({**vars(made), **state.get("attributes", {})})
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the saved state of callback {type(callback).__name__} does not fit it: {error}",
            fix="leave out --restore_callback_states_from_checkpoint",
        ) from None
