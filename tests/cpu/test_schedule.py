"""Schedules equal transformers' formulas at every step, the first and those past the last included."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dstrain.core.errors import UsageError
from dstrain.optim import ClosedSchedule, factor

pytestmark = pytest.mark.cpu
PEAK, STEPS = 1e-3, 20


@pytest.mark.parametrize("warmup", [0, 1, 3, 25])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {}),
        ("cosine", {}),
        ("cosine", {"num_cycles": 2.0}),
        ("cosine_with_min_lr", {"min_lr": 1e-4}),
        ("cosine_with_min_lr", {"min_lr_rate": 0.2}),
        ("constant", {}),
        ("constant_with_warmup", {}),
        ("polynomial", {"power": 2.0, "lr_end": 1e-5}),
        ("inverse_sqrt", {}),
        ("inverse_sqrt", {"timescale": 7}),
    ],
)
def test_equal_to_transformers(name: str, options: dict[str, Any], warmup: int) -> None:
    from transformers.optimization import get_scheduler

    parameter = torch.nn.Parameter(torch.zeros(1))
    theirs_on = torch.optim.SGD([parameter], lr=PEAK)
    if name == "constant" and warmup:
        pytest.skip("transformers' constant has no warm-up; ours has the one it is given")
    theirs = get_scheduler(name, theirs_on, warmup, STEPS, scheduler_specific_kwargs=options)
    ours_on = torch.optim.SGD([parameter], lr=PEAK)
    ours = ClosedSchedule(ours_on, factor(name, warmup, STEPS, options, PEAK))
    for step in range(STEPS + 5):
        assert ours_on.param_groups[0]["lr"] == pytest.approx(theirs_on.param_groups[0]["lr"], rel=1e-9, abs=1e-15), (
            step
        )
        theirs_on.step()
        theirs.step()
        ours.step()


def test_known_values() -> None:
    value = factor("linear", 3, 8, {}, PEAK)
    assert [round(value(step), 3) for step in range(9)] == [0.0, 0.333, 0.667, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0]


def test_an_option_that_it_does_not_take() -> None:
    with pytest.raises(UsageError, match=r"linear does not take power"):
        factor("linear", 0, 10, {"power": 2}, PEAK)
