"""Configurations with one fault each, and configurations without any, for the per-key check."""

from __future__ import annotations

from typing import Any

from dstrain.core.finding import Severity
from dstrain.dsconfig.check import Kind

E, W, A = Severity.ERROR, Severity.WARNING, Severity.ADVICE
Found = tuple[str, Kind, Severity]


def zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": keys}


def params(name: str, **keys: Any) -> dict[str, Any]:
    return {"optimizer": {"type": name, "params": keys}}


FAULTS: list[tuple[dict[str, Any], Found]] = [
    ({"zero_optimisation": {"stage": 3}}, ("zero_optimisation", Kind.UNKNOWN, E)),
    ({"gradient_acumulation_steps": 4}, ("gradient_acumulation_steps", Kind.UNKNOWN, E)),
    ({"gradient_clip": 1.0}, ("gradient_clip", Kind.UNKNOWN, E)),
    ({"BF16": {"enabled": True}}, ("BF16", Kind.UNKNOWN, E)),
    ({"bf16_enabled": True}, ("bf16_enabled", Kind.MISPLACED, E)),
    ({"zero": {"stage": 2}}, ("zero", Kind.UNKNOWN, E)),
    ({"lr_scheduler": {"type": "WarmupLR"}}, ("lr_scheduler", Kind.UNKNOWN, E)),
    ({"schedular": {}}, ("schedular", Kind.UNKNOWN, E)),
    ({"trainium": {}}, ("trainium", Kind.UNKNOWN, W)),
    ({"eval_batch_size": 8}, ("eval_batch_size", Kind.UNKNOWN, W)),
    ({"checkpoint_dir": "out"}, ("checkpoint_dir", Kind.UNKNOWN, W)),
    ({"seed": 1}, ("seed", Kind.MISPLACED, W)),
    ({"nvme_path": "/disk"}, ("nvme_path", Kind.MISPLACED, E)),
    ({"gradientClipping": 1.0}, ("gradientClipping", Kind.UNKNOWN, E)),
    ({"gradient_accumulation": 2}, ("gradient_accumulation", Kind.UNKNOWN, E)),
    ({"offload_optimiser": {"device": "cpu"}}, ("offload_optimiser", Kind.MISPLACED, E)),
    (zero(stage=3, foo=1), ("zero_optimization.foo", Kind.UNKNOWN, E)),
    (zero(stage=3, foo="auto"), ("zero_optimization.foo", Kind.UNKNOWN, E)),
    (zero(gradient_clipping=1.0), ("zero_optimization.gradient_clipping", Kind.MISPLACED, E)),
    (zero(activation_checkpointing={}), ("zero_optimization.activation_checkpointing", Kind.MISPLACED, E)),
    ({"offload_optimizer": {"device": "cpu"}}, ("offload_optimizer", Kind.MISPLACED, E)),
    ({"optimizer": {"type": "Adam", "eps": 1e-8}}, ("optimizer.eps", Kind.MISPLACED, E)),
    ({"optimizer": {"type": "Adam", "param": {"lr": 1}}}, ("optimizer.param", Kind.UNKNOWN, E)),
    ({"optimizer": {"name": "Adam"}}, ("optimizer.name", Kind.UNKNOWN, E)),
    (params("AdamW", wieght_decay=0.1), ("optimizer.params.wieght_decay", Kind.UNKNOWN, E)),
    (params("AdamW", max_grad_norm=1.0), ("optimizer.params.max_grad_norm", Kind.MISPLACED, E)),
    (params("Lion", use_triton=True), ("optimizer.params.use_triton", Kind.UNKNOWN, E)),
    (params("NAdam", wieght_decay=0.1), ("optimizer.params.wieght_decay", Kind.UNKNOWN, E)),
    ({"flops_profiler": {"enable": True}}, ("flops_profiler.enable", Kind.UNKNOWN, E)),
    ({"checkpoint": {"load_universal_checkpoint": True}}, ("checkpoint.load_universal_checkpoint", Kind.UNKNOWN, E)),
    ({"aio": {"thread_count": 2}}, ("aio.thread_count", Kind.UNKNOWN, E)),
    ({"pipeline": {"stage": 4}}, ("pipeline.stage", Kind.UNKNOWN, E)),
    ({"gradient_accumulation_dtype": "fp32"}, ("gradient_accumulation_dtype", Kind.MISPLACED, E)),
    ({"_comment": "x"}, ("_comment", Kind.COMMENT, W)),
    ({"//": "x"}, ("//", Kind.COMMENT, W)),
    (zero(_comment="x"), ("zero_optimization._comment", Kind.COMMENT, E)),
    ({"amp": {"enabled": False}}, ("amp", Kind.REMOVED, E)),
    ({"sparse_gradients": False}, ("sparse_gradients", Kind.REMOVED, E)),
    (zero(mics_shard_size=2), ("zero_optimization.mics_shard_size", Kind.REMOVED, E)),
    (zero(cpu_offload=True), ("zero_optimization.cpu_offload", Kind.DEPRECATED, W)),
    (
        zero(stage=1, cpu_offload=False, offload_optimizer={"device": "cpu"}),
        ("zero_optimization.cpu_offload", Kind.CLASH, E),
    ),
    ({"bfloat16": {"enabled": True}}, ("bfloat16", Kind.DEPRECATED, W)),
    ({"bfloat16": {"enabled": True}, "bf16": {"enabled": False}}, ("bfloat16", Kind.CLASH, E)),
    (
        zero(stage=3, prefetch_bucket_size=1, stage3_prefetch_bucket_size=1),
        ("zero_optimization.prefetch_bucket_size", Kind.CLASH, E),
    ),
    ({"zero_optimization": True}, ("zero_optimization", Kind.DEPRECATED, W)),
    ({"zero_optimization": 2}, ("zero_optimization", Kind.SECTION, E)),
    ({"bf16": True}, ("bf16", Kind.SECTION, E)),
    (zero(stage=2, offload_optimizer="cpu"), ("zero_optimization.offload_optimizer", Kind.SECTION, E)),
    ({"optimizer": "AdamW"}, ("optimizer", Kind.SECTION, E)),
    ({"zero_optimization": None}, ("zero_optimization", Kind.NULL, E)),
    ({"fp16": None}, ("fp16", Kind.NULL, E)),
    ({"checkpoint": None}, ("checkpoint", Kind.NULL, E)),
    ({"datastates_ckpt": None}, ("datastates_ckpt", Kind.NULL, E)),
    (zero(reduce_bucket_size=None), ("zero_optimization.reduce_bucket_size", Kind.NULL, E)),
    ({"managed_gradient_accumulation": None}, ("managed_gradient_accumulation", Kind.NULL, W)),
    ({"gradient_clipping": None}, ("gradient_clipping", Kind.NULL, E)),
    (zero(stage=4), ("zero_optimization.stage", Kind.RANGE, E)),
    (zero(stage=True), ("zero_optimization.stage", Kind.RANGE, E)),
    (zero(reduce_bucket_size=0.5), ("zero_optimization.reduce_bucket_size", Kind.TYPE, E)),
    (zero(reduce_bucket_size=True), ("zero_optimization.reduce_bucket_size", Kind.TYPE, E)),
    (zero(reduce_bucket_size="5e8"), ("zero_optimization.reduce_bucket_size", Kind.TEXT, E)),
    (zero(stage=2, offload_optimizer={"device": "CPU"}), ("zero_optimization.offload_optimizer.device", Kind.TEXT, E)),
    (zero(stage=2, offload_optimizer={"device": "gpu"}), ("zero_optimization.offload_optimizer.device", Kind.RANGE, E)),
    ({"train_micro_batch_size_per_gpu": "4"}, ("train_micro_batch_size_per_gpu", Kind.TEXT, E)),
    ({"train_micro_batch_size_per_gpu": 1.5}, ("train_micro_batch_size_per_gpu", Kind.TYPE, E)),
    ({"train_micro_batch_size_per_gpu": 4.0}, ("train_micro_batch_size_per_gpu", Kind.TEXT, E)),
    ({"train_batch_size": True}, ("train_batch_size", Kind.TYPE, E)),
    ({"train_batch_size": "auto"}, ("train_batch_size", Kind.AUTO, E)),
    ({"steps_per_print": "x"}, ("steps_per_print", Kind.TYPE, E)),
    ({"gradient_clipping": -1}, ("gradient_clipping", Kind.RANGE, W)),
    ({"gradient_clipping": "1.0"}, ("gradient_clipping", Kind.TEXT, E)),
    ({"wall_clock_breakdown": "false"}, ("wall_clock_breakdown", Kind.TEXT, E)),
    ({"wall_clock_breakdown": "true"}, ("wall_clock_breakdown", Kind.TEXT, E)),
    ({"zero_allow_untested_optimizer": "false"}, ("zero_allow_untested_optimizer", Kind.TEXT, E)),
    ({"prescale_gradients": "yes"}, ("prescale_gradients", Kind.TEXT, W)),
    ({"communication_data_type": "bfloat16"}, ("communication_data_type", Kind.RANGE, E)),
    ({"fp16": {"loss_scale": "dynamic"}}, ("fp16.loss_scale", Kind.TYPE, E)),
    ({"fp16": {"enabled": False, "loss_scale_window": 0}}, ("fp16.loss_scale_window", Kind.RANGE, W)),
    ({"fp16": {"enabled": True, "loss_scale_window": 0}}, ("fp16.loss_scale_window", Kind.RANGE, E)),
    ({"bf16": {"enabled": "auto"}}, ("bf16.enabled", Kind.AUTO, E)),
    (zero(stage="auto"), ("zero_optimization.stage", Kind.AUTO, E)),
    (zero(stage=3, overlap_comm="auto"), ("zero_optimization.overlap_comm", Kind.AUTO, W)),
    (zero(stage=2, sub_group_size=1e9), ("zero_optimization.sub_group_size", Kind.STAGE, A)),
    (zero(stage=3, round_robin_gradients=True), ("zero_optimization.round_robin_gradients", Kind.STAGE, A)),
    (zero(stage=2, offload_param={"device": "cpu"}), ("zero_optimization.offload_param", Kind.STAGE, W)),
    (zero(stage=2, zero_hpz_partition_size=8), ("zero_optimization.zero_hpz_partition_size", Kind.STAGE, W)),
    (
        zero(stage=3, offload_param={"device": "cpu", "buffer_count": 5}),
        ("zero_optimization.offload_param.buffer_count", Kind.CONDITION, A),
    ),
    ({"disable_allgather": True}, ("disable_allgather", Kind.DEAD, A)),
    (
        {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10.0}}},
        ("scheduler.params.warmup_num_steps", Kind.TEXT, E),
    ),
    ({"scheduler": {"type": "WarmupLR", "params": None}}, ("scheduler.params", Kind.NULL, E)),
    ({"expert_parallel": {"enable": True}}, ("expert_parallel.enable", Kind.UNKNOWN, E)),
    (
        {
            "data_efficiency": {
                "data_sampling": {"curriculum_learning": {"curriculum_metrics": {"m": {"schedule_typ": "custom"}}}}
            }
        },
        ("data_efficiency.data_sampling.curriculum_learning.curriculum_metrics.m.schedule_typ", Kind.UNKNOWN, E),
    ),
]


CLEAN: list[dict[str, Any]] = [
    {},
    zero(stage="3", reduce_bucket_size=5e8, overlap_comm="true"),
    zero(stage=2.0, reduce_bucket_size="500000000", offload_optimizer=None, offload_param=None),
    zero(stage=1, overlap_comm=1, offload_optimizer={}),
    zero(stage=0, offload_optimizer={"device": "none"}, offload_param={"device": "none"}),
    zero(stage=3, prefetch_bucket_size=5e7, max_live_parameters=1e9, leaf_module=None),
    {"bf16": None, "aio": None, "train_batch_size": None, "steps_per_print": None},
    {"activation_checkpointing": {"number_checkpoints": None, "partition_activations": True}},
    {"checkpoint": {"tag_validation": "Warn", "writer": {"type": "python", "data_parallel": "replica"}}},
    {"gradient_allreduce_op": "SUM", "communication_data_type": "FP16"},
    {"optimizer": {"type": "RAdam", "params": {"momentum_decay": 0.1, "anything": 1}}},
    {"scheduler": {"type": "StepLR", "params": {"step_size": 3}}},
    {"autotuning": {"arg_mappings": {"train_micro_batch_size_per_gpu ": "--batch"}}},
    {"autotuning": {"enabled": True}, "train_micro_batch_size_per_gpu": "auto", **zero(reduce_bucket_size=[5e7, 5e8])},
    {"datastates_ckpt": {"host_cache_size": 4}},
    {"data_types": {"keep_in_fp32_modules": "auto"}, "pipeline": {"stages": "auto"}},
    {"timers": {"throughput": {"enabled": True}}},
]
