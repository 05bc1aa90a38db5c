"""Every preset that can run without a GPU is accepted by DeepSpeed's own parser and trains two steps on two ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from dstrain.resolve.presets import PRESETS
from dstrain.testing import RankPool

pytestmark = pytest.mark.ranks
_FOLDER = Path(__file__).parents[2] / "ds_configs"


def _train(folder: str, name: str) -> tuple[list[float], int]:
    from deepspeed.runtime.config import DeepSpeedConfig

    from dstrain import Trainer, TrainingArguments
    from dstrain.testing import data, models

    args = TrainingArguments(
        folder, deepspeed=str(_FOLDER / f"{name}.json"), max_steps=2, logging_steps=1, save_strategy="no"
    )
    trainer: Any = Trainer(models.TinyLM(), args, train_dataset=data.padded_rows(32))
    trainer.train()
    DeepSpeedConfig(copy.deepcopy(dict(trainer.plan.deepspeed)))  # it asks the process group for the world size
    trainer._prepared().close()
    return [entry["loss"] for entry in trainer.state.log_history], trainer.plan.zero_stage


@pytest.mark.parametrize("name", [name for name, preset in PRESETS.items() if preset.runs_on_cpu])
def test_it_trains(ranks2: RankPool, name: str, tmp_path: Path) -> None:
    (losses, stage), _ = ranks2.run(_train, str(tmp_path), name)
    assert len(losses) == 2
    assert stage == PRESETS[name].zero["stage"]
