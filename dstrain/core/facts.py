"""Frozen facts about the world that a plan is resolved against. Gathered by `probe/`, injected everywhere else.

A fact that is not known is None: a rule that needs it is then not run, and listed as such.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

DeviceKind = Literal["cpu", "cuda", "mps", "xpu", "npu"]


class Mode(StrEnum):
    """Who will read a DeepSpeed configuration: `auto` and some defaults mean different things to each."""

    DSTRAIN = "dstrain"
    DEEPSPEED = "deepspeed"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True, slots=True)
class WorldFacts:
    """The ranks of this run, as the launcher says. `launcher` is None for a plain `python train.py`."""

    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    local_world_size: int = 1
    launcher: Literal["deepspeed", "torchrun", "other"] | None = None


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The machine: devices and what they can do, memory, and the ops that are ready."""

    device: DeviceKind = "cpu"
    device_count: int = 0
    device_names: tuple[str, ...] = ()
    device_memory_bytes: int | None = None
    host_memory_bytes: int | None = None
    supports_bf16: bool | None = None
    supports_fp16: bool | None = None
    ready_ops: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The model's shape: counts of elements, and the hidden size that `auto` bucket sizes follow."""

    class_name: str
    parameters: int
    trainable_parameters: int
    hidden_size: int | None = None
    vocab_size: int | None = None


@dataclass(frozen=True, slots=True)
class DataFacts:
    """How many rows there are; None for a stream whose length is not known."""

    train_rows: int | None = None
    eval_rows: int | None = None
    train_is_stream: bool = False
