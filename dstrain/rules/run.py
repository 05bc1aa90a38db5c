"""DS9xx: rules that span the arguments, the DeepSpeed file and the facts of a run.

`file` is the DeepSpeed document, empty when the run has none; `doc` (of the other rules) is then not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.args.training import TrainingArguments
from dstrain.core.facts import DataFacts, HostFacts, WorldFacts
from dstrain.core.finding import Hit, Severity
from dstrain.core.numbers import as_bool
from dstrain.dsconfig.document import Document
from dstrain.rules import twice as _twice  # noqa: F401  (registers DS901 and DS911)
from dstrain.rules.registry import rule
from dstrain.rules.triangle import solve


@rule(
    "DS902",
    Severity.ERROR,
    "The batch sizes of this run do not multiply out",
    fires={"train_batch_size": 7, "$facts": {"args": {"per_device_train_batch_size": 2}, "world_size": 1}},
    quiet={"train_batch_size": 8, "$facts": {"args": {"per_device_train_batch_size": 2}, "world_size": 1}},
)
def batch_equation(args: TrainingArguments, file: Document, world: WorldFacts) -> Iterator[Hit]:
    """train_batch_size = micro-batch x gradient accumulation steps x world size, with what the arguments add.

    DeepSpeed 0.19.8 derives with integer division and then stops at an assertion in the middle of start-up.
    """
    triangle = solve(args, file, world.world_size)
    if triangle.problem:
        yield Hit(
            "train_batch_size",
            triangle.problem,
            'write "auto" for train_batch_size, or a multiple',
            ({"op": "replace", "path": "/train_batch_size", "value": "auto"},),
        )


@rule(
    "DS903",
    Severity.ERROR,
    "The training set is too small for one step",
    fires={"$facts": {"args": {"dataloader_drop_last": True, "max_steps": 3}, "train_rows": 5}},
    quiet={"$facts": {"args": {"dataloader_drop_last": False, "max_steps": 3}, "train_rows": 5}},
)
def enough_rows(args: TrainingArguments, file: Document, world: WorldFacts, data: DataFacts) -> Iterator[Hit]:
    """No rows, or with `dataloader_drop_last` fewer rows than one global batch: there would be no step at all."""
    rows = data.train_rows
    if rows is None:
        return
    if rows == 0:
        yield Hit("--train_dataset", "the training dataset is empty (0 rows)", "check the path and filters of the data")
    elif args.dataloader_drop_last and rows < (wanted := solve(args, file, world.world_size).train):
        yield Hit(
            "--dataloader_drop_last",
            f"{rows} rows are fewer than one global batch of {wanted}, and the smaller last batch is dropped",
            "leave out --dataloader_drop_last, or make the batch smaller",
        )


@rule(
    "DS904",
    Severity.ERROR,
    "A stream of unknown length needs max_steps",
    fires={"$facts": {"args": {"max_steps": -1}, "train_is_stream": True}},
    quiet={"$facts": {"args": {"max_steps": 10}, "train_is_stream": True}},
)
def stream_needs_steps(args: TrainingArguments, data: DataFacts) -> Iterator[Hit]:
    """Epochs cannot be counted in a dataset without length, and the schedule needs its end before the first step."""
    if data.train_is_stream and args.max_steps <= 0:
        yield Hit("--max_steps", "the training dataset has no length, so epochs are no end", "--max_steps 1000")


@rule(
    "DS905",
    Severity.ERROR,
    "Several ranks need an engine",
    fires={"$facts": {"args": {}, "world_size": 2, "no_file": True}},
    quiet={"$facts": {"args": {}, "world_size": 1, "no_file": True}},
)
def ranks_need_engine(args: TrainingArguments, world: WorldFacts) -> Iterator[Hit]:
    """A launcher started several ranks, and no engine was asked for: each rank would train a model of its own."""
    if world.world_size > 1 and args.deepspeed is None:
        yield Hit(
            "--deepspeed",
            f"{world.world_size} ranks were started, but no engine that trains on several ranks was chosen",
            "--deepspeed ds_configs/zero2.json",
        )


@rule(
    "DS906",
    Severity.ERROR,
    "Evaluation was asked for, but there are no rows to evaluate",
    fires={"$facts": {"args": {"eval_strategy": "steps"}, "eval_rows": 0}},
    quiet={"$facts": {"args": {"eval_strategy": "steps"}, "eval_rows": 4}},
)
def evaluation_needs_rows(args: TrainingArguments, data: DataFacts) -> Iterator[Hit]:
    """`eval_strategy` or `eval_on_start` without an evaluation dataset would fail at the first evaluation."""
    if (args.eval_strategy != "no" or args.eval_on_start) and not data.eval_rows:
        what = "is empty (0 rows)" if data.eval_rows == 0 else "was not given"
        flag = "--eval_strategy" if args.eval_strategy != "no" else "--eval_on_start"
        yield Hit(flag, f"the evaluation dataset {what}", "pass eval_dataset=…, or --eval_strategy no")


@rule(
    "DS907",
    Severity.ERROR,
    "The device does not do this number format",
    fires={"$facts": {"args": {"fp16": True}, "host": {"device": "cpu", "supports_fp16": False}}},
    quiet={"$facts": {"args": {"bf16": True}, "host": {"device": "cpu", "supports_bf16": True}}},
)
def device_does_precision(args: TrainingArguments, file: Document, host: HostFacts) -> Iterator[Hit]:
    """fp16 on a CPU stops DeepSpeed 0.19.8 at engine start ('Type fp16 is not supported on your device')."""
    for name, supported in (("fp16", host.supports_fp16), ("bf16", host.supports_bf16)):
        wanted = as_bool(file.get(f"{name}.enabled")) if file.get(f"{name}.enabled") not in (None, "auto") else None
        asked = getattr(args, name) if wanted is None else wanted
        if asked and supported is False:
            instead = "--bf16" if name == "fp16" and host.supports_bf16 else "leave it out: float32"
            yield Hit(f"--{name}", f"{name} is not supported on this device ({host.device})", instead)


@rule(
    "DS920",
    Severity.WARNING,
    "Loader processes do not serve a stream",
    fires={"$facts": {"args": {"max_steps": 10, "dataloader_num_workers": 2}, "train_is_stream": True}},
    quiet={"$facts": {"args": {"max_steps": 10, "dataloader_num_workers": 2}, "train_rows": 64}},
)
def stream_without_workers(args: TrainingArguments, data: DataFacts) -> Iterator[Hit]:
    """Every rank reads a dataset without length itself, in order, so that a resume can find its place.

    Rows that are costly to make are better served from a dataset with length.
    """
    if data.train_is_stream and args.dataloader_num_workers:
        count = args.dataloader_num_workers
        yield Hit(
            "--dataloader_num_workers",
            f"{count} loader processes have no effect on the training dataset, which has no length",
            "--dataloader_num_workers 0, or give the dataset __len__ and __getitem__",
        )
