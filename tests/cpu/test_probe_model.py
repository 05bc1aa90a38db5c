"""Model facts on real modules: tied and frozen parameters, ZeRO-3 partitions, and where the sizes are found."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from dstrain.probe import host_facts, model_facts
from dstrain.probe.model import hidden_size

pytestmark = pytest.mark.cpu


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=True)
        self.head.weight = self.embed.weight
        self.config = SimpleNamespace(hidden_size=4, vocab_size=10)


def test_shared_parameters_count_once_and_frozen_ones_do_not_train() -> None:
    model = Tied()
    model.head.bias.requires_grad_(False)
    facts = model_facts(model)
    assert (facts.class_name, facts.parameters, facts.trainable_parameters) == ("Tied", 50, 40)
    assert (facts.hidden_size, facts.vocab_size) == (4, 10)


def test_the_meta_device_will_do() -> None:
    with torch.device("meta"):
        model = nn.Linear(1000, 1000)
    assert model_facts(model).parameters == 1_001_000
    assert model_facts(model).hidden_size is None


def test_partitioned_parameters_count_whole() -> None:
    model = nn.Linear(3, 2, bias=False)
    model.weight.ds_numel = 6  # what zero.Init leaves: the shape is empty, the count is kept
    model.weight.data = torch.empty(0)
    assert model_facts(model).parameters == 6


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SimpleNamespace(hidden_size=64), 64),
        (SimpleNamespace(hidden_sizes=[32, 128, 64]), 128),
        (SimpleNamespace(text_config=SimpleNamespace(hidden_size=48), n_embd=3), 48),
        (SimpleNamespace(text_config={"hidden_sizes": (5, 6)}), 6),
        (SimpleNamespace(n_embd=768), 768),
        (SimpleNamespace(d_model=512), 512),
        ({"hidden_size": 16}, 16),
        (SimpleNamespace(hidden_size=None, hidden_sizes=[]), None),
        (SimpleNamespace(hidden_size="64"), None),
        (SimpleNamespace(hidden_size=True), None),
        (None, None),
    ],
)
def test_hidden_size_is_found(config: Any, expected: int | None) -> None:
    assert hidden_size(config) == expected


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_transformers_configurations(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = {
        "llama": lambda: transformers.LlamaConfig(hidden_size=32, vocab_size=99),
        "gpt2": lambda: transformers.GPT2Config(n_embd=32, vocab_size=99),
        "t5": lambda: transformers.T5Config(d_model=32, vocab_size=99),
    }[name]()
    model = nn.Module()
    model.config = config
    facts = model_facts(model)
    assert (facts.hidden_size, facts.vocab_size) == (32, 99)


def test_host_facts_of_the_cpu_agree_with_deepspeed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    facts = host_facts(use_cpu=True)
    theirs = CPU_Accelerator()
    assert (facts.device, facts.device_count, facts.device_memory_bytes) == ("cpu", 0, None)
    assert facts.supports_bf16 is bool(theirs.is_bf16_supported())
    assert facts.supports_fp16 is bool(theirs.is_fp16_supported())
    assert facts.host_memory_bytes is not None
    assert 2**28 < facts.host_memory_bytes < 2**50


@pytest.mark.parametrize(("value", "use_cpu"), [("quantum", False), ("cuda", True)])
def test_devices_that_cannot_be_had_are_refused(monkeypatch: pytest.MonkeyPatch, value: str, use_cpu: bool) -> None:
    from dstrain.core.errors import UsageError

    monkeypatch.setenv("DS_ACCELERATOR", value)
    with pytest.raises(UsageError, match=value):
        host_facts(use_cpu=use_cpu)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_forced_accelerator_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dstrain.core.errors import UsageError

    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    with pytest.raises(UsageError, match="DS_ACCELERATOR=cuda, but torch"):
        host_facts()
