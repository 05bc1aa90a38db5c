"""Resume is bit for bit, from any step, after any death; a checkpoint is whole or it is not there."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from dstrain.testing import RankPool, RanksFailed

sys.path.insert(0, str(Path(__file__).parent))
import jobs

pytestmark = pytest.mark.ranks
STEPS = 10


def _train(folder: str, options: dict[str, object]) -> dict[str, object]:
    return jobs.train(folder, **options)


def _options(stage: int | None, **more: object) -> dict[str, object]:
    """Dropout, ragged rows, two epochs of five steps, a schedule with warm-up: all that a resume must bring back."""
    common = {"stage": stage, "steps": STEPS, "dropout": 0.3, "save_steps": 1, "warmup_steps": 3}
    return common | {"micro": 4, "accumulation": 2 if stage is None else 1} | more


def _pool(stage: int | None, rank1: RankPool, ranks2: RankPool) -> RankPool:
    return rank1 if stage is None else ranks2


@pytest.mark.parametrize(
    ("stage", "kind"), [*((stage, "ragged") for stage in (None, 0, 1, 2, 3)), (None, "augmenting"), (2, "augmenting")]
)
def test_kill_and_resume_bit_for_bit(
    rank1: RankPool, ranks2: RankPool, stage: int | None, kind: str, tmp_path: Path
) -> None:
    """train 10 == train k, SIGKILL, resume; one run that dies three times."""
    pool = _pool(stage, rank1, ranks2)
    whole = pool.run(_train, str(tmp_path / "whole"), _options(stage, kind=kind))[0]
    folder = str(tmp_path / "killed")
    for die_at in (2, 6, 9):  # in the middle of the first epoch, at the start of the second, near the end
        with pytest.raises(RanksFailed):
            pool.run(_train, folder, _options(stage, kind=kind, die_at=die_at, resume="auto"))
        newest = max(int(path.name.split("-")[1]) for path in Path(folder).glob("checkpoint-*"))
        state = json.loads((Path(folder) / f"checkpoint-{newest}" / "trainer_state.json").read_text())
        assert newest == state["global_step"] == die_at - 1
    last = pool.run(_train, folder, _options(stage, kind=kind, resume=True))[0]
    assert last["rows"] == whole["rows"][8:]
    assert last["weights"] == whole["weights"]
    assert last["epoch"] == whole["epoch"]
    lines = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    assert [line["loss"] for line in lines if "loss" in line] == [row[0] for row in whole["rows"]]


def test_saving_and_evaluating_by_epoch(ranks2: RankPool, tmp_path: Path) -> None:
    """A checkpoint of an epoch's end goes on with the next epoch: what belonged to that end is not done again."""
    options = _options(1, save_strategy="epoch", eval_strategy="epoch")
    whole = ranks2.run(_train, str(tmp_path / "whole"), options)[0]
    folder = str(tmp_path / "killed")
    with pytest.raises(RanksFailed):
        ranks2.run(_train, folder, options | {"die_at": 7})
    rest = ranks2.run(_train, folder, options | {"resume": "auto"})[0]
    assert rest["rows"] == whole["rows"][5:]
    assert rest["weights"] == whole["weights"]
    assert rest["evaluated"] == whole["evaluated"] == [5, 10]
    assert {path.name for path in Path(folder).glob("checkpoint-*")} == {"checkpoint-5", "checkpoint-10"}


def test_a_replacement_that_was_cut_short_is_undone(ranks2: RankPool, tmp_path: Path) -> None:
    whole = ranks2.run(_train, str(tmp_path), _options(2, steps=3))[0]
    (tmp_path / "checkpoint-3").rename(tmp_path / ".staging-old-3")
    rest = ranks2.run(_train, str(tmp_path), _options(2, steps=4, resume="auto"))[0]
    assert len(rest["rows"]) == 1
    assert len(whole["rows"]) == 3


@pytest.mark.parametrize("resumed_at", [2, 5, 9])
def test_resume_from_any_step(ranks2: RankPool, resumed_at: int, tmp_path: Path) -> None:
    whole = ranks2.run(_train, str(tmp_path / "whole"), _options(2))[0]
    folder = str(tmp_path / "other")
    checkpoint = str(tmp_path / "whole" / f"checkpoint-{resumed_at}")
    rest = ranks2.run(_train, folder, _options(2, resume=checkpoint))[0]
    assert rest["rows"] == whole["rows"][resumed_at:]
    assert rest["weights"] == whole["weights"]


def test_a_finished_run_does_nothing_more(ranks2: RankPool, tmp_path: Path) -> None:
    whole = ranks2.run(_train, str(tmp_path), _options(2, steps=4))[0]
    again = ranks2.run(_train, str(tmp_path), _options(2, steps=4, resume="auto"))[0]
    assert (again["step"], again["rows"], again["weights"]) == (4, [], whole["weights"])


def test_a_longer_horizon_is_followed(ranks2: RankPool, tmp_path: Path) -> None:
    """The schedule of the resumed run is that of the run as it is now."""
    ranks2.run(_train, str(tmp_path / "a"), _options(2, steps=4))
    rest = ranks2.run(_train, str(tmp_path / "a"), _options(2, steps=8, resume="auto"))[0]
    fresh = ranks2.run(_train, str(tmp_path / "b"), _options(2, steps=8))[0]
    assert [row[1] for row in rest["rows"]] == [row[1] for row in fresh["rows"]][4:]


def test_settings_win_over_the_checkpoint(ranks2: RankPool, tmp_path: Path) -> None:
    """DeepSpeed takes lr from the checkpoint, and at stages 1 and 2 the clip norm too: what is written now decides."""
    begin = _options(2, steps=4, kind="xy", micro=8, optim="sgd", dropout=0.0, warmup_steps=0)
    ranks2.run(_train, str(tmp_path), begin | {"max_grad_norm": 100.0})
    rest = {}
    for clip in (100.0, 1e-3):
        changed = begin | {"steps": 5, "max_grad_norm": clip, "learning_rate": 0.5, "resume": True, "save_steps": None}
        rest[clip] = ranks2.run(_train, str(tmp_path), changed)[0]
    lr, wanted = rest[100.0]["rows"][0][1], 0.5 * (5 - 4) / 5
    assert lr == pytest.approx(wanted)
    assert rest[100.0]["rows"] == rest[1e-3]["rows"]  # the loss and the norm before clipping of the same step
    assert rest[100.0]["weights"] != rest[1e-3]["weights"]


@pytest.mark.parametrize(
    ("point", "rank"), [*((point, 0) for point in jobs.KILL_POINTS), ("between_shards", 1), ("after_shards", 1)]
)
def test_killed_while_saving(ranks2: RankPool, point: str, rank: int, tmp_path: Path) -> None:
    """Wherever a save is cut short, the newest whole checkpoint loads, and the run ends as if nothing had been."""
    whole = ranks2.run(_train, str(tmp_path / "whole"), _options(2, steps=5))[0]
    folder = str(tmp_path / "killed")
    with pytest.raises(RanksFailed):
        ranks2.run(_train, folder, _options(2, steps=5, die_saving=(point, 3, rank)))
    rest = ranks2.run(_train, folder, _options(2, steps=5, resume="auto"))[0]
    from_step = 3 if point == "before_latest" else 2
    assert rest["rows"] == whole["rows"][from_step:]
    assert rest["weights"] == whole["weights"]
    assert not list(Path(folder).glob(".staging*"))


def _damage(folder: Path, how: str) -> None:
    shard = next((folder / "engine").glob("*optim_states.pt"))
    if how == "missing":
        shard.unlink()
    elif how == "truncated":
        shard.write_bytes(shard.read_bytes()[:-100])
    elif how == "bit":
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    elif how == "no manifest":
        (folder / "manifest.json").unlink()
    else:
        shutil.rmtree(folder)
        folder.mkdir()


@pytest.mark.parametrize("how", ["missing", "truncated", "bit", "no manifest", "empty"])
def test_a_damaged_checkpoint_is_passed_over(ranks2: RankPool, how: str, tmp_path: Path) -> None:
    whole = ranks2.run(_train, str(tmp_path), _options(2, steps=3))[0]
    _damage(tmp_path / "checkpoint-3", how)
    rest = ranks2.run(_train, str(tmp_path), _options(2, steps=3, resume="auto"))[0]
    assert rest["rows"] == whole["rows"][2:]
    assert "checkpoint-3 is damaged" in ranks2.outputs[0]
