"""Which configuration keys the installed DeepSpeed reads: from its pydantic models, and from its source.

A read is `d[KEY]`, `d.get(KEY)`, `KEY in d` or `get_scalar_param(d, KEY, default)`, where `d` is followed
from a parameter through assignments (`writer = param_dict[CHECKPOINT].get(WRITER)`), and KEY is text or a constant that
the imported module holds. A dictionary that cannot be followed counts as no read.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import BaseModel

Section = tuple[str, ...]
UNKNOWN = object()
"""The default of a read that states none."""

_ROOT: Mapping[str, Section] = {"param_dict": (), "ds_config": (), "_param_dict": ()}
_SAMPLING: Section = ("data_efficiency", "data_sampling")
_LTD: Section = ("data_efficiency", "data_routing", "random_ltd")


@dataclass(frozen=True)
class Reader:
    """A module that reads the configuration.

    Args:
        module: below `deepspeed`; "" for the package itself.
        names: which variable names hold which section, anywhere in the module.
        functions: for one function, by its name, what its parameters hold; wins over `names`.
        only: the functions that are looked at; empty for all.
    """

    module: str
    names: Mapping[str, Section] = field(default_factory=lambda: dict(_ROOT))
    functions: Mapping[str, Mapping[str, Section]] = field(default_factory=dict)
    only: frozenset[str] = frozenset()


_ENGINE: Mapping[str, Section] = {**_ROOT, "pipeline": ("pipeline",)}
READERS = (
    Reader(
        "runtime.config",
        {
            **_ROOT,
            "config": (),
            "checkpoint_params": ("checkpoint",),
            "data_types_params": ("data_types",),
            "optimizer_params": ("optimizer", "params"),
        },
        functions={"get_pipeline_config": _ROOT},
    ),
    Reader("runtime.zero.config"),
    Reader("runtime.precision_config"),
    Reader(
        "runtime.activation_checkpointing.config", {**_ROOT, "act_chkpt_config_dict": ("activation_checkpointing",)}
    ),
    Reader("runtime.swap_tensor.aio_config"),
    Reader("runtime.tensor_parallel.config", only=frozenset({"get_tensor_parallel_config"})),
    Reader("profiling.config", {**_ROOT, "flops_profiler_dict": ("flops_profiler",)}),
    Reader(
        "autotuning.config",
        {**_ROOT, "autotuning_dict": ("autotuning",)},
        functions={"get_model_info_config": {"param_dict": ("autotuning",)}},
    ),
    Reader("datastates.config"),
    Reader("utils.config"),
    Reader("comm.config"),
    Reader("monitor.config"),
    Reader(
        "runtime.model_checkpointing.config",
        functions={"get_checkpoint_writer_config": {"param_dict": ("checkpoint",)}},
    ),
    Reader(
        "runtime.data_pipeline.config",
        functions={
            **{
                name: {"param_dict": ("data_efficiency",)}
                for name in (
                    "get_data_sampling",
                    "get_data_sampling_enabled",
                    "get_data_sampling_num_epochs",
                    "get_data_sampling_num_workers",
                    "get_data_sampling_pin_memory",
                    "get_data_routing",
                    "get_data_routing_enabled",
                )
            },
            **{
                name: {"param_dict": _SAMPLING}
                for name in (
                    "get_curriculum_learning",
                    "get_curriculum_learning_enabled",
                    "get_curriculum_learning_params",
                )
            },
            "get_dynamic_batching": {"param_dict": _SAMPLING, "output": (*_SAMPLING, "dynamic_batching")},
            **{
                name: {"param_dict": _LTD[:-1]}
                for name in (
                    "get_random_ltd",
                    "get_random_ltd_enabled",
                    "get_random_ltd_params",
                )
            },
        },
    ),
    Reader(
        "runtime.data_pipeline.curriculum_scheduler",
        {"config": (*_SAMPLING, "curriculum_learning", "curriculum_metrics", "<metric>")},
        only=frozenset({"__init__"}),
    ),
    Reader(
        "runtime.data_pipeline.data_routing.scheduler",
        {"config": _LTD, "config_schedule": (*_LTD, "random_ltd_schedule")},
    ),
    Reader("runtime.data_pipeline.data_routing.basic_layer", {"config": _LTD}),
    Reader(
        "runtime.data_pipeline.data_sampling.variable_batch_size_and_lr",
        {"batching_config": (*_SAMPLING, "dynamic_batching")},
    ),
    Reader(
        "module_inject.auto_ep_config",
        functions={"parse_autoep_config": {"param_dict": ("expert_parallel",)}},
        only=frozenset({"parse_autoep_config"}),
    ),
    Reader("runtime.engine", {**_ENGINE, "optimizer_parameters": ("optimizer", "params")}),
    Reader("runtime.pipe.engine", _ENGINE),
    Reader("compile.init_sp"),
    Reader("compile.util"),
    Reader("", {**_ROOT, "config": (), "config_dict": ()}, only=frozenset({"initialize"})),
)

MODELS: Mapping[str, str] = {
    "zero_optimization": "runtime.zero.config:DeepSpeedZeroConfig",
    "bf16": "runtime.precision_config:DeepSpeedBF16Config",
    "bfloat16": "runtime.precision_config:DeepSpeedBF16Config",
    "fp16": "runtime.precision_config:DeepSpeedFP16Config",
    "comms_logger": "comm.config:CommsLoggerConfig",
    "": "monitor.config:DeepSpeedMonitorConfig",
    "compile": "compile.config:CompileConfig",
    "timers.throughput": "utils.config:DeepSpeedThroughputTimerConfig",
    "tensor_parallel": "runtime.tensor_parallel.config:TPTrainingConfig",
    "hybrid_engine": "runtime.config:HybridEngineConfig",
    "weight_quantization": "inference.config:WeightQuantConfig",
}
"""Our section -> the pydantic model that DeepSpeed makes of it."""


@cache
def model_keys() -> dict[str, Any]:
    """Every key of the pydantic models, dotted as a file writes it, with its default (`UNKNOWN` for sections)."""
    found: dict[str, Any] = {}
    for section, place in MODELS.items():
        module, _, name = place.partition(":")
        _of_model(getattr(importlib.import_module(f"deepspeed.{module}"), name), section, found)
    return found


def _of_model(model: type[BaseModel], prefix: str, found: dict[str, Any]) -> None:
    for name, info in model.model_fields.items():
        key = ".".join(filter(None, (prefix, info.alias or name)))
        inner = _model_in(info.annotation)
        found[key] = UNKNOWN if inner is not None else _plain(info.get_default(call_default_factory=True))
        if inner is not None:
            _of_model(inner, key, found)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _plain(value: Any) -> Any:
    """A default as our blocks write it."""
    if isinstance(value, enum.Enum):
        return value.value
    if type(value).__module__ == "torch":
        return str(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


@cache
def read_keys() -> dict[str, Any]:
    """Every key that the readers ask their dictionaries for, with the default that is stated there."""
    found: dict[str, Any] = {}
    for reader in READERS:
        module = importlib.import_module(f"deepspeed.{reader.module}" if reader.module else "deepspeed")
        for section, name, default in _Scan(module, reader).reads():
            key = ".".join((*section, name))
            if found.get(key, UNKNOWN) is UNKNOWN:
                found[key] = default
    return found


class _Scan:
    """The reads of one module."""

    def __init__(self, module: ModuleType, reader: Reader) -> None:
        self._module, self._reader = module, reader

    def reads(self) -> Iterator[tuple[Section, str, Any]]:
        tree = ast.parse(Path(inspect.getsourcefile(self._module) or "").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (not self._reader.only or node.name in self._reader.only):
                names = {**self._reader.names, **self._reader.functions.get(node.name, {})}
                yield from self._function(node, names)

    def _function(self, function: ast.FunctionDef, names: dict[str, Section]) -> Iterator[tuple[Section, str, Any]]:
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                held, target = self._dictionary(node.value, names), node.targets[0]
                if held is not None and isinstance(target, ast.Name) and target.id not in names:
                    names[target.id] = held
        for node in ast.walk(function):
            yield from self._read(node, names)

    def _read(self, node: ast.AST, names: Mapping[str, Section]) -> Iterator[tuple[Section, str, Any]]:
        match node:
            case ast.Subscript(value=holder, slice=key, ctx=ast.Load()):
                yield from self._of(holder, key, None, names)
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[holder]):
                if (
                    isinstance(holder, ast.Call)
                    and isinstance(holder.func, ast.Attribute)
                    and holder.func.attr == "keys"
                ):
                    holder = holder.func.value
                yield from self._of(holder, key, None, names)
            case ast.Call(func=ast.Attribute(value=holder, attr="get" | "pop"), args=[key, *rest]):
                yield from self._of(holder, key, rest[0] if rest else None, names)
            case ast.Call(func=ast.Name(id=name), args=[holder, key, default]) if name.endswith("_param"):
                yield from self._of(holder, key, default, names)

    def _of(
        self, holder: ast.expr, key: ast.expr, default: ast.expr | None, names: Mapping[str, Section]
    ) -> Iterator[tuple[Section, str, Any]]:
        section, name = self._dictionary(holder, names), self._constant(key)
        if section is not None and isinstance(name, str):
            stated = UNKNOWN if default is None else self._constant(default)
            yield section, name, UNKNOWN if isinstance(stated, dict) else _plain(stated)

    def _dictionary(self, node: ast.expr, names: Mapping[str, Section]) -> Section | None:
        """The section that an expression holds, if it can be followed."""
        match node:
            case ast.Name(id=name):
                return names.get(name)
            case ast.Attribute(attr=name):
                return names.get(name)
            case ast.Subscript(value=holder, slice=key):
                return self._inner(holder, key, names)
            case ast.Call(func=ast.Attribute(value=holder, attr="get"), args=[key, *_]):
                return self._inner(holder, key, names)
        return None

    def _inner(self, holder: ast.expr, key: ast.expr, names: Mapping[str, Section]) -> Section | None:
        section, name = self._dictionary(holder, names), self._constant(key)
        return None if section is None or not isinstance(name, str) else (*section, name)

    def _constant(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return getattr(self._module, name, UNKNOWN)
            case ast.Attribute(value=ast.Name(id=holder), attr=name):
                return getattr(getattr(self._module, holder, None), name, UNKNOWN)
            case ast.Dict(keys=[]):
                return {}
        return UNKNOWN


CONSTANTS = (
    "runtime.constants",
    "runtime.data_pipeline.constants",
    "runtime.swap_tensor.constants",
    "runtime.model_checkpointing.constants",
    "autotuning.constants",
    "profiling.constants",
    "comm.constants",
)


def constant_keys() -> set[str]:
    """The texts of `X` where a constants module also has `X_DEFAULT`: names of keys, without their section."""
    found: set[str] = set()
    for name in CONSTANTS:
        constants = vars(importlib.import_module(f"deepspeed.{name}"))
        for constant, value in constants.items():
            if isinstance(value, str) and f"{constant}_DEFAULT" in constants and value.isidentifier():
                found.add(value)
    return found
