"""The fields of transformers 5.24's TrainingArguments and Seq2SeqTrainingArguments, and what is done with each.

`M` must have, `N` nice to have, `I` not wanted. A field that is absent or not yet there is still taken when its value
asks for what is done anyway (its default in transformers, or one of `neutral`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from dstrain.args.values import SAMPLING_NOT_YET, SCHEDULES_NOT_YET, OptimName

Status = Literal["same", "differs", "alias", "absent", "not yet"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One field.

    Args:
        default: theirs.
        text: why it differs, what to use instead, or what is missing.
        neutral: more values that ask for what is done anyway.
    """

    name: str
    mark: Literal["M", "N", "I"]
    status: Status
    default: Any
    text: str = ""
    neutral: tuple[Any, ...] = ()


def _same(mark: Literal["M", "N"], **fields: Any) -> list[Entry]:
    return [Entry(name, mark, "same", default) for name, default in fields.items()]


def _not_yet(mark: Literal["M", "N"], text: str = "", **fields: Any) -> list[Entry]:
    return [Entry(name, mark, "not yet", default, text) for name, default in fields.items()]


def _absent(mark: Literal["M", "N", "I"], text: str, **fields: Any) -> list[Entry]:
    return [Entry(name, mark, "absent", default, text) for name, default in fields.items()]


_HUB = "nothing is pushed; upload the output folder yourself: hf upload NAME OUTPUT_DIR"
_DDP = "there is no DDP engine: deepspeed=… with ZeRO stage 0 is its equivalent; drop it"
_ACCELERATOR = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "non_blocking": False,
    "gradient_accumulation_kwargs": None,
    "use_configured_state": False,
}

ENTRIES: tuple[Entry, ...] = (
    Entry("output_dir", "M", "differs", None, "the default is `run`; another run's folder is not written over"),
    *_same("M", per_device_train_batch_size=8, num_train_epochs=3.0, max_steps=-1, learning_rate=5e-05),
    Entry(
        "lr_scheduler_type", "M", "differs", "linear", f"not yet: {', '.join(SCHEDULES_NOT_YET)}; greedy is not there"
    ),
    *_same("M", lr_scheduler_kwargs=None, warmup_steps=0),
    Entry("optim", "M", "differs", "adamw_torch_fused", f"only {', '.join(get_args(OptimName))}; others not yet"),
    *_not_yet("M", "give the numbers of the optimizer in the DeepSpeed file: optimizer.params", optim_args=None),
    *_same("M", weight_decay=0.0, adam_beta1=0.9, adam_beta2=0.999, adam_epsilon=1e-08),
    *_not_yet("N", "it is for GaLore and APOLLO, which are not there", optim_target_modules=None),
    *_same("M", gradient_accumulation_steps=1),
    *_absent(
        "M",
        "always on: the loss is the mean over all label tokens",
        average_tokens_across_devices=True,
    ),
    Entry("max_grad_norm", "M", "differs", 1.0, "always written to the DeepSpeed JSON, whose own default is 1.0"),
    *_not_yet("N", label_smoothing_factor=0.0),
    *_same("M", bf16=False, fp16=False),
    *_not_yet("N", bf16_full_eval=False, fp16_full_eval=False),
    Entry("tf32", "M", "differs", None, "holds while the run trains and evaluates, and is put back after it"),
    Entry("activation_checkpointing", "M", "alias", None, "gradient_checkpointing"),
    Entry("activation_checkpointing_kwargs", "M", "alias", None, "gradient_checkpointing_kwargs"),
    *_same("M", gradient_checkpointing=None, gradient_checkpointing_kwargs=None),
    *_not_yet("M", "compile the model yourself: torch.compile(model)", torch_compile=False),
    *_not_yet(
        "N", "compile the model yourself: torch.compile(model)", torch_compile_backend=None, torch_compile_mode=None
    ),
    *_not_yet("M", "apply Liger's kernels to the model before the Trainer gets it", use_liger_kernel=False),
    *_not_yet("N", "apply Liger's kernels to the model before the Trainer gets it", liger_kernel_config=None),
    *_not_yet(
        "N",
        "config.use_cache of the model holds; it changes no result of training",
        use_cache=False,
    ),
    *_not_yet("N", neftune_noise_alpha=None),
    Entry("torch_empty_cache_steps", "N", "same", None),
    *_not_yet("M", "choose per_device_train_batch_size yourself", auto_find_batch_size=False),
    *_same("M", logging_strategy="steps", logging_steps=500, logging_first_step=False),
    Entry("log_on_each_node", "M", "differs", True, "the default is false: one console is easier to read than several"),
    Entry(
        "logging_nan_inf_filter",
        "N",
        "differs",
        True,
        "the default is false: NaN and inf are shown",
    ),
    *_same("M", include_num_input_tokens_seen="no"),
    Entry("log_level", "M", "differs", "passive", "for the loggers of dstrain, DeepSpeed and transformers"),
    Entry("log_level_replica", "M", "differs", "warning", "for the loggers of dstrain, DeepSpeed and transformers"),
    *_same("M", disable_tqdm=None),
    Entry("report_to", "M", "differs", "none", "`none` only, trackers not yet; metrics.jsonl holds every record"),
    Entry("run_name", "M", "differs", None, "names the run in plan.json and `dstrain plan`; trackers not yet"),
    *_absent(
        "I",
        "there is no Trackio tracker; metrics.jsonl in output_dir holds every record",
        project="huggingface",
        trackio_space_id=None,
        trackio_bucket_id=None,
        trackio_static_space_id=None,
    ),
    *_same("M", eval_strategy="no", eval_steps=None),
    *_same("N", eval_delay=0),
    *_same("M", per_device_eval_batch_size=8, prediction_loss_only=False),
    *_same("N", eval_on_start=False),
    *_not_yet("N", "compute_metrics gets one array of all rows", eval_do_concat_batches=True),
    *_absent("I", "outputs of any form are gathered over all ranks", eval_use_gather_object=False),
    Entry(
        "eval_accumulation_steps",
        "N",
        "differs",
        None,
        "no effect, with a notice",
    ),
    Entry("include_for_metrics", "N", "not yet", [], "compute_metrics gets predictions and label_ids", ((), None)),
    *_not_yet("N", "compute_metrics gets all rows at once", batch_eval_metrics=False),
    Entry("save_only_model", "M", "differs", False, "trainer_state.json and config.json are there too"),
    Entry("save_strategy", "M", "differs", "steps", "`best` not yet"),
    *_same("M", save_steps=500),
    *_not_yet("M", "output_dir must be seen by every host", save_on_each_node=False),
    *_same("M", save_total_limit=None),
    *_not_yet("M", "a killed run goes on from its newest checkpoint: save_steps", enable_jit_checkpoint=False),
    *_not_yet("N", _HUB, push_to_hub=False),
    Entry("hub_token", "N", "not yet", None, _HUB, ("<HUB_TOKEN>",)),
    *_not_yet("N", _HUB, hub_private_repo=None, hub_model_id=None, hub_strategy="every_save"),
    *_absent("I", _HUB, hub_always_push=False, hub_revision=None),
    *_not_yet(
        "M", "trainer_state.json holds every evaluation", load_best_model_at_end=False, metric_for_best_model=None
    ),
    *_not_yet("M", "trainer_state.json holds every evaluation", greater_is_better=None),
    *_absent(
        "M",
        "a resume takes no time, there is nothing to skip; drop it",
        ignore_data_skip=False,
    ),
    *_same("N", restore_callback_states_from_checkpoint=False),
    Entry("full_determinism", "M", "differs", False, "holds while the run trains and evaluates only"),
    *_same("M", seed=42, data_seed=None, use_cpu=False),
    Entry(
        "accelerator_config",
        "N",
        "absent",
        None,
        "there is no Accelerate inside: every rank loads its own rows, no row is lost or repeated; drop it",
        ({}, _ACCELERATOR),
    ),
    *_not_yet("M", "tensor, sequence and pipeline parallelism are not there", parallelism_config=None),
    *_same("M", dataloader_drop_last=False, dataloader_num_workers=0, dataloader_pin_memory=True),
    *_same("M", dataloader_persistent_workers=False, dataloader_prefetch_factor=None),
    *_same("N", dataloader_multiprocessing_context=None),
    *_absent("N", "batches always come in order, or a resume would not be exact; drop it", dataloader_in_order=True),
    *_same("M", remove_unused_columns=True, label_names=None),
    Entry("train_sampling_strategy", "M", "differs", "random", f"not yet: {', '.join(SAMPLING_NOT_YET)}"),
    *_not_yet("N", "rows are not grouped by length", length_column_name="length"),
    *_absent("N", _DDP, ddp_find_unused_parameters=None, ddp_bucket_cap_mb=None, ddp_broadcast_buffers=None),
    *_absent("N", _DDP, ddp_static_graph=None),
    *_not_yet("M", "NCCL on CUDA, gloo on the CPU", ddp_backend=None),
    *_same("M", ddp_timeout=1800),
    Entry("fsdp", "M", "not yet", None, "deepspeed=… with ZeRO stage 3 shards in the same way", (False, "", [])),
    Entry("fsdp_config", "M", "not yet", None, "deepspeed=… with ZeRO stage 3 shards in the same way", ({},)),
    *_same("M", deepspeed=None),
    Entry("debug", "N", "not yet", "", "", (None, [])),
    *_not_yet("N", "watch memory with nvidia-smi", skip_memory_metrics=True),
    *_same("N", do_train=False, do_eval=False, do_predict=False),
    Entry("resume_from_checkpoint", "M", "differs", None, "true or `auto` (if there is something) beside a folder"),
    *_same("M", local_rank=-1),
)

_GENERATE = "there is no Seq2SeqTrainer yet; call model.generate yourself"
SEQ2SEQ: tuple[Entry, ...] = (
    *_not_yet("N", _GENERATE, sortish_sampler=False),
    *_not_yet("M", _GENERATE, predict_with_generate=False, generation_max_length=None),
    *_not_yet("M", _GENERATE, generation_num_beams=None, generation_config=None),
)
