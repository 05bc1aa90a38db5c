"""`zero_optimization` and the sections inside it (a strict block: DeepSpeed rejects keys that it does not know)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import Bound, NonNegativeInt, PositiveInt, made_by
from dstrain.dsconfig.blocks.notes import (
    ELEMENTS,
    FILLED,
    FILLED_AT_3,
    FILLED_HERE,
    STAGE_3,
    STAGE_3_FEATURE,
    STAGES_1_2,
    STAGES_1_2_3,
    STEPS,
    Also,
    Condition,
    Dead,
    OffWhenAuto,
    OnlyWith,
    Replaced,
    Stages,
    Unit,
)

Device = Literal["none", "cpu", "nvme"]
Fraction = Annotated[float, Bound(ge=0, le=1)]
_ON_NVME = OnlyWith("device", ("nvme",))
_OFFLOADED = OnlyWith("device", ("cpu", "nvme"))
_CPU = {"device": "cpu"}
_MOE_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)


class OffloadParam(Block):
    """Keep the partitioned parameters of ZeRO stage 3 in host memory or on NVMe."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/zero/offload_config.py",
        device=24,
        nvme_path=30,
        buffer_count=33,
        buffer_size=36,
        max_in_cpu=39,
        pin_memory=45,
    )

    device: Annotated[Device, OffWhenAuto()] = "none"
    """Where the parameters live between uses: "cpu" is host memory, "nvme" a local disk, "none" the GPU."""
    nvme_path: Annotated[str | None, _ON_NVME] = None
    """A folder on a fast local disk; needed with device "nvme"."""
    buffer_count: Annotated[NonNegativeInt, _ON_NVME] = 5
    """How many buffers move parameters between disk and memory."""
    buffer_size: Annotated[NonNegativeInt, ELEMENTS, _ON_NVME] = 100_000_000
    """The size of one such buffer; it must hold the largest parameter of the model."""
    max_in_cpu: Annotated[NonNegativeInt, ELEMENTS, _ON_NVME] = 1_000_000_000
    """How many parameter elements stay in host memory rather than on disk."""
    pin_memory: Annotated[bool, _OFFLOADED] = True
    """Use page-locked host memory: copies run faster and overlap with compute, but that memory cannot be paged out."""


class OffloadOptimizer(Block):
    """Keep the optimizer's states in host memory or on NVMe, and run its step on the CPU."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/zero/offload_config.py",
        device=58,
        nvme_path=64,
        buffer_count=67,
        pin_memory=75,
        pipeline_read=84,
        pipeline_write=90,
        fast_init=96,
        ratio=99,
        super_offload=102,
        cpuadam_cores_perc=105,
    )

    device: Annotated[Device, OffWhenAuto()] = "none"
    """Where the optimizer states live: "cpu" is host memory, "nvme" a local disk (stage 3), "none" the GPU."""
    nvme_path: Annotated[str | None, _ON_NVME] = None
    """A folder on a fast local disk; needed with device "nvme"."""
    buffer_count: Annotated[NonNegativeInt, _ON_NVME] = 4
    """How many buffers move states between disk and memory; Adam needs 4 (parameter, gradient, two moments)."""
    pin_memory: Annotated[bool, _OFFLOADED] = True
    """Use page-locked host memory: copies run faster and overlap with compute, but that memory cannot be paged out."""
    pipeline_read: Annotated[bool, _ON_NVME] = False
    """Read the next tile from disk while the current one is updated."""
    pipeline_write: Annotated[bool, _ON_NVME] = False
    """Write the previous tile to disk while the current one is updated."""
    fast_init: Annotated[bool, _ON_NVME] = False
    """Initialise the optimizer states on disk faster."""
    ratio: Annotated[Fraction, Stages((3,), raises=True), _OFFLOADED] = 1.0
    """The share of the optimizer states that is offloaded; DeepSpeed accepts less than 1 at stage 3 only."""
    super_offload: Annotated[bool, STAGE_3_FEATURE, _OFFLOADED] = False
    """Overlap the CPU optimizer step with backward, for hosts with a fast CPU link (Grace-Hopper)."""
    cpuadam_cores_perc: Annotated[Fraction, STAGE_3, OnlyWith("super_offload", (True,))] = 0.8
    """The share of CPU cores that the CPU optimizer uses with super_offload."""


class ZenFlow(Block):
    """Update the few most important gradients on the GPU and the rest on the CPU, without waiting for it."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/zenflow/zenflow_config.py",
        topk_ratio=15,
        select_strategy=18,
        select_interval=22,
        update_interval=26,
        overlap_step=30,
        offload=33,
        auto_ratio=36,
        full_warm_up_rounds=39,
        pt_reserved_cores_perc=42,
        steps_per_epoch=46,
    )

    topk_ratio: Annotated[float, Bound(gt=0, lt=1)] = 0.1
    """The share of gradient columns that is updated at once on the GPU."""
    select_strategy: Literal["auto", "step", "epoch"] = "auto"
    """What the interval of choosing the important columns counts."""
    select_interval: Literal["auto"] | int = "auto"
    """How often the important columns are chosen again, in steps or epochs."""
    update_interval: Annotated[Literal["auto"] | PositiveInt, STEPS] = "auto"
    """How often the accumulated unimportant gradients are applied."""
    overlap_step: bool = False
    """Run the CPU optimizer step while the GPU goes on with forward and backward."""
    offload: bool = False
    """Keep the states of the selected columns in host memory too."""
    auto_ratio: Fraction = 0.99
    """The threshold by which "auto" chooses update_interval."""
    full_warm_up_rounds: Annotated[int, STEPS] = 0
    """How many first steps update everything."""
    pt_reserved_cores_perc: Fraction = 0.5
    """The share of CPU cores that is left to torch; the optimizer's workers take the rest."""
    steps_per_epoch: Annotated[int | None, STEPS] = None
    """Set by DeepSpeed while it runs; not for configuration files."""


class LeafModule(Block):
    """Modules that ZeRO stage 3 fetches as one piece instead of descending into them (mixtures of experts)."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/zero/leaf_module_config.py", classes=23, names=24, name_suffixes=25
    )

    classes: list[str] | str = made_by(lambda: list(_MOE_CLASSES))
    """Class names or full class paths."""
    names: list[str] | str = made_by(list)
    """Full module names as `named_modules()` gives them."""
    name_suffixes: list[str] | str = made_by(list)
    """Ends of module names."""


class ZeroOptimization(Block):
    """ZeRO: split optimizer states (stage 1), gradients (2) and parameters (3) over the data-parallel ranks."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/zero/config.py",
        stage=95,
        contiguous_gradients=102,
        reduce_scatter=108,
        reduce_bucket_size=113,
        use_multi_rank_bucket_allreduce=119,
        allgather_partitions=126,
        allgather_bucket_size=132,
        overlap_comm=138,
        compute_grad_norm=143,
        load_from_fp32_weights=150,
        elastic_checkpoint=158,
        offload_param=164,
        offload_optimizer=171,
        zenflow=179,
        sub_group_size=182,
        cpu_offload_param=188,
        cpu_offload_use_pin_memory=199,
        cpu_offload=209,
        stage3_prefetch_bucket_size=222,
        stage3_param_persistence_threshold=228,
        stage3_model_persistence_threshold=235,
        stage3_max_live_parameters=245,
        stage3_max_reuse_distance=251,
        stage3_gather_16bit_weights_on_model_save=257,
        stage3_module_granularity_threshold=265,
        stage3_use_all_reduce_for_fetch_params=273,
        stage3_allgather_sequential=279,
        stage3_gather_fp16_weights_on_model_save=287,
        ignore_unused_parameters=294,
        legacy_stage1=303,
        round_robin_gradients=309,
        parameter_alignment=317,
        zero_hpz_partition_size=324,
        zero_quantized_weights=328,
        zero_quantized_nontrainable_weights=333,
        zero_quantized_gradients=340,
        memory_efficient_linear=346,
        pipeline_loading_checkpoint=353,
        override_module_apply=355,
        log_trace_cache_warnings=360,
        enable_sanity_checks=365,
        save_muon_momentum_buffer_in_memory=370,
        leaf_module=377,
    )

    stage: Annotated[Literal[0, 1, 2, 3], OffWhenAuto()] = 0
    """What is split over the ranks: 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters."""
    contiguous_gradients: Annotated[bool, STAGES_1_2_3] = True
    """Copy gradients into one buffer as they are made, which avoids fragmented memory."""
    reduce_scatter: Annotated[bool, STAGES_1_2_3] = True
    """Average gradients by reduce-scatter (each rank gets its part) instead of all-reduce."""
    reduce_bucket_size: Annotated[PositiveInt, ELEMENTS, STAGES_1_2_3, FILLED] = 500_000_000
    """How many gradient elements are reduced in one go: larger is faster and takes more memory."""
    use_multi_rank_bucket_allreduce: Annotated[bool, STAGES_1_2] = True
    """Reduce the buckets of several ranks by one all-reduce; helps small models on many ranks."""
    allgather_partitions: Annotated[bool, STAGES_1_2] = True
    """Collect updated parameters by all-gather instead of one broadcast per rank."""
    allgather_bucket_size: Annotated[NonNegativeInt, ELEMENTS, STAGES_1_2, FILLED_HERE] = 500_000_000
    """How many parameter elements are gathered in one go: larger is faster and takes more memory. Must be even."""
    overlap_comm: bool | None = None
    """Reduce gradients while backward still runs; unset means on at stage 3 and off below."""
    compute_grad_norm: Annotated[bool, Stages((1, 2), raises=True)] = True
    """Compute the norm of all gradients at each step; can only be switched off with gradient_clipping 0."""
    load_from_fp32_weights: bool = True
    """On loading a checkpoint, restore the fp32 master weights rather than casting the 16-bit ones."""
    elastic_checkpoint: bool = False
    """The old format for resuming on another number of ranks; use universal checkpoints instead."""
    offload_param: Annotated[OffloadParam | None, STAGE_3_FEATURE] = None
    """Keep parameters in host memory or on NVMe."""
    offload_optimizer: Annotated[OffloadOptimizer | None, Stages((1, 2, 3), feature=True)] = None
    """Keep optimizer states in host memory or on NVMe, and run the optimizer on the CPU."""
    zenflow: Annotated[ZenFlow | None, Stages((1, 2, 3), feature=True)] = None
    """Offload the optimizer without stalling the GPU; needs offload_optimizer."""
    sub_group_size: Annotated[NonNegativeInt, ELEMENTS, STAGE_3] = 1_000_000_000
    """How many parameter elements the optimizer step handles at a time; matters with offloading."""
    cpu_offload_param: Annotated[bool | None, Replaced("offload_param", _CPU)] = None
    """The old switch of offload_param."""
    cpu_offload_use_pin_memory: Annotated[bool | None, Replaced("", clashes=False), Dead()] = None
    """The old pin_memory; DeepSpeed 0.19.8 ignores it. Write pin_memory inside offload_param or offload_optimizer."""
    cpu_offload: Annotated[bool | None, Replaced("offload_optimizer", _CPU)] = None
    """The old switch of offload_optimizer."""
    stage3_prefetch_bucket_size: Annotated[
        NonNegativeInt, ELEMENTS, STAGE_3, FILLED_AT_3, Also(("prefetch_bucket_size",))
    ] = 50_000_000
    """How many parameter elements are fetched ahead of their use."""
    stage3_param_persistence_threshold: Annotated[
        NonNegativeInt, ELEMENTS, STAGE_3, FILLED_AT_3, Also(("param_persistence_threshold",))
    ] = 100_000
    """Parameters smaller than this stay whole on every rank, which saves many small messages."""
    stage3_model_persistence_threshold: Annotated[
        NonNegativeInt, ELEMENTS, STAGE_3, Also(("model_persistence_threshold",))
    ] = 9_223_372_036_854_775_807
    """How many elements may stay whole in all."""
    stage3_max_live_parameters: Annotated[NonNegativeInt, ELEMENTS, STAGE_3, Also(("max_live_parameters",))] = (
        1_000_000_000
    )
    """How many whole parameter elements may be on a GPU at once: smaller saves memory and costs traffic."""
    stage3_max_reuse_distance: Annotated[NonNegativeInt, ELEMENTS, STAGE_3, Also(("max_reuse_distance",))] = (
        1_000_000_000
    )
    """A parameter that is used again within this many elements is not released in between."""
    stage3_gather_16bit_weights_on_model_save: Annotated[
        bool, STAGE_3, Also(("gather_16bit_weights_on_model_save",))
    ] = False
    """Let `save_16bit_model()` collect the whole model; without it that call writes nothing at stage 3."""
    stage3_module_granularity_threshold: Annotated[
        int, Unit("elements per module"), STAGE_3, Also(("module_granularity_threshold",))
    ] = 0
    """Modules with fewer parameters per descendant than this are fetched as one piece."""
    stage3_use_all_reduce_for_fetch_params: Annotated[bool, STAGE_3, Also(("use_all_reduce_for_fetch_params",))] = False
    """Fetch parameters by all-reduce instead of all-gather, which spares host work."""
    stage3_allgather_sequential: Annotated[bool, STAGE_3, Also(("allgather_sequential",))] = False
    """Gather parameters one by one without a bucket: less memory, more messages."""
    stage3_gather_fp16_weights_on_model_save: Annotated[bool, Replaced("stage3_gather_16bit_weights_on_model_save")] = (
        False
    )
    """The old name of stage3_gather_16bit_weights_on_model_save."""
    ignore_unused_parameters: Annotated[bool, STAGES_1_2] = True
    """Go on when a parameter took no part in the loss; false is meant to stop with an error."""
    legacy_stage1: Annotated[bool, STAGES_1_2_3] = False
    """The old stage 1; DeepSpeed 0.19.8 raises when it is true."""
    round_robin_gradients: Annotated[bool, STAGES_1_2] = False
    """Deal gradients out to ranks in turn, which lets offloaded copies run in parallel."""
    parameter_alignment: Annotated[bool, STAGES_1_2] = False
    """Start each parameter at a 16-byte boundary of the flat buffer; takes a little more memory."""
    zero_hpz_partition_size: Annotated[NonNegativeInt, Unit("ranks"), STAGE_3_FEATURE] = 1
    """ZeRO++: keep a second copy of the parameters split over this many ranks (those of one node); 1 is off."""
    zero_quantized_weights: Annotated[bool, STAGE_3_FEATURE] = False
    """ZeRO++: send parameters as 8-bit integers."""
    zero_quantized_nontrainable_weights: Annotated[bool, STAGE_3_FEATURE] = False
    """ZeRO++: also keep frozen parameters as 8-bit integers (LoRA)."""
    zero_quantized_gradients: Annotated[bool, STAGE_3_FEATURE] = False
    """ZeRO++: send gradients as 4-bit integers."""
    memory_efficient_linear: Annotated[bool, STAGE_3] = True
    """Use a linear layer that does not save its gathered weight for backward."""
    pipeline_loading_checkpoint: Annotated[bool, STAGE_3] = False
    """Load the checkpoint of a stage-3 model rank after rank."""
    override_module_apply: Annotated[bool, STAGE_3] = True
    """Gather parameters when `nn.Module.apply` runs inside `zero.Init`."""
    log_trace_cache_warnings: Annotated[bool, STAGE_3] = False
    """Log when the recorded order of modules no longer holds."""
    enable_sanity_checks: Annotated[bool, STAGE_3] = False
    """Check invariants of the stage-3 engine as it runs; slow."""
    save_muon_momentum_buffer_in_memory: Annotated[bool, STAGE_3, Condition("optimizer Muon with NVMe offloading")] = (
        False
    )
    """Keep Muon's momentum in memory instead of on NVMe."""
    leaf_module: Annotated[LeafModule | None, STAGE_3] = made_by(LeafModule)
    """Modules that stage 3 fetches as one piece."""
