"""The examples as a user types them: under each launcher, killed and typed again, and typed wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from safetensors import safe_open

from dstrain.testing import launch, start
from dstrain.testing._processes import CPU_ONLY

pytestmark = pytest.mark.ranks
_ROOT = Path(__file__).parents[2]
_DEMO, _TRAIN = _ROOT / "docs" / "examples" / "byte_lm.py", _ROOT / "docs" / "examples" / "train.py"
_SMALL = {"width": 16, "depth": 1, "heads": 2, "length": 32, "held_out_rows": 6, "sample_bytes": 20}
_RUN = {"max_steps": 12, "save_steps": 2, "logging_steps": 1, "eval_steps": 6, "learning_rate": 1e-2}
_HOW = ["--eval_on_start", "--eval_strategy", "steps", "--resume_from_checkpoint", "auto"]


def zero(stage: int) -> list[str]:
    return ["--deepspeed", str(_ROOT / "ds_configs" / f"zero{stage}.json")]


def test_the_demo_is_killed_and_goes_on_when_typed_again(tmp_path: Path) -> None:
    run = tmp_path / "run"
    text = tmp_path / "text"
    text.mkdir()
    for n in range(30):
        (text / f"{n}.txt").write_text(f"line {n} of a text that is easy to learn\n" * 20)
    flags = [f"--{name}={value}" for name, value in (_SMALL | _RUN | {"output_dir": run, "data": text}).items()]
    command = [_DEMO, *zero(2), *flags, *_HOW]
    with start(command, 2, "torchrun", CPU_ONLY) as job:
        job.wait_for("step 5/12", 240)
        job.kill_rank(1)
        assert job.wait(60).returncode != 0
    done = launch(command, 2, "torchrun", CPU_ONLY, 240)
    assert done.returncode == 0, done.stderr
    resumed = re.search(r"resuming from \S+ at step (\d+) of 12", done.stdout)
    assert resumed, done.stdout
    assert int(resumed[1]) >= 4
    assert f"12  ({12 - int(resumed[1])} in this process)" in done.stdout
    bits = [float(found) for found in re.findall(r"held-out bits/byte, \w+ *│ (\d+\.\d+)", done.stdout)]
    assert len(bits) == 3
    assert bits[0] > bits[1] > bits[2]
    with safe_open(run / "model.safetensors", "pt") as saved:
        assert saved.get_tensor("embed.weight").shape == (256, 16)
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "loss" in entry] == list(range(1, 13))


def test_the_api_example_under_the_deepspeed_launcher_with_zero_3(tmp_path: Path) -> None:
    flags = ["--max_steps", "4", "--output_dir", str(tmp_path / "run")]
    done = launch([_TRAIN, *zero(3), *flags], 2, "deepspeed", CPU_ONLY, 240)
    assert done.returncode == 0, done.stderr
    assert done.survivors == ()
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as saved:
        assert saved.get_tensor("net.0.weight").shape == (16, 4)


def test_the_api_example_as_a_plain_python_program(tmp_path: Path) -> None:
    done = launch([_TRAIN, "--max_steps", "4", "--output_dir", tmp_path / "run"], 1, "python", CPU_ONLY, 240)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").exists()


def test_flags_that_are_wrong_are_one_message_without_a_traceback(tmp_path: Path) -> None:
    command = [_DEMO, "--wdith", "3", "--max_steps", "x", "--output_dir", tmp_path / "run"]
    done = launch(command, 1, "python", CPU_ONLY, 120)
    assert done.returncode == 2
    assert "--wdith; did you mean '--width'" in done.stderr
    assert "--max_steps: got 'x'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
