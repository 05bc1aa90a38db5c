"""The `dstrain` command and `dstrain config`: exit codes, formats, and what it never does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dstrain.cli import main as main_module
from dstrain.cli._config_fix import fixed
from dstrain.cli.main import COMMANDS, main
from dstrain.core.facts import Mode
from dstrain.dsconfig.reader import read_text

pytestmark = pytest.mark.paper

CLEAN = (
    '{\n  "train_micro_batch_size_per_gpu": 1,\n  "gradient_clipping": 1.0,\n  "zero_optimization": {"stage": 2}\n}\n'
)
WRONG = '{\n  // mine\n  "train_micro_batch_size_per_gpu": 1,\n  "zero_optimisation": {"stage": 2}\n}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clean.json").write_text(CLEAN)
    (tmp_path / "wrong.json").write_text(WRONG)
    (tmp_path / "broken.json").write_bytes(bytes(60))
    return tmp_path


def test_exit_codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "check", "clean.json"]) == 0
    assert main(["config", "check", "wrong.json"]) == 1
    assert main(["config", "check", "clean.json", "broken.json", "wrong.json"]) == 2
    assert main(["config", "check", "missing.json", "clean.json"]) == 2
    capsys.readouterr()


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["config", "check", "wrong.json", "clean.json"])
    shown = capsys.readouterr().out
    assert "wrong.json:4:3: error DS101: " in shown
    assert "zero_optimization" in shown
    assert "2 files, 1 error, " in shown
    assert "--world-size N" in shown
    assert "\033" not in shown
    main(["config", "check", "--quiet", "--world-size", "2", "wrong.json", "clean.json"])
    quiet = capsys.readouterr().out
    assert "error DS101" in quiet
    assert "files" not in quiet
    assert "advice" not in quiet


def test_json_keeps_its_shape(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["config", "check", "--format", "json", "wrong.json", "clean.json"])
    shown = json.loads(capsys.readouterr().out)
    assert list(shown) == ["files"]
    assert [list(file) for file in shown["files"]] == [["path", "findings"]] * 2
    assert [file["path"] for file in shown["files"]] == ["wrong.json", "clean.json"]
    error = next(f for f in shown["files"][0]["findings"] if f["severity"] == "error")
    assert list(error) == ["id", "severity", "key", "line", "column", "message", "fix", "patch"]
    assert (error["id"], error["key"], error["line"], error["column"]) == ("DS101", "zero_optimisation", 4, 3)
    assert error["patch"] == [{"op": "move", "from": "/zero_optimisation", "path": "/zero_optimization"}]


def test_github(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a,b.json").write_text(WRONG)
    main(["config", "check", "--format", "github", "a,b.json"])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("::error file=a%2Cb.json,line=4,col=3,title=DS101::") for line in lines)
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)


def test_folders_and_stdin(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "x.yaml").write_text("train_micro_batch_size_per_gpu: 1\n")
    (folder / "deep" / "notes.txt").write_text("no configuration")
    main(["config", "check", "--format", "json", "."])
    paths = [file["path"] for file in json.loads(capsys.readouterr().out)["files"]]
    assert paths == ["broken.json", "clean.json", "wrong.json", "deep/x.yaml"]
    with (folder / "wrong.json").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert main(["config", "check", "-"]) == 1
    assert "<stdin>:4:3: error" in capsys.readouterr().out


def test_modes_differ(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "auto.json").write_text('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto"}')
    assert main(["config", "check", "--for", "transformers", "auto.json"]) == 0
    assert main(["config", "check", "--for", "deepspeed", "auto.json"]) == 1
    (folder / "commented.json").write_text(CLEAN.replace("{\n", "{\n  // mine\n", 1))
    assert main(["config", "check", "--for", "deepspeed", "commented.json"]) == 0
    assert main(["config", "check", "--for", "transformers", "commented.json"]) == 1
    capsys.readouterr()


def test_fix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "wrong.json"
    assert main(["config", "fix", "--diff", "wrong.json"]) == 0
    shown = capsys.readouterr().out
    assert '-  "zero_optimisation"' in shown
    assert '+  "zero_optimization"' in shown
    assert path.read_text() == WRONG
    assert main(["config", "fix", "wrong.json"]) == 0
    assert path.read_text() == WRONG.replace("optimisation", "optimization")
    before = path.stat().st_mtime_ns
    assert main(["config", "fix", "wrong.json"]) == 0
    assert "nothing to mend" in capsys.readouterr().out
    assert path.stat().st_mtime_ns == before
    assert main(["config", "fix", "broken.json"]) == 2
    assert (folder / "broken.json").read_bytes() == bytes(60)


PASTED = """```json
{
  # my settings
  'train_micro_batch_size_per_gpu': 1,
  'zero_optimisation': {'stage': 2, 'reduce_bucket_size': '5e8', 'overlap_comm': True,},
}
```
"""


def test_fix_mends_text_and_keys_together() -> None:
    text = fixed(read_text(PASTED, "c.json"), Mode.DSTRAIN, None)
    assert "# my settings" in text
    assert read_text(text, "c.json").data == {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 2, "reduce_bucket_size": 500_000_000, "overlap_comm": True},
    }
    assert fixed(read_text(text, "c.json"), Mode.DSTRAIN, None) == text


def test_explain_diff_schema(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", "zero_optimization.stage", "clean.json"]) == 0
    shown = capsys.readouterr().out
    assert "optimizer states" in shown
    assert "clean.json:4" in shown
    assert main(["config", "explain", "ds003"]) == 0
    assert "written twice" in capsys.readouterr().out
    assert main(["config", "explain", "DS101"]) == 0
    assert "found in:" in capsys.readouterr().out
    assert main(["config", "explain"]) == 0
    assert "train_batch_size" in capsys.readouterr().out
    assert main(["config", "explain", "zero_optimization.stag"]) == 2
    assert "zero_optimization.stage" in capsys.readouterr().err
    (folder / "same.json").write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1.0}')
    assert main(["config", "diff", "clean.json", "same.json"]) == 0
    (folder / "other.json").write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 1}')
    assert main(["config", "diff", "clean.json", "other.json"]) == 1
    assert "zero_optimization.stage" in capsys.readouterr().out
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].endswith("2020-12/schema")


def test_new(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--bf16", "--learning_rate", "1e-4", "--max_steps", "10", "--per_device_train_batch_size", "2"]
    assert main(["config", "new", "--stage", "3", "--world-size", "4", *flags]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["zero_optimization"]["stage"] == 3
    assert (made["train_batch_size"], made["optimizer"]["params"]["lr"]) == (8, 1e-4)
    assert "auto" not in json.dumps(made)
    assert main(["config", "new", "-o", "made.json", *flags]) == 0
    assert main(["config", "check", "--for", "deepspeed", "--world-size", "1", "made.json"]) == 0
    assert main(["config", "new", "-o", "made.json", *flags]) == 2
    assert main(["config", "new", "--lerning_rate", "1"]) == 2
    assert main(["config", "new", "--offload-param", "nvme"]) == 2
    assert "--learning_rate" in capsys.readouterr().err
    assert main(["config", "new", "--bf16", "--fp16"]) in (1, 2)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["conifg"], "did you mean 'config'?"),
        (["config", "chek"], "did you mean 'check'?"),
        (["config", "check", "--wrold-size", "4", "clean.json"], "did you mean '--world-size'?"),
        (["config", "check", "--world-size", "none", "clean.json"], "a whole number from 1"),
        (["config", "check", "--world-size", "6", "--devices", "4", "clean.json"], "no multiple of --devices 4"),
        (["config", "check", "--for", "deepsped", "clean.json"], "did you mean 'deepspeed'?"),
        (["config", "check"], "FILE"),
        (["config", "diff", "clean.json", "cleen.json"], "did you mean 'clean.json'?"),
        (["config", "explain", "DS000"], "there is no finding DS000"),
    ],
)
def test_what_cannot_be_understood(
    argv: list[str], expected: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.startswith("dstrain: ")
    assert captured.out == ""


def test_help_offers_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "config" in shown
    for name, (module, _) in COMMANDS.items():
        path = Path(main_module.__file__).parents[2] / (module.replace(".", "/") + ".py")
        assert (f"\n    {name} " in shown) == path.is_file()
    assert main([]) == 2
    assert main(["config", "check", "--help"]) == 0
    assert "--world-size" in capsys.readouterr().out


def test_interrupted_and_broken_pipe(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main_module, "_run", interrupted)
    assert main(["config"]) == 130
    assert capfd.readouterr().err == ""


def test_one_check_imports_no_torch(folder: Path) -> None:
    code = (
        "import sys; from dstrain.cli.main import main; code = main(['config', 'check', 'wrong.json']);"
        "heavy = {'torch', 'deepspeed', 'transformers', 'numpy', 'yaml', 'rich', 'pydantic'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 10 + code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 11, done.stderr


def test_control_characters_do_not_reach_the_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "\x1b[31mred": 1, "\ud800": 2}
    (folder / "odd.json").write_text(json.dumps(data))
    for kind in ("text", "json", "github"):
        main(["config", "check", "--format", kind, "odd.json"])
        assert "\x1b" not in capsys.readouterr().out.encode("utf-8", "backslashreplace").decode()


def test_whatever_cannot_be_read_says_what_to_do(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad: dict[str, bytes] = {
        "binary": b"\x00\x01\xff",
        "empty": b"",
        "list": b"[1, 2]",
        "null": b"null",
        "deep": b'{"a":' + b"[" * 5000,
        "open": b'{"a": {',
    }
    for name, content in bad.items():
        (folder / f"{name}.json").write_bytes(content)
    assert main(["config", "check", "--format", "json", "gone.json", *(f"{name}.json" for name in bad)]) == 2
    files = json.loads(capsys.readouterr().out)["files"]
    assert len(files) == len(bad) + 1
    for file in files:
        for finding in file["findings"]:
            assert finding["fix"], (file["path"], finding)
    for command in (
        ["explain", "nothing.like.it"],
        ["new", "--deepspeed", "x.json"],
        ["diff", "list.json", "null.json"],
    ):
        assert main(["config", *command]) == 2
        assert "\n  fix: " in capsys.readouterr().err
