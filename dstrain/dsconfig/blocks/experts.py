"""`expert_parallel`: spread the experts of a mixture-of-experts model over ranks (AutoEP)."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonNegativeInt, PositiveInt
from dstrain.dsconfig.blocks.notes import Condition, Unit

_DEEPEP = Condition("comm_backend = deepep")


class ExpertParallel(Block):
    """Spread experts over ranks. DeepSpeed ignores keys that it does not know here."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "module_inject/auto_ep_config.py",
        enabled=48,
        autoep_size=49,
        expert_tensor_parallel_size=50,
        validate_folding_routing=51,
        async_split_plan=52,
        preset_model=53,
        moe_layer_pattern=54,
        expert_pattern=55,
        router_pattern=56,
        use_grouped_mm=57,
        disable_triton_grouped_mm=58,
        route_norm=59,
        route_scale=60,
        score_apply=61,
        combine_impl=62,
        row_weighting_impl=63,
        gate_up_impl=64,
        comm_backend=65,
        comm_num_sm=66,
        comm_qp_margin=67,
        comm_max_tokens_per_rank=68,
        num_expert_groups=69,
        num_limited_groups=70,
        score_func=71,
        top_k=72,
        load_balance_coeff=73,
        routed_scaling_factor=82,
        expert_w1=83,
        expert_w2=84,
        expert_w3=86,
        num_experts_attr=90,
        top_k_attr=91,
        has_shared_experts=92,
        shared_experts_pattern=93,
        shared_experts_gate_pattern=94,
        expert_activation=95,
    )

    enabled: bool = False
    """Find the expert layers of the model and replace them."""
    autoep_size: Annotated[PositiveInt, Unit("ranks")] = 1
    """Over how many ranks the experts are spread."""
    expert_tensor_parallel_size: Annotated[PositiveInt, Unit("ranks")] = 1
    """Over how many ranks each expert is split."""
    validate_folding_routing: bool = False
    """Check that tensor-parallel ranks route alike; slow."""
    async_split_plan: bool = False
    """Work out the exchange while the router runs."""
    preset_model: str | None = None
    """A known model family; unset tries to find it."""
    moe_layer_pattern: str | None = None
    """A pattern for the names of expert layers."""
    expert_pattern: str | None = None
    """The attribute that holds the experts."""
    router_pattern: str | None = None
    """The attribute that holds the router."""
    use_grouped_mm: bool = True
    """Run all experts of a rank by one grouped matrix product."""
    disable_triton_grouped_mm: bool = False
    """Do not use the Triton kernel for it."""
    route_norm: bool | None = None
    """Normalise the router's weights; unset follows the model."""
    route_scale: float = 1.0
    """A factor on the router's weights."""
    score_apply: Literal["auto", "pre", "post"] = "auto"
    """Whether the weights act before or after the experts."""
    combine_impl: Literal["auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"] = "auto"
    """How the experts' results are summed."""
    row_weighting_impl: Literal["auto", "eager", "fused"] = "auto"
    """How rows are weighted."""
    gate_up_impl: Literal["separate", "fused"] = "separate"
    """Whether the gate and up projections run as one; needs use_grouped_mm."""
    comm_backend: Literal["comm", "deepep"] = "comm"
    """Who moves tokens between ranks."""
    comm_num_sm: Annotated[PositiveInt, _DEEPEP] = 12
    """How many GPU multiprocessors communication may take."""
    comm_qp_margin: Annotated[NonNegativeInt, _DEEPEP] = 4
    """How many network queue pairs are kept in reserve."""
    comm_max_tokens_per_rank: Annotated[NonNegativeInt, Unit("tokens"), _DEEPEP] = 0
    """The most tokens one rank sends; must be set with deepep."""
    num_expert_groups: PositiveInt | None = None
    """Into how many groups the experts fall."""
    num_limited_groups: PositiveInt | None = None
    """How many groups a token may use."""
    score_func: Literal["auto", "softmax", "sigmoid"] = "auto"
    """How the router's scores are made."""
    top_k: Literal["auto"] | PositiveInt = "auto"
    """How many experts each token uses."""
    load_balance_coeff: None = None
    """Must be null: DeepSpeed 0.19.8 rejects every number."""
    routed_scaling_factor: Literal["auto"] | float = "auto"
    """A factor on the experts' result."""
    expert_w1: str | None = None
    """The name of the first expert weight."""
    expert_w2: str | None = None
    """The name of the second expert weight."""
    expert_w3: str | None = None
    """The name of the third; null says that it is part of the first."""
    num_experts_attr: str | None = None
    """The name in the model's config that gives the number of experts."""
    top_k_attr: str | None = None
    """The name in the model's config that gives top_k."""
    has_shared_experts: bool | None = None
    """Whether there are experts that every token uses."""
    shared_experts_pattern: str | None = None
    """The attribute that holds them; needs has_shared_experts."""
    shared_experts_gate_pattern: str | None = None
    """The attribute that holds their gate; needs has_shared_experts."""
    expert_activation: str | None = None
    """The activation function of the experts."""
