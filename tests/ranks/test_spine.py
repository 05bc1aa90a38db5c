"""The invariants that everything else stands on, with the real engine: one truth, split invariance, exact evaluation.

Numbers are compared between runs that differ only in what must not matter.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from dstrain.testing import RankPool

sys.path.insert(0, str(Path(__file__).parent))
import jobs

pytestmark = pytest.mark.ranks
STAGES = (0, 1, 2, 3)


def _close(left: list[tuple[float, ...]], right: list[tuple[float, ...]], tolerance: float = 2e-5) -> None:
    assert len(left) == len(right) > 0
    np.testing.assert_allclose(np.array(left), np.array(right), rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def reference(rank1: RankPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Six steps of eight ragged rows on one device in plain torch."""
    folder = str(tmp_path_factory.mktemp("reference"))
    (result,) = rank1.run(_train, folder, {"stage": None, "micro": 8})
    return dict(result)


def _train(folder: str, options: dict[str, object]) -> dict[str, object]:
    return jobs.train(folder, **options)


def _predict(folder: str, options: dict[str, object]) -> dict[str, object]:
    return jobs.predict(folder, **options)


@pytest.mark.parametrize("stage", STAGES)
def test_one_truth_on_one_rank(rank1: RankPool, reference: dict, stage: int, tmp_path: Path) -> None:
    (result,) = rank1.run(_train, str(tmp_path), {"stage": stage, "micro": 8})
    _close(result["rows"], reference["rows"])


@pytest.mark.parametrize("stage", STAGES)
def test_one_truth_on_two_ranks(ranks2: RankPool, reference: dict, stage: int, tmp_path: Path) -> None:
    first, second = ranks2.run(_train, str(tmp_path), {"stage": stage, "micro": 4})
    _close(first["rows"], reference["rows"])
    assert first["weights"] == second["weights"]


@pytest.mark.parametrize(("micro", "accumulation"), [(8, 1), (4, 2), (2, 4), (1, 8)])
def test_split_invariance_on_one_device(
    rank1: RankPool, reference: dict, micro: int, accumulation: int, tmp_path: Path
) -> None:
    (result,) = rank1.run(_train, str(tmp_path), {"stage": None, "micro": micro, "accumulation": accumulation})
    _close(result["rows"], reference["rows"])


@pytest.mark.parametrize(("stage", "micro", "accumulation"), [(0, 1, 4), (1, 2, 2), (2, 1, 4), (2, 2, 2), (3, 1, 4)])
def test_split_invariance_on_two_ranks(
    ranks2: RankPool, reference: dict, stage: int, micro: int, accumulation: int, tmp_path: Path
) -> None:
    options = {"stage": stage, "micro": micro, "accumulation": accumulation}
    _close(ranks2.run(_train, str(tmp_path), options)[0]["rows"], reference["rows"])


@pytest.mark.parametrize("rows", [9, 13, 17])
def test_the_last_smaller_step_of_an_epoch(rank1: RankPool, ranks2: RankPool, rows: int, tmp_path: Path) -> None:
    """Rows that fill no global batch: the step is over just these, whatever the split, with a rank without any."""
    (one,) = rank1.run(_train, str(tmp_path / "1"), {"stage": None, "micro": 8, "rows": rows})
    two = ranks2.run(_train, str(tmp_path / "2"), {"stage": 2, "micro": 2, "accumulation": 2, "rows": rows})
    _close(two[0]["rows"], one["rows"])


@pytest.mark.parametrize(
    "workers",
    [
        {"dataloader_num_workers": 2},
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 3},
    ],
)
def test_loader_processes_change_nothing(rank1: RankPool, workers: dict, tmp_path: Path) -> None:
    """Rows that draw random numbers as they are read, over two epochs."""
    options = {"stage": 2, "kind": "augmenting", "micro": 8, "steps": 7, "dropout": 0.2}
    here, there = (rank1.run(_train, str(tmp_path / str(len(w))), options | w)[0] for w in ({}, workers))
    assert there["rows"] == here["rows"]


def test_a_stream_is_split_like_rows(rank1: RankPool, ranks2: RankPool, tmp_path: Path) -> None:
    """20 rows in steps of 8, 8 and 4, then from the beginning: labels are weighed by token from the first step on."""
    (one,) = rank1.run(_train, str(tmp_path / "1"), {"stage": None, "kind": "stream", "micro": 8})
    two = ranks2.run(_train, str(tmp_path / "2"), {"stage": 3, "kind": "stream", "micro": 2, "accumulation": 2})
    _close(two[0]["rows"], one["rows"])


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.01, 1e9])
@pytest.mark.parametrize("stage", STAGES)
def test_the_norm_is_clipped_where_it_was_asked(
    rank1: RankPool, stage: int, max_grad_norm: float, tmp_path: Path
) -> None:
    """DeepSpeed clips at 1.0 when it is told nothing; plain torch is the judge of what was asked."""
    options = {"kind": "xy", "micro": 8, "max_grad_norm": max_grad_norm, "optim": "sgd", "steps": 3}
    (single,) = rank1.run(_train, str(tmp_path / "s"), {"stage": None, **options})
    (engine,) = rank1.run(_train, str(tmp_path / "e"), {"stage": stage, **options})
    _close(engine["rows"], single["rows"])


@pytest.mark.parametrize("optim", ["sgd", "adagrad"])
@pytest.mark.parametrize("stage", STAGES)
def test_one_truth_with_other_optimizers(rank1: RankPool, stage: int, optim: str, tmp_path: Path) -> None:
    """With weight decay on matrices only, and a schedule: both must reach the optimizer that really runs."""
    options = {"micro": 8, "optim": optim, "weight_decay": 0.5, "learning_rate": 0.05}
    (single,) = rank1.run(_train, str(tmp_path / "s"), {"stage": None, **options})
    (engine,) = rank1.run(_train, str(tmp_path / "e"), {"stage": stage, **options})
    _close(engine["rows"], single["rows"], 1e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_bf16_trains_near_fp32(ranks2: RankPool, reference: dict, stage: int, tmp_path: Path) -> None:
    rows = ranks2.run(_train, str(tmp_path), {"stage": stage, "micro": 4, "bf16": True})[0]["rows"]
    losses, wanted = [row[0] for row in rows], [row[0] for row in reference["rows"]]
    np.testing.assert_allclose(losses, wanted, rtol=0.05)
    assert losses != wanted


def test_a_run_does_not_depend_on_the_past_of_its_process(rank1: RankPool, tmp_path: Path) -> None:
    """torch_autocast marks the process in DeepSpeed 0.19.8; a later fp32 run, with it or without, is the same."""
    plain, engine = {"stage": None, "micro": 8}, {"stage": 1, "micro": 8}
    autocast = engine | {"config": jobs.zero(1, torch_autocast={"enabled": True, "dtype": "bfloat16"})}
    runs = [plain, engine, autocast, engine, plain, autocast, engine]
    seen = [rank1.run(_train, str(tmp_path / str(number)), options)[0] for number, options in enumerate(runs)]
    assert seen[1]["rows"] == seen[3]["rows"] == seen[6]["rows"]
    assert seen[0]["rows"] == seen[4]["rows"]
    assert seen[2]["rows"] == seen[5]["rows"] != seen[1]["rows"]


@pytest.mark.parametrize("stage", [None, *STAGES])
def test_a_step_that_is_not_finite_is_skipped_and_seen(
    rank1: RankPool, ranks2: RankPool, stage: int | None, tmp_path: Path
) -> None:
    """One poisoned row: its step changes nothing, is counted and logged as what it was; the schedule waits."""
    options = {"stage": stage, "kind": "poisoned", "micro": 8 if stage is None else 4, "steps": 5, "optim": "sgd"}
    results = (rank1 if stage is None else ranks2).run(_train, str(tmp_path), options)
    for result in results:
        losses = [row[0] for row in result["rows"]]
        (bad,) = [index for index, loss in enumerate(losses) if not np.isfinite(loss)]
        assert result["skipped"] == 1
        assert not np.isfinite(result["rows"][bad][2])
        lrs = [row[1] for row in result["rows"]]
        assert lrs[bad + 1] == lrs[bad] if bad < 4 else True
        assert len(set(lrs)) == (4 if bad < 4 else 5)
        assert result["finite"]


@pytest.mark.parametrize("n", range(6))
def test_n_rows_in_n_rows_out(rank1: RankPool, ranks2: RankPool, n: int, tmp_path: Path) -> None:
    (one,) = rank1.run(_predict, str(tmp_path), {"stage": None, "n": n, "batch": 5})
    for stage in (2, 3):
        for result in ranks2.run(_predict, str(tmp_path), {"stage": stage, "n": n}):
            assert result["samples"] == len(result["predictions"]) == n
            if n:
                np.testing.assert_allclose(result["predictions"], one["predictions"], rtol=1e-5)
                np.testing.assert_array_equal(result["labels"], one["labels"])
                assert result["loss"] == pytest.approx(one["loss"], rel=1e-6)
            else:
                assert result["loss"] is None


@pytest.mark.parametrize("batch", [1, 2, 13])
def test_eval_loss_is_a_mean_over_tokens(rank1: RankPool, ranks2: RankPool, batch: int, tmp_path: Path) -> None:
    """Ragged rows: a mean of batch means would depend on the batch size."""
    (one,) = rank1.run(_predict, str(tmp_path), {"stage": None, "n": 13, "kind": "ragged", "batch": 13})
    two = ranks2.run(_predict, str(tmp_path), {"stage": 1, "n": 13, "kind": "ragged", "batch": batch})
    assert two[0]["loss"] == pytest.approx(one["loss"], rel=1e-6)
    assert two[0]["predictions"].shape == one["predictions"].shape
