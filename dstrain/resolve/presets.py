"""The presets of `ds_configs/`: made here, written by `python -m dstrain.resolve.presets ds_configs`.

"auto" takes the training argument of that name. DeepSpeed reads the comment lines (it loads files as HJSON); tools that
read strict JSON want `dstrain config new` instead, which writes every number out.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dstrain.core.atomic import write_text

_COMMON: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
}


@dataclass(frozen=True)
class Preset:
    """`when` is the head comment; `zero` the section; `runs_on_cpu`: an engine starts with it without a GPU."""

    when: str
    zero: Mapping[str, Any]
    runs_on_cpu: bool = True

    def config(self) -> dict[str, Any]:
        """The configuration as plain values."""
        return {**_COMMON, "zero_optimization": dict(self.zero)}

    def text(self) -> str:
        """The file."""
        comment = "\n".join(f"// {line}" for line in textwrap.wrap(self.when, 100))
        return f"{comment}\n{json.dumps(self.config(), indent=2)}\n"


_STAGE3: dict[str, Any] = {
    "stage": 3,
    "overlap_comm": True,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_gather_16bit_weights_on_model_save": True,
}
_NVME = "/local_nvme"

PRESETS: dict[str, Preset] = {
    "zero0": Preset(
        "No sharding: every rank holds weights, gradients and optimizer states whole, as in plain data parallelism. "
        "For small models, and as the reference for the other stages.",
        {"stage": 0},
    ),
    "zero1": Preset(
        "Optimizer states are sharded over the ranks: with Adam in mixed precision this saves most of the memory, at "
        "no extra communication. The first thing to try.",
        {"stage": 1, "reduce_bucket_size": "auto", "allgather_bucket_size": "auto"},
    ),
    "zero2": Preset(
        "Optimizer states and gradients are sharded. When stage 1 does not fit; best with few accumulation steps, "
        "since gradients are reduced with each micro-batch.",
        {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto", "allgather_bucket_size": "auto"},
    ),
    "zero3": Preset(
        "Weights are sharded as well, and gathered layer by layer while they are needed: for models that do not fit "
        "on one GPU. About half as much communication again as stages 1 and 2.",
        _STAGE3,
    ),
    "zero2_offload": Preset(
        "Stage 2 with the optimizer in host memory, stepped by the CPU: when weights and gradients fit on the GPUs "
        "but Adam's states do not. Needs about 16 bytes of host memory for each parameter.",
        {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": "auto",
        },
    ),
    "zero3_offload": Preset(
        "Stage 3 with weights and optimizer in host memory: the largest model for the GPUs that are there, at the "
        "price of copies over PCIe with every layer.",
        {
            **_STAGE3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True},
        },
    ),
    "zero3_nvme": Preset(
        f"Stage 3 with weights and optimizer on a local NVMe disk: when host memory is too small as well. Set "
        f"nvme_path (here {_NVME}) to a folder on the disk. Needs the op async_io (dstrain ops build async_io).",
        {
            **_STAGE3,
            "offload_optimizer": {"device": "nvme", "nvme_path": _NVME, "pin_memory": True},
            "offload_param": {"device": "nvme", "nvme_path": _NVME, "pin_memory": True},
        },
        runs_on_cpu=False,
    ),
    "zero3_zeropp": Preset(
        "ZeRO++: stage 3 for several nodes with a slow network between them. Weights are gathered within a node of 8 "
        "GPUs (zero_hpz_partition_size) and communication is quantised. GPUs only; set the size to the GPUs of a node.",
        {**_STAGE3, "zero_hpz_partition_size": 8, "zero_quantized_weights": True, "zero_quantized_gradients": True},
        runs_on_cpu=False,
    ),
    "one_gpu": Preset(
        "One GPU and a model whose optimizer does not fit beside it: nothing to shard over, so the optimizer goes to "
        "host memory. If it all fits, train without a DeepSpeed file.",
        {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "overlap_comm": False,
            "reduce_bucket_size": "auto",
            "allgather_bucket_size": "auto",
        },
    ),
    "cpu": Preset(
        "Ranks without a GPU (gloo): for tests and for trying things out. Small buckets: ranks on one machine share "
        "its memory.",
        {"stage": 1, "reduce_bucket_size": 5_000_000, "allgather_bucket_size": 5_000_000},
    ),
}


def write_all(folder: Path) -> None:
    """Write every preset as `folder/NAME.json`."""
    for name, preset in PRESETS.items():
        write_text(folder / f"{name}.json", preset.text())


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
