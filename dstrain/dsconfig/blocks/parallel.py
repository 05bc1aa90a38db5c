"""Tensor, expert and pipeline parallelism, compilation, and the hybrid engine."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonNegativeInt, PositiveInt, made_by
from dstrain.dsconfig.blocks.notes import BYTES, NOT_NULL, Also, Condition, NotInFiles, Unit

_DEEPCOMPILE = Condition("deepcompile = true")


class TensorParallelGroup(Block):
    """Tensor-parallel groups of the inference engine; training looks at autotp_size."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/tensor_parallel/config.py", tp_size=21, tp_grain_size=24, mpu=29, tp_group=35
    )

    tp_size: Annotated[PositiveInt, Unit("ranks"), Condition("autotp_size > 0")] = 1
    """Over how many ranks a layer is split; without autotp_size it does nothing."""
    tp_grain_size: PositiveInt = 1
    """To which multiple the split is rounded; not used in training."""
    mpu: Any = None
    """An object; not for configuration files."""
    tp_group: Any = None
    """An object; not for configuration files."""


class TensorParallel(Block):
    """Split each layer over several ranks (AutoTP)."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/tensor_parallel/config.py",
        dtype=40,
        autotp_size=45,
        tp_overlap_comm=50,
        vocab_parallel_lm_head=53,
        vocab_parallel_ce_backend=56,
        tp=59,
        injection_policy_tuple=65,
        partition_config=68,
        preset_model=95,
        keep_module_on_host=103,
        kernel_inject=111,
    )

    dtype: Annotated[str, NotInFiles("a torch.dtype object")] = "torch.float16"
    """The number format the model is cast to; only a program can set it, DeepSpeed takes no text here."""
    autotp_size: Annotated[NonNegativeInt, Unit("ranks")] = 0
    """Over how many ranks each layer is split; 0 is off."""
    tp_overlap_comm: bool = False
    """Overlap the all-reduce with compute."""
    vocab_parallel_lm_head: bool | None = None
    """Split the output layer by vocabulary; unset follows the model."""
    vocab_parallel_ce_backend: Literal["torch", "liger"] = "torch"
    """Who computes the loss of a split output layer."""
    tp: Annotated[TensorParallelGroup, NOT_NULL, Also(("tensor_parallel",))] = made_by(TensorParallelGroup)
    """Groups of the inference engine."""
    injection_policy_tuple: list[Any] | None = None
    """Which layers are replaced; for inference."""
    partition_config: dict[str, Any] | None = None
    """Your own rules for which weights are split by rows or columns."""
    preset_model: str | None = None
    """A known model family: llama, bloom, chatglm, mixtral, deepseek_v2, qwen2, phi3."""
    keep_module_on_host: bool = False
    """Load weights to host memory first."""
    kernel_inject: Annotated[bool, Also(("replace_with_kernel_inject",))] = False
    """Replace layers by inference kernels."""


class Pipeline(Block):
    """Settings of DeepSpeed's own pipeline engine (`PipelineModule`); no effect without it."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/config.py",
        stages=275,
        partition=276,
        seed_layers=277,
        activation_checkpoint_interval=278,
        pipe_partitioned=279,
        grad_partitioned=280,
    )

    stages: Literal["auto"] | PositiveInt = "auto"
    """How many stages; taken from the PipelineModule, not from here."""
    partition: str = "best"
    """How layers are shared out; taken from the PipelineModule, not from here."""
    seed_layers: bool = False
    """Give each layer a random seed of its own."""
    activation_checkpoint_interval: Annotated[NonNegativeInt, Unit("layers")] = 0
    """Checkpoint activations every so many layers; 0 is off."""
    pipe_partitioned: bool = True
    """Split the activations that pass between stages over the model-parallel ranks."""
    grad_partitioned: bool = True
    """Split the gradients that pass between stages over the model-parallel ranks."""
    use_reentrant: bool | None = None
    """Which variant of activation checkpointing; unset means true."""


class Compile(Block):
    """torch.compile and DeepCompile; works when `engine.compile()` is called."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "compile/config.py",
        deepcompile=15,
        autoep_non_moe=18,
        free_activation=21,
        free_activation_threshold=24,
        offload_activation=27,
        offload_activation_pin_memory=34,
        offload_opt_states=39,
        double_buffer=46,
        symmetric_memory=49,
        debug_log=52,
        offload_parameters=55,
        sync_before_reduce=58,
        sync_after_reduce=61,
        sync_before_allgather=64,
        sync_after_allgather=67,
        keep_int_input_tensors=70,
        keep_all_input_tensors=73,
        passes=76,
    )

    deepcompile: bool = False
    """Let the compiler place ZeRO's communication in the graph."""
    autoep_non_moe: bool = False
    """Compile what is around the experts of AutoEP."""
    free_activation: Annotated[bool, _DEEPCOMPILE] = False
    """Free large activations early."""
    free_activation_threshold: Annotated[int, BYTES] = 10_485_760
    """How large an activation must be for that."""
    offload_activation: Annotated[bool, _DEEPCOMPILE] = False
    """Move saved activations to host memory until backward."""
    offload_activation_pin_memory: bool = True
    """Use page-locked memory for them."""
    offload_opt_states: Annotated[bool, _DEEPCOMPILE] = False
    """Keep optimizer states in host memory during forward and backward."""
    double_buffer: bool = True
    """Use two communication buffers."""
    symmetric_memory: bool = False
    """Use torch's symmetric memory."""
    debug_log: bool = False
    """Write the graphs to disk."""
    offload_parameters: Annotated[bool, _DEEPCOMPILE] = False
    """Keep parameters in host memory."""
    sync_before_reduce: bool = False
    """Wait for the device before each reduction; for debugging."""
    sync_after_reduce: bool = False
    """Wait for the device after each reduction; for debugging."""
    sync_before_allgather: bool = False
    """Wait for the device before each all-gather; for debugging."""
    sync_after_allgather: bool = False
    """Wait for the device after each all-gather; for debugging."""
    keep_int_input_tensors: bool = True
    """Keep the values of integer inputs for tracing."""
    keep_all_input_tensors: bool = False
    """Keep the values of all inputs for tracing."""
    passes: list[Literal["z1", "z3", "autosp", "autotp"]] | None = None
    """Which graph passes run."""


class HybridEngine(Block):
    """Training and generation with one set of weights (RLHF)."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/config.py",
        enabled=360,
        max_out_tokens=361,
        inference_tp_size=362,
        release_inference_cache=363,
        pin_parameters=364,
        tp_gather_partition_size=365,
        enable_cuda_graph=366,
    )

    enabled: bool = False
    """Make a hybrid engine."""
    max_out_tokens: Annotated[PositiveInt, Unit("tokens")] = 512
    """How long prompt and answer may be together."""
    inference_tp_size: Annotated[PositiveInt, Unit("ranks")] = 1
    """Over how many ranks generation is split."""
    release_inference_cache: bool = False
    """Free the generation cache before training goes on."""
    pin_parameters: bool = True
    """Keep gathered parameters in page-locked memory."""
    tp_gather_partition_size: PositiveInt = 8
    """How many parts are gathered at a time."""
    enable_cuda_graph: bool = False
    """Generate through CUDA graphs."""


class WeightQuantization(Block):
    """Quantised weights at the start of inference."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "inference/config.py",
        enabled=91,
        num_bits=90,
        q_type=90,
        q_groups=90,
        quantized_initialization=92,
        post_init_quant=93,
    )

    enabled: bool = True
    """Quantise."""
    num_bits: Annotated[PositiveInt, Unit("bits")] = 8
    """How many bits each weight takes."""
    q_type: Literal["symmetric", "asymmetric"] = "symmetric"
    """Whether the range is centred on zero."""
    q_groups: PositiveInt = 1
    """How many groups have a scale of their own."""
    quantized_initialization: dict[str, Any] = made_by(dict)
    """Quantise while the model is built."""
    post_init_quant: dict[str, Any] = made_by(dict)
    """Quantise after the model is built, by module name."""
