"""The model out of a checkpoint on disk is the live model, at every stage; and what was planted in one never runs."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from dstrain.testing import RankPool

sys.path.insert(0, str(Path(__file__).parent))
import jobs

pytestmark = pytest.mark.ranks
CASES = [("fp32", 1), ("fp32", 3), ("bf16", 0), ("bf16", 1), ("bf16", 2), ("bf16", 3)]
FROZEN = ("blocks.0.up.weight", "blocks.0.up.bias", "ln_f.bias")


def _trainer(folder: str, precision: str, stage: int, **more: Any) -> Any:
    """Tied weights, frozen parts, a buffer of integers, and sizes that two ranks do not divide."""
    import torch

    from dstrain import Trainer, TrainingArguments, set_seed
    from dstrain.data import pad_collate
    from dstrain.testing import data, models

    set_seed(7)
    model = models.TinyLM(vocab=61, layers=1)
    model.extra = torch.nn.Parameter(torch.ones(3))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in FROZEN)
    model.register_buffer("count", torch.arange(3))
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=4,
        max_steps=1,
        save_steps=1,
        logging_steps=1,
        disable_tqdm=True,
        learning_rate=1e-2,
        optim="adamw_torch",
        bf16=precision == "bf16",
        deepspeed=jobs.zero(stage),
        **more,
    )
    trainer: Any = Trainer(model, args, pad_collate(), data.ragged_rows(40, vocab=61))
    return trainer


def _make(folder: str, precision: str, stage: int) -> None:
    """Train a step, save; keep what the live engine says of its weights and of its fp32 masters."""
    import torch
    from deepspeed.utils import safe_get_full_fp32_param

    from dstrain import dist

    trainer = _trainer(folder, precision, stage)
    trainer.train()
    trainer.save_model(f"{folder}/live")
    masters = {}
    engine = trainer._prepared()._engine
    if stage:
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad and (full := safe_get_full_fp32_param(parameter)) is not None:
                masters[name] = full.detach().cpu().clone()
    else:
        for low, full in zip(engine.optimizer.fp16_groups, engine.optimizer.fp32_groups, strict=True):
            names = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
            masters |= {names[id(p)]: master.detach().clone() for p, master in zip(low, full, strict=True)}
    if dist.is_main():
        torch.save(masters, f"{folder}/masters.pt")
    trainer._prepared().close()


@pytest.fixture(scope="module")
def made(ranks2: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run for each case."""
    root = tmp_path_factory.mktemp("made")
    for precision, stage in CASES:
        ranks2.run(_make, str(root / f"{precision}-{stage}"), precision, stage, timeout_s=120)
    return root


def _save_without_room(folder: str, stage: int) -> list[str]:
    """Save while rank 1 may write no file above 20 kB; then again with room."""
    import resource

    from dstrain import dist
    from dstrain.core.errors import CheckpointError

    trainer = _trainer(folder, "fp32", stage)
    trainer.train()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    said = []
    for step, limit in ((2, 20_000), (3, soft)):

        def write(folder: Path, limit: int = limit) -> None:
            if dist.rank() == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            try:
                trainer._prepared().save(folder)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        try:
            trainer._store.save(step, write, {}, {})
            said.append("saved")
        except CheckpointError as error:
            said.append(str(error))
    trainer._prepared().close()
    return said


@pytest.mark.parametrize("stage", [2, 3])
def test_a_rank_without_room_fails_the_save_on_all(ranks2: RankPool, stage: int, tmp_path: Path) -> None:
    """Nobody hangs, the earlier checkpoint stays, and the next save is whole."""
    from dstrain.checkpoint import manifest

    for said in ranks2.run(_save_without_room, str(tmp_path), stage, timeout_s=60):
        assert "checkpoint of step 2 could not be written (rank 1)" in said[0]
        assert said[1] == "saved"
    assert sorted(path.name for path in tmp_path.glob("*-*")) == ["checkpoint-1", "checkpoint-3"]
    assert not list(tmp_path.glob(".staging*"))
    assert manifest.problems(tmp_path / "checkpoint-1") == manifest.problems(tmp_path / "checkpoint-3") == []


def _plain(run: Path, root: Path) -> Path:
    """What DeepSpeed's own save leaves: a folder of its tag, and `latest`."""
    shutil.copytree(run / "checkpoint-1" / "engine", root / "global_step1")
    (root / "latest").write_text("global_step1")
    return root


def _loaded(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return dict(load_file(folder / "model.safetensors"))
    placed = json.loads(index.read_text())["weight_map"]
    parts = {name: load_file(folder / name) for name in set(placed.values())}
    assert {key for part in parts.values() for key in part} == set(placed)
    return {name: parts[file][name] for name, file in placed.items()}


@pytest.mark.parametrize(("precision", "stage"), CASES)
def test_is_the_live_model(made: Path, precision: str, stage: int, tmp_path: Path) -> None:
    import torch

    from dstrain.checkpoint.from_disk import export_checkpoint

    run = made / f"{precision}-{stage}"
    live = _loaded(run / "live")
    for source in (run, _plain(run, tmp_path / "plain")):
        out = tmp_path / f"out-{source.name}"
        done = export_checkpoint(source, out, max_shard_bytes=30_000)
        assert len(done.files) > 1
        got = _loaded(out)
        assert got.keys() == live.keys()
        for name, tensor in live.items():
            assert got[name].dtype == tensor.dtype, name
            assert torch.equal(got[name], tensor), name
    assert torch.equal(got["head.weight"], got["embed.weight"])
    assert got["count"].tolist() == [0, 1, 2]
    assert (tmp_path / f"out-{run.name}" / "config.json").is_file()


@pytest.mark.parametrize(("precision", "stage"), CASES)
def test_fp32_is_the_master_weights(made: Path, precision: str, stage: int, tmp_path: Path) -> None:
    import torch

    from dstrain.checkpoint.from_disk import export_checkpoint

    run = made / f"{precision}-{stage}"
    done = export_checkpoint(run, tmp_path / "out", dtype="fp32")
    got, live = _loaded(tmp_path / "out"), _loaded(run / "live")
    masters = torch.load(run / "masters.pt")
    assert len(masters) == len({n for n in live if n not in (*FROZEN, "count", "head.weight")})
    for name, master in masters.items():
        assert torch.equal(got[name], master), name
    for name, tensor in live.items():
        if tensor.is_floating_point():
            assert got[name].dtype == torch.float32
            assert torch.equal(got[name].to(tensor.dtype), tensor), name
    if precision == "bf16":  # else the masters say nothing that the weights do not
        assert any(not torch.equal(got[name], live[name].float()) for name in masters)
    assert bool(done.notes) == (precision == "bf16")


def test_a_rank_that_is_missing_is_named(made: Path, tmp_path: Path) -> None:
    from dstrain.checkpoint.from_disk import export_checkpoint
    from dstrain.core.errors import CheckpointError

    root = _plain(made / "bf16-3", tmp_path / "plain")
    (root / "global_step1" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="2 ranks wrote this checkpoint, and 1 of their"):
        export_checkpoint(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_commands_on_plain_deepspeed(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dstrain.cli.main import main

    root = _plain(made / "bf16-2", tmp_path / "plain")
    assert main(["ckpt", "list", str(root), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["checkpoints"]
    wanted = {"kind": "deepspeed", "step": 1, "world_size": 2, "zero_stage": "1 or 2", "health": "whole"}
    assert {key: shown[key] for key in wanted} == wanted
    assert shown["is_latest"]
    assert main(["ckpt", "show", str(root), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["step"], shown["tied"], sorted(shown["frozen"])) == (
        1,
        {"head.weight": "embed.weight"},
        sorted(FROZEN),
    )
    assert main(["ckpt", "verify", str(root)]) == 0
    assert main(["ckpt", "prune", str(root), "--keep", "1"]) == 0
    shard = next((root / "global_step1").glob("*optim*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert main(["ckpt", "verify", str(root)]) == 1
    assert "checksum" in capsys.readouterr().out
    assert main(["ckpt", "export", str(root), str(tmp_path / "out"), "--dtype", "fp32"]) == 1
    assert not (tmp_path / "out").exists()


class _Payload:
    """Opened by an ordinary unpickler, it leaves a file."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return (open, (self._mark, "w"))


def _plant(folder: Path, name: str, mark: Path) -> None:
    """Hide a payload in a file whose rest is as it was, and make the manifest agree."""
    import torch

    from dstrain.checkpoint import manifest

    path = folder / name
    state = torch.load(path, weights_only=False)
    state.get("optimizer_state_dict", state)["planted"] = _Payload(str(mark))
    torch.save(state, path)
    written = manifest.read(folder)
    assert written is not None
    facts = {key: value for key, value in written.items() if key not in ("schema", "files")}
    manifest.write(folder, manifest.record(folder, manifest.files_of(folder)), facts)
    assert manifest.problems(folder) == []


def _hostile_resumes(folders: list[str], precision: str, stage: int) -> list[str]:
    """What one engine says when it is asked to go on from each of these."""
    from dstrain import dist
    from dstrain.checkpoint import rng
    from dstrain.core.errors import CheckpointError

    backend = _trainer(folders[0], precision, stage)._prepared()
    said = []
    for folder in map(Path, folders):
        for path in sorted((folder / "engine").glob("*.pt")):  # the engine that DeepSpeed itself loads with
            with contextlib.suppress(CheckpointError):
                backend._engine.checkpoint_engine.load(str(path))
        try:
            if "rng" in folder.parent.name:
                rng.load(folder, dist.rank())
            else:
                backend.load(folder)
            said.append("loaded")
        except CheckpointError as error:
            said.append(str(error))
    backend.close()
    return said


def _resume(folder: str, precision: str, stage: int) -> str:
    from dstrain.core.errors import DstrainError

    trainer = _trainer(folder, precision, stage, resume_from_checkpoint="auto")
    try:
        trainer.train()
    except DstrainError as error:
        return str(error)
    finally:
        trainer._prepared().close()
    return "trained"


@pytest.mark.parametrize(("precision", "stage"), [("bf16", 2), ("fp32", 3)])
def test_a_payload_never_runs(
    made: Path, ranks2: RankPool, precision: str, stage: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In each file, with a manifest that agrees: not at resume, nor in list, show, verify, export."""
    import torch

    from dstrain.cli.main import main

    mark, run = tmp_path / "it ran", made / f"{precision}-{stage}"
    names = [str(p.relative_to(run / "checkpoint-1")) for p in sorted((run / "checkpoint-1").rglob("*.pt*"))]
    assert len(names) == (5 if stage == 2 else 6)
    folders = []
    for name in names:
        root = tmp_path / f"{'rng' if name.startswith('rng') else 'engine'}-{len(folders)}"
        shutil.copytree(run / "checkpoint-1", root / "checkpoint-1")
        shutil.copy(run / "latest", root / "latest")
        _plant(root / "checkpoint-1", name, mark)
        torch.load(root / "checkpoint-1" / name, weights_only=False)
        assert mark.exists()  # the payload is live
        mark.unlink()
        for words in (["list", root], ["verify", root], ["show", root], ["show", root / "checkpoint-1" / "engine"]):
            main(["ckpt", *map(str, words)])
        code = main(["ckpt", "export", str(root), str(tmp_path / f"out{len(folders)}"), "--dtype", "fp32"])
        read = not name.startswith("rng") and (stage == 3 or precision == "bf16" or "model" in name)
        assert code == (1 if read else 0)
        if read:
            assert "was not opened: it asks for" in capfd.readouterr().err
        folders.append(str(root / "checkpoint-1"))
    said = ranks2.run(_hostile_resumes, folders, precision, stage, timeout_s=120)
    for rank, lines in enumerate(said):
        for name, line in zip(names, lines, strict=True):
            loads = name.startswith("rng") and f"_{rank}." not in name
            assert line == "loaded" if loads else "was not opened: it asks for" in line, (rank, name, line)
    whole = ranks2.run(_resume, str(Path(folders[0]).parent), precision, stage, timeout_s=120)
    assert all("was not opened: it asks for" in text for text in whole)
    assert not mark.exists()
