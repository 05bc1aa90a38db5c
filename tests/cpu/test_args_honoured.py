"""Arguments that change a run: each is shown to do what its help says."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from dstrain import Trainer, TrainingArguments, set_seed
from dstrain.core.errors import CheckpointError, ModelError, UsageError
from dstrain.data import pad_collate
from dstrain.testing import data, models

pytestmark = pytest.mark.cpu


class Watch:
    """Values of a function at the end of each step."""

    def __init__(self, look: Any) -> None:
        self._look, self.seen = look, []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen.append(self._look())


def trainer(folder: Path, model: Any = None, rows: Any = None, callbacks: Any = (), **arguments: Any) -> Trainer:
    set_seed(7)
    given = {"max_steps": 4, "logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    args = TrainingArguments(str(folder), per_device_train_batch_size=4, **{**given, **arguments})
    rows = data.xy_rows(16) if rows is None else rows
    collate = pad_collate() if "input_ids" in rows[0] else None
    return Trainer(
        model or models.Mlp(), args, collate, train_dataset=rows, eval_dataset=rows, callbacks=list(callbacks)
    )


def records(made: Trainer, key: str) -> list[Any]:
    return [entry[key] for entry in made.state.log_history if key in entry]


def test_full_determinism_holds_for_the_run_alone(tmp_path: Path) -> None:
    def now() -> tuple[bool, bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.backends.cudnn.deterministic,
            "CUBLAS_WORKSPACE_CONFIG" in os.environ,
        )

    before, watch = now(), Watch(now)
    made = trainer(tmp_path, callbacks=[watch], full_determinism=True)
    made.train()
    assert watch.seen == [(True, True, True)] * 4
    assert now() == before == (False, False, False)


@pytest.mark.parametrize("value", [True, False])
def test_tf32_is_put_back_and_said_to_have_no_effect_on_the_cpu(tmp_path: Path, value: bool) -> None:
    matmul = torch.backends.cuda.matmul
    before, watch = matmul.allow_tf32, Watch(lambda: (matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
    made = trainer(tmp_path, callbacks=[watch], tf32=value)
    made.train()
    assert watch.seen[0] == (value, value)
    assert matmul.allow_tf32 == before
    assert "tf32 has no effect: the device is cpu" in made.plan.notices


@pytest.mark.parametrize(
    ("arguments", "notice"),
    [
        ({"torch_empty_cache_steps": 2}, "torch_empty_cache_steps has no effect"),
        ({"eval_accumulation_steps": 2}, "eval_accumulation_steps has no effect"),
    ],
)
def test_what_has_no_effect_is_said(tmp_path: Path, arguments: dict[str, Any], notice: str) -> None:
    assert any(notice in text for text in trainer(tmp_path, **arguments).plan.notices)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_cache_is_emptied(tmp_path: Path) -> None:
    def reserve() -> int:
        torch.empty(64 << 20, device="cuda")
        return torch.cuda.memory_reserved() >> 20

    watch = Watch(reserve)
    trainer(tmp_path, callbacks=[watch], torch_empty_cache_steps=1, use_cpu=False).train()
    assert watch.seen[-1] < 128


def _with_poison(rows: int = 16) -> list[Any]:
    made = data.xy_rows(rows)
    made[5]["x"] = made[5]["x"] * math.nan
    return made


def test_a_loss_that_is_not_finite_is_seen_or_left_out_of_the_mean(tmp_path: Path) -> None:
    rows = _with_poison()
    common = {"logging_steps": 4, "train_sampling_strategy": "sequential", "learning_rate": 0.0}
    plain = trainer(tmp_path / "a", rows=rows, **common)
    plain.train()
    filtered = trainer(tmp_path / "b", rows=rows, logging_nan_inf_filter=True, **common)
    filtered.train()
    each = trainer(tmp_path / "c", rows=rows, **{**common, "logging_steps": 1})
    each.train()
    steps = records(each, "loss")
    assert [math.isnan(value) for value in steps] == [False, True, False, False]
    assert math.isnan(records(plain, "loss")[0])
    assert records(filtered, "loss")[0] == pytest.approx((steps[0] + steps[2] + steps[3]) / 3)


def test_steps_that_are_all_not_finite_stay_so(tmp_path: Path) -> None:
    rows = [{**row, "x": row["x"] * math.nan} for row in data.xy_rows(16)]
    made = trainer(tmp_path, rows=rows, logging_nan_inf_filter=True)
    out = made.train()
    assert all(math.isnan(value) for value in [*records(made, "loss"), out.training_loss])


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ({"eval_strategy": "steps", "eval_steps": 1, "eval_delay": 3}, [3, 4]),
        ({"eval_strategy": "steps", "eval_steps": 3, "eval_delay": 10}, []),
        ({"eval_strategy": "epoch", "max_steps": 12, "eval_delay": 2}, [8, 12]),
    ],
)
def test_eval_delay(tmp_path: Path, arguments: dict[str, Any], steps: list[int]) -> None:
    made = trainer(tmp_path, **arguments)
    made.train()
    assert [entry["step"] for entry in made.state.log_history if "eval_loss" in entry] == steps


@pytest.mark.parametrize("kind", ["all", "non_padding"])
def test_input_tokens_are_counted_over_a_resume(tmp_path: Path, kind: str) -> None:
    rows = data.ragged_rows(16)
    lengths = [len(row["input_ids"]) for row in rows]
    padded = [4 * max(lengths[first : first + 4]) for first in range(0, 16, 4)]
    exact = [sum(lengths[first : first + 4]) for first in range(0, 16, 4)]
    expected = padded if kind == "all" else exact
    common = {"include_num_input_tokens_seen": kind, "train_sampling_strategy": "sequential", "save_strategy": "steps"}
    first = trainer(tmp_path, models.TinyLM(), rows, save_steps=2, max_steps=2, lr_scheduler_type="constant", **common)
    out = first.train()
    assert records(first, "num_input_tokens_seen") == [expected[0], sum(expected[:2])]
    assert out.metrics["train_tokens_per_second"] > 0
    common["lr_scheduler_type"] = "constant"
    again = trainer(tmp_path, models.TinyLM(), rows, resume_from_checkpoint=True, save_steps=2, **common)
    again.train()
    assert again.state.num_input_tokens_seen == sum(expected)


def test_no_tokens_are_counted_unasked(tmp_path: Path) -> None:
    made = trainer(tmp_path, models.TinyLM(), data.ragged_rows(16))
    out = made.train()
    assert (records(made, "num_input_tokens_seen"), made.state.num_input_tokens_seen) == ([], 0)
    assert "train_tokens_per_second" not in out.metrics


class Seen(models.Mlp):
    """Remembers the first number of every row it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[float] = []

    def forward(self, x: Any, labels: Any = None) -> Any:
        if self.training:
            self.rows += x[:, 0].tolist()
        return super().forward(x, labels)


def test_sequential_order(tmp_path: Path) -> None:
    rows = data.xy_rows(16)
    own = [float(row["x"][0]) for row in rows]
    sequential, random = Seen(), Seen()
    trainer(tmp_path / "a", sequential, rows, max_steps=8, train_sampling_strategy="sequential").train()
    trainer(tmp_path / "b", random, rows, max_steps=8).train()
    assert sequential.rows == own * 2
    assert random.rows[:16] != own
    assert sorted(random.rows[:16]) == sorted(own)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_loader_processes_start_as_asked(tmp_path: Path, method: str) -> None:
    made = trainer(tmp_path, max_steps=1, dataloader_num_workers=1, dataloader_multiprocessing_context=method)
    loader: Any = made._windows()._loader._loader  # type: ignore[union-attr]
    assert loader.multiprocessing_context.get_start_method() == method
    assert made.train().global_step == 1


def test_gradient_checkpointing_without_the_method_is_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"Mlp has no gradient_checkpointing_enable\(\)"):
        trainer(tmp_path, gradient_checkpointing=True)


class Refusing(models.Mlp):
    def gradient_checkpointing_enable(self) -> None:
        raise ValueError("not for me")


@pytest.mark.parametrize(("kwargs", "text"), [(None, "not for me"), ({"use_reentrant": False}, "unexpected keyword")])
def test_a_model_that_refuses_checkpointing(tmp_path: Path, kwargs: Any, text: str) -> None:
    made = trainer(tmp_path, Refusing(), gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs)
    with pytest.raises(ModelError, match=text):
        made.train()


def test_gradient_checkpointing_computes_the_same_twice(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, use_cache=False
    )
    losses, calls = [], []
    for folder, arguments in (
        ("a", {}),
        ("b", {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}),
    ):
        set_seed(3)
        model = LlamaForCausalLM(config)
        count: list[int] = []
        model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, count=count: count.append(1))
        made = trainer(tmp_path / folder, model, data.ragged_rows(16), max_steps=2, **arguments)
        made.train()
        losses.append(records(made, "loss"))
        calls.append(len(count))
    assert losses[0] == losses[1]
    assert calls[1] - calls[0] == 2  # once more in each backward pass


def test_log_level_and_the_name_of_the_run(tmp_path: Path) -> None:
    names = ("dstrain", "DeepSpeed", "transformers")
    before = {name: logging.getLogger(name).level for name in names}
    try:
        made = trainer(tmp_path / "here", log_level="error", run_name="mine")
        assert {logging.getLogger(name).level for name in names} == {logging.ERROR}
        assert made.plan.as_json()["run_name"] == "mine"
        assert trainer(tmp_path / "here").plan.run_name == "here"
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def test_what_was_assigned_is_checked_again_by_the_trainer(tmp_path: Path) -> None:
    args = TrainingArguments(str(tmp_path), bf16=True)
    args.fp16 = True
    with pytest.raises(UsageError, match="choose one"):
        Trainer(models.Mlp(), args, train_dataset=data.xy_rows(4))


class Counter:
    """A callback with a state, in transformers' form."""

    def __init__(self, patience: int = 1) -> None:
        self.patience, self.count = patience, 0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {"args": {"patience": self.patience}, "attributes": {"count": self.count}}


class Another(Counter):
    pass


@pytest.mark.parametrize("restore", [True, False])
def test_states_of_callbacks_come_back_when_asked(
    tmp_path: Path, restore: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    common: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "lr_scheduler_type": "constant"}
    trainer(tmp_path, callbacks=[Counter(3), Counter(4)], max_steps=2, **common).train()
    capsys.readouterr()
    first, second, third = Counter(), Counter(), Another()
    arguments = {"restore_callback_states_from_checkpoint": restore, "resume_from_checkpoint": True, **common}
    trainer(tmp_path, callbacks=[first, second, third], **arguments).train()
    expected = ((3, 4), (4, 4), 2) if restore else ((1, 2), (1, 2), 2)
    assert ((first.patience, first.count), (second.patience, second.count), third.count) == expected
    assert ("callback Another begins anew" in capsys.readouterr().out) == restore


def test_a_state_that_is_no_json_is_refused_with_its_name(tmp_path: Path) -> None:
    broken = Counter()
    broken.count = {1, 2}  # type: ignore[assignment]
    broken.on_step_end = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="callback Counter cannot be saved"):
        trainer(tmp_path, callbacks=[broken], save_strategy="steps", save_steps=1).train()


def test_a_checkpoint_of_the_model_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file

    from dstrain.cli.main import main

    common: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
    made = trainer(tmp_path, **common)
    made.train()
    folder = tmp_path / "checkpoint-4"
    names = {path.name for path in folder.rglob("*") if path.is_file()}
    assert {"model.safetensors", "config.json", "trainer_state.json", "manifest.json"} <= names
    assert not {name for name in names if "optim" in name or "engine" in name}
    saved = load_file(folder / "model.safetensors")
    for name, weight in made._prepared().weights():
        assert torch.equal(saved[name], weight)
    with pytest.raises(CheckpointError, match="holds the model alone"):
        trainer(tmp_path, resume_from_checkpoint="auto", **common).train()
    assert main(["ckpt", "verify", str(folder)]) == 0
    capsys.readouterr()
