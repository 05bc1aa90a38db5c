"""Keys that DeepSpeed 0.19.8 no longer has, and names that people remember from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

REMOVED: Final[Mapping[str, str]] = {
    "nebula": "delete it; checkpoints are written by torch, or by the section 'checkpoint'",
    "compression_training": "delete it; the compression library is gone and the model would train uncompressed",
    "amp": "use 'bf16', 'fp16' or 'torch_autocast'",
    "quantize_training": "delete it; mixture-of-quantization is gone",
    "sparse_gradients": "delete it; an embedding made with sparse=True is still reduced sparsely, without any key",
    "eigenvalue": "delete it; it served mixture-of-quantization, which is gone",
    "sparse_attention": "delete it; use an attention implementation of the model",
    "elasticity": "delete it; set train_batch_size, train_micro_batch_size_per_gpu or gradient_accumulation_steps",
    "graph_harvesting": "delete it",
    "curriculum_learning": "use 'data_efficiency.data_sampling.curriculum_learning'",
    "progressive_layer_drop": "delete it",
    "zero_optimization.mics_shard_size": "delete it; zero_hpz_partition_size (ZeRO++) is the nearest that is left",
    "zero_optimization.mics_hierarchical_params_gather": "delete it; MiCS is gone",
    "zero_optimization.zeropp_loco_param": "delete it; zero_quantized_gradients works without it",
}
"""DeepSpeed raises DeepSpeedConfigError on the mere presence of these (even when disabled): the key, what to do."""

FORGOTTEN: Final[Mapping[str, str]] = {
    "lr_scheduler": "scheduler",
    "schedule": "scheduler",
    "zero": "zero_optimization",
    "zero_config": "zero_optimization",
    "zero_stage": "zero_optimization.stage",
    "stage": "zero_optimization.stage",
    "bf16_enabled": "bf16.enabled",
    "fp16_enabled": "fp16.enabled",
    "gradient_accumulation_dtype": "data_types.grad_accum_dtype",
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "max_grad_norm": "gradient_clipping",
    "clip_grad": "gradient_clipping",
    "grad_clip": "gradient_clipping",
    "gradient_clip_val": "gradient_clipping",
    "optimizer.params.max_grad_norm": "gradient_clipping",
    "learning_rate": "optimizer.params.lr",
    "lr": "optimizer.params.lr",
    "batch_size": "train_batch_size",
    "micro_batch_size": "train_micro_batch_size_per_gpu",
    "train_micro_batch_size": "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size": "train_micro_batch_size_per_gpu",
    "aio.thread_count": "aio.intra_op_parallelism",
    "csv": "csv_monitor",
    "comms_config": "comms_logger",
    "monitor_config.tensorboard": "tensorboard",
    "monitor_config.wandb": "wandb",
    "monitor_config.csv_monitor": "csv_monitor",
    "monitor_config.comet": "comet",
    "checkpoint.load_universal_checkpoint": "checkpoint.load_universal",
    "load_universal_checkpoint": "checkpoint.load_universal",
    "checkpoint.async": "checkpoint.writer.decoupled",
    "bf16.check_overflow": "bf16.check_grad_overflow",
    "zero_optimization.cpu_offload_params": "zero_optimization.offload_param",
    "zero_optimization.cpu_offload_optimizer": "zero_optimization.offload_optimizer",
    "zero_optimization.offload_params": "zero_optimization.offload_param",
    "activation_checkpointing.partitioned_activations": "activation_checkpointing.partition_activations",
    "optimizer.name": "optimizer.type",
    "scheduler.name": "scheduler.type",
    "optimizer.params.learning_rate": "optimizer.params.lr",
    "optimizer.params.adamw_mode": "optimizer.params.adam_w_mode",
    "optimizer.params.beta1": "optimizer.params.betas",
    "optimizer.params.beta2": "optimizer.params.betas",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "zero_optimization.offload": "zero_optimization.offload_optimizer",
    "pipeline_parallel": "pipeline",
    "pipeline_stages": "pipeline.stages",
    "tp_size": "tensor_parallel.autotp_size",
    "tensor_parallel_size": "tensor_parallel.autotp_size",
    "tensor_parallel.tp_size": "tensor_parallel.autotp_size",
    "sp_size": "sequence_parallel_size",
    "autotp_size": "tensor_parallel.autotp_size",
}
"""Names of older releases, of other trainers, and of DeepSpeed's own outdated comments: the key, the key of today."""

_ACCELERATE: Final = (
    "compute_environment distributed_type deepspeed_config deepspeed_config_file deepspeed_multinode_launcher "
    "deepspeed_hostfile zero3_init_flag num_processes num_machines machine_rank main_process_ip main_process_port "
    "main_training_function rdzv_backend same_network tpu_env use_cpu downcast_bf16"
)
_TRAINER: Final = (
    "num_train_epochs max_steps save_steps save_strategy save_total_limit logging_steps logging_dir "
    "eval_steps eval_strategy evaluation_strategy output_dir report_to warmup_ratio warmup_steps lr_scheduler_type "
    "gradient_checkpointing per_device_eval_batch_size dataloader_num_workers model_name_or_path max_seq_length "
    "adam_beta1 adam_beta2 adam_epsilon weight_decay optim tf32 local_rank deepspeed"
)
ELSEWHERE: Final[Mapping[str, tuple[str, str]]] = {
    **dict.fromkeys(_ACCELERATE.split(), ("a key of accelerate's own file", "move it there (accelerate config)")),
    "mixed_precision": ("a key of accelerate's own file", 'write "bf16": {"enabled": true} instead'),
    "precision": (
        "a setting of other trainers",
        'write "bf16": {"enabled": true} or "fp16": {"enabled": true} instead',
    ),
    **{
        name: ("an argument of the training script", f"delete it here, and pass --{name} to the script")
        for name in _TRAINER.split()
    },
}
"""Top-level names that other files and commands have, and DeepSpeed has not: whose each is, what to do."""

COMMENTS: Final = ("_", "//", "#", "$")
"""How keys begin that are meant as comments."""
