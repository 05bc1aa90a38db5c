"""The top level of a DeepSpeed configuration."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.checkpointing import ActivationCheckpointing, Aio, Checkpoint
from dstrain.dsconfig.blocks.data import DataEfficiency
from dstrain.dsconfig.blocks.experts import ExpertParallel
from dstrain.dsconfig.blocks.light import AsItIs, NonNegativeFloat, PositiveInt, made_by
from dstrain.dsconfig.blocks.monitoring import (
    Autotuning,
    Comet,
    CommsLogger,
    CsvMonitor,
    FlopsProfiler,
    TensorBoard,
    Timers,
    Wandb,
)
from dstrain.dsconfig.blocks.notes import (
    ELEMENTS,
    FILLED,
    NOT_NULL,
    AnyCase,
    Condition,
    Dead,
    Replaced,
    Unit,
)
from dstrain.dsconfig.blocks.optimizers import OptimizerParams, optimizer_params
from dstrain.dsconfig.blocks.parallel import Compile, HybridEngine, Pipeline, TensorParallel, WeightQuantization
from dstrain.dsconfig.blocks.precision import Bf16, DataTypes, Fp16, TorchAutocast
from dstrain.dsconfig.blocks.schedulers import SchedulerParams, scheduler_params
from dstrain.dsconfig.blocks.zero import ZeroOptimization


def _with_params(data: Any, params_of: Callable[[Any], type[Block]]) -> Any:
    if not isinstance(data, Mapping) or not isinstance(data.get("params"), Mapping):
        return data
    return {**data, "params": params_of(data.get("type")).model_validate(data["params"])}


WireDtype = Annotated[Literal["fp16", "bf16", "fp32"], AnyCase()]


class Optimizer(Block):
    """The optimizer that DeepSpeed makes; leave it out to bring your own."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/config.py", params=297, legacy_fusion=311)

    type: str | None = None
    """Adam, AdamW, Lamb, Lion, Adagrad, Muon (any case), MuAdam, MuAdamW, MuSGD, or a class of torch.optim (exact)."""
    params: Annotated[OptimizerParams, AsItIs()] | None = None
    """The arguments of the optimizer."""
    legacy_fusion: bool = False
    """The old fp16 wrapper around fused optimizers (stage 0)."""

    @classmethod
    def as_meant(cls, data: Any) -> Any:
        """The parameters are those of the class that `type` names."""
        return _with_params(super().as_meant(data), optimizer_params)


class Scheduler(Block):
    """The learning-rate schedule that DeepSpeed makes and steps."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/config.py", type=327, params=334)

    type: str | None = None
    """LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR, or a class of torch.optim.lr_scheduler."""
    params: Annotated[Annotated[SchedulerParams, AsItIs()] | None, NOT_NULL] = None
    """The arguments of the schedule; DeepSpeed fails without them."""

    @classmethod
    def as_meant(cls, data: Any) -> Any:
        """The parameters are those of the class that `type` names."""
        return _with_params(super().as_meant(data), scheduler_params)


class DSConfig(Block):
    """A whole DeepSpeed configuration. DeepSpeed ignores top-level keys that it does not know, in silence."""

    reads: ClassVar[Mapping[str, str]] = {
        **read_at(
            "runtime/config.py",
            train_batch_size=340,
            train_micro_batch_size_per_gpu=346,
            gradient_accumulation_steps=209,
            managed_gradient_accumulation=213,
            zero_allow_untested_optimizer=318,
            zero_force_ds_cpu_optimizer=322,
            steps_per_print=253,
            dump_state=261,
            disable_python_gc=265,
            disable_allgather=257,
            communication_data_type=223,
            seq_parallel_communication_data_type=494,
            prescale_gradients=234,
            gradient_predivide_factor=238,
            gradient_allreduce_op=242,
            gradient_clipping=269,
            wall_clock_breakdown=352,
            memory_breakdown=356,
            vocabulary_size=717,
            dataloader_drop_last=410,
            log_level=414,
            use_data_before_expert_parallelism=376,
            sequence_parallel_size=468,
        ),
        **read_at("__init__.py", data_parallel_size=543),
        **read_at("runtime/zero/config.py", allgather_size=64),
        **read_at("runtime/precision_config.py", bfloat16=37),
        **read_at("datastates/config.py", datastates_ckpt=11),
    }

    train_batch_size: Annotated[PositiveInt | None, Unit("samples"), FILLED] = None
    """Samples in one optimizer step over all ranks: micro batch x accumulation steps x data-parallel ranks."""
    train_micro_batch_size_per_gpu: Annotated[PositiveInt | None, Unit("samples"), FILLED] = None
    """Samples that one rank handles in one forward and backward pass."""
    gradient_accumulation_steps: Annotated[PositiveInt | None, Unit("micro batches"), FILLED] = None
    """How many micro batches are summed up before each optimizer step."""
    managed_gradient_accumulation: bool = True
    """Let DeepSpeed decide at which micro batch the step happens."""
    optimizer: Annotated[Optimizer | None, NOT_NULL] = None
    """The optimizer that DeepSpeed makes; leave it out to bring your own."""
    scheduler: Annotated[Scheduler | None, NOT_NULL] = None
    """The learning-rate schedule that DeepSpeed makes and steps."""
    gradient_clipping: Annotated[NonNegativeFloat, Unit("norm of all gradients"), FILLED] = 1.0
    """Scale gradients down to this norm; 0 is off. Left out it is on, at 1.0 (since 0.19)."""
    gradient_allreduce_op: Annotated[Literal["mean", "sum"], AnyCase()] = "mean"
    """Whether gradients of the ranks are averaged or summed."""
    prescale_gradients: bool = False
    """Divide gradients before they are summed over ranks, not after."""
    gradient_predivide_factor: float = 1.0
    """By how much they are divided before."""
    communication_data_type: WireDtype | None = None
    """The number format in which gradients travel; unset follows the precision."""
    seq_parallel_communication_data_type: WireDtype | None = "fp32"
    """The number format in which gradients travel over sequence-parallel ranks."""
    bf16: Bf16 | None = None
    """Train in bfloat16."""
    bfloat16: Annotated[Bf16 | None, Replaced("bf16"), NOT_NULL] = None
    """The old name of bf16; ignored when bf16 is there."""
    fp16: Annotated[Fp16, NOT_NULL] = made_by(Fp16)
    """Train in float16 with loss scaling."""
    torch_autocast: Annotated[TorchAutocast, NOT_NULL] = made_by(TorchAutocast)
    """Let torch choose the number format of each operation."""
    data_types: Annotated[DataTypes, NOT_NULL] = made_by(DataTypes)
    """Number formats of gradients, parameters and buffers."""
    zero_optimization: Annotated[ZeroOptimization, NOT_NULL] = made_by(ZeroOptimization)
    """ZeRO: split optimizer states, gradients and parameters over the ranks."""
    allgather_size: Annotated[PositiveInt, ELEMENTS, Replaced("", clashes=False)] = 500_000_000
    """The old allgather_bucket_size; read only where zero_optimization is true or false."""
    zero_allow_untested_optimizer: bool = False
    """Let ZeRO run with an optimizer that DeepSpeed has not tested it with."""
    zero_force_ds_cpu_optimizer: bool = True
    """Refuse to offload an optimizer that is not DeepSpeed's own CPU optimizer."""
    activation_checkpointing: ActivationCheckpointing = made_by(ActivationCheckpointing)
    """Compute activations again in backward instead of keeping them."""
    aio: Aio | None = None
    """Asynchronous disk access, for NVMe offloading."""
    checkpoint: Annotated[Checkpoint, NOT_NULL] = made_by(Checkpoint)
    """How checkpoints are written and read."""
    datastates_ckpt: Annotated[Any, NOT_NULL] = False
    """Settings of the DataStates checkpoint engine; anything but false switches it on."""
    tensor_parallel: Annotated[TensorParallel, NOT_NULL] = made_by(TensorParallel)
    """Split each layer over several ranks."""
    sequence_parallel_size: Annotated[PositiveInt | None, Unit("ranks"), NOT_NULL] = None
    """Over how many ranks each sequence is split (Ulysses)."""
    data_parallel_size: Annotated[PositiveInt | None, Unit("ranks"), Condition("sequence_parallel_size")] = None
    """How many data-parallel groups there are beside sequence_parallel_size."""
    expert_parallel: ExpertParallel | None = None
    """Spread the experts of a mixture-of-experts model over ranks."""
    use_data_before_expert_parallelism: bool = False
    """Number ranks by data-parallel group first, then by expert."""
    pipeline: Annotated[Pipeline, NOT_NULL] = made_by(Pipeline)
    """Settings of DeepSpeed's own pipeline engine."""
    compile: Annotated[Compile, NOT_NULL] = made_by(Compile)
    """torch.compile and DeepCompile."""
    hybrid_engine: Annotated[HybridEngine, NOT_NULL] = made_by(HybridEngine)
    """Training and generation with one set of weights."""
    weight_quantization: Annotated[WeightQuantization | None, NOT_NULL] = None
    """Quantised weights at the start of inference."""
    data_efficiency: Annotated[DataEfficiency, NOT_NULL] = made_by(DataEfficiency)
    """Curriculum learning, dynamic batches, random layer-token dropping."""
    dataloader_drop_last: bool = False
    """Drop the last short batch of a data loader that DeepSpeed makes."""
    autotuning: Annotated[Autotuning, NOT_NULL] = made_by(Autotuning)
    """DeepSpeed's own search over batch sizes and ZeRO settings."""
    steps_per_print: Annotated[PositiveInt | None, Unit("optimizer steps")] = None
    """How often DeepSpeed prints a line; unset never does."""
    wall_clock_breakdown: bool = False
    """Time forward, backward and step, and print it."""
    memory_breakdown: bool = False
    """Print the memory in use at several points of a step."""
    flops_profiler: Annotated[FlopsProfiler, NOT_NULL] = made_by(FlopsProfiler)
    """Count the operations of one training step."""
    comms_logger: Annotated[CommsLogger | None, NOT_NULL] = None
    """Log each collective."""
    tensorboard: Annotated[TensorBoard, NOT_NULL] = made_by(TensorBoard)
    """Write lr and loss scale to TensorBoard files."""
    wandb: Annotated[Wandb, NOT_NULL] = made_by(Wandb)
    """Send lr and loss scale to Weights & Biases."""
    csv_monitor: Annotated[CsvMonitor, NOT_NULL] = made_by(CsvMonitor)
    """Write lr and loss scale to CSV files."""
    comet: Annotated[Comet, NOT_NULL] = made_by(Comet)
    """Send lr and loss scale to Comet."""
    timers: Annotated[Timers, NOT_NULL] = made_by(Timers)
    """Timers."""
    dump_state: bool = False
    """Print the whole configuration of the engine at its start."""
    log_level: Annotated[Literal["debug", "info", "warning", "error", "critical"] | None, AnyCase()] = None
    """How much DeepSpeed logs."""
    disable_python_gc: bool = False
    """Run Python's garbage collector by hand, at the same step on each rank."""
    vocabulary_size: PositiveInt | None = None
    """Only warns when it is no multiple of 8."""
    disable_allgather: Annotated[bool, Dead()] = False
    """Read and never used."""
