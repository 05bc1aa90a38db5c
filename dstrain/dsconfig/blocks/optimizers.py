"""`optimizer.params`, one block for each optimizer that DeepSpeed 0.19.8 makes, and for torch's own."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from dstrain.dsconfig.blocks.base import Block, read_at
from dstrain.dsconfig.blocks.light import NonNegativeFloat
from dstrain.dsconfig.blocks.notes import FILLED, Condition


class OptimizerParams(Block):
    """The arguments of an optimizer. This base stands for a class of `torch.optim` that is not modelled one by one."""

    free: ClassVar[bool] = True

    lr: Annotated[NonNegativeFloat, FILLED] = 1e-3
    """The learning rate. A scheduler, if there is one, overrides it."""
    weight_decay: Annotated[NonNegativeFloat, FILLED] = 0.0
    """How strongly weights are pulled to zero at each step."""


class _Moments(OptimizerParams):
    betas: Annotated[list[float], FILLED] = [0.9, 0.999]  # noqa: RUF012  (pydantic copies it)
    """The decay of the running means of the gradient and of its square."""
    eps: Annotated[NonNegativeFloat, FILLED] = 1e-8
    """Added to the denominator, against division by zero."""


class TorchFlags(OptimizerParams):
    """Switches that torch's own optimizers share."""

    foreach: bool | None = None
    """Update all parameters by multi-tensor calls; unset lets torch choose."""
    maximize: bool = False
    """Go up instead of down."""
    differentiable: bool = False
    """Let autograd run through the step."""


class Adam(_Moments):
    """`Adam` and `AdamW`: both are AdamW unless the type is Adam and adam_w_mode is false."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = {
        **read_at("runtime/engine.py", torch_adam=2378, fp32_optimizer_states=2379, foreach=2381),
        **read_at(
            "ops/adam/fused_adam.py",
            adam_w_mode=76,
            lr=76,
            bias_correction=76,
            betas=76,
            eps=76,
            weight_decay=76,
            amsgrad=76,
            set_grad_none=76,
        ),
    }

    torch_adam: bool = False
    """Use torch's AdamW instead of DeepSpeed's fused one."""
    adam_w_mode: bool = True
    """Decay weights apart from the gradient (AdamW); false with type Adam gives the classic L2 form."""
    bias_correction: Annotated[bool, Condition("torch_adam = false")] = True
    """Correct the moments for their start at zero."""
    amsgrad: bool = False
    """The AMSGrad variant; DeepSpeed's own Adam does not support true."""
    set_grad_none: Annotated[bool, Condition("no offloading and torch_adam = false")] = True
    """Free gradients after the step instead of zeroing them."""
    fp32_optimizer_states: Annotated[bool | None, Condition("offload_optimizer")] = None
    """Keep the moments in fp32 on the CPU; unset means true."""
    foreach: Annotated[bool | None, Condition("torch_adam = true")] = None
    """Update all parameters by multi-tensor calls."""
    maximize: Annotated[bool, Condition("torch_adam = true")] = False
    """Go up instead of down."""
    capturable: Annotated[bool, Condition("torch_adam = true")] = False
    """Allow the step inside a CUDA graph."""
    differentiable: Annotated[bool, Condition("torch_adam = true")] = False
    """Let autograd run through the step."""
    fused: Annotated[bool | None, Condition("torch_adam = true")] = None
    """Use torch's fused kernel."""


class Lamb(_Moments):
    """LAMB: Adam with a trust ratio per layer. DeepSpeed takes it with ZeRO only as an untested optimizer."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "ops/lamb/fused_lamb.py",
        lr=41,
        bias_correction=41,
        betas=41,
        eps=41,
        eps_inside_sqrt=41,
        weight_decay=41,
        max_coeff=41,
        min_coeff=41,
        amsgrad=41,
    )

    bias_correction: bool = True
    """Correct the moments for their start at zero."""
    eps_inside_sqrt: bool = False
    """Add eps below the root instead of beside it."""
    max_coeff: float = 10.0
    """The largest trust ratio."""
    min_coeff: float = 0.01
    """The smallest trust ratio."""
    amsgrad: bool = False
    """The AMSGrad variant; not supported."""


class Lion(OptimizerParams):
    """Lion: steps by the sign of a running mean; half of Adam's memory."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "ops/lion/fused_lion.py", lr=36, betas=36, weight_decay=36, set_grad_none=36
    )

    betas: Annotated[list[float], FILLED] = [0.9, 0.999]  # noqa: RUF012
    """The decay of the running means."""
    set_grad_none: Annotated[bool, Condition("no offloading")] = True
    """Free gradients after the step instead of zeroing them."""
    fp32_optimizer_states: Annotated[bool, Condition("offload_optimizer")] = True
    """Keep the running mean in fp32 on the CPU."""


class Adagrad(TorchFlags):
    """Adagrad: torch's own, or DeepSpeed's on the CPU with offload_optimizer."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True
    reads: ClassVar[Mapping[str, str]] = read_at(
        "ops/adagrad/cpu_adagrad.py", lr=14, eps=14, weight_decay=14, amsgrad=14, fp32_optimizer_states=14
    )

    lr: Annotated[NonNegativeFloat, FILLED] = 1e-2
    """The learning rate."""
    eps: Annotated[NonNegativeFloat, FILLED] = 1e-10
    """Added to the denominator, against division by zero."""
    lr_decay: Annotated[NonNegativeFloat, Condition("no offloading")] = 0.0
    """How fast the learning rate falls."""
    initial_accumulator_value: Annotated[NonNegativeFloat, Condition("no offloading")] = 0.0
    """Where the sum of squares starts."""
    fused: Annotated[bool | None, Condition("no offloading")] = None
    """Use torch's fused kernel."""
    amsgrad: Annotated[bool, Condition("offload_optimizer")] = False
    """Taken and ignored."""
    fp32_optimizer_states: Annotated[bool, Condition("offload_optimizer")] = True
    """Keep the states in fp32 on the CPU."""


class Muon(_Moments):
    """Muon for matrices and Adam for the rest. DeepSpeed drops keys that it does not know in silence."""

    free: ClassVar[bool] = False
    reads: ClassVar[Mapping[str, str]] = read_at(
        "runtime/engine.py",
        lr=2413,
        momentum=2413,
        weight_decay=2413,
        ns_method=2413,
        betas=2413,
        eps=2413,
        muon_lr=2413,
        adam_lr=2413,
        per_head_muon=2413,
    )

    momentum: float = 0.95
    """The decay of Muon's running mean."""
    ns_method: str = "gram"
    """How matrices are orthogonalised (Newton-Schulz variant)."""
    muon_lr: float | None = None
    """The learning rate of the matrices; unset means lr."""
    adam_lr: float | None = None
    """The learning rate of the rest; unset means lr."""
    per_head_muon: bool = False
    """Orthogonalise attention matrices head by head."""
    torch_adam: bool = False
    """Use torch's AdamW for the rest."""
    adam_w_mode: bool = True
    """Decay weights apart from the gradient."""
    fp32_optimizer_states: Annotated[bool | None, Condition("offload_optimizer")] = None
    """Keep the moments in fp32 on the CPU."""
    foreach: Annotated[bool | None, Condition("torch_adam = true")] = None
    """Update all parameters by multi-tensor calls."""


class TorchAdam(TorchFlags, _Moments):
    """What `torch.optim.Adam` and its kin take; the base of mup's optimizers too."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True

    amsgrad: bool = False
    """The AMSGrad variant."""
    capturable: bool = False
    """Allow the step inside a CUDA graph."""
    fused: bool | None = None
    """Use torch's fused kernel."""
    decoupled_weight_decay: bool = False
    """Decay weights apart from the gradient."""


class MuAdam(TorchAdam):
    """Adam under mu-parametrisation (the `mup` package)."""

    impl: str | None = None
    """The optimizer class below; not for configuration files."""
    decoupled_wd: bool = False
    """Decay weights independently of the width."""


class Sgd(TorchFlags):
    """`torch.optim.SGD`; ZeRO takes it only with zero_allow_untested_optimizer."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True

    momentum: float = 0.0
    """The decay of the running mean of gradients."""
    dampening: float = 0.0
    """How much the momentum is damped."""
    nesterov: bool = False
    """Look ahead by the momentum."""
    fused: bool | None = None
    """Use torch's fused kernel."""


class MuSgd(Sgd):
    """SGD under mu-parametrisation (the `mup` package)."""

    impl: str | None = None
    """The optimizer class below; not for configuration files."""
    decoupled_wd: bool = False
    """Decay weights independently of the width."""


class RmsProp(TorchFlags):
    """`torch.optim.RMSprop`."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True

    lr: Annotated[NonNegativeFloat, FILLED] = 1e-2
    """The learning rate."""
    alpha: float = 0.99
    """The decay of the running mean of squares."""
    eps: Annotated[NonNegativeFloat, FILLED] = 1e-8
    """Added to the denominator."""
    momentum: float = 0.0
    """The decay of the running mean of steps."""
    centered: bool = False
    """Subtract the mean gradient."""
    capturable: bool = False
    """Allow the step inside a CUDA graph."""


class Adafactor(OptimizerParams):
    """`torch.optim.Adafactor`: Adam with factored second moments."""

    free: ClassVar[bool] = False
    arguments: ClassVar[bool] = True

    lr: Annotated[NonNegativeFloat, FILLED] = 1e-2
    """The learning rate."""
    beta2_decay: float = -0.8
    """How the decay of the second moment grows."""
    eps: Annotated[list[float | None], FILLED] = [None, 1e-3]  # noqa: RUF012
    """Two regularisation constants."""
    d: float = 1.0
    """The clipping threshold of the update."""
    foreach: bool | None = None
    """Update all parameters by multi-tensor calls."""
    maximize: bool = False
    """Go up instead of down."""


OPTIMIZERS: Mapping[str, type[OptimizerParams]] = {
    "Adam": Adam,
    "AdamW": Adam,
    "Lamb": Lamb,
    "Lion": Lion,
    "Adagrad": Adagrad,
    "Muon": Muon,
    "MuAdam": MuAdam,
    "MuAdamW": MuAdam,
    "MuSGD": MuSgd,
    "SGD": Sgd,
    "RMSprop": RmsProp,
    "Adafactor": Adafactor,
}
"""The block of `optimizer.params` by `optimizer.type`; the last three are torch's."""
_TORCH_ONLY = frozenset({"SGD", "RMSprop", "Adafactor"})
ANY_CASE = {name.lower(): block for name, block in OPTIMIZERS.items() if name not in _TORCH_ONLY}
"""DeepSpeed's own optimizers, which it finds in any case, by their name in lower case."""


def optimizer_params(type_name: Any) -> type[OptimizerParams]:
    """The block of `optimizer.params` for an `optimizer.type`: DeepSpeed's names in any case, torch's exactly."""
    if not isinstance(type_name, str):
        return OptimizerParams
    return ANY_CASE.get(type_name.lower()) or OPTIMIZERS.get(type_name) or OptimizerParams
