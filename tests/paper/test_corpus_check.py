"""The corpus benchmark itself: it passes on labels that hold, and fails on a false alarm and on a miss."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.paper

CLEAN = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "zero_optimization": {"stage": 2}}
FAULTY = {**CLEAN, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3}}, "my_own_key": 1}
HEAD = "file\tverdict\tworld_size\tunknown_keys\tdeprecated_or_removed\tfindings"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "corpus_check.py"
    spec = importlib.util.spec_from_file_location("corpus_check", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["corpus_check"] = module
    spec.loader.exec_module(module)
    return module


def _corpus(folder: Path, *rows: str) -> list[str]:
    (folder / "ds").mkdir()
    (folder / "ds" / "clean.json").write_text(json.dumps(CLEAN))
    (folder / "ds" / "faulty.json").write_text(json.dumps(FAULTY))
    (folder / "labels.tsv").write_text("\n".join([HEAD, *rows]) + "\n")
    return [str(folder / "labels.tsv"), str(folder)]


def test_labels_that_hold(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = "ds/faulty.json\taccepted_unknown_keys\t8\tmy_own_key\t\tengine_reject:optimizer type OneBitAdam"
    assert benchmark.main(_corpus(tmp_path, "ds/clean.json\taccepted_clean\t8\t\t\t", fault)) == 0
    assert "0 false alarms, 0 misses" in capsys.readouterr().out


def test_a_false_alarm_fails(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(_corpus(tmp_path, "ds/faulty.json\taccepted_clean\t8\t\t\t")) == 1
    assert "false alarm ds/faulty.json: DS501" in capsys.readouterr().out


def test_a_miss_fails(benchmark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ["ds/clean.json\trejected\t8\t\tamp\t", "ds/faulty.json\trejected\t8\tother_key\t\t"]
    assert benchmark.main(_corpus(tmp_path, *rows)) == 1
    out = capsys.readouterr().out
    assert "nothing loud" in out
    assert "unknown_keys other_key is not named" in out
