"""What DeepSpeed 0.19.8 does to a run that nobody asked for, put right after `deepspeed.initialize`.

Each function names the file it answers, does nothing where the fault is not there, and is held by a test that compares
with plain torch.
"""

from __future__ import annotations

from typing import Any

import torch
from deepspeed.runtime import torch_autocast


def forget_earlier_engines() -> None:
    """An engine with torch_autocast marks the process (runtime/torch_autocast.py), and no `destroy()` takes that away.

    A later engine of ZeRO 1 to 3 (stage_1_and_2.py:609, stage3.py:470) would ask its parameters for reduced dtypes.
    """
    torch_autocast.TORCH_AUTOCAST_INITIALIZED = False
    torch_autocast.TORCH_AUTOCAST_DTYPE = None


def undo_first_step(optimizer: Any) -> None:
    """The 16-bit optimizers of stage 0 make their states by a real step on zero gradients (fp16/*_optimizer.py,
    `initialize_optimizer_states`): Adam's bias correction is then one step ahead, so that the first updates are a
    quarter too small, and weights have decayed once.
    """
    low = getattr(optimizer, "fp16_groups", None)
    flat = getattr(optimizer, "fp32_groups_flat", None)
    masters = getattr(optimizer, "fp32_groups", None)
    inner = getattr(optimizer, "optimizer", None)
    if low is None or inner is None or (flat is None and masters is None):
        return
    with torch.no_grad():
        if flat is not None:
            for master, weights in zip(flat, optimizer.fp16_groups_flat, strict=True):
                master.copy_(weights)
        else:
            for group, weights_of_group in zip(masters or (), low, strict=True):
                for master, weight in zip(group, weights_of_group, strict=True):
                    master.copy_(weight)
    inner.state.clear()
    for group in inner.param_groups:
        group.pop("step", None)  # FusedAdam counts there


def keep_groups(optimizer: Any, basic: Any) -> None:
    """Stages 1 to 3 make torch's Adagrad anew over one group with default settings (zero/stage_1_and_2.py:946 and
    stage3.py): the groups' weight decay is lost, a schedule goes on turning the optimizer that was thrown away, and
    with more than one group the first step fails.
    """
    inner: Any = getattr(optimizer, "optimizer", None)
    if inner is basic or not isinstance(basic, torch.optim.Adagrad) or type(inner) is not type(basic):
        return
    partitions = getattr(optimizer, "single_partition_of_fp32_groups", None)
    for index, group in enumerate(basic.param_groups):
        # Stage 3 puts the tensors of a sub-group in, for the time of its step.
        group["params"] = [partitions[index]] if partitions is not None else []
    inner.param_groups = basic.param_groups
    if partitions is not None:
        # It linked the weights of the one group that it saw; those of the others it would miss at the first step.
        optimizer._link_all_hp_params()
