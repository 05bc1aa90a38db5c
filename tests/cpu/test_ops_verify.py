"""The comparison behind `dstrain ops verify`: it passes what is equal and refuses what is nearly so."""

from __future__ import annotations

import signal
import subprocess
from typing import Any

import pytest
import torch

from dstrain.ops import verify as verify_module
from dstrain.ops.verify import verify

pytestmark = pytest.mark.cpu

OPTIONS: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


def adamw(parameters: list[Any], **changes: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, **{**OPTIONS, **changes})


def test_the_same_update_passes() -> None:
    told = verify_module._compare(adamw, lambda p: adamw(p, foreach=False), "AdamW")
    assert told.startswith("20 steps of AdamW: largest difference ")


@pytest.mark.parametrize(
    "other",
    [
        lambda p: torch.optim.Adam(p, **OPTIONS),  # decay in the gradient instead of beside it
        lambda p: adamw(p, eps=1e-6),
        lambda p: adamw(p, betas=(0.9, 0.951)),
        lambda p: adamw(p, lr=1.001e-2),
    ],
)
def test_another_update_does_not(other: Any) -> None:
    with pytest.raises(AssertionError):
        verify_module._compare(adamw, other, "AdamW")


def test_the_lion_that_ops_are_held_against_is_the_published_one() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = verify_module._lion_class()([weight], lr=0.1, betas=(0.9, 0.99), weight_decay=0.5)
    weight.grad = torch.tensor([3.0, -0.1])
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.tensor([0.95 - 0.1, -1.9 + 0.1]))
    weight.grad = torch.tensor([-0.1, 5.0])
    optimizer.step()
    # momentum 0.03 and -0.001: the first keeps its sign (0.027 - 0.01 > 0), the second turns (-0.0009 + 0.5 > 0)
    torch.testing.assert_close(weight.data, torch.tensor([0.85 * 0.95 - 0.1, -1.8 * 0.95 - 0.1]))


def test_a_process_that_dies_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, -signal.SIGILL, "", "")

    monkeypatch.setattr(subprocess, "run", die)
    (verdict,) = verify(["cpu_adam"])
    assert not verdict.ok
    assert verdict.detail == "it died of SIGILL: dstrain ops build --force cpu_adam"
