"""A launcher that is killed takes its ranks with it, and two runs do not write into one folder."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dstrain.testing import launch, start
from dstrain.testing._processes import CPU_ONLY

pytestmark = pytest.mark.ranks
_ROOT = Path(__file__).parents[2]
_SCRIPT = """
import time
from dstrain import Trainer, TrainingArguments, parse_args
from dstrain.testing import data, models

class Slow:
    def on_step_end(self, args, state, control, **_):
        time.sleep(0.1)

(args,) = parse_args(TrainingArguments)
Trainer(models.Mlp(), args, train_dataset=data.xy_rows(64), callbacks=[Slow()]).train()
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str | Path]:
    (tmp_path / "train.py").write_text(_SCRIPT)
    flags = ["--max_steps", "2000", "--save_steps", "2", "--save_total_limit", "2", "--logging_steps", "1"]
    where = ["--output_dir", str(tmp_path / "run"), "--deepspeed", str(_ROOT / "ds_configs" / "zero1.json")]
    return [tmp_path / "train.py", *flags, *where]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_launcher_leaves_no_ranks(command: list[str | Path], sig: signal.Signals) -> None:
    """DeepSpeed's launcher dies alone: its own child and the ranks would go on."""
    with start(command, 2, "deepspeed", CPU_ONLY) as job:
        job.wait_for("step 3/")
        job.signal(sig)
        done = job.wait(30, leave_s=30)
    assert done.survivors == ()


def test_a_second_run_into_the_same_folder_is_refused(command: list[str | Path], tmp_path: Path) -> None:
    with start(command, 2, "torchrun", CPU_ONLY) as job:
        job.wait_for("step 3/")
        second = launch([*command, "--resume_from_checkpoint", "auto"], 2, "torchrun", CPU_ONLY, 120)
        assert "another run is writing into this folder" in second.stderr
        assert f"kill {(tmp_path / 'run' / '.lock').read_text().strip()}" in second.stderr
        assert "Traceback" not in second.stderr.split("elastic")[0]
        assert job.process.poll() is None
    again = [*command, "--overwrite_output_dir", "--max_steps", "4"]
    assert launch(again, 2, "torchrun", CPU_ONLY, 120).returncode == 0
    assert len(list(tmp_path.glob("run.*/checkpoint-*"))) >= 1
