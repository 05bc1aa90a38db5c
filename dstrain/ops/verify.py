"""Running a built op against what torch computes: an op that loads may still be wrong for this cpu."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dstrain.core.errors import DstrainError
from dstrain.ops.diagnose import signal_name
from dstrain.ops.load import activate

_STEPS = 20
# Sizes around the vector widths (8 and 16 floats) and one over the tile of the CPU kernels' remainder loops.
_SHAPES = ((1,), (7,), (16,), (33, 5), (1025,))
_RELATIVE, _ABSOLUTE = 2e-5, 2e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """One op's result. `detail` says what was compared, or what went wrong."""

    op: str
    ok: bool
    detail: str
    seconds: float = 0.0


def verify(names: Iterable[str], *, accelerator: str | None = None, timeout_s: float = 300.0) -> list[Verdict]:
    """Check built ops, each in a process of its own: one compiled for another cpu dies of SIGILL, and is reported."""
    return [_in_child(name, accelerator, timeout_s) for name in names]


def _in_child(name: str, accelerator: str | None, timeout_s: float) -> Verdict:
    here = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))}
    if accelerator is not None:
        environ["DS_ACCELERATOR"] = accelerator
    command = [sys.executable, "-P", "-m", "dstrain.ops.verify", name]
    started = time.monotonic()
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return Verdict(name, False, f"did not end in {timeout_s:g} s", timeout_s)
    seconds = round(time.monotonic() - started, 1)
    if done.returncode < 0:
        return Verdict(
            name, False, f"it died of {signal_name(-done.returncode)}: dstrain ops build --force {name}", seconds
        )
    try:
        answer = json.loads(done.stdout.strip().splitlines()[-1])
        return Verdict(name, bool(answer["ok"]), str(answer["detail"]), seconds)
    except (IndexError, ValueError, KeyError, TypeError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return Verdict(name, False, f"exit {done.returncode}: {last[:300]}", seconds)


def check(name: str) -> Verdict:
    """Check one op in this process.

    Raises:
        OpError: unknown op.
    """
    with activate([name], say=lambda _: None) as activation:
        if name in activation.missing:
            return Verdict(name, False, activation.missing[name])
        checks = _checks()
        if name not in checks:
            return Verdict(name, True, "it loads; there is no torch reference to compare with")
        try:
            return Verdict(name, True, checks[name]())
        except DstrainError as error:
            return Verdict(name, False, str(error))
        except AssertionError as error:  # what torch.testing.assert_close raises
            return Verdict(name, False, " ".join(str(error).split()))


def _checks() -> dict[str, Callable[[], str]]:
    return {
        "fused_adam": _fused_adam,
        "cpu_adam": _cpu_adam,
        "cpu_adagrad": _cpu_adagrad,
        "cpu_lion": _cpu_lion,
        "fused_lion": _fused_lion,
        "deepspeed_shm_comm": _shm_comm,
        "async_io": _async_io,
    }


def _compare(
    ours: Callable[[list[Any]], Any], theirs: Callable[[list[Any]], Any], what: str, device: str = "cpu"
) -> str:
    """Step two optimizers with the same gradients from the same weights; the weights must stay close."""
    import torch

    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(shape, generator=generator) for shape in _SHAPES]
    left = [torch.nn.Parameter(tensor.to(device, copy=True)) for tensor in start]
    right = [torch.nn.Parameter(tensor.to(device, copy=True)) for tensor in start]
    optimizers = ours(left), theirs(right)
    for _ in range(_STEPS):
        for one, other in zip(left, right, strict=True):
            gradient = torch.randn(one.shape, generator=generator).to(device)
            one.grad, other.grad = gradient.clone(), gradient.clone()
        for optimizer in optimizers:
            optimizer.step()
    worst = 0.0
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one.data, other.data, rtol=_RELATIVE, atol=_ABSOLUTE)
        worst = max(worst, float((one.data - other.data).abs().max()))
    return f"{_STEPS} steps of {what}: largest difference {worst:.1e}"


def _device() -> str:
    from deepspeed.accelerator import get_accelerator

    name = str(get_accelerator().device_name())
    return name if name == "cpu" else f"{name}:0"


_ADAM: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}


def _fused_adam() -> str:
    import torch
    from deepspeed.ops.adam import FusedAdam

    adamw = _compare(
        lambda p: FusedAdam(p, adam_w_mode=True, **_ADAM), lambda p: torch.optim.AdamW(p, **_ADAM), "AdamW", _device()
    )
    adam = _compare(
        lambda p: FusedAdam(p, adam_w_mode=False, **_ADAM), lambda p: torch.optim.Adam(p, **_ADAM), "Adam", _device()
    )
    return f"{adamw}; {adam}"


def _cpu_adam() -> str:
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    adamw = _compare(
        lambda p: DeepSpeedCPUAdam(p, adamw_mode=True, **_ADAM), lambda p: torch.optim.AdamW(p, **_ADAM), "AdamW"
    )
    adam = _compare(
        lambda p: DeepSpeedCPUAdam(p, adamw_mode=False, **_ADAM), lambda p: torch.optim.Adam(p, **_ADAM), "Adam"
    )
    return f"{adamw}; {adam}"


def _cpu_adagrad() -> str:
    import torch
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad

    options: dict[str, Any] = {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1}
    return _compare(lambda p: DeepSpeedCPUAdagrad(p, **options), lambda p: torch.optim.Adagrad(p, **options), "Adagrad")


def _lion_class() -> Any:
    """Lion as published (sign of an interpolation, decoupled weight decay): torch has none to compare with."""
    import torch

    class Lion(torch.optim.Optimizer):
        def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float) -> None:
            super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
            for group in self.param_groups:
                first, second = group["betas"]
                for weight in group["params"]:
                    momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    direction = momentum.mul(first).add(weight.grad, alpha=1 - first).sign()
                    weight.add_(direction, alpha=-group["lr"])
                    momentum.mul_(second).add_(weight.grad, alpha=1 - second)

    return Lion


def _cpu_lion() -> str:
    from deepspeed.ops.lion import DeepSpeedCPULion

    options: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}
    reference = _lion_class()
    return _compare(lambda p: DeepSpeedCPULion(p, **options), lambda p: reference(p, **options), "Lion")


def _fused_lion() -> str:
    from deepspeed.ops.lion import FusedLion

    options: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1}
    reference = _lion_class()
    return _compare(lambda p: FusedLion(p, **options), lambda p: reference(p, **options), "Lion", _device())


def _shm_comm() -> str:
    import torch
    from deepspeed.ops.op_builder import ShareMemCommBuilder

    module = ShareMemCommBuilder().load()
    if not hasattr(torch.ops.deepspeed, "inference_all_reduce"):
        raise DstrainError("the library loads, but registers no inference_all_reduce")
    return f"it loads and registers its operators; vector kernel level {module.vector_kernel_level()}"


def _async_io() -> str:
    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    handle = AsyncIOBuilder().load().aio_handle(1 << 20, 8, False, True, 2)
    written = torch.arange(1 << 20, dtype=torch.int32)
    read = torch.zeros_like(written)
    with tempfile.TemporaryDirectory(prefix="dstrain-aio-", dir=Path.cwd()) as folder:
        file = str(Path(folder, "tensor"))
        handle.sync_pwrite(written, file, 0)
        handle.sync_pread(read, file, 0)
    torch.testing.assert_close(read, written, rtol=0, atol=0)
    return "4 MiB written, read and compared"


if __name__ == "__main__":
    print(json.dumps(asdict(check(sys.argv[1]))))
