"""`TrainingArguments`: everything a user may say in Python, flat, validated by pydantic, and a real dataclass."""

from __future__ import annotations

import dataclasses
import json
import math
import typing
from dataclasses import dataclass, fields
from typing import Any, Self

from dstrain.args._place import Placed
from dstrain.args._removed import ALIASES
from dstrain.args._setters import Setters
from dstrain.args._taking import Taking
from dstrain.args.sections import (
    BackendArguments,
    BatchArguments,
    DataArguments,
    EvalArguments,
    LengthArguments,
    MemoryArguments,
    OptimizerArguments,
    OutputArguments,
    PrecisionArguments,
    SaveArguments,
    ScheduleArguments,
    SeedArguments,
    TaskArguments,
)
from dstrain.args.spelling import announce, entries, meant_by, spell
from dstrain.args.validate import default_of, init_names, validated
from dstrain.core.errors import UsageError
from dstrain.core.nearest import nearest
from dstrain.core.source import DEFAULT, Source

# An attribute of a user's own may be set; one this near to a field is a slip of the pen.
_SLIP = 0.9


@dataclass
class TrainingArguments(
    BackendArguments,
    Placed,
    SeedArguments,
    DataArguments,
    SaveArguments,
    EvalArguments,
    MemoryArguments,
    PrecisionArguments,
    ScheduleArguments,
    OptimizerArguments,
    LengthArguments,
    BatchArguments,
    TaskArguments,
    OutputArguments,
    Setters,
    metaclass=Taking,
):
    """All arguments of a run, flat. `output_dir` may be given by position.

    Older spellings of transformers (`evaluation_strategy`) are taken with a line of notice; docs/arguments.md lists
    every name. A user's own `@dataclass` subclass with more fields is validated just the same: checking happens after
    initialisation, against a pydantic model made from the class's own annotations. So is what is assigned later.

    Raises:
        UsageError: with every name and every value that is wrong, not only the first.
    """

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in self._names()}
        for name, value in validated(type(self), values).items():
            object.__setattr__(self, name, value)
        if self.eval_strategy != "no":
            object.__setattr__(self, "do_eval", True)
        object.__setattr__(self, "_ready", True)
        self.check()

    def check(self) -> None:
        """What must hold between fields; the Trainer calls it again, for values that were assigned later.

        Raises:
            UsageError: everything that does not hold.
        """
        if problems := list(self._section_problems()):
            raise UsageError("\n".join(problems))

    def _names(self) -> list[str]:
        return [field.name for field in fields(self) if field.init]

    def _finish(self, written: dict[str, str]) -> None:
        """After `__init__`, whatever a subclass made of `__post_init__`."""
        if "_ready" not in self.__dict__:
            TrainingArguments.__post_init__(self)
        text = f"{type(self).__name__}({{}}=…)"
        known = {name: Source("python", text.format(older)) for name, older in written.items()}
        object.__setattr__(self, "_sources", {**self.__dict__.get("_sources", {}), **known})

    def __setattr__(self, name: str, value: Any) -> None:
        if (
            "_ready" not in self.__dict__
            or name.startswith("_")
            or isinstance(getattr(type(self), name, None), property)
        ):
            object.__setattr__(self, name, value)
        elif name in init_names(type(self)) or name in entries():
            self._set({name: value})
        elif (meant := nearest(name, self._names(), cutoff=_SLIP)) is not None and name not in self.__dict__:
            raise UsageError(f"args.{name}: there is no such argument; did you mean '{meant}'?")
        else:
            object.__setattr__(self, name, value)

    def _set(self, values: dict[str, Any]) -> Self:
        """Check all, then set all."""
        said = spell(values, init_names(type(self)), lambda name: f"args.{name}")
        problems = list(said.problems)
        meant: dict[str, Any] = {}
        for name, value in said.values.items():
            try:
                meant |= validated(type(self), {name: value}, {name: f"args.{name}"})
            except UsageError as error:
                problems.append(error.message)
        if problems:
            raise UsageError("\n".join(problems))
        announce(said.notices)
        sources = {name: Source("python", f"args.{said.written.get(name, name)} = …") for name in meant}
        for name, value in meant.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_sources", {**self.__dict__.get("_sources", {}), **sources})
        return self

    def __getattr__(self, name: str) -> Any:
        """Only for what is no attribute: an older name gives the value of the newer, one not supported what is done."""
        if not name.startswith("__") and (entry := entries().get(name)) is not None:
            alias = ALIASES.get(name)
            if alias is None:
                return entry.default
            return alias.read(getattr(self, alias.to) if alias.to else None)
        hint = meant_by(name, init_names(type(self))) if not name.startswith("_") else None
        text = f"; did you mean '{hint}'?" if hint else ""
        raise AttributeError(f"'{type(self).__name__}' has no argument '{name}'{text}")

    def _section_problems(self) -> typing.Iterator[str]:
        """Checks inside one section; whatever spans sections or needs a fact is a rule."""
        if self.bf16 and self.fp16:
            yield "--bf16 and --fp16 are both on: choose one"
        if self.max_steps < -1 or self.max_steps == 0:
            yield f"--max_steps: {self.max_steps} is no number of steps; expected -1 (by epochs) or 1 and more"
        if self.dataloader_prefetch_factor is not None and self.dataloader_num_workers == 0:
            yield (
                f"--dataloader_prefetch_factor: {self.dataloader_prefetch_factor} has no effect without loader "
                "processes; add --dataloader_num_workers 2"
            )
        if self.dataloader_multiprocessing_context is not None and self.dataloader_num_workers == 0:
            text = "--dataloader_multiprocessing_context has no effect without loader processes"
            yield f"{text}; add --dataloader_num_workers"
        if self.gradient_checkpointing_kwargs is not None and not self.gradient_checkpointing:
            yield "--gradient_checkpointing_kwargs has no effect without --gradient_checkpointing"
        if self.dataloader_persistent_workers and self.dataloader_num_workers == 0:
            yield "--dataloader_persistent_workers has no effect without loader processes; add --dataloader_num_workers"

    @property
    def sources(self) -> dict[str, Source]:
        """Where each value came from: a flag, a file position, Python, or the default."""
        known: dict[str, Source] = getattr(self, "_sources", {})
        found = {}
        for field in fields(self):
            if field.name in known:
                found[field.name] = known[field.name]
            elif getattr(self, field.name) == default_of(field):
                found[field.name] = DEFAULT
            else:
                found[field.name] = Source("python", f"TrainingArguments({field.name}=…)")
        return found

    def to_dict(self) -> dict[str, Any]:
        """Plain values by field name."""
        return dataclasses.asdict(self)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """The same with batch sizes, and what is no number, truth or text as text: for trackers' tables."""
        values = {**self.to_dict(), "train_batch_size": self.train_batch_size, "eval_batch_size": self.eval_batch_size}
        return {key: value if type(value) in (bool, int, float, str) else str(value) for key, value in values.items()}

    def to_json_string(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    @property
    def train_batch_size(self) -> int:
        """Rows of one forward pass on this rank (one device each); a DeepSpeed file may decide otherwise."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Rows of one forward pass on this rank in evaluation."""
        return self.per_device_eval_batch_size

    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Warm-up in optimizer steps of a run of so many."""
        share = self.warmup_steps
        return math.ceil(share * num_training_steps) if 0 < share < 1 else int(share)
