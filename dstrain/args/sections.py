"""The sections of `TrainingArguments`, one class each; inherited into one flat dataclass.

Spelling and defaults are those of transformers 5.24 wherever the meaning is the same. The string under a field is
its help text on the command line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from dstrain.args.values import (
    Interval,
    IntervalStrategy,
    LogLevel,
    Mapping,
    Names,
    NotNegative,
    Optim,
    Positive,
    Sampling,
    SaveStrategy,
    Schedule,
    Steps,
    Text,
    TokensSeen,
    Trackers,
)

Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]


@dataclass
class OutputArguments:
    """Where the run writes."""

    output_dir: Text = "run"
    """Folder of the run: checkpoints, metrics.jsonl, trainer_state.json, plan.json, model.safetensors."""
    overwrite_output_dir: bool = False
    """Start anew in a folder that holds another run; what is there is moved aside, not deleted."""
    run_name: str | None = None
    """Name of the run in plan.json and `dstrain plan` (default: the output folder's name)."""


@dataclass
class TaskArguments:
    """Switches for a script of one's own; the Trainer does what its methods are called for."""

    do_train: bool = False
    """Whether the script should train."""
    do_eval: bool = False
    """Whether the script should evaluate; on by itself when eval_strategy is not `no`."""
    do_predict: bool = False
    """Whether the script should predict."""


@dataclass
class BatchArguments:
    """How the global batch is made: micro-batch x gradient accumulation steps x data-parallel world size."""

    per_device_train_batch_size: PositiveInt = 8
    """Micro-batch: rows that one rank takes through one forward pass."""
    per_device_eval_batch_size: PositiveInt = 8
    """Rows that one rank takes through one forward pass in evaluation and prediction."""
    gradient_accumulation_steps: PositiveInt = 1
    """Micro-batches of one rank that make one optimizer step."""


@dataclass
class LengthArguments:
    """How long to train."""

    num_train_epochs: Positive = 3.0
    """Passes over the training rows; ignored, with a notice, when max_steps is given."""
    max_steps: Steps = -1
    """Optimizer steps in all; -1: as many as num_train_epochs asks for."""


@dataclass
class OptimizerArguments:
    """The optimizer and its numbers."""

    optim: Optim = "adamw_torch_fused"
    """Optimizer; with an `optimizer` section in the DeepSpeed file, that section decides."""
    learning_rate: NotNegative = 5e-5
    """Peak learning rate."""
    weight_decay: NotNegative = 0.0
    """Decoupled weight decay; not applied to biases, norms and other tensors of one dimension."""
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of the second moment."""
    adam_epsilon: Positive = 1e-8
    """Added to the root of the second moment."""
    max_grad_norm: NonNegativeFloat = 1.0
    """Clip the norm of the global gradient to this; 0 does not clip. Always written to the DeepSpeed JSON."""


@dataclass
class ScheduleArguments:
    """The learning-rate schedule. The lr of step k (from 0) is peak x factor(k)."""

    lr_scheduler_type: Schedule = "linear"
    """Schedule; with a `scheduler` section in the DeepSpeed file, that section decides."""
    lr_scheduler_kwargs: Mapping | None = None
    """More numbers of the schedule: min_lr, min_lr_rate, num_cycles, power, lr_end, timescale."""
    warmup_steps: NonNegativeInt | Fraction = 0
    """Optimizer steps of linear warm-up; a value below 1 is a fraction of all steps."""


@dataclass
class PrecisionArguments:
    """Number formats."""

    bf16: bool = False
    """bfloat16 compute with float32 master weights."""
    fp16: bool = False
    """float16 compute with float32 master weights and dynamic loss scale."""
    tf32: bool | None = None
    """TensorFloat-32 in matrix products and convolutions on CUDA while this run trains and evaluates; by default
    torch's setting stays."""


@dataclass
class MemoryArguments:
    """Memory of a device for time."""

    gradient_checkpointing: bool | None = None
    """Compute activations again in the backward pass instead of keeping them; the model must offer
    gradient_checkpointing_enable(), as transformers' models do."""
    gradient_checkpointing_kwargs: Mapping | None = None
    """Handed to gradient_checkpointing_enable: {"use_reentrant": false}."""
    torch_empty_cache_steps: PositiveInt | None = None
    """Give cached device memory back every so many optimizer steps; no effect on the CPU."""


@dataclass
class LoggingArguments:
    """What is reported, and when."""

    logging_strategy: IntervalStrategy = "steps"
    """When to log."""
    logging_steps: Interval = 500
    """Log every so many optimizer steps; a value below 1 is a fraction of all steps."""
    logging_first_step: bool = False
    """Log after the first optimizer step too."""
    logging_nan_inf_filter: bool = False
    """Leave steps whose loss is not finite out of the logged mean. Off: they are seen."""
    include_num_input_tokens_seen: TokensSeen = "no"
    """Count input tokens of all ranks into every record: `all`, or `non_padding` (by attention_mask)."""
    log_on_each_node: bool = False
    """Console lines from one rank of each host; by default from rank 0 alone."""
    log_level: LogLevel = "passive"
    """Level of the loggers of dstrain, DeepSpeed and transformers on ranks that log; `passive` leaves them alone."""
    log_level_replica: LogLevel = "warning"
    """The same on the other ranks."""
    report_to: Trackers = "none"
    """Trackers: none are there yet. metrics.jsonl in output_dir holds every record."""
    disable_tqdm: bool | None = None
    """Hide the progress bar; by default it shows on a terminal, and plain lines are printed elsewhere."""


@dataclass
class EvalArguments:
    """Evaluation during training."""

    eval_strategy: IntervalStrategy = "no"
    """When to evaluate."""
    eval_steps: Interval | None = None
    """Evaluate every so many optimizer steps (default: logging_steps); below 1: a fraction of all steps."""
    eval_delay: NonNegativeInt | NonNegativeFloat = 0
    """No evaluation before so many optimizer steps (eval_strategy `steps`) or epochs (`epoch`)."""
    eval_accumulation_steps: PositiveInt | None = None
    """No effect: outputs leave the device after every batch."""
    eval_on_start: bool = False
    """Evaluate once before the first step."""
    prediction_loss_only: bool = False
    """Keep the loss only; drop logits and labels at once."""


@dataclass
class SaveArguments:
    """Checkpoints."""

    save_strategy: SaveStrategy = "steps"
    """When to save a checkpoint; the end of training always saves unless this is `no`."""
    save_steps: Interval = 500
    """Save every so many optimizer steps; a value below 1 is a fraction of all steps."""
    save_only_model: bool = False
    """Checkpoints hold the model alone (model.safetensors), for use elsewhere; a run cannot go on from them."""
    save_total_limit: PositiveInt | None = None
    """Keep the newest so many checkpoints."""
    restore_callback_states_from_checkpoint: bool = False
    """On a resume, give callbacks that have a state() the one that was saved with the checkpoint."""
    resume_from_checkpoint: bool | str | None = None
    """`auto`: go on from the newest whole checkpoint in output_dir if there is one; true: there must be one; or a
    folder."""


@dataclass
class DataArguments:
    """The data loader."""

    dataloader_drop_last: bool = False
    """Leave out the last, smaller global batch of each epoch (training only; evaluation never drops a row)."""
    dataloader_num_workers: NonNegativeInt = 0
    """Loader processes of each rank; 0 loads in the rank itself."""
    dataloader_pin_memory: bool = True
    """Page-locked host memory for copies to a GPU; no effect on the CPU."""
    dataloader_prefetch_factor: PositiveInt | None = None
    """Micro-batches that each loader process prepares ahead (default 2)."""
    dataloader_persistent_workers: bool = False
    """Keep the loader processes from one epoch to the next."""
    dataloader_multiprocessing_context: Literal["fork", "spawn", "forkserver"] | None = None
    """How loader processes are started (default: Python's way)."""
    train_sampling_strategy: Sampling = "random"
    """Order of the training rows: `random` (anew in every epoch) or `sequential`. A stream has its own order."""
    remove_unused_columns: bool = True
    """Drop columns that the model's forward does not take."""
    label_names: Names | None = None
    """Columns that hold labels (default: labels; start_positions and end_positions for question answering)."""


@dataclass
class SeedArguments:
    """Randomness."""

    seed: int = 42
    """Seed of initial weights, dropout and shuffling."""
    data_seed: int | None = None
    """Seed of shuffling alone (default: seed)."""
    full_determinism: bool = False
    """Deterministic algorithms only, while this run trains and evaluates: slower; an operation that has none is an
    error."""


@dataclass
class DeviceArguments:
    """Devices and ranks."""

    use_cpu: bool = False
    """Train on the CPU even where there is an accelerator."""
    ddp_timeout: PositiveInt = 1800
    """Seconds that a collective may wait for the other ranks."""
    local_rank: int = -1
    """Set by the `deepspeed` launcher; not for people. The environment decides."""


@dataclass
class BackendArguments:
    """Which engine trains."""

    deepspeed: str | dict[str, Any] | None = None
    """DeepSpeed configuration: a JSON, HJSON or YAML file, or JSON text. Without it one rank trains in plain torch."""
    plan_only: bool = False
    """Print what would run, and why, and stop before anything is built."""
