"""Fields that transformers had at 4.37 and has no more, with their defaults of then, and what is done with each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dstrain.args._entries import Entry
from dstrain.args.values import truth

_GPU = "it counted rows of all GPUs of a process"
_ALWAYS_SAFE = "weights are always written as safetensors"
_OWN_SHARE = "every rank loads its own rows; drop it"
_FSDP = "deepspeed=… with ZeRO stage 3 shards in the same way"
_GONE = "it is gone from transformers too; drop it"

REMOVED: tuple[Entry, ...] = (
    Entry("evaluation_strategy", "M", "alias", "no", "eval_strategy"),
    Entry("warmup_ratio", "M", "alias", 0.0, "warmup_steps"),
    Entry("overwrite_output_dir", "M", "differs", False, "what the folder holds is moved aside, never deleted"),
    Entry("logging_dir", "M", "alias", None, "nothing: metrics.jsonl is in output_dir; TensorBoard not yet"),
    Entry("group_by_length", "M", "alias", False, "train_sampling_strategy"),
    Entry("include_tokens_per_second", "M", "alias", False, "include_num_input_tokens_seen"),
    Entry("no_cuda", "N", "alias", False, "use_cpu"),
    Entry("save_safetensors", "N", "absent", True, _ALWAYS_SAFE),
    Entry("adafactor", "N", "not yet", False, "use another --optim"),
    Entry("dispatch_batches", "N", "absent", None, _OWN_SHARE, (False,)),
    Entry("split_batches", "N", "absent", None, _OWN_SHARE, (False,)),
    Entry("fsdp_min_num_params", "N", "not yet", 0, _FSDP),
    Entry("fsdp_transformer_layer_cls_to_wrap", "N", "not yet", None, _FSDP),
    Entry("include_inputs_for_metrics", "N", "not yet", False, "compute_metrics gets predictions and label_ids"),
    Entry("push_to_hub_model_id", "N", "not yet", None, "nothing is pushed; upload the output folder yourself"),
    Entry("push_to_hub_organization", "N", "not yet", None, "nothing is pushed; upload the output folder yourself"),
    Entry("push_to_hub_token", "N", "not yet", None, "nothing is pushed; upload the output folder yourself"),
    Entry("per_gpu_train_batch_size", "I", "absent", None, f"{_GPU}; use per_device_train_batch_size"),
    Entry("per_gpu_eval_batch_size", "I", "absent", None, f"{_GPU}; use per_device_eval_batch_size"),
    Entry("use_mps_device", "I", "absent", False, "the device is found by itself; drop it"),
    Entry("jit_mode_eval", "I", "absent", False, _GONE),
    Entry("use_ipex", "I", "absent", False, _GONE),
    Entry("fp16_opt_level", "I", "absent", "O1", "NVIDIA Apex is not used; use fp16 or bf16"),
    Entry("half_precision_backend", "I", "absent", "auto", "the engine decides; use fp16 or bf16"),
    Entry("fp16_backend", "I", "absent", "auto", "the engine decides; use fp16 or bf16"),
    Entry("tpu_num_cores", "I", "absent", None, "TPUs are not supported; drop it"),
    Entry("tpu_metrics_debug", "I", "absent", False, "TPUs are not supported; drop it"),
    Entry("past_index", "I", "absent", -1, _GONE),
    Entry("use_legacy_prediction_loop", "I", "absent", False, "there is one evaluation loop; drop it"),
    Entry("mp_parameters", "I", "absent", "", "SageMaker's model parallelism is not supported; drop it"),
    Entry("_n_gpu", "I", "absent", -1, "one process per device: start with `deepspeed` or `torchrun`"),
    Entry("torchdynamo", "I", "absent", None, "compile the model yourself: torch.compile(model)"),
    Entry("ray_scope", "I", "absent", "last", "there is no search with Ray; drop it"),
)


@dataclass(frozen=True, slots=True)
class Alias:
    """An older spelling of a field of ours.

    Args:
        to: our field; "" when there is none, and the value is dropped with a notice.
        write: from the older value to ours; raises ValueError with what was expected.
        read: from our value to the older one.
    """

    to: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]


def _unchanged(value: Any) -> Any:
    return value


def _ratio(value: Any) -> float | int:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number < 1.0:
        raise ValueError(f"got {value!r}, expected a share of all steps, from 0 to below 1")
    return number or 0


ALIASES: dict[str, Alias] = {
    "activation_checkpointing": Alias("gradient_checkpointing", _unchanged, _unchanged),
    "activation_checkpointing_kwargs": Alias("gradient_checkpointing_kwargs", _unchanged, _unchanged),
    "evaluation_strategy": Alias("eval_strategy", _unchanged, _unchanged),
    "warmup_ratio": Alias("warmup_steps", _ratio, lambda steps: float(steps) if steps < 1 else 0.0),
    "logging_dir": Alias("", _unchanged, lambda _: None),
    "group_by_length": Alias(
        "train_sampling_strategy",
        lambda value: "group_by_length" if truth(value) else "random",
        lambda name: name == "group_by_length",
    ),
    "include_tokens_per_second": Alias(
        "include_num_input_tokens_seen", lambda value: "all" if truth(value) else "no", lambda name: name != "no"
    ),
    "no_cuda": Alias("use_cpu", truth, _unchanged),
}
