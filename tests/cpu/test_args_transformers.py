"""The table of arguments against the transformers that is installed, and its objects and dumps taken by ours."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from dstrain.args import TrainingArguments, table
from dstrain.core.errors import UsageError

pytestmark = pytest.mark.cpu
transformers = pytest.importorskip("transformers")


def _installed(cls: Any) -> dict[str, Any]:
    return {
        field.name: field.default if field.default is not dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(cls)
        if field.init
    }


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)


def test_the_table_holds_every_field_with_its_default() -> None:
    if not transformers.__version__.startswith("5.24."):
        pytest.skip(f"the table is of transformers 5.24, installed is {transformers.__version__}")
    theirs = _installed(transformers.TrainingArguments)
    more = _installed(transformers.Seq2SeqTrainingArguments)
    assert {entry.name: entry.default for entry in table.ENTRIES} == {k: _plain(v) for k, v in theirs.items()}
    assert {entry.name for entry in table.SEQ2SEQ} == set(more) - set(theirs)
    assert all(_plain(more[entry.name]) == entry.default for entry in table.SEQ2SEQ)
    assert not {entry.name for entry in table.REMOVED} & set(more)


def test_their_dump_is_taken(tmp_path: Path) -> None:
    given = {"output_dir": str(tmp_path), "learning_rate": 1e-3, "eval_strategy": "steps", "use_cpu": True}
    # What to_dict() gives, without accelerate, which transformers asks for to make the object.
    accelerator = {"split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": True}
    accelerator |= {"non_blocking": False, "gradient_accumulation_kwargs": None, "use_configured_state": False}
    dump = {name: _plain(value) for name, value in _installed(transformers.Seq2SeqTrainingArguments).items()}
    dump |= {"accelerator_config": accelerator, "hub_token": "<HUB_TOKEN>", "do_eval": True, **given}
    ours = TrainingArguments(**dump)
    assert (ours.learning_rate, ours.eval_strategy, ours.use_cpu, ours.do_eval) == (1e-3, "steps", True, True)


def test_their_enums_are_taken() -> None:
    from transformers.trainer_utils import IntervalStrategy, SchedulerType
    from transformers.training_args import OptimizerNames

    ours = TrainingArguments(
        eval_strategy=IntervalStrategy.STEPS, lr_scheduler_type=SchedulerType.COSINE, optim=OptimizerNames.ADAMW_TORCH
    )
    assert ours == TrainingArguments(eval_strategy="steps", lr_scheduler_type="cosine", optim="adamw_torch")
    assert type(ours.eval_strategy) is str


def test_every_choice_of_theirs_is_taken_or_named() -> None:
    from transformers.trainer_utils import SaveStrategy, SchedulerType
    from transformers.training_args import OptimizerNames

    kinds: Any = {"optim": OptimizerNames, "lr_scheduler_type": SchedulerType, "save_strategy": SaveStrategy}
    messages: dict[str, str] = {}
    for name, choice in ((name, choice) for name, kind in kinds.items() for choice in kind):
        try:
            TrainingArguments(**{name: choice})
        except UsageError as error:
            messages[choice.value] = error.message
    assert {"best", "greedy", "adafactor", "lomo"} <= set(messages)
    assert [value for value, text in messages.items() if f"('{value}' is not " not in text] == []


def test_the_device_of_this_rank() -> None:
    args = TrainingArguments(use_cpu=True)
    assert (str(args.device), args.n_gpu, args.place_model_on_device) == ("cpu", 0, True)
    with args.main_process_first(desc="alone"):
        pass
