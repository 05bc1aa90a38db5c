"""The JSON that DeepSpeed gets is exactly what `dstrain plan` printed, and no "auto" is in it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from dstrain.testing import RankPool, launch
from dstrain.testing._processes import CPU_ONLY

sys.path.insert(0, str(Path(__file__).parent))
import jobs

pytestmark = pytest.mark.ranks
_ROOT = Path(__file__).parents[2]
_SCRIPT = """
from dstrain import Trainer, TrainingArguments, parse_args
from dstrain.testing import data, models
(args,) = parse_args(TrainingArguments)
Trainer(models.Mlp(), args, train_dataset=data.xy_rows(16)).train()
"""


def _engine(folder: str, config: str, arguments: dict[str, object]) -> tuple[dict, dict]:
    return jobs.engine_config(folder, config, **arguments)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_one_json(ranks2: RankPool, stage: int, tmp_path: Path) -> None:
    config = str(_ROOT / "ds_configs" / f"zero{stage}.json")
    arguments = {"max_steps": 3, "learning_rate": 0.01, "per_device_train_batch_size": 2}
    (tmp_path / "train.py").write_text(_SCRIPT)
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    command = ["-m", "dstrain.cli.main", "plan", "--world-size", "2", "--format", "json", tmp_path / "train.py", *flags]
    done = launch([*command, "--deepspeed", config, "--output_dir", tmp_path], 1, "python", CPU_ONLY, 120)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)["deepspeed"]
    for given, planned in ranks2.run(_engine, str(tmp_path), config, arguments):
        assert given == planned == printed
    assert "auto" not in json.dumps(printed)
    assert not (tmp_path / "checkpoint-3").exists()
