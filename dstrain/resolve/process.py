"""Settings of the process and of the model's memory, and what has no effect on this machine."""

from __future__ import annotations

from pathlib import Path

from dstrain.core.source import derived
from dstrain.resolve._builder import Builder
from dstrain.resolve.plan import ProcessPlan


def process(b: Builder) -> ProcessPlan:
    """Determinism, TF32, recomputed activations and the device's cache."""
    a = b.args
    if a.tf32 is not None and b.host.device != "cuda":
        b.notices.append(f"tf32 has no effect: the device is {b.host.device}")
    if a.torch_empty_cache_steps is not None and b.host.device == "cpu":
        b.notices.append("torch_empty_cache_steps has no effect: the device is cpu")
    if a.eval_accumulation_steps is not None:
        b.notices.append("eval_accumulation_steps has no effect: outputs leave the device after every batch")
    return ProcessPlan(
        full_determinism=b.arg("process.full_determinism", "full_determinism"),
        tf32=b.arg("process.tf32", "tf32"),
        gradient_checkpointing=bool(b.arg("process.gradient_checkpointing", "gradient_checkpointing")),
        gradient_checkpointing_kwargs=b.arg("process.gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs"),
        empty_cache_steps=b.arg("process.empty_cache_steps", "torch_empty_cache_steps"),
    )


def run_name(b: Builder) -> str:
    """The name that was given, else the output folder's."""
    if b.args.run_name is not None:
        return str(b.arg("run_name", "run_name"))
    return str(b.put("run_name", Path(b.args.output_dir).name, derived("the name of output_dir")))
