"""The catalogue against the builders of the installed DeepSpeed: none is missing, none is made up."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from dstrain.dsconfig.document import Document
from dstrain.ops.catalogue import CATALOGUE, TRAINING, available
from dstrain.ops.needs import needed_ops

pytestmark = pytest.mark.cpu


def builders(package: str) -> dict[str, str]:
    """NAME -> class name of every concrete builder in a package of DeepSpeed's builders."""
    found = {}
    folder = importlib.import_module(package)
    for _, name, is_package in pkgutil.iter_modules(folder.__path__):
        if is_package or name in ("all_ops", "builder"):
            continue
        for member in vars(importlib.import_module(f"{package}.{name}")).values():
            if isinstance(member, type) and isinstance(getattr(member, "NAME", None), str):
                found[member.NAME] = member.__name__
    return found


def test_the_cpu_has_exactly_these_ops() -> None:
    theirs = builders("deepspeed.ops.op_builder.cpu")
    del theirs["deepspeed_not_implemented"]  # what DeepSpeed gives for an op that the CPU lacks
    assert {op.name: op.builder for op in available("cpu")} == theirs


def test_cuda_has_exactly_these_ops() -> None:
    theirs = builders("deepspeed.ops.op_builder")
    shared = builders("deepspeed.ops.op_builder.cpu")
    theirs |= {name: shared[name] for name in ("cpu_adam", "cpu_adagrad", "cpu_lion")}
    assert {op.name: op.builder for op in available("cuda")} == theirs


@pytest.mark.parametrize("name", ["CPUAdamBuilder", "CPUAdagradBuilder", "CPULionBuilder", "FusedAdamBuilder"])
def test_portable_flags_hold_nothing_of_this_cpu(name: str) -> None:
    from dstrain.ops.worker import make_portable

    builder = getattr(importlib.import_module("deepspeed.ops.op_builder.cpu"), name)()
    assert "-march=native" in builder.cxx_args()
    make_portable(builder, "x86-64-v3")
    flags = builder.cxx_args()
    assert "-march=x86-64-v3" in flags
    assert "-D__AVX256__" in flags
    assert not {"-march=native", "-D__AVX512__"} & set(flags)


def test_the_table_refers_to_itself_only() -> None:
    assert set(CATALOGUE) >= TRAINING
    assert {needed for op in CATALOGUE.values() for needed in op.requires} <= set(CATALOGUE)


ADAMW = {"type": "AdamW", "params": {"lr": 1e-3}}


@pytest.mark.parametrize(
    ("config", "accelerator", "expected"),
    [
        ({}, "cpu", []),
        ({"optimizer": ADAMW}, "cpu", ["fused_adam"]),
        ({"optimizer": {"type": "adam", "params": {"torch_adam": True}}}, "cpu", []),
        ({"optimizer": {"type": "SGD"}}, "cuda", []),
        ({"optimizer": {"type": "Lion"}}, "cuda", ["fused_lion"]),
        ({"optimizer": {"type": "Lion"}}, "cpu", []),  # the CPU has no fused_lion: a rule refuses this plan
        ({"optimizer": {"type": "Lamb"}}, "cuda", ["fused_lamb"]),
        (
            {"optimizer": ADAMW, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            "cuda",
            ["cpu_adam"],
        ),
        ({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}, "cpu", ["cpu_adam"]),
        ({"zero_optimization": {"stage": "2", "cpu_offload": True}}, "cpu", ["cpu_adam"]),
        ({"zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "cpu"}}}, "cpu", []),
        (
            {"optimizer": ADAMW, "zero_optimization": {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
            "cpu",
            ["fused_adam"],  # below stage 1 nothing is offloaded
        ),
        (
            {"optimizer": {"type": "Lion"}, "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
            "cpu",
            ["cpu_lion"],
        ),
        (
            {
                "optimizer": {"type": "Adagrad"},
                "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}},
            },
            "cpu",
            ["cpu_adagrad", "pin_memory", "async_io"],
        ),
        (
            {"optimizer": ADAMW, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme"}}},
            "cpu",
            ["cpu_adam"],  # below stage 3 nvme is read as cpu
        ),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "cuda",
            ["pin_memory", "async_io"],
        ),
        ({"zero_optimization": {"stage": 3, "zero_quantized_weights": True}}, "cuda", ["quantizer"]),
        ({"compile": {"deepcompile": True}}, "cuda", ["dc"]),
        ({"aio": {"use_gds": True}}, "cuda", ["pin_memory", "gds"]),
        ({"optimizer": {"type": "OneBitAdam"}, "zero_optimization": {"stage": "3"}}, "cuda", []),
    ],
)
def test_what_a_configuration_needs(config: dict[str, object], accelerator: str, expected: list[str]) -> None:
    assert list(needed_ops(Document("<dict>", config), accelerator)) == expected


def test_several_ranks_on_the_cpu_can_use_shared_memory() -> None:
    document = Document("<dict>", {"optimizer": ADAMW})
    assert needed_ops(document, "cpu", world_size=2) == {
        "fused_adam": "optimizer.type",
        "deepspeed_shm_comm": "several ranks on CPU",
    }
