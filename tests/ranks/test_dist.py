"""The collectives on real gloo processes: results, errors, and that a rank which fails leaves nobody waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dstrain.testing import RankPool, RanksFailed, run_ranks

pytestmark = pytest.mark.ranks


def start(timeout_s: float = 20.0) -> None:
    from dstrain import dist
    from dstrain.probe import world_facts

    dist.ensure_initialized(world_facts(), "cpu", timeout_s)


def who() -> tuple[int, int, bool]:
    from dstrain import dist

    before = (dist.rank(), dist.world_size(), dist.is_main())
    start()
    start()  # a second call finds the group
    assert before == (dist.rank(), dist.world_size(), dist.is_main())
    return before


def reductions() -> dict[str, Any]:
    import torch

    from dstrain import dist

    start()
    mine = torch.tensor([1.5, float(dist.rank())], dtype=torch.float64)
    total = dist.all_reduce_sum(mine)
    return {
        "sum": total.tolist(),
        "dtype": str(total.dtype),
        "mine": mine.tolist(),
        "max": dist.all_reduce_max(mine).tolist(),
        "none": dist.any_rank(False),
        "one": dist.any_rank(dist.rank() == 1),
        "gathered": dist.all_gather_object({"rank": dist.rank()}),
        "from_last": dist.broadcast_object(f"rank {dist.rank()}", source=dist.world_size() - 1),
    }


def compare(values: list[Any]) -> str:
    from dstrain import dist
    from dstrain.core.errors import RankError

    start()
    try:
        dist.same_on_all_ranks(values[dist.rank()], "the number of rows")
    except RankError as error:
        return str(error)
    return "same"


def first(folder: str, fail: bool) -> str:
    from dstrain import dist
    from dstrain.core.errors import RankError

    start()
    file = Path(folder, "cache")
    try:
        with dist.main_first():
            if dist.is_main():
                time.sleep(0.3)
                if fail:
                    raise ValueError("disk full")
                file.write_text("made by rank 0")
            return file.read_text()
    except (ValueError, RankError) as error:
        return f"{type(error).__name__}: {error}"


def barrier_order(folder: str) -> float:
    from dstrain import dist

    start()
    if dist.is_main():
        time.sleep(0.4)
        Path(folder, "late").write_text("")
    dist.barrier()
    return float(Path(folder, "late").exists())


def too_early() -> str:
    from dstrain import dist
    from dstrain.core.errors import RankError

    try:
        dist.all_gather_object(1)
    except RankError as error:
        return str(error)
    return "no error"


def deserted() -> str:
    from dstrain import dist
    from dstrain.core.errors import RankError

    start(timeout_s=3.0)
    if dist.rank() == 1:
        time.sleep(4.0)
        return "stayed away"
    try:
        dist.any_rank(True)
    except RankError as error:
        return str(error)
    return "no error"


def restart() -> list[int]:
    import torch.distributed

    from dstrain import dist

    start()
    dist.destroy()
    gone = int(torch.distributed.is_initialized())
    dist.destroy()  # nothing is left to end
    return [gone]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def test_each_rank_knows_itself(pool: RankPool) -> None:
    assert pool.run(who) == [(0, 2, True), (1, 2, False)]


def test_reductions_and_objects(pool: RankPool) -> None:
    zero, one = pool.run(reductions)
    assert zero["sum"] == one["sum"] == [3.0, 1.0]
    assert zero["max"] == one["max"] == [1.5, 1.0]
    assert zero["dtype"] == "torch.float64"
    assert (zero["mine"], one["mine"]) == ([1.5, 0.0], [1.5, 1.0])  # the argument is not changed
    assert (zero["none"], zero["one"]) == (one["none"], one["one"]) == (False, True)
    assert zero["gathered"] == one["gathered"] == [{"rank": 0}, {"rank": 1}]
    assert zero["from_last"] == one["from_last"] == "rank 1"


def test_equal_values_pass_and_others_are_named_on_every_rank(pool: RankPool) -> None:
    assert pool.run(compare, [{"a": [1, 2]}, {"a": [1, 2]}]) == ["same", "same"]
    zero, one = pool.run(compare, [100, 99])
    assert zero == one
    assert "the number of rows is not the same on all ranks: rank 0 has 100; rank 1 has 99" in zero


def test_main_goes_first_and_its_failure_reaches_the_others(pool: RankPool, tmp_path: Path) -> None:
    assert pool.run(first, str(tmp_path), False) == ["made by rank 0"] * 2
    zero, one = pool.run(first, str(tmp_path), True)
    assert zero == "ValueError: disk full"
    assert one.startswith("RankError: rank 0 failed")
    assert "disk full" in one


def test_a_barrier_holds_the_early_rank(pool: RankPool, tmp_path: Path) -> None:
    assert pool.run(barrier_order, str(tmp_path)) == [1.0, 1.0]


def test_destroy_ends_the_group_once(pool: RankPool) -> None:
    assert pool.run(restart) == [[0], [0]]


def test_a_collective_without_a_group_says_so() -> None:
    zero, one = run_ranks(too_early, 2)
    assert "before there is a process group" in zero
    assert "rank 1 of 2" in one


def test_a_rank_that_does_not_come_is_an_error_and_no_hang() -> None:
    started = time.monotonic()
    zero, one = run_ranks(deserted, 2)
    assert one == "stayed away"
    assert "rank 0: another rank failed or did not come to a common decision" in zero
    assert time.monotonic() - started < 60


def test_an_address_is_needed_for_several_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from dstrain import dist
    from dstrain.core.errors import UsageError
    from dstrain.core.facts import WorldFacts

    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "29500")
    with pytest.raises(UsageError, match="MASTER_ADDR not set"):
        dist.ensure_initialized(WorldFacts(2, 1, 1, 2), "cpu")


def alone(kind: str) -> list[Any]:
    import torch
    import torch.distributed

    from dstrain import dist
    from dstrain.core.facts import WorldFacts

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    if kind == "group":
        os.environ.pop("LOCAL_RANK", None)
        dist.ensure_initialized(WorldFacts(), "cpu")
        assert torch.distributed.get_backend() == "gloo"
        assert os.environ["LOCAL_RANK"] == "0"  # DeepSpeed reads it
        dist.destroy()
        assert "LOCAL_RANK" not in os.environ
        dist.ensure_initialized(WorldFacts(), "cpu")
    tensor = torch.ones(2)
    with dist.main_first():
        dist.barrier()
    dist.same_on_all_ranks(object(), "anything")
    return [
        dist.all_reduce_sum(tensor) is tensor,
        dist.any_rank(True),
        dist.any_rank(False),
        dist.all_gather_object("x"),
        dist.broadcast_object("y"),
        torch.distributed.is_initialized(),
    ]


@pytest.mark.parametrize("kind", ["group", "no group"])
def test_one_rank_needs_no_group_and_no_port(kind: str) -> None:
    assert run_ranks(alone, 1, kind) == [[True, True, False, ["x"], "y", kind == "group"]]


def other_world() -> None:
    from dstrain import dist
    from dstrain.core.facts import WorldFacts

    start()
    dist.ensure_initialized(WorldFacts(4, 3, 3, 4), "cpu")


def test_a_group_of_another_world_is_refused(pool: RankPool) -> None:
    with pytest.raises(RanksFailed, match="the launcher says rank 3 of 4"):
        pool.run(other_world)
