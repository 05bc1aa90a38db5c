"""`dstrain ckpt` on the checkpoints of a run on one device; names that lead elsewhere; the live export in shards."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dstrain import Trainer, TrainingArguments, set_seed
from dstrain.checkpoint import CheckpointStore, export, manifest, rng
from dstrain.checkpoint.from_disk import export_checkpoint
from dstrain.checkpoint.layout import find
from dstrain.cli.ckpt import size_bytes
from dstrain.cli.main import main
from dstrain.core.errors import CheckpointError, UsageError
from dstrain.data import pad_collate
from dstrain.testing import data, models

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A run with four checkpoints, and its weights at the end."""
    folder = tmp_path_factory.mktemp("run")
    set_seed(3)
    args = TrainingArguments(str(folder), max_steps=4, save_steps=1, learning_rate=1e-2, disable_tqdm=True)
    trainer = Trainer(models.TinyLM(), args, pad_collate(), data.ragged_rows(40))
    trainer.train()
    return folder, {name: tensor.clone() for name, tensor in trainer._prepared().weights()}


@pytest.fixture
def run(finished: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path) -> Path:
    """A copy to do harm to."""
    return Path(shutil.copytree(finished[0], tmp_path / "run"))


def _listed(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    capsys.readouterr()
    assert main(["ckpt", "list", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["checkpoints"]
    return {Path(item["path"]).name: item for item in found}


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_list_says_what_is_there(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoint-2" / "single_state.pt").write_bytes(b"PK cut short")
    (run / "checkpoint-3" / "manifest.json").unlink()
    (run / ".staging-5").mkdir()
    found = _listed(run, capsys)
    assert list(found) == [".staging-5", "checkpoint-4", "checkpoint-3", "checkpoint-2", "checkpoint-1"]
    assert [item["health"] for item in found.values()] == ["unfinished", "whole", "damaged", "damaged", "whole"]
    assert [name for name, item in found.items() if item["is_latest"]] == ["checkpoint-4"]
    assert found["checkpoint-1"]["size_bytes"] == sum(p.stat().st_size for p in (run / "checkpoint-1").rglob("*.*"))
    assert main(["ckpt", "list", str(run)]) == 0
    assert "checkpoint-2: single_state.pt has 12 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["single_state.pt", "rng_state_0.pth", "plan.json", "trainer_state.json"])
def test_verify_reads_every_byte(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ckpt", "verify", str(run)]) == 0
    _flip(run / "checkpoint-3" / name)
    assert main(["ckpt", "verify", str(run)]) == 1
    assert main(["ckpt", "verify", str(run / "checkpoint-3")]) == 1
    out = capsys.readouterr().out
    assert f"{name} has changed since it was written" in out
    assert out.count("checkpoint-4: whole") == 2


def test_a_file_that_nobody_verified_is_named(run: Path) -> None:
    shutil.copy(run / "checkpoint-1" / "single_state.pt", run / "checkpoint-1" / "other.pt")
    (run / "checkpoint-2" / "notes.txt").write_text("good one")
    assert manifest.problems(run / "checkpoint-1") == ["other.pt is not in manifest.json: it was put here afterwards"]
    assert manifest.problems(run / "checkpoint-2") == []


def test_prune_keeps_newest_best_and_what_is_not_its_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = json.loads((run / "trainer_state.json").read_text())
    (run / "trainer_state.json").write_text(json.dumps(state | {"best_model_checkpoint": "elsewhere/checkpoint-1"}))
    outside = Path(shutil.copytree(run / "checkpoint-2", run.parent / "outside"))
    (run / "checkpoint-0").symlink_to(outside)
    (run / "global_step1").mkdir()
    (run / "global_step1" / "mp_rank_00_model_states.pt").write_bytes(b"theirs")
    (run / "checkpoint-99").mkdir()
    before = sorted(path.name for path in run.iterdir())
    assert main(["ckpt", "prune", str(run), "--keep", "1", "--dry-run", "--json"]) == 0
    dry = json.loads(capsys.readouterr().out)
    assert sorted(path.name for path in run.iterdir()) == before
    assert main(["ckpt", "prune", str(run), "--keep", "1", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done == dry | {"dry_run": False}
    assert [Path(path).name for path in done["removed"]] == ["checkpoint-3", "checkpoint-2"]
    assert {Path(item["path"]).name: item["why"] for item in done["kept"]} == {
        "checkpoint-4": "the newest",
        "checkpoint-1": "the best",
    }
    gone = {"checkpoint-3", "checkpoint-2"}
    assert sorted(path.name for path in run.iterdir()) == sorted(set(before) - gone)
    assert (outside / "manifest.json").is_file()


def test_the_limit_of_a_run_spares_the_best(run: Path) -> None:
    state = json.loads((run / "checkpoint-4" / "trainer_state.json").read_text())
    (run / "trainer_state.json").write_text(json.dumps(state | {"best_model_checkpoint": str(run / "checkpoint-2")}))
    (run / "checkpoint-0").symlink_to(Path(shutil.copytree(run / "checkpoint-3", run.parent / "outside")))
    CheckpointStore(run).prune(1)
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-2", "checkpoint-0"}
    assert (run.parent / "outside" / "manifest.json").is_file()


def test_prune_never_trades_a_whole_one_for_a_damaged_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(run / "checkpoint-4" / "single_state.pt")
    assert main(["ckpt", "prune", str(run), "--keep", "1"]) == 0
    assert {path.name for path in run.glob("checkpoint-*")} == {"checkpoint-4", "checkpoint-3"}
    assert "checkpoint-4: left alone (damaged" in capsys.readouterr().out
    _flip(run / "checkpoint-3" / "single_state.pt")
    assert main(["ckpt", "prune", str(run), "--keep", "1"]) == 1
    assert "none is removed" in capsys.readouterr().err
    assert main(["ckpt", "prune", str(run), "--keep", "0"]) == 2


@pytest.mark.parametrize("size", ["5GB", "20KB"])
def test_export_of_one_device(
    finished: tuple[Path, dict[str, torch.Tensor]], size: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, weights = finished
    out = tmp_path / "out"
    assert main(["ckpt", "export", str(run), str(out), "--max-shard-size", size, "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (len(done["files"]) == 1) == (size == "5GB")
    got = {name: tensor for file in done["files"] for name, tensor in load_file(file).items()}
    assert got.keys() == weights.keys()
    assert all(torch.equal(got[name], weights[name]) for name in weights)
    models.TinyLM().load_state_dict(got)
    assert not list(out.glob(".*"))
    assert main(["ckpt", "export", str(run), str(out)]) == 2  # it holds a model
    assert main(["ckpt", "export", str(run), str(out), "--force", "--dtype", "bf16"]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    assert {str(tensor.dtype) for tensor in load_file(out / "model.safetensors").values()} == {"torch.bfloat16"}


def test_a_damaged_checkpoint_is_not_exported(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _flip(run / "checkpoint-4" / "single_state.pt")
    assert main(["ckpt", "export", str(run), str(tmp_path / "out")]) == 1
    assert "single_state.pt has changed" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_fp16_that_overflows_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    torch.save({"model": {"w": torch.tensor([1.0, 1e6])}}, folder / "single_state.pt")
    with pytest.raises(CheckpointError, match="w: 1 of its numbers are too large for fp16"):
        export_checkpoint(folder, tmp_path / "out", dtype="fp16", verify=False)
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("tag", ["../outside", "/etc", "..", "a/b", "", "x\ny"])
def test_latest_that_leads_elsewhere_is_refused(tag: str, run: Path) -> None:
    shutil.copytree(run / "checkpoint-1", run.parent / "outside")
    (run / "latest").write_text(tag)
    with pytest.raises(CheckpointError, match="is not followed"):
        find(run)
    assert main(["ckpt", "export", str(run), str(run.parent / "out")]) == 1
    assert main(["ckpt", "show", str(run)]) == 1


@pytest.mark.parametrize("name", ["../../outside.pt", "/etc/hostname", "link/state.pt", "", None, 3])
def test_manifest_names_that_lead_elsewhere_are_refused(name: Any, run: Path) -> None:
    folder = run / "checkpoint-1"
    (run.parent / "outside.pt").write_bytes(b"x")
    (run.parent / "outside").mkdir()
    (run.parent / "outside" / "state.pt").write_bytes(b"x")
    (folder / "link").symlink_to(run.parent / "outside")
    value = json.loads((folder / "manifest.json").read_text())
    value["files"].append({"name": name, "size_bytes": 1, "sha256": manifest.sha256(run.parent / "outside.pt")})
    (folder / "manifest.json").write_text(json.dumps(value))
    faults = manifest.problems(folder)
    assert any("leaves the checkpoint" in text or "cannot be read" in text for text in faults)
    assert main(["ckpt", "verify", str(folder)]) == 1


def test_damaged_random_states_are_named(run: Path) -> None:
    for content in (b"", b"junk", (run / "checkpoint-1" / "rng_state_0.pth").read_bytes()[:-200]):
        (run / "checkpoint-1" / "rng_state_0.pth").write_bytes(content)
        with pytest.raises(CheckpointError, match=r"rng_state_0\.pth"):
            rng.load(run / "checkpoint-1", 0)


def test_sizes() -> None:
    assert [size_bytes(text) for text in ("5GB", "2GiB", "500", "1.5 mb")] == [5 * 10**9, 2**31, 500, 1_500_000]
    for text in ("", "GB", "5XB", "0", "-1GB"):
        with pytest.raises(UsageError):
            size_bytes(text)


def test_live_export_in_shards_is_what_from_pretrained_reads(tmp_path: Path) -> None:
    """Tied weights, several files, and a smaller model over a larger one."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=32)
    set_seed(0)
    model = transformers.GPT2LMHeadModel(config)
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first = export.save_model(iter(weights.items()), model, tmp_path, max_shard_bytes=20_000)
    assert first.name.startswith("model-00001-of-")
    assert first.is_file()
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in weights.items())
    assert again.lm_head.weight is again.transformer.wte.weight
    assert export.save_model(iter(weights.items()), model, tmp_path).name == "model.safetensors"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]


def test_live_export_that_fails_leaves_the_model_that_was_there(tmp_path: Path) -> None:
    model = models.TinyLM()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export.save_model(iter(weights.items()), model, tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()
    weights["odd"] = torch.zeros(2, dtype=torch.complex128)
    with pytest.raises(CheckpointError, match="odd is of torch"):
        export.save_model(iter(weights.items()), model, tmp_path, max_shard_bytes=10_000)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
