"""What DeepSpeed 0.19.8 builds for an optimizer or scheduler name, and the parameters that each takes. Data only.

Read from the signatures of `deepspeed/ops/*`, `deepspeed/runtime/engine.py:2472`, `deepspeed/runtime/lr_schedules.py`
and torch 2.13; `tests/cpu/test_rules_against_deepspeed.py` holds the tables against the installed packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from dstrain.dsconfig.document import Document
from dstrain.rules.view import flag
from dstrain.rules.view import offload_optimizer as optimizer_device


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


DEEPSPEED = _names("adagrad adam adamw lamb muadam muadamw musgd lion muon")
REMOVED: Mapping[str, str] = MappingProxyType(
    {"onebitadam": "AdamW", "zerooneadam": "AdamW", "onebitlamb": "Lamb", "1bitadam": "AdamW", "1bitlamb": "Lamb"}
)
# Names that other libraries use, with what does the same here.
FOREIGN: Mapping[str, str] = MappingProxyType(
    {
        "fusedadam": "AdamW",
        "deepspeedcpuadam": "AdamW",
        "cpuadam": "AdamW",
        "adamw_torch": "AdamW",
        "adamw_torch_fused": "AdamW",
        "adamw_hf": "AdamW",
        "paged_adamw_8bit": "AdamW",
        "adamw8bit": "AdamW",
        "adamw_8bit": "AdamW",
        "fusedlamb": "Lamb",
        "fusedlion": "Lion",
    }
)
TORCH: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "ASGD": _names("lr lambd alpha t0 weight_decay foreach maximize differentiable capturable"),
        "Adadelta": _names("lr rho eps weight_decay foreach capturable maximize differentiable"),
        "Adafactor": _names("lr beta2_decay eps d weight_decay foreach maximize"),
        "Adamax": _names("lr betas eps weight_decay foreach maximize differentiable capturable"),
        "LBFGS": _names("lr max_iter max_eval tolerance_grad tolerance_change history_size line_search_fn"),
        "NAdam": _names(
            "lr betas eps weight_decay momentum_decay decoupled_weight_decay foreach maximize capturable differentiable"
        ),
        "RAdam": _names("lr betas eps weight_decay decoupled_weight_decay foreach maximize capturable differentiable"),
        "RMSprop": _names("lr alpha eps weight_decay momentum centered capturable foreach maximize differentiable"),
        "Rprop": _names("lr etas step_sizes capturable foreach maximize differentiable"),
        "SGD": _names("lr momentum dampening weight_decay nesterov maximize foreach differentiable fused"),
        "SparseAdam": _names("lr betas eps maximize"),
    }
)
_TORCH_ADAM = _names("lr betas eps weight_decay amsgrad maximize foreach capturable differentiable fused")
_TORCH_ADAGRAD = _names("lr lr_decay weight_decay initial_accumulator_value eps foreach maximize differentiable fused")
# Popped from the parameters before the optimizer is built.
_POPPED = _names("torch_adam adam_w_mode fp32_optimizer_states")
# Refused by a rule of its own; listed so that it is not reported twice.
_OWN_RULE = _names("max_grad_norm")
_FUSED_ADAM = _names("lr bias_correction betas eps weight_decay amsgrad set_grad_none")
_CPU_ADAM = _names("lr bias_correction betas eps weight_decay amsgrad")
_LAMB = _names("lr bias_correction betas eps eps_inside_sqrt weight_decay max_coeff min_coeff amsgrad")
_MUON = _names("lr momentum weight_decay ns_method betas eps muon_lr adam_lr per_head_muon foreach")

WARMUP = _names("warmup_min_lr warmup_max_lr warmup_num_steps warmup_type last_batch_iteration")
SCHEDULERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "LRRangeTest": _names(
            "lr_range_test_min_lr lr_range_test_step_size lr_range_test_step_rate lr_range_test_staircase "
            "last_batch_iteration"
        ),
        "OneCycle": _names(
            "cycle_min_lr cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
            "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom "
            "cycle_max_mom decay_mom_rate last_batch_iteration"
        ),
        "WarmupLR": WARMUP,
        "WarmupDecayLR": WARMUP | {"total_num_steps"},
        "WarmupCosineLR": _names(
            "total_num_steps warmup_min_ratio warmup_num_steps cos_min_ratio warmup_type last_batch_iteration"
        ),
    }
)
REQUIRED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
        "WarmupDecayLR": ("total_num_steps",),
        "WarmupCosineLR": ("total_num_steps",),
        "ChainedScheduler": ("schedulers",),
        "CosineAnnealingLR": ("T_max",),
        "CosineAnnealingWarmRestarts": ("T_0",),
        "CyclicLR": ("base_lr", "max_lr"),
        "ExponentialLR": ("gamma",),
        "LambdaLR": ("lr_lambda",),
        "MultiStepLR": ("milestones",),
        "MultiplicativeLR": ("lr_lambda",),
        "OneCycleLR": ("max_lr",),
        "SequentialLR": ("schedulers", "milestones"),
        "StepLR": ("step_size",),
    }
)
TORCH_SCHEDULERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "ChainedScheduler": _names("schedulers"),
        "ConstantLR": _names("factor total_iters last_epoch"),
        "CosineAnnealingLR": _names("T_max eta_min last_epoch"),
        "CosineAnnealingWarmRestarts": _names("T_0 T_mult eta_min last_epoch"),
        "CyclicLR": _names(
            "base_lr max_lr step_size_up step_size_down mode gamma scale_fn scale_mode cycle_momentum base_momentum "
            "max_momentum last_epoch"
        ),
        "ExponentialLR": _names("gamma last_epoch"),
        "LambdaLR": _names("lr_lambda last_epoch"),
        "LinearLR": _names("start_factor end_factor total_iters last_epoch"),
        "MultiStepLR": _names("milestones gamma last_epoch"),
        "MultiplicativeLR": _names("lr_lambda last_epoch"),
        "OneCycleLR": _names(
            "max_lr total_steps epochs steps_per_epoch pct_start anneal_strategy cycle_momentum base_momentum "
            "max_momentum div_factor final_div_factor three_phase last_epoch"
        ),
        "PolynomialLR": _names("total_iters power last_epoch"),
        "ReduceLROnPlateau": _names("mode factor patience threshold threshold_mode cooldown min_lr eps"),
        "SequentialLR": _names("schedulers milestones last_epoch"),
        "StepLR": _names("step_size gamma last_epoch"),
    }
)
# Built from Python objects (functions, other schedulers), which a file cannot hold.
NOT_FROM_A_FILE = _names("ChainedScheduler LambdaLR MultiplicativeLR SequentialLR")
# What ZeRO accepts without zero_allow_untested_optimizer (zero/utils.py:50); Lamb is not among them.
ZERO_TESTED = _names("adam adamw adagrad lion muon")


def kind(doc: Document) -> str | None:
    """The optimizer that DeepSpeed builds: one of `DEEPSPEED` (lower case) or of `TORCH` (exact); None if neither."""
    name = doc.section("optimizer").get("type")
    if not isinstance(name, str):
        return None
    if name.lower() in DEEPSPEED:
        return name.lower()
    return name if name in TORCH else None


def accepted(doc: Document) -> frozenset[str] | None:
    """The keys of `optimizer.params` that the optimizer of this file takes; None when they are not known."""
    name, offloaded = kind(doc), optimizer_device(doc) in ("cpu", "nvme")
    if name in ("adam", "adamw"):
        if flag(doc.get("optimizer.params.torch_adam")):
            # `foreach` is popped and passed on; bias_correction and set_grad_none are not torch's.
            return _TORCH_ADAM | _POPPED | _OWN_RULE
        return (_CPU_ADAM if offloaded else _FUSED_ADAM) | _POPPED | _OWN_RULE
    if name == "adagrad":
        known = _names("lr eps weight_decay amsgrad fp32_optimizer_states") if offloaded else _TORCH_ADAGRAD
        return known | _OWN_RULE
    if name == "lion":
        known = _names("lr betas weight_decay fp32_optimizer_states")
        return (known if offloaded else _names("lr betas weight_decay set_grad_none")) | _OWN_RULE
    if name == "lamb":
        return _LAMB | _OWN_RULE
    if name == "muon":
        return _MUON | _POPPED | _OWN_RULE
    return TORCH[name] | _OWN_RULE if name is not None and name in TORCH else None
