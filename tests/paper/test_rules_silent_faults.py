"""Faults that DeepSpeed 0.19.8 lets through in silence: each must be loud here, and name the key."""

from __future__ import annotations

from typing import Any

import pytest

from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Severity
from dstrain.dsconfig.document import Document
from dstrain.rules import lint

pytestmark = pytest.mark.paper

_ADAM = {"type": "AdamW", "params": {"lr": 1e-4}}
BASE: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "optimizer": _ADAM}


def _zero(stage: Any, **more: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": stage, **more}}


def _schedule(name: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": name, "params": {"warmup_num_steps": 10, **params}}}


FAULTS: list[tuple[str, dict[str, Any]]] = [
    # A misspelt section or key at the top level is ignored.
    ("zero_optimisation", {"zero_optimisation": {"stage": 3}}),
    ("zero", {"zero": {"stage": 3}}),
    ("gradient_acumulation_steps", {"gradient_acumulation_steps": 4}),
    ("gradient_clip", {"gradient_clip": 0.5}),
    ("gradient_clipp1ng", {"gradient_clipp1ng": 1.0}),
    ("lr_scheduler", {"lr_scheduler": {"type": "WarmupLR", "params": {}}}),
    ("schedular", {"schedular": {"type": "WarmupLR", "params": {}}}),
    ("bf16_enabled", {"bf16_enabled": True}),
    ("BF16", {"BF16": {"enabled": True}}),
    ("torch_autocst", {"torch_autocst": {"enabled": True, "dtype": "bfloat16"}}),
    ("offload_optimizer", {"offload_optimizer": {"device": "cpu"}}),
    # So is one inside a section that is read as a plain dict.
    ("name", {"optimizer": {"name": "AdamW", "params": {"lr": 1e-4}}}),
    ("param", {"optimizer": {"type": "SGD", "param": {"lr": 5}}}),
    ("wieght_decay", {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "wieght_decay": 0.1}}}),
    ("weight_dcay", {"optimizer": {"type": "Muon", "params": {"lr": 1e-4, "weight_dcay": 0.1}}}),
    ("enable", {"flops_profiler": {"enable": True}}),
    ("async", {"checkpoint": {"async": True}}),
    ("load_universal_checkpoint", {"checkpoint": {"load_universal_checkpoint": True}}),
    ("decouple", {"checkpoint": {"writer": {"decouple": True}}}),
    ("enable", {"autotuning": {"enable": True}}),
    ("enable", {"data_efficiency": {"enable": True}}),
    ("enable", {"expert_parallel": {"enable": True}}),
    ("csv", {"csv": {"enabled": True}}),
    # Settings at a stage that does not use them.
    ("offload_param", _zero(2, offload_param={"device": "cpu"})),
    ("offload_optimizer", _zero(0, offload_optimizer={"device": "cpu"})),
    ("super_offload", _zero(2, offload_optimizer={"device": "cpu", "super_offload": True})),
    ("nvme_path", _zero(3, offload_optimizer={"device": "nvme"})),
    ("nvme_path", _zero(3, offload_param={"device": "nvme"})),
    ("device", _zero(2, offload_optimizer={"device": "nvme", "nvme_path": "/local_nvme"})),
    ("zero_hpz_partition_size", _zero(2, zero_hpz_partition_size=8)),
    ("zero_quantized_weights", _zero(1, zero_quantized_weights=True)),
    ("zero_quantized_gradients", _zero(2, zero_quantized_gradients=True)),
    ("legacy_stage1", _zero(1, legacy_stage1=True)),
    ("zenflow", _zero(0, zenflow={"topk_ratio": 0.1})),
    ("sub_group_size", _zero(3, sub_group_size=0)),
    # A left-over "auto" means the default, or the text itself.
    ("stage", _zero("auto")),
    ("bf16.enabled", {"bf16": {"enabled": "auto"}}),
    ("gradient_clipping", {"gradient_clipping": "auto"}),
    ("lr", {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}),
    # Text and other types where nothing is checked.
    ("gradient_clipping", {"gradient_clipping": "1.0"}),
    ("gradient_clipping", {"gradient_clipping": None}),
    ("gradient_clipping", {"gradient_clipping": -1}),
    ("zero_allow_untested_optimizer", {"zero_allow_untested_optimizer": "false"}),
    ("managed_gradient_accumulation", {"managed_gradient_accumulation": "no"}),
    ("prescale_gradients", {"prescale_gradients": "yes"}),
    ("load_universal", {"checkpoint": {"load_universal": "false"}}),
    ("log_level", {"log_level": "loud"}),
    ("block_size", {"aio": {"block_size": "1MB"}}),
    ("train_micro_batch_size_per_gpu", {"train_micro_batch_size_per_gpu": 1.5}),
    ("train_micro_batch_size_per_gpu", {"train_micro_batch_size_per_gpu": True}),
    ("steps_per_print", {"steps_per_print": 0}),
    ("steps_per_print", {"steps_per_print": "x"}),
    ("grad_accum_dtype", {"data_types": {"grad_accum_dtype": "float99"}}),
    ("stages", {"pipeline": {"stages": "four"}}),
    # Precision.
    ("bfloat16", {"bf16": {"enabled": False}, "bfloat16": {"enabled": True}}),
    ("torch_autocast", {"bf16": {"enabled": True}, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}),
    ("dtype", {"torch_autocast": {"enabled": True}}),
    ("dtype", {"torch_autocast": {"enabled": True, "dtype": "int8"}}),
    ("initial_scale_power", {"fp16": {"enabled": True, "initial_scale_power": -5}}),
    ("hysteresis", {"fp16": {"enabled": True, "hysteresis": 0}}),
    ("bf16_master_weights_and_grads", {"bf16": {"bf16_master_weights_and_grads": True}, **_zero(1)}),
    # Optimizer and schedule: found at initialize, or never.
    ("type", {"optimizer": {"type": "Adamm", "params": {"lr": 1e-4}}}),
    ("type", {"optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-4}}}),
    ("adam_w_mode", {"optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "adam_w_mode": False}}}),
    ("lr", {"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.1}}}),
    ("warmup_max_lr", _schedule("WarmupDecayLR", total_num_steps=100)),
    ("lr", _schedule("WarmupLR", warmup_max_lr=5e-4)),
    ("warmup_type", _schedule("WarmupLR", warmup_type="cosine")),
    ("warmup_num_steps", {"scheduler": {"type": "WarmupCosineLR", "params": {"total_num_steps": 500}}}),
    ("params", {"scheduler": {"type": "WarmupLR"}}),
    ("type", {**_schedule("CosineAnnealingLR"), **_zero(1)}),
    # Parallelism and checkpoints.
    ("tp_size", {"tensor_parallel": {"tp": {"tp_size": 2}}}),
    ("sequence_parallel_size", {"sequence_parallel_size": 3}),
    ("writer", {"checkpoint": {"writer": {"type": "python"}}}),
    ("elastic_checkpoint", _zero(3, elastic_checkpoint=True)),
    ("managed_gradient_accumulation", {"managed_gradient_accumulation": False, "gradient_accumulation_steps": 4}),
]


def test_there_are_at_least_26() -> None:
    assert len(FAULTS) >= 26


@pytest.mark.parametrize(("key", "fault"), FAULTS, ids=[f"{n}-{key}" for n, (key, _) in enumerate(FAULTS)])
def test_the_fault_is_loud_and_names_its_key(key: str, fault: dict[str, Any]) -> None:
    document = Document("ds_config.json", {**BASE, **fault})
    report = lint(doc=document, mode=Mode.DEEPSPEED, world=WorldFacts(world_size=8, local_world_size=8))
    loud = [finding for finding in report.findings if finding.severity is not Severity.ADVICE]
    named = [finding for finding in loud if key in finding.key or f"{key} " in finding.message]
    assert named, [(finding.id, finding.key, finding.severity.value) for finding in report.findings]


def test_without_a_fault_nothing_is_loud() -> None:
    document = Document("ds_config.json", {**BASE, **_zero(2)})
    report = lint(doc=document, mode=Mode.DEEPSPEED, world=WorldFacts(world_size=8, local_world_size=8))
    assert [finding for finding in report.findings if finding.severity is not Severity.ADVICE] == []


def test_faults_behind_a_misspelt_section_come_in_the_same_run() -> None:
    """The name is one fault, and what stands below it another: nobody should have to run the check twice."""
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimisation": {"stage": 3, "overlap_com": True, "offload_param": {"device": "nvme"}},
    }
    findings = lint(doc=Document("x.json", config), mode=Mode.DSTRAIN, world=WorldFacts(world_size=1)).findings
    keys = {finding.key for finding in findings if finding.severity is Severity.ERROR}
    assert {"zero_optimisation", "zero_optimization.overlap_com"} <= keys
    assert any(key.startswith("zero_optimization.offload_param") for key in keys)
