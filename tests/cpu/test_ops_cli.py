"""`dstrain ops` as its users call it: text, JSON, exit codes, and refusals that say what to type."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
from ops_helpers import compile_c, leave_file, needs_cc

from dstrain.cli import ops as command
from dstrain.core.errors import DstrainError, UsageError
from dstrain.ops.build import Request, build
from dstrain.ops.catalogue import available
from dstrain.ops.diagnose import first_error

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("DSTRAIN_OPS_DIR", str(tmp_path / "ops"))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return tmp_path / "ops"


def dstrain(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="dstrain")
    command.register(parser.add_subparsers(dest="command"))
    return command.run(parser.parse_args(["ops", *words]))


def answer(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def have(name: str, compile: Any = leave_file) -> Path:
    return build(name, accelerator="cpu", say=lambda _: None, compile=compile)


def test_list_shows_every_op_and_its_state(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    library = have("fused_adam")
    record = have("cpu_lion").parent / "build.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "torch": "2.9.0"}))
    assert dstrain("list", "--json") == 0
    shown = answer(capsys)
    assert shown["cache"] == str(root)
    states = {item["op"]: item for item in shown["ops"]}
    assert list(states) == [op.name for op in available("cpu")]
    assert (states["fused_adam"]["state"], states["fused_adam"]["library"]) == ("ready", str(library))
    assert states["cpu_adam"]["state"] == "not built"
    assert states["cpu_lion"]["state"] == "not built"
    assert "torch 2.9.0, here " in states["cpu_lion"]["reason"]
    assert dstrain("list") == 0
    text = capsys.readouterr().out
    assert "fused_adam" in text
    assert "there is one for another environment: torch 2.9.0" in text
    assert "cuda" not in text


def test_list_of_another_accelerator(capsys: pytest.CaptureFixture[str]) -> None:
    assert dstrain("list", "--accelerator", "cuda", "--json") == 0
    assert {item["op"] for item in answer(capsys)["ops"]} == {op.name for op in available("cuda")}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("build",), "nothing to build was named"),
        (("build", "cpu_adm", "fused_adm"), "did you mean 'cpu_adam'?); there is no DeepSpeed op 'fused_adm'"),
        (("build", "cpu_adam", "--jobs", "0"), "--jobs 0"),
        (("build", "--for", "absent.json"), "absent.json"),
        (("verify", "cpu_adm"), "did you mean 'cpu_adam'?"),
    ],
)
def test_what_cannot_be_understood_is_one_message(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(DstrainError) as caught:
        dstrain(*words)
    assert text in str(caught.value)
    assert caught.value.exit_code == 2


def test_build_for_a_configuration(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "ds_config.json"
    config.write_text(json.dumps({"optimizer": {"type": "AdamW"}, "train_micro_batch_size_per_gpu": 1}))
    library = have("fused_adam")
    assert dstrain("build", "--for", str(config), "--json") == 0
    assert answer(capsys)["ops"] == [{"op": "fused_adam", "state": "ready", "library": str(library), "error": None}]
    config.write_text('{"optimizer": {"type": "AdamW"')
    with pytest.raises(DstrainError) as caught:
        dstrain("build", "--for", str(config))
    assert "ds_config.json:1" in str(caught.value)
    config.write_text("{}")
    assert dstrain("build", "--for", str(config)) == 0
    assert "needs no compiled op on cpu" in capsys.readouterr().err


def test_all_failures_are_shown_and_the_rest_is_built(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_adam_compiles(request: Request) -> None:
        request.log.write_text("aio.cpp:1: fatal error: libaio.h: No such file or directory\n")
        if "adam" not in request.op.name:
            raise first_error(request.op, request.log, 1)
        leave_file(request)

    monkeypatch.setattr("dstrain.ops.build.compile_in_child", only_adam_compiles)
    assert dstrain("build", "cpu_lion", "cpu_adam", "cpu_adagrad", "--json") == 1
    shown = {item["op"]: item for item in answer(capsys)["ops"]}
    assert shown["cpu_adam"]["state"] == "ready"
    for name in ("cpu_lion", "cpu_adagrad"):
        assert shown[name]["state"] == "failed"
        assert "libaio is not installed" in shown[name]["error"]


def test_clean(capsys: pytest.CaptureFixture[str], root: Path) -> None:
    library = have("fused_adam")
    assert dstrain("clean") == 0
    assert capsys.readouterr().out.startswith("removed 0 builds (0 B) and 0 leftovers")
    assert library.exists()
    assert dstrain("clean", "--all", "--json") == 0
    assert answer(capsys) == {"removed": [str(library.parent)], "leftovers": []}
    assert not library.exists()


def test_verify_without_any_build(capsys: pytest.CaptureFixture[str]) -> None:
    assert dstrain("verify") == 0
    assert "nothing to verify" in capsys.readouterr().out


@needs_cc
def test_verify_finds_a_wrong_library(capsys: pytest.CaptureFixture[str]) -> None:
    have("fused_adam", compile=compile_c)  # it loads, but has no multi_tensor_adam
    assert dstrain("verify", "--json") == 1
    (verdict,) = answer(capsys)["ops"]
    assert (verdict["op"], verdict["ok"]) == ("fused_adam", False)
    assert "multi_tensor_adam" in verdict["detail"]


def test_jobs_must_be_a_number() -> None:
    with pytest.raises(SystemExit):
        dstrain("build", "cpu_adam", "--jobs", "many")
    with pytest.raises(UsageError):
        dstrain("build", "cpu_adam", "--jobs", "-3")
