"""Activation in a process with the real DeepSpeed: its builders give our libraries, and none of them compiles."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ops_helpers import compile_c, leave_file, needs_cc

from dstrain.core.errors import OpError
from dstrain.core.facts import WorldFacts
from dstrain.ops.build import Request, build
from dstrain.ops.load import activate, active, cause_of
from dstrain.probe.op_cache import prebuilt_ops
from dstrain.testing import run_ranks

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(prebuilt_ops("cpu")), reason="this DeepSpeed was installed with its ops inside"),
]


@pytest.fixture(autouse=True)
def clean_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """DeepSpeed's own build folder, watched; and no activation left behind."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    yield
    if (left := active()) is not None:
        left.deactivate()
    assert not (tmp_path / "extensions").exists(), "DeepSpeed began to compile"


def builder(name: str) -> Any:
    return getattr(importlib.import_module("deepspeed.ops.op_builder.cpu"), name)()


def have(root: Path, *names: str, compile: Any = compile_c) -> None:
    for name in names:
        build(name, root=root, accelerator="cpu", say=lambda _: None, compile=compile)


def silent(_: str) -> None:
    pass


@needs_cc
def test_a_built_op_is_what_deepspeeds_builder_gives(tmp_path: Path) -> None:
    have(tmp_path, "fused_adam")
    with activate(["fused_adam"], root=tmp_path, say=silent) as activation:
        assert builder("FusedAdamBuilder").load().answer() == 42
        assert list(activation.loaded) == ["fused_adam"]
        assert activation.missing == {}
        assert active() is activation
    assert active() is None
    from deepspeed.ops.op_builder.builder import OpBuilder

    assert "fused_adam" not in OpBuilder._loaded_ops


@needs_cc
def test_an_op_that_is_ready_but_was_not_named_is_taken_when_asked_for(tmp_path: Path) -> None:
    have(tmp_path, "cpu_lion")
    with activate([], root=tmp_path, say=silent) as activation:
        assert activation.loaded == {}
        assert builder("CPULionBuilder").load().answer() == 42
        assert list(activation.loaded) == ["cpu_lion"]


def test_nothing_is_compiled_and_the_command_is_named(tmp_path: Path) -> None:
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    lines: list[str] = []
    parameter = torch.nn.Parameter(torch.ones(2))
    with activate(["cpu_adam"], root=tmp_path, say=lines.append) as activation:
        assert activation.missing == {"cpu_adam": "not built"}
        with pytest.raises(OpError, match="'fused_adam', which is not built") as caught:
            FusedAdam([parameter])
        assert caught.value.fix == "dstrain ops build fused_adam"
        with pytest.raises(RuntimeError) as wrapped:  # DeepSpeed wraps it; the cause is still to be had
            DeepSpeedCPUAdam([parameter])
        refusal = cause_of(wrapped.value)
        assert refusal is not None
        assert refusal.fix == "dstrain ops build cpu_adam"
    assert lines == ["cpu_adam: not built. To have it: dstrain ops build cpu_adam"]
    assert cause_of(ValueError("other")) is None


def test_shared_memory_is_not_touched_unless_it_is_ready(tmp_path: Path) -> None:
    import deepspeed.ops

    comm = importlib.import_module("deepspeed.comm.torch")

    had_table = "__compatible_ops__" in vars(deepspeed.ops)
    lines: list[str] = []
    with activate(["deepspeed_shm_comm"], root=tmp_path, say=lines.append):
        assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False
        assert comm.build_shm_op() is None  # what init_distributed calls first
    assert lines == [
        "deepspeed_shm_comm: not built; gloo takes its place. To have it: dstrain ops build deepspeed_shm_comm"
    ]
    assert ("__compatible_ops__" in vars(deepspeed.ops)) is had_table


@needs_cc
def test_shared_memory_that_is_ready_is_used(tmp_path: Path) -> None:
    comm = importlib.import_module("deepspeed.comm.torch")
    have(tmp_path, "deepspeed_shm_comm")
    with activate(["deepspeed_shm_comm"], root=tmp_path, say=silent):
        assert comm.build_shm_op().answer() == 42
    with activate([], root=tmp_path, say=silent):
        assert comm.build_shm_op() is None  # ready, but the plan does not want it


def test_deactivation_gives_deepspeed_back(tmp_path: Path) -> None:
    from deepspeed.ops.op_builder.builder import OpBuilder

    original = OpBuilder.jit_load
    first = activate([], root=tmp_path, say=silent)
    guard = OpBuilder.jit_load
    assert guard is not original
    second = activate([], root=tmp_path, say=silent)  # replaces the first, does not stack on it
    assert active() is second
    first.deactivate()
    assert OpBuilder.jit_load is not original
    second.deactivate()
    second.deactivate()
    assert OpBuilder.jit_load is original
    assert active() is None


def test_a_library_that_does_not_load_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    have(tmp_path, "fused_adam", compile=leave_file)
    lines: list[str] = []
    with activate(["fused_adam"], root=tmp_path, say=lines.append) as activation:
        assert "is built but does not load" in activation.missing["fused_adam"]
        with pytest.raises(OpError, match="does not load") as caught:
            builder("FusedAdamBuilder").load()
        assert caught.value.fix == "dstrain ops build --force fused_adam"
    assert len(lines) == 1


def test_ops_that_the_accelerator_lacks_and_unknown_ones(tmp_path: Path) -> None:
    with activate(["quantizer"], root=tmp_path, say=silent) as activation:
        assert "no such op for the cpu accelerator" in activation.missing["quantizer"]
    with pytest.raises(OpError, match="did you mean 'cpu_adam'"):
        activate(["cpu_adm"], root=tmp_path, say=silent)
    assert active() is None


@needs_cc
def test_what_the_plan_needs_is_built_by_the_first_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[Request] = []

    def compile_and_count(request: Request) -> None:
        requests.append(request)
        compile_c(request)

    monkeypatch.setattr("dstrain.ops.build.compile_in_child", compile_and_count)
    lines: list[str] = []
    why = {"cpu_adam": "zero_optimization.offload_optimizer"}
    names = ["cpu_adam", "deepspeed_shm_comm"]
    with activate(names, build_missing=True, needed_by=why, root=tmp_path, say=lines.append) as activation:
        assert builder("CPUAdamBuilder").load().answer() == 42
        assert list(activation.missing) == ["deepspeed_shm_comm"]  # DeepSpeed goes on without it: not worth a compiler
    assert [request.op.name for request in requests] == ["cpu_adam"]
    assert lines[0].startswith("building cpu_adam, needed by zero_optimization.offload_optimizer; about 3 min")
    second_rank = WorldFacts(world_size=2, rank=1, local_rank=1, local_world_size=2)
    with activate(names, build_missing=True, world=second_rank, root=tmp_path, say=lines.append):
        assert builder("CPUAdamBuilder").load().answer() == 42
    assert len(requests) == 1


def start_engine(root: str) -> bool:
    """The real engine with an empty cache: init_distributed, initialize, one step; whether the weights moved."""
    import deepspeed
    import torch

    from dstrain import dist
    from dstrain.probe import world_facts

    world = world_facts()
    activate([], root=Path(root), world=world, say=silent)
    dist.ensure_initialized(world, "cpu", 60)
    deepspeed.init_distributed(dist_backend="gloo")
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}}
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": optimizer, "zero_optimization": {"stage": 1}}
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(4, 1), config=config)
    before = engine.module.weight.detach().clone()
    engine.backward(engine(torch.ones(1, 4)).sum())
    engine.step()
    moved = not torch.equal(before, engine.module.weight)
    engine.destroy()
    dist.destroy()
    return moved


def test_a_run_starts_without_a_compiler(tmp_path: Path) -> None:
    # In a process of its own: DeepSpeed keeps its communication backend for as long as the process lives.
    env = {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    assert run_ranks(start_engine, 1, str(tmp_path), env=env) == [True]
