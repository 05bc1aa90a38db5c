"""The catalogue against the DeepSpeed that is installed: no key that it reads is missing, no default has moved."""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import deepspeed
import pytest
from deepspeed_reads import UNKNOWN, constant_keys, model_keys, read_keys

from dstrain.core.facts import Mode
from dstrain.core.finding import Severity
from dstrain.dsconfig.blocks.base import Block, fields_of
from dstrain.dsconfig.blocks.optimizers import OPTIMIZERS
from dstrain.dsconfig.blocks.schedulers import SCHEDULERS
from dstrain.dsconfig.catalogue import KEYS, REMOVED, KeyInfo, by_last_name
from dstrain.dsconfig.check import problems
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.removed import FORGOTTEN

pytestmark = pytest.mark.cpu

MODELLED = "0.19.8"
LISTED: Mapping[str, str] = {
    "optimizer.params.max_grad_norm": "refused by the engine; the check leads to gradient_clipping",
}
"""Keys that DeepSpeed reads and that are no keys to write, with the reason."""
LISTED_NAMES: Mapping[str, str] = {
    "check_overflow": "a constant of 0.19.8 that nothing reads; the field is check_grad_overflow",
    "max_grad_norm": "refused by the engine",
}
"""Names in the constants modules that are no keys of 0.19.8."""


@dataclass(frozen=True)
class Drift:
    """How the installed DeepSpeed differs from the catalogue."""

    missing: tuple[str, ...]
    gone: tuple[str, ...]
    moved: tuple[str, ...]

    def text(self) -> str:
        lines = [f"DeepSpeed {deepspeed.__version__} against the catalogue, which was made from {MODELLED}:"]
        lines += [f"  reads '{key}', which is neither modelled nor listed" for key in self.missing]
        lines += [f"  no longer has '{key}'" for key in self.gone]
        lines += [f"  default changed: {line}" for line in self.moved]
        return "\n".join(lines)


def compare(catalogue: Mapping[str, KeyInfo]) -> Drift:
    """The catalogue against the installed package."""
    models, reads = model_keys(), read_keys()
    theirs = {**reads, **models}
    known = set(catalogue) | set(REMOVED) | set(LISTED)
    missing = [key for key in theirs if key not in known and not _free(key, catalogue)]
    ours = [key for key, info in catalogue.items() if info.strict and info.replaced_by is None]
    gone = [key for key in ours if key not in models]
    moved = [
        f"{key} is {theirs[key]!r}, ours is {info.default!r}"
        for key, info in catalogue.items()
        if theirs.get(key, UNKNOWN) is not UNKNOWN and info.field.section is None and not info.field.required
        if not _same(theirs[key], info.default)
    ]
    return Drift(tuple(sorted(missing)), tuple(sorted(gone)), tuple(sorted(moved)))


def _free(key: str, catalogue: Mapping[str, KeyInfo]) -> bool:
    """Whether a key stands below one that holds what the user likes."""
    parents = [key.rsplit(".", count)[0] for count in range(1, key.count(".") + 1)]
    return any(catalogue[parent].field.type.kinds in (("any",), ("dict",)) for parent in parents if parent in catalogue)


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, tuple):
        theirs = list(theirs)
    return bool(theirs == ours) and isinstance(theirs, bool) == isinstance(ours, bool)


def test_deepspeed_reads_no_key_that_we_do_not_know_and_no_default_moved() -> None:
    drift = compare(KEYS)
    assert drift == Drift((), (), ()), drift.text()


@pytest.mark.parametrize(
    "key",
    [
        "steps_per_print",
        "zero_optimization.stage",
        "zero_optimization.offload_param.buffer_count",
        "zero_optimization.zenflow",
        "autotuning.mp_size",
        "autotuning.model_info",
        "pipeline.use_reentrant",
        "checkpoint.writer.io_multiplier",
        "checkpoint.parallel_write.pipeline_stage",
        "torch_autocast.lower_precision_safe_modules",
        "data_efficiency.data_sampling.dynamic_batching.max_tokens",
        "data_efficiency.data_routing.random_ltd.random_ltd_schedule.max_value",
        "expert_parallel.comm_qp_margin",
        "optimizer.params.torch_adam",
        "aio.use_gds",
        "wandb.team",
    ],
)
def test_a_key_taken_out_of_the_catalogue_is_reported(key: str) -> None:
    drift = compare({name: info for name, info in KEYS.items() if name != key})
    assert key in drift.missing
    assert f"reads '{key}'" in drift.text()


def test_a_key_that_deepspeed_lacks_and_a_default_that_moved_are_reported() -> None:
    extra = {**KEYS, "zero_optimization.imaginary": KEYS["zero_optimization.stage"]}
    assert compare(extra).gone == ("zero_optimization.imaginary",)
    swapped = {
        **KEYS,
        "fp16.hysteresis": KEYS["fp16.loss_scale_window"],
        "dump_state": KEYS["managed_gradient_accumulation"],
    }
    assert [line.split()[0] for line in compare(swapped).moved] == ["dump_state", "fp16.hysteresis"]


def test_the_reading_of_the_source_finds_plain_and_nested_keys() -> None:
    reads = read_keys()
    assert reads["gradient_clipping"] == 1.0
    assert reads["aio.queue_depth"] == 8
    assert {"scheduler.params", "checkpoint.writer.type", "pipeline.grad_partitioned", "allgather_size"} <= set(reads)
    assert len(reads) > 150


def test_every_name_in_the_constants_modules_is_known() -> None:
    known = {*by_last_name(), *(key.rpartition(".")[2] for key in REMOVED), *LISTED_NAMES}
    assert constant_keys() - known == set()


def test_removed_keys_are_those_that_deepspeed_refuses() -> None:
    config = importlib.import_module("deepspeed.runtime.config")
    theirs = {*config._REMOVED_TOP_LEVEL_CONFIG_KEYS}
    theirs |= {f"zero_optimization.{key}" for key in config._REMOVED_ZERO_CONFIG_KEYS}
    assert theirs == set(REMOVED)


def test_explicit_lists_hold_nothing_that_is_modelled() -> None:
    assert not set(LISTED) & set(KEYS)
    assert not {key for key in LISTED if key not in FORGOTTEN}, "the check has to say where a listed key leads"


CONSTRUCTORS: Mapping[str, tuple[str, ...]] = {
    "Adam": ("deepspeed.ops.adam:FusedAdam", "deepspeed.ops.adam:DeepSpeedCPUAdam", "torch.optim:AdamW"),
    "Lamb": ("deepspeed.ops.lamb:FusedLamb",),
    "Lion": ("deepspeed.ops.lion:FusedLion", "deepspeed.ops.lion:DeepSpeedCPULion"),
    "Adagrad": ("torch.optim:Adagrad", "deepspeed.ops.adagrad:DeepSpeedCPUAdagrad"),
    "SGD": ("torch.optim:SGD",),
    "RMSprop": ("torch.optim:RMSprop",),
    "Adafactor": ("torch.optim:Adafactor",),
}
POPPED = {"torch_adam", "adam_w_mode", "fp32_optimizer_states", "foreach"}
"""What the engine takes out of `optimizer.params` of Adam before it calls the constructor (engine.py, 0.19.8)."""
NOT_TO_WRITE = {"adamw_mode", "max_grad_norm", "params", "model_params", "optimizer"}
"""Arguments that the engine passes itself, or refuses."""


def _signature(place: str) -> dict[str, Any]:
    module, _, name = place.partition(":")
    parameters = inspect.signature(getattr(importlib.import_module(module), name)).parameters
    return {key: p.default for key, p in parameters.items() if key not in NOT_TO_WRITE}


def _agree(block: type[Block], places: tuple[str, ...]) -> None:
    signatures = [_signature(place) for place in places]
    theirs = {key for signature in signatures for key in signature}
    fields = fields_of(block)
    assert theirs <= set(fields), f"{places} take {sorted(theirs - set(fields))}"
    extra = set(fields) - theirs - (POPPED if "torch_adam" in fields else set())
    assert not extra, f"none of {places} takes {sorted(extra)}"
    first = {key: default for key, default in signatures[0].items() if default is not inspect.Parameter.empty}
    wrong = {key: default for key, default in first.items() if not _same(default, fields[key].default)}
    assert {key for key, value in wrong.items() if fields[key].default != value} == set(), wrong


@pytest.mark.parametrize("name", list(CONSTRUCTORS))
def test_optimizer_arguments_are_those_of_the_constructors(name: str) -> None:
    _agree(OPTIMIZERS[name], CONSTRUCTORS[name])


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_scheduler_arguments_are_those_of_the_constructors(name: str) -> None:
    _agree(SCHEDULERS[name], (f"deepspeed.runtime.lr_schedules:{name}",))


def test_muon_takes_what_the_engine_copies() -> None:
    engine = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine
    copied = {*engine._MUON_HALF_KEYS, *engine._ADAM_HALF_KEYS}
    assert copied <= set(fields_of(OPTIMIZERS["Muon"]))


VALUES: tuple[Any, ...] = (None, True, False, "true", "x", "", 0, -1, 1.5, 2.0, "4", "5e8", [], ["a"], {"a": 1}, "auto")
BETWEEN_KEYS = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "bf16.bf16_master_weights_and_grads",
        "bf16.bf16_optimizer_states",
        "bfloat16.bf16_master_weights_and_grads",
        "bfloat16.bf16_optimizer_states",
        "fp16.fp16_master_weights_and_grads",
        "zero_optimization.compute_grad_norm",
        "zero_optimization.offload_optimizer.ratio",
        "aio.use_gds",
        "data_efficiency.data_sampling.curriculum_learning.enabled",
        "data_efficiency.data_sampling.dynamic_batching.enabled",
    }
)
"""Keys that DeepSpeed rejects for what stands elsewhere (or for the device): the business of other rules."""


def _alone(key: str, value: Any) -> dict[str, Any]:
    """A configuration that holds one key, and what it takes to be read at all."""
    data: dict[str, Any] = {} if key.startswith("train_") else {"train_micro_batch_size_per_gpu": 1}
    *sections, name = key.replace("<metric>", "m").split(".")
    node = data
    for section in sections:
        node = node.setdefault(section, {})
    node[name] = value
    if key.startswith(("optimizer.params.", "scheduler.params.")):
        data[sections[0]]["type"] = "Adam" if sections[0] == "optimizer" else "WarmupLR"
    return data


def test_what_deepspeed_rejects_for_one_key_is_an_error_here() -> None:
    config = importlib.import_module("deepspeed.runtime.config").DeepSpeedConfig
    unseen, rejected = [], 0
    logging.disable(logging.CRITICAL)
    try:
        for key in KEYS:
            for value in VALUES if key not in BETWEEN_KEYS else ():
                data = _alone(key, value)
                try:
                    config(copy.deepcopy(data))
                except Exception as error:
                    rejected += 1
                    found = problems(Document("<dict>", data), Mode.DEEPSPEED)
                    if not any(problem.hit.severity is Severity.ERROR for problem in found):
                        unseen.append(f"{key} = {value!r}: {error}")
    finally:
        logging.disable(logging.NOTSET)
    assert unseen == []
    assert rejected > 1000
