"""A signal to one rank: all save at the same step and end with 143; the run goes on from there bit for bit."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from dstrain.testing import launch, start
from dstrain.testing._processes import CPU_ONLY

pytestmark = pytest.mark.ranks
_ROOT = Path(__file__).parents[2]
_SCRIPT = """
import sys, time
from dstrain import Trainer, TrainingArguments, parse_args
from dstrain.testing import data, models

class Slow:
    def on_step_end(self, args, state, control, **_):
        time.sleep(0.1)

(args,) = parse_args(TrainingArguments)
Trainer(models.Mlp(dropout=0.2), args, train_dataset=data.xy_rows(64), callbacks=[Slow()]).train()
print("went on after training")
"""


def _command(folder: Path, steps: int) -> list[str | Path]:
    (folder / "train.py").write_text(_SCRIPT)
    flags = [
        "--max_steps",
        str(steps),
        "--save_steps",
        "1000",
        "--logging_steps",
        "1",
        "--lr_scheduler_type",
        "constant",
    ]
    where = ["--output_dir", str(folder / "run"), "--deepspeed", str(_ROOT / "ds_configs" / "zero2.json")]
    return [folder / "train.py", *flags, *where, "--resume_from_checkpoint", "auto"]


def _asked(folder: Path, sig: signal.Signals, rank: int) -> int:
    """Send the signal to one rank in the middle of training; gives the step at which the run ended."""
    with start(_command(folder, 400), 2, "deepspeed", CPU_ONLY) as job:
        job.wait_for("step 5/", 240)
        job.kill_rank(rank, sig)
        done = job.wait(90)
    text = done.stdout + done.stderr
    assert done.returncode == 143, text
    assert f"rank {rank}: {sig.name}: saving at the next step" in text
    assert "went on after training" not in text
    assert "Traceback" not in text
    ended = re.search(r"ended at step (\d+)", text)
    assert ended, text
    return int(ended[1])


def test_one_rank_is_asked_and_all_save(tmp_path: Path) -> None:
    step = _asked(tmp_path, signal.SIGTERM, 1)
    rest = launch(_command(tmp_path, step + 3), 2, "torchrun", CPU_ONLY, 240)
    assert f"checkpoint-{step} at step {step} of {step + 3}" in rest.stdout
    whole = tmp_path / "whole"
    whole.mkdir()
    assert launch(_command(whole, step + 3), 2, "torchrun", CPU_ONLY, 240).returncode == 0
    losses = [
        [entry["loss"] for entry in json.loads((folder / "run" / "trainer_state.json").read_text())["log_history"]]
        for folder in (tmp_path, whole)
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == step + 3


@pytest.mark.slow
def test_usr1_does_the_same(tmp_path: Path) -> None:
    assert (tmp_path / "run" / f"checkpoint-{_asked(tmp_path, signal.SIGUSR1, 0)}").is_dir()
