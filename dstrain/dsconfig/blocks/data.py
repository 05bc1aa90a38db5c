"""`data_efficiency`: curriculum learning, dynamic batches, random layer-token dropping."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonNegativeInt, PositiveInt, made_by
from dstrain.dsconfig.blocks.notes import NOT_NULL, STEPS, Required, Unit

_WHEN_ON = Required("enabled = true")


class CurriculumSchedule(Block):
    """How the difficulty rises."""

    difficulty: list[NonNegativeInt] | None = None
    """The difficulties, one after the other (fixed_discrete)."""
    max_step: Annotated[list[NonNegativeInt] | None, STEPS] = None
    """Up to which step each holds (fixed_discrete); one fewer than difficulty."""
    total_curriculum_step: Annotated[PositiveInt | None, STEPS] = None
    """After how many steps the difficulty is highest (fixed_linear, fixed_root)."""
    difficulty_step: PositiveInt | None = None
    """By how much it rises each time; a multiple of 8 is faster."""
    root_degree: PositiveInt | None = None
    """The root by which it rises (fixed_root)."""


class CurriculumMetric(Block):
    """One measure of difficulty."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/data_pipeline/constants.py",
        index_to_sample_path=36,
        index_to_metric_path=37,
        difficulty_type=41,
        clustering_type=38,
        min_difficulty=44,
        max_difficulty=45,
        schedule_type=46,
        schedule_config=47,
    )

    index_to_sample_path: str | None = None
    """The file that lists the samples of each difficulty."""
    index_to_metric_path: str | None = None
    """The file that gives the difficulty of each sample."""
    difficulty_type: Literal["value", "percentile"] | None = None
    """Whether difficulties are values of the measure or percentiles."""
    clustering_type: Literal["schedule_based", "single_cluster"] | None = None
    """How samples are put together."""
    min_difficulty: NonNegativeInt | None = None
    """The difficulty at the start."""
    max_difficulty: NonNegativeInt | None = None
    """The difficulty at the end."""
    schedule_type: Literal["fixed_linear", "fixed_root", "fixed_discrete", "custom"] | None = None
    """How the difficulty rises."""
    schedule_config: CurriculumSchedule | None = None
    """The figures of the rise."""


class CurriculumLearning(Block):
    """Start with easy samples."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/data_pipeline/constants.py", enabled=10, data_cluster_path=34)

    enabled: bool = False
    """Start with easy samples."""
    data_cluster_path: str | None = None
    """A folder for the clusters of samples."""
    curriculum_metrics: Annotated[dict[str, CurriculumMetric] | None, _WHEN_ON] = None
    """The measures of difficulty, by a name of your own."""


class DynamicBatching(Block):
    """Batches of about equal numbers of tokens instead of equal numbers of samples."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/data_pipeline/constants.py",
        enabled=10,
        metrics_path=73,
        lr_scaling_method=74,
        min_batch_size=76,
        max_batch_size=78,
        sequence_picking_order=80,
        max_tokens=82,
        verbose=83,
    )

    enabled: bool = False
    """Make such batches."""
    metrics_path: str | None = None
    """The folder with the lengths of the samples."""
    lr_scaling_method: Literal["linear", "sqrt", "none"] = "linear"
    """How the learning rate follows the batch size."""
    min_batch_size: PositiveInt = 1
    """The smallest batch."""
    max_batch_size: Annotated[PositiveInt | None, NOT_NULL] = None
    """The largest batch."""
    sequence_picking_order: Literal["random", "seqlen", "dataloader"] = "dataloader"
    """The order in which samples are taken."""
    max_tokens: Annotated[PositiveInt | None, Unit("tokens"), _WHEN_ON] = None
    """How many tokens a batch holds."""
    verbose: bool = False
    """Print the batches."""


class DataSampling(Block):
    """Which samples are used when."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/data_pipeline/constants.py", enabled=10, num_epochs=21, num_workers=23, pin_memory=25
    )

    enabled: bool = False
    """Use DeepSpeed's sampler."""
    num_epochs: Annotated[PositiveInt, Unit("epochs")] = 1000
    """For how many epochs an order is made."""
    num_workers: NonNegativeInt = 0
    """How many processes load data."""
    pin_memory: bool = False
    """Load into page-locked memory."""
    curriculum_learning: Annotated[CurriculumLearning, NOT_NULL] = made_by(CurriculumLearning)
    """Start with easy samples."""
    dynamic_batching: Annotated[DynamicBatching, NOT_NULL] = made_by(DynamicBatching)
    """Batches of about equal numbers of tokens."""


class RandomLtdScheduleConfig(Block):
    """The figures of the rise."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/data_pipeline/constants.py", require_steps=118, seq_per_step=117
    )

    require_steps: Annotated[PositiveInt | None, STEPS] = None
    """After how many steps the full length is reached."""
    seq_per_step: Annotated[PositiveInt | None, Unit("tokens")] = None
    """By how many tokens the length rises each time."""


class RandomLtdSchedule(Block):
    """How many tokens the middle layers see, over time."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/data_pipeline/constants.py", min_value=114, max_value=113, schedule_type=46
    )

    min_value: Annotated[PositiveInt | None, Unit("tokens")] = None
    """The length at the start."""
    max_value: Annotated[PositiveInt | None, Unit("tokens")] = None
    """The length at the end."""
    schedule_type: Literal["fixed_linear"] | None = None
    """How the length rises."""
    schedule_config: RandomLtdScheduleConfig | None = None
    """The figures of the rise."""


class LayerTokenLr(Block):
    """A learning rate that follows the tokens that the layers have seen."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/data_pipeline/constants.py", enabled=10)

    enabled: bool = False
    """Must be false: DeepSpeed 0.19.8 does not implement it."""
    total_layer_tokens: PositiveInt | None = None
    """How many layer tokens the training has."""
    warmup_type: str | None = None
    """The shape of the rise."""
    warmup_layer_tokens: PositiveInt | None = None
    """How long the rise takes."""


class RandomLtd(Block):
    """Let the middle layers skip some tokens (random layer-token dropping)."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/data_pipeline/constants.py",
        enabled=10,
        total_layer_num=108,
        random_ltd_layer_num=106,
        random_ltd_layer_id=107,
        model_mask_name=99,
        model_type=100,
        hidden_state_order=105,
    )

    enabled: bool = False
    """Skip tokens."""
    total_layer_num: Annotated[PositiveInt | None, Unit("layers")] = None
    """How many layers the model has."""
    random_ltd_layer_num: Annotated[PositiveInt | None, Unit("layers")] = None
    """How many of them skip tokens."""
    random_ltd_layer_id: list[NonNegativeInt] | None = None
    """Which of them."""
    model_mask_name: str | None = None
    """The name of the attention mask among the layer's arguments."""
    model_type: Literal["decoder", "encoder"] | None = None
    """The kind of model."""
    hidden_state_order: Literal["batch_seq_dim", "seq_batch_dim"] | None = None
    """The order of the dimensions of a hidden state."""
    micro_batch_size: PositiveInt | None = None
    """Set by DeepSpeed while it runs; not for configuration files."""
    global_batch_size: PositiveInt | None = None
    """Set by DeepSpeed while it runs; not for configuration files."""
    random_ltd_schedule: RandomLtdSchedule | None = None
    """How many tokens those layers see, over time."""
    layer_token_lr_schedule: Annotated[LayerTokenLr, NOT_NULL] = made_by(LayerTokenLr)
    """A learning rate that follows the tokens."""


class DataRouting(Block):
    """Which tokens pass which layers."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/data_pipeline/constants.py", enabled=10)

    enabled: bool = False
    """Route tokens."""
    random_ltd: Annotated[RandomLtd, NOT_NULL] = made_by(RandomLtd)
    """Let the middle layers skip some tokens."""


class DataEfficiency(Block):
    """Use less data or less compute for each sample."""

    reads: ClassVar[Mapping[str, str]] = read_at("runtime/data_pipeline/constants.py", enabled=10, seed=12)

    enabled: bool = False
    """Switch the whole section on."""
    seed: int = 1234
    """The random seed of the samplers."""
    data_sampling: Annotated[DataSampling, NOT_NULL] = made_by(DataSampling)
    """Which samples are used when."""
    data_routing: Annotated[DataRouting, NOT_NULL] = made_by(DataRouting)
    """Which tokens pass which layers."""
