"""Number formats: `bf16`, `fp16`, `torch_autocast`, `data_types`."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonNegativeFloat, NonNegativeInt, PositiveInt
from dstrain.dsconfig.blocks.notes import FILLED, NOT_NULL, Condition, OffWhenAuto, Stages, Unit

AutocastDtype = Literal[
    "torch.float16",
    "fp16",
    "float16",
    "half",
    "torch.bfloat16",
    "bf16",
    "bfloat16",
    "torch.float32",
    "fp32",
    "float32",
    "float",
    "torch.int8",
    "int8",
]
Dtype = AutocastDtype
_MASTER = Stages((1, 2, 3), raises=True)


class Bf16(Block):
    """Train in bfloat16: the range of fp32 with fewer digits, so no loss scaling."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/precision_config.py",
        enabled=46,
        immediate_grad_update=51,
        check_grad_overflow=56,
        bf16_master_weights_and_grads=63,
        bf16_optimizer_states=68,
    )

    enabled: Annotated[bool, FILLED, OffWhenAuto()] = False
    """Cast the model to bfloat16 and keep fp32 master weights in the optimizer."""
    immediate_grad_update: bool = False
    """Add each gradient to the fp32 ones as soon as it is made, not after backward."""
    check_grad_overflow: bool = True
    """Skip a step whose gradients hold inf or nan."""
    bf16_master_weights_and_grads: Annotated[bool, _MASTER] = False
    """Keep the master weights and gradients in bfloat16 too: half the memory, less exact."""
    bf16_optimizer_states: Annotated[bool, Condition("bf16_master_weights_and_grads = true")] = False
    """Keep the optimizer's moments in bfloat16 too."""


class Fp16(Block):
    """Train in float16 with loss scaling."""

    strict: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/precision_config.py",
        enabled=105,
        auto_cast=110,
        loss_scale=115,
        initial_scale_power=135,
        loss_scale_window=140,
        hysteresis=145,
        consecutive_hysteresis=150,
        min_loss_scale=155,
        fp16_master_weights_and_grads=160,
    )

    enabled: Annotated[bool, FILLED, OffWhenAuto()] = False
    """Cast the model to float16 and keep fp32 master weights in the optimizer."""
    auto_cast: bool = False
    """Cast the inputs of forward to float16."""
    loss_scale: NonNegativeFloat = 0
    """A fixed factor on the loss, or 0 to adapt it as training runs."""
    initial_scale_power: int = 16
    """The first dynamic loss scale, as a power of two."""
    loss_scale_window: Annotated[PositiveInt, Unit("steps")] = 1000
    """The scale is raised after this many steps without overflow."""
    hysteresis: Annotated[NonNegativeInt, Unit("overflows")] = 2
    """How many overflows it takes to lower the scale."""
    consecutive_hysteresis: bool = False
    """Start counting overflows anew after each step without one."""
    min_loss_scale: PositiveInt = 1
    """The scale never falls below this."""
    fp16_master_weights_and_grads: Annotated[bool, _MASTER, Condition("optimizer on the CPU")] = False
    """Keep the master weights and gradients in float16 too; needs DeepSpeed's CPU Adam."""


class TorchAutocast(Block):
    """Let torch choose the number format of each operation (`torch.autocast`)."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/config.py", enabled=181, dtype=190, lower_precision_safe_modules=200
    )

    enabled: bool = False
    """Run forward under `torch.autocast`."""
    dtype: Annotated[AutocastDtype | None, NOT_NULL] = None
    """The low-precision format; write "bfloat16" or "float16"."""
    lower_precision_safe_modules: Annotated[list[str] | None, NOT_NULL] = None
    """Class paths of modules whose parameters may be reduced in the low precision."""


class DataTypes(Block):
    """Number formats of gradients, parameters and buffers."""

    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/config.py", grad_accum_dtype=556, param_dtype=559, buffer_dtype=561, keep_in_fp32_modules=563
    )

    grad_accum_dtype: Dtype | None = None
    """The format in which gradients are accumulated; unset means the format of the model."""
    param_dtype: Dtype | None = None
    """The format of the parameters; must agree with bf16 or fp16."""
    buffer_dtype: Dtype | None = None
    """The format of the model's buffers; unset leaves them as they were loaded."""
    keep_in_fp32_modules: Literal["auto"] | list[str] = "auto"
    """Name patterns of modules that stay in fp32; "auto" asks the model."""
