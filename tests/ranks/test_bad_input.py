"""Bad input under the launcher: one clear message, exit code 2, no traceback, both ranks gone within seconds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dstrain.testing import launch
from dstrain.testing._processes import CPU_ONLY

pytestmark = pytest.mark.ranks
_ROOT = Path(__file__).parents[2]
_ZERO2 = str(_ROOT / "ds_configs" / "zero2.json")

_SCRIPT = """
import sys
sys.path.insert(0, {root!r})
from dataclasses import dataclass
from dstrain import Trainer, TrainingArguments, parse_args
from dstrain.testing.data import xy_rows
from dstrain.testing.models import LosslessMlp, Mlp

@dataclass
class Own:
    rows: int = 16
    lossless: bool = False

args, own = parse_args(TrainingArguments, Own)
model = LosslessMlp() if own.lossless else Mlp()
Trainer(model, args, train_dataset=xy_rows(max(own.rows, 1))[:own.rows]).train()
print("finished")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(_SCRIPT.format(root=str(_ROOT)))
    return path


def _refused(script: Path, *flags: str, parts: list[str]) -> None:
    done = launch([script, *flags], 2, "deepspeed", CPU_ONLY, 120)
    text = done.stdout + done.stderr
    assert done.returncode == 2, text
    assert "Traceback" not in text
    for part in parts:
        assert text.count(part) == 1, (part, text)
    assert done.survivors == ()
    assert "finished" not in done.stdout


def test_a_flag_that_is_not_known(script: Path, tmp_path: Path) -> None:
    flags = ["--max_step", "3", "--learning_rat", "1", "--output_dir", str(tmp_path / "run")]
    _refused(script, *flags, parts=["did you mean '--max_steps'", "did you mean '--learning_rate'"])


def test_a_configuration_that_is_not_there(script: Path, tmp_path: Path) -> None:
    _refused(script, "--deepspeed", str(tmp_path / "none.json"), parts=["none.json: cannot read"])


def test_a_configuration_that_is_no_json(script: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text('{\n  "zero_optimization": {"stage": 2\n')
    _refused(
        script, "--deepspeed", str(tmp_path / "bad.json"), "--output_dir", str(tmp_path / "run"), parts=["bad.json:"]
    )


def test_everything_wrong_in_a_configuration_at_once(script: Path, tmp_path: Path) -> None:
    config = {"zero_optimisation": {"stage": 3}, "gradient_clip": 1.0, "train_batch_size": 7}
    (tmp_path / "bad.json").write_text(json.dumps(config, indent=1))
    flags = ["--deepspeed", str(tmp_path / "bad.json"), "--max_steps", "2", "--output_dir", str(tmp_path / "run")]
    done = launch([script, *flags], 2, "deepspeed", CPU_ONLY, 120)
    assert done.returncode == 2
    for part in ("bad.json:2:", "zero_optimization", "bad.json:5:", "gradient_clipping", "train_batch_size 7"):
        assert part in done.stderr, (part, done.stderr)
    assert not (tmp_path / "run").exists()


def test_a_dataset_without_rows(script: Path, tmp_path: Path) -> None:
    flags = ["--deepspeed", _ZERO2, "--rows", "0", "--output_dir", str(tmp_path / "run")]
    _refused(script, *flags, parts=["the training dataset is empty (0 rows)"])


def test_a_model_that_returns_no_loss(script: Path, tmp_path: Path) -> None:
    flags = ["--deepspeed", _ZERO2, "--lossless", "--output_dir", str(tmp_path / "run")]
    _refused(script, *flags, parts=["the model returned no loss"])


def test_a_folder_that_holds_another_run(script: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoint-3").mkdir(parents=True)
    (run / "trainer_state.json").write_text("{}")
    flags = ["--deepspeed", _ZERO2, "--max_steps", "2", "--output_dir", str(run)]
    _refused(script, *flags, parts=["holds another run already (checkpoint-3, trainer_state.json)"])
    assert (run / "trainer_state.json").read_text() == "{}"


def test_a_checkpoint_of_another_run(script: Path, tmp_path: Path) -> None:
    flags = ["--max_steps", "2", "--save_steps", "1", "--output_dir", str(tmp_path / "run"), "--deepspeed"]
    assert launch([script, *flags, _ZERO2], 2, "torchrun", CPU_ONLY, 120).returncode == 0
    changed = [*flags, str(_ROOT / "ds_configs" / "zero3.json"), "--resume_from_checkpoint", "auto", "--data_seed", "5"]
    _refused(script, *changed, parts=["zero_stage: 2 then, 3 now", "loader.data_seed: 42 then, 5 now"])


def test_ranks_without_an_engine(script: Path, tmp_path: Path) -> None:
    _refused(script, "--max_steps", "2", "--output_dir", str(tmp_path / "run"), parts=["2 ranks were started"])
