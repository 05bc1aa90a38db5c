"""Arguments that ranks must agree on: counted tokens, a filtered mean, determinism, and who goes first."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from dstrain.testing import RankPool

pytestmark = pytest.mark.ranks


def _run(folder: str, stage: int, arguments: dict[str, Any]) -> tuple[dict[str, Any], list[bool]]:
    """Records of the last log, and whether determinism was on at each step."""
    import torch

    from dstrain import Trainer, TrainingArguments, set_seed
    from dstrain.data import pad_collate
    from dstrain.testing import data, models

    class Watch:
        seen: list[bool]

        def __init__(self) -> None:
            self.seen = []

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.seen.append(torch.are_deterministic_algorithms_enabled())

    set_seed(7)
    rows = data.ragged_rows(18)
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
        train_sampling_strategy="sequential",
        deepspeed={"zero_optimization": {"stage": stage, "reduce_bucket_size": 50_000}},
        **arguments,
    )
    watch = Watch()
    trainer = Trainer(models.TinyLM(), args, pad_collate(), rows, callbacks=[watch])
    trainer.train()
    trainer._prepared().close()
    return trainer.state.log_history[-1], watch.seen


def _lengths() -> list[int]:
    from dstrain.testing import data

    return [len(row["input_ids"]) for row in data.ragged_rows(18)]


@pytest.mark.parametrize(("kind", "stage"), [("all", 2), ("non_padding", 3)])
def test_tokens_of_all_ranks_are_counted(ranks2: RankPool, tmp_path: Path, kind: str, stage: int) -> None:
    arguments = {"include_num_input_tokens_seen": kind, "full_determinism": True, "max_grad_norm": 0.5}
    first, second = ranks2.run(_run, str(tmp_path), stage, arguments, timeout_s=120)
    lengths = _lengths()
    micros = [lengths[begin : begin + 2] for begin in range(0, len(lengths), 2)]
    expected = sum(lengths) if kind == "non_padding" else sum(len(micro) * max(micro) for micro in micros)
    assert first[0]["num_input_tokens_seen"] == second[0]["num_input_tokens_seen"] == expected
    assert first[1] == second[1] == [True] * 3


def _model_alone(folder: str) -> bool:
    """Whether the saved model is the trained one, sharded over two ranks as it is."""
    import torch
    from safetensors.torch import load_file

    from dstrain import Trainer, TrainingArguments, set_seed
    from dstrain.testing import data, models

    set_seed(7)
    config = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
    args = TrainingArguments(folder, max_steps=2, save_only_model=True, disable_tqdm=True, deepspeed=config)
    trainer = Trainer(models.Mlp(), args, train_dataset=data.xy_rows(32))
    trainer.train()
    saved = load_file(Path(folder) / "checkpoint-2" / "model.safetensors")
    weights = dict(trainer._prepared().weights())
    trainer._prepared().close()
    return set(saved) == set(weights) and all(torch.equal(saved[name], weights[name]) for name in saved)


def test_a_checkpoint_of_the_model_alone_from_sharded_weights(ranks2: RankPool, tmp_path: Path) -> None:
    assert ranks2.run(_model_alone, str(tmp_path), timeout_s=120) == [True, True]
    assert not list((tmp_path / "checkpoint-2").glob("**/*optim*"))


def _filtered(rank_with_nan: int) -> float:
    import torch

    from dstrain import dist
    from dstrain.backends.base import StepOutcome
    from dstrain.loop.train import Meter
    from dstrain.probe import world_facts

    dist.ensure_initialized(world_facts(), "cpu")
    meter = Meter(skip_nonfinite=True)
    for value in (1.0, math.nan, 3.0):
        bad = math.isnan(value)
        own = value if dist.rank() == rank_with_nan or not bad else 2.0
        meter.add(torch.tensor(own / 2), 1, StepOutcome(not bad, 1.0, 0.1))
    return meter.take()["loss"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_is_not_finite_on_one_rank(ranks2: RankPool, rank: int) -> None:
    assert ranks2.run(_filtered, rank, timeout_s=60) == [2.0, 2.0]


def _go_first(folder: str, fail: bool) -> str:
    import time

    from dstrain import TrainingArguments
    from dstrain.core.errors import RankError

    args, path = TrainingArguments(use_cpu=True), Path(folder) / "cache"
    try:
        with args.main_process_first(desc="cache"):
            if args.local_process_index == 0:
                time.sleep(0.3)
                if fail:
                    raise ValueError("no disk")
                path.write_text("made once")
            return path.read_text()
    except (ValueError, RankError) as error:
        return type(error).__name__


def test_the_first_process_goes_first(ranks2: RankPool, tmp_path: Path) -> None:
    assert ranks2.run(_go_first, str(tmp_path), False, timeout_s=60) == ["made once", "made once"]
    assert ranks2.run(_go_first, str(tmp_path / "none"), True, timeout_s=60) == ["ValueError", "RankError"]
