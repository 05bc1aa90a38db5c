"""The rank harness itself, mostly without torch: results, failures, deaths, time limits, leftovers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dstrain.testing import RankPool, RanksFailed, run_ranks
from dstrain.testing._processes import CPU_ONLY

pytestmark = pytest.mark.ranks


def place(*extra: object) -> tuple[object, ...]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
    return (*(os.environ[name] for name in names), *extra)


def rendezvous() -> tuple[int, str, str]:
    return os.getpid(), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]


def talk(word: str) -> None:
    print(word, os.environ["RANK"])


def fail_on_one() -> None:
    if os.environ["RANK"] == "1":
        print("last words")
        raise ValueError("the reason is 42")
    time.sleep(60)


def fail_everywhere() -> None:
    raise RuntimeError(f"rank {os.environ['RANK']} as well")


def leave(code: int) -> None:
    sys.exit(code)


def die() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def stuck_with_children(path: str) -> None:
    child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    Path(path, os.environ["RANK"]).write_text(f"{os.getpid()} {child.pid}")
    time.sleep(60)


def unpicklable() -> object:
    return lambda: None


def gather(value: int) -> tuple[bool, list[int]]:
    """Whether a process group was there already, and `value` + rank of every rank."""
    import torch
    from torch import distributed

    before = distributed.is_initialized()
    if not before:
        distributed.init_process_group("gloo")
    parts = [torch.zeros((), dtype=torch.int64) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, torch.tensor(value + distributed.get_rank()))
    return before, [int(part) for part in parts]


def has_torch() -> bool:
    return "torch" in sys.modules


def alive(pid: int) -> bool:
    """A zombie is not alive: nobody may reap orphans inside a container."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as pool:
        yield pool


def test_every_rank_gets_its_place_and_arguments(pool: RankPool) -> None:
    assert pool.run(place, "a", [1]) == [("0", "0", "2", "2", "1", "a", [1]), ("1", "1", "2", "2", "1", "a", [1])]


def test_the_same_processes_answer_again_and_share_a_rendezvous(pool: RankPool) -> None:
    first, second = pool.run(rendezvous), pool.run(rendezvous)
    assert first == second
    assert len({pid for pid, _, _ in first}) == 2
    assert len({port for _, _, port in first}) == 1


def test_outputs_are_of_the_last_call_only(pool: RankPool) -> None:
    pool.run(talk, "one")
    pool.run(talk, "two")
    assert pool.outputs == ["two 0\n", "two 1\n"]


def test_the_harness_loads_no_torch(pool: RankPool) -> None:
    assert pool.run(has_torch) == [False, False]


def test_a_process_group_lives_from_call_to_call() -> None:
    with RankPool(2, env=CPU_ONLY) as pool:
        first, second = pool.run(gather, 10), pool.run(gather, 20)
    assert first == [(False, [10, 11])] * 2
    assert second == [(True, [20, 21])] * 2


def test_a_failing_rank_is_shown_and_the_others_do_not_wait() -> None:
    began = time.monotonic()
    with pytest.raises(RanksFailed, match="the reason is 42") as caught:
        run_ranks(fail_on_one)
    assert time.monotonic() - began < 40
    assert set(caught.value.failures) == {1}
    assert "in fail_on_one" in caught.value.failures[1]
    assert "last words" in str(caught.value)


def test_all_failing_ranks_are_shown_and_the_pool_starts_again(pool: RankPool) -> None:
    before = pool.run(rendezvous)
    with pytest.raises(RanksFailed) as caught:
        pool.run(fail_everywhere)
    assert set(caught.value.failures) == {0, 1}
    after = pool.run(rendezvous)
    assert not {pid for pid, _, _ in before} & {pid for pid, _, _ in after}


def test_sys_exit_in_a_rank_is_a_failure() -> None:
    with pytest.raises(RanksFailed, match="SystemExit: 3"):
        run_ranks(leave, 1, 3)


def test_a_rank_that_is_killed_is_a_failure() -> None:
    with pytest.raises(RanksFailed, match="rank 1: died of SIGKILL"):
        run_ranks(die)


def test_a_time_limit_shows_the_stacks_and_leaves_nothing(tmp_path: Path) -> None:
    with RankPool(2) as pool:
        pool.run(place)  # the start of a process is not what is timed
        with pytest.raises(RanksFailed, match="not done after 3 s") as caught:
            pool.run(stuck_with_children, str(tmp_path), timeout_s=3)
    assert "in stuck_with_children" in str(caught.value)
    left = [int(pid) for path in tmp_path.iterdir() for pid in path.read_text().split()]
    assert len(left) == 4
    assert not [pid for pid in left if alive(pid)]


def test_a_result_that_cannot_travel_is_a_failure_of_that_rank(pool: RankPool) -> None:
    with pytest.raises(RanksFailed, match="pickle"):
        pool.run(unpicklable)


def test_a_function_without_a_name_is_refused_before_any_process() -> None:
    with pytest.raises(TypeError, match="function of a module"):
        run_ranks(lambda: None)


def test_no_ranks_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="world_size 0"):
        RankPool(0)


def test_ranks_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import sys\nfrom dstrain.testing import run_ranks\n"
        "import os, time, pathlib\n"
        "def wait(folder):\n"
        "    pathlib.Path(folder, os.environ['RANK'] + '.pid').write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
        "if __name__ == '__main__':\n    run_ranks(wait, 2, sys.argv[1])\n"
    )
    parent = subprocess.Popen([sys.executable, script, tmp_path])
    files = [tmp_path / "0.pid", tmp_path / "1.pid"]
    deadline = time.monotonic() + 40
    while not all(path.exists() and path.read_text() for path in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    pids = [int(path.read_text()) for path in files]
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
