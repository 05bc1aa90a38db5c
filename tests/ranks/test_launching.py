"""Scripts under real launchers: what they print, how they end, and that nothing of them is left."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from dstrain.core.errors import RankError
from dstrain.testing import launch, start

pytestmark = pytest.mark.ranks

_SHOW = "import os, sys\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], *sys.argv[1:])\n"
_WAIT = "import os, time\nprint('ready', os.getpid(), flush=True)\ntime.sleep(100)\n"
_ORPHAN = (
    "import os, subprocess, sys\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
    "print(child.pid)\nsys.exit(3)\n"
)


def alive(pid: int) -> bool:
    """A zombie is not alive: nobody may reap orphans inside a container."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def test_torchrun_starts_every_rank(script: Path) -> None:
    script.write_text(_SHOW)
    done = launch([script, "--flag", "x"], 2, "torchrun")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 --flag x", "rank 1 of 2 --flag x"]
    assert done.survivors == ()


def test_deepspeed_starts_every_rank_with_its_own_flag_first(script: Path) -> None:
    script.write_text(_SHOW)
    done = launch([script, "--flag", "x"], 2, "deepspeed", {"DS_ACCELERATOR": "cpu"})
    assert done.returncode == 0, done.stderr
    shown = sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))
    assert shown == ["rank 0 of 2 --local_rank=0 --flag x", "rank 1 of 2 --local_rank=1 --flag x"]


def test_a_killed_rank_ends_the_job(script: Path) -> None:
    script.write_text(_WAIT)
    with start([script], 2, "deepspeed", {"DS_ACCELERATOR": "cpu"}) as job:
        job.wait_for("ready")
        pids = job.rank_pids()
        assert set(pids) <= {0, 1}
        killed = job.kill_rank(1)
        done = job.wait(60)
    assert done.returncode != 0
    assert done.survivors == ()
    assert not alive(killed)
    assert not any(alive(pid) for pid in pids.values())


def test_a_killed_launcher_leaves_survivors_that_are_named_and_killed(script: Path) -> None:
    script.write_text(_WAIT)
    with start([script], 2, "torchrun") as job:
        job.wait_for("ready")
        pids = {job.rank_pids()[0], job.kill_rank(1, signal.SIGCONT)}
        job.signal(signal.SIGKILL)
        done = job.wait(10, leave_s=0.2)
    assert done.returncode == -signal.SIGKILL
    assert pids <= set(done.survivors)
    assert not any(alive(pid) for pid in pids)


def test_python_runs_one_process_without_the_variables_of_a_rank(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "7")
    script.write_text("import os, sys\nprint(os.environ.get('RANK'), os.environ['X'])\nprint('e', file=sys.stderr)\n")
    done = launch([script], 1, "python", {"X": "y"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "None y\n", "e\n")
    with pytest.raises(ValueError, match="one process, not 2"):
        launch([script], 2, "python")


def test_a_child_in_another_session_is_a_survivor(script: Path) -> None:
    script.write_text(_ORPHAN)
    with start([script], 1, "python") as job:
        done = job.wait(20, leave_s=0.2)
    assert done.returncode == 3
    assert done.survivors == (int(done.stdout),)
    assert not alive(done.survivors[0])


def test_a_time_limit_kills_everything_and_shows_the_output(script: Path) -> None:
    script.write_text(_WAIT)
    with start([script], 1, "python") as job:
        job.wait_for("ready")
        began = time.monotonic()
        with pytest.raises(RankError, match=r"(?s)not done after 0.5 s.*ready (\d+)") as caught:
            job.wait(0.5)
    assert time.monotonic() - began < 40
    assert not alive(int(str(caught.value).split("ready ")[1].split()[0]))


def test_waiting_for_text_that_never_comes_is_an_error(script: Path) -> None:
    script.write_text("print('one')\n")
    with start([script], 1, "python") as job:
        job.wait_for("one")
        with pytest.raises(RankError, match="ended with 0 and did not print 'two'"):
            job.wait_for("two")


def test_a_single_python_process_is_rank_zero_and_can_be_killed(script: Path) -> None:
    script.write_text(_WAIT)
    with start([script], 1, "python") as job:
        job.wait_for("ready")
        assert job.kill_rank(0) == job.process.pid
        assert job.wait(10).returncode == -signal.SIGKILL
