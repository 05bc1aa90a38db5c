"""What is measured and where it is written: profilers, timers, loggers, monitors."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonEmptyStr, NonNegativeFloat, NonNegativeInt, PositiveInt, made_by
from dstrain.dsconfig.blocks.notes import NOT_NULL, Unit


class FlopsProfiler(Block):
    """Count the operations of one training step, layer by layer."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "profiling/constants.py",
        enabled=28,
        recompute_fwd_factor=31,
        profile_step=34,
        module_depth=37,
        top_modules=40,
        detailed=43,
        output_file=46,
    )

    enabled: bool = False
    """Profile one step; also switches wall_clock_breakdown on."""
    recompute_fwd_factor: NonNegativeFloat = 0.0
    """How much of the forward pass is computed again by activation checkpointing (1 for all)."""
    profile_step: Annotated[NonNegativeInt, Unit("steps")] = 1
    """The step that is profiled."""
    module_depth: int = -1
    """Down to which depth of modules figures are summed up; -1 for the innermost."""
    top_modules: PositiveInt = 1
    """How many modules are listed at each depth."""
    detailed: bool = True
    """Print every module."""
    output_file: str | None = None
    """Where the report is written; unset prints it."""


class CommsLogger(Block):
    """Log each collective: size, time, bandwidth. DeepSpeed acts on the mere presence of this section."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "comm/config.py", enabled=12, prof_all=13, prof_ops=14, verbose=15, debug=16
    )

    enabled: bool = False
    """Log collectives."""
    prof_all: bool = True
    """Log every operation."""
    prof_ops: list[str] = made_by(list)
    """Log only these operations, by name (`all_reduce`), when prof_all is false."""
    verbose: bool = False
    """Print each operation as it ends."""
    debug: bool = False
    """Add the name of the caller to each operation."""


class _Monitor(Block):
    strict: ClassVar[bool] = True


class TensorBoard(_Monitor):
    """Write lr and loss scale to TensorBoard files."""

    reads: ClassVar[Mapping[str, str]] = read_at("monitor/config.py", enabled=20, output_path=23, job_name=29)

    enabled: bool = False
    """Write them; needs the `tensorboard` package."""
    output_path: str = ""
    """The folder; unset means below the working folder."""
    job_name: str = "DeepSpeedJobName"
    """The name of the run, a folder inside output_path."""


class CsvMonitor(_Monitor):
    """Write lr and loss scale to CSV files."""

    reads: ClassVar[Mapping[str, str]] = read_at("monitor/config.py", enabled=52, output_path=55, job_name=61)

    enabled: bool = False
    """Write them."""
    output_path: str = ""
    """The folder; unset means below the working folder."""
    job_name: str = "DeepSpeedJobName"
    """The name of the run, a folder inside output_path."""


class Wandb(_Monitor):
    """Send lr and loss scale to Weights & Biases."""

    reads: ClassVar[Mapping[str, str]] = read_at("monitor/config.py", enabled=36, group=39, team=42, project=45)

    enabled: bool = False
    """Send them; needs the `wandb` package."""
    group: str | None = None
    """The group of runs."""
    team: str | None = None
    """The team."""
    project: str = "deepspeed"
    """The project."""


class Comet(_Monitor):
    """Send lr and loss scale to Comet."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "monitor/config.py",
        enabled=72,
        samples_log_interval=75,
        project=78,
        workspace=84,
        api_key=90,
        experiment_name=96,
        experiment_key=103,
        online=110,
        mode=116,
    )

    enabled: bool = False
    """Send them; needs the `comet_ml` package."""
    samples_log_interval: Annotated[PositiveInt, Unit("samples")] = 100
    """How often figures are sent."""
    project: str | None = None
    """The project; unset takes Comet's own settings."""
    workspace: str | None = None
    """The workspace; unset takes Comet's own settings."""
    api_key: str | None = None
    """The API key; keep it out of files and use the environment variable of Comet."""
    experiment_name: str | None = None
    """The name of the experiment."""
    experiment_key: str | None = None
    """The key of an experiment, 32 to 50 letters and digits."""
    online: bool | None = None
    """False writes to disk instead of sending; unset means true."""
    mode: str | None = None
    """Whether to go on with an experiment or to start one: "get", "create" or "get_or_create"."""


class ThroughputTimer(Block):
    """The timer behind samples per second."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at("utils/config.py", enabled=38, synchronized=41)

    enabled: bool = True
    """Measure throughput."""
    synchronized: bool = True
    """Wait for the device at each measurement: exact, and slower."""


class Timers(Block):
    """Timers; DeepSpeed looks at `throughput` only."""

    throughput: Annotated[ThroughputTimer, NOT_NULL] = made_by(ThroughputTimer)
    """The timer behind samples per second."""


class AutotuningModel(Block):
    """The size of the model, for autotuning."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "autotuning/config.py", profile=91, num_params=91, hidden_size=91, num_layers=91
    )

    profile: bool = False
    """Measure it."""
    num_params: NonNegativeInt | None = None
    """How many parameters."""
    hidden_size: NonNegativeInt | None = None
    """The hidden size."""
    num_layers: NonNegativeInt | None = None
    """How many layers."""


class Autotuning(Block):
    """DeepSpeed's own search over micro batch sizes and ZeRO settings (`deepspeed --autotuning`)."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "autotuning/config.py",
        enabled=34,
        fast=36,
        results_dir=38,
        exps_dir=40,
        overwrite=42,
        start_profile_step=44,
        end_profile_step=47,
        metric=50,
        metric_path=52,
        tuner_type=54,
        tuner_early_stopping=56,
        tuner_num_trials=59,
        arg_mappings=62,
        model_info_path=66,
        mp_size=68,
        max_train_batch_size=70,
        min_train_batch_size=73,
        max_train_micro_batch_size_per_gpu=77,
        min_train_micro_batch_size_per_gpu=81,
        num_tuning_micro_batch_sizes=84,
    )

    enabled: bool = False
    """Search."""
    fast: bool = True
    """Try micro batch sizes only, at each stage."""
    results_dir: NonEmptyStr = "autotuning_results"
    """Where results are written."""
    exps_dir: NonEmptyStr = "autotuning_exps"
    """Where the experiments are written."""
    overwrite: bool = True
    """Run experiments again that have results."""
    start_profile_step: NonNegativeInt = 3
    """The first step that is measured."""
    end_profile_step: PositiveInt = 5
    """The last step that is measured."""
    metric: Literal["throughput", "latency", "flops", "forward", "step"] = "throughput"
    """What is made best."""
    metric_path: str | None = None
    """The file in which the metric is found."""
    tuner_type: Literal["gridsearch", "random", "model_based"] = "gridsearch"
    """How the space is searched."""
    tuner_early_stopping: NonNegativeInt = 5
    """Stop after this many experiments without progress."""
    tuner_num_trials: PositiveInt = 50
    """How many experiments are tried."""
    arg_mappings: dict[str, Any] | None = None
    """Which flag of the script sets which key: `{"train_micro_batch_size_per_gpu": "--batch"}`."""
    model_info: AutotuningModel | None = None
    """The size of the model, if it is known."""
    model_info_path: str | None = None
    """A file with the size of the model."""
    mp_size: Annotated[PositiveInt, Unit("ranks")] = 1
    """Over how many ranks each model is split."""
    max_train_batch_size: PositiveInt | None = None
    """The largest global batch size."""
    min_train_batch_size: PositiveInt = 1
    """The smallest global batch size."""
    max_train_micro_batch_size_per_gpu: PositiveInt = 1024
    """The largest micro batch size."""
    min_train_micro_batch_size_per_gpu: PositiveInt = 1
    """The smallest micro batch size."""
    num_tuning_micro_batch_sizes: PositiveInt = 3
    """How many micro batch sizes are tried."""
