"""The demo's corpus, model, sample and table, without a trainer."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import save_file

from dstrain.core.errors import DataError, ModelError

pytestmark = pytest.mark.cpu
_SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "byte_lm.py"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("byte_lm", _SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["byte_lm"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_default_corpus_is_large_split_by_file_and_the_same_twice(demo: ModuleType) -> None:
    train, held_out = demo.read_corpus()
    assert len(train) > 3_000_000
    assert 0.02 < len(held_out) / len(train) < 0.3
    assert demo.read_corpus() == (train, held_out)
    import argparse

    source = Path(argparse.__file__).read_bytes()
    assert (source in train) != (source in held_out)
    assert b"class TestCase" in train + held_out  # unittest stays, the tests folders do not
    assert b"test_grammar" not in train[:100_000]


def test_a_folder_is_split_by_name_whatever_else_is_in_it(demo: ModuleType, tmp_path: Path) -> None:
    for n in range(60):
        (tmp_path / f"f{n:02}.txt").write_bytes(b"%02d" % n * 4)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "g.txt").write_bytes(b"zz")
    train, held_out = demo.read_corpus(str(tmp_path))
    for n in range(60):
        (tmp_path / f"f{n:02}.txt").rename(tmp_path / f"f{n:02}.moved")
        (tmp_path / f"f{n:02}.moved").rename(tmp_path / f"f{n:02}.txt")
    (tmp_path / "f00.txt").unlink()
    after, _ = demo.read_corpus(str(tmp_path))
    assert sorted((train + b"\n" + held_out).split()) == sorted([b"%02d" % n * 4 for n in range(60)] + [b"zz"])
    assert held_out
    assert set(after.split()) == set(train.split()) - {b"00" * 4}


def test_a_single_file_holds_out_its_end(demo: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(bytes(range(100)))
    assert demo.read_corpus(str(path)) == (bytes(range(90)), bytes(range(90, 100)))


def test_hidden_files_are_no_text_and_few_files_hold_out_an_end(demo: ModuleType, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "object").write_bytes(b"hidden")
    (tmp_path / ".secret").write_bytes(b"hidden")
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    assert demo.read_corpus(str(tmp_path)) == (bytes(range(90)), bytes(range(90, 100)))


def test_data_that_is_not_there_or_too_short_is_one_clear_error(demo: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        demo.read_corpus(str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="no files"):
        demo.read_corpus(str(tmp_path))
    (tmp_path / "dangling.txt").symlink_to(tmp_path / "gone")
    with pytest.raises(DataError, match=r"dangling\.txt: cannot be read: No such file"):
        demo.read_corpus(str(tmp_path))
    with pytest.raises(DataError, match="5 bytes has no row of 8"):
        demo.Windows(b"12345", 8)


def test_windows_cover_the_text_once_in_order(demo: ModuleType) -> None:
    text = bytes(range(100))
    rows = demo.Windows(text, 8)
    assert len(rows) == 12
    assert bytes(torch.cat([rows[i]["input_ids"] for i in range(12)]).tolist()) == text[:96]
    assert rows[0]["input_ids"].dtype == rows[0]["labels"].dtype == torch.int64
    with pytest.raises(IndexError):
        rows[12]


@pytest.mark.parametrize("rows", [1, 5, 7, 12, 50])
def test_fewer_rows_are_spread_over_the_text(demo: ModuleType, rows: int) -> None:
    some = demo.Windows(bytes(range(100)), 8, rows)
    firsts = [int(some[i]["input_ids"][0]) for i in range(len(some))]
    assert len(firsts) == min(rows, 12) == len(set(firsts))
    assert firsts == sorted(firsts)


def test_the_model_starts_near_chance_is_causal_and_ties_its_head(demo: ModuleType) -> None:
    torch.manual_seed(0)
    model = demo.ByteLM()
    assert 0.85e6 < sum(weight.numel() for weight in model.parameters()) < 1.6e6
    ids = torch.randint(0, 256, (2, 32))
    out = model(ids, ids)
    assert out["loss"].item() / math.log(2) == pytest.approx(8, abs=0.3)
    changed = ids.clone()
    changed[:, 20:] = 7
    torch.testing.assert_close(model(changed)["logits"][:, :20], out["logits"][:, :20])
    assert not torch.allclose(model(changed)["logits"][:, 20:], out["logits"][:, 20:])
    assert model.head.weight is model.embed.weight
    with pytest.raises(ModelError, match=r"--width 30.*\n.*--width 32"):
        demo.ByteLM(width=30, heads=4)


def test_a_small_one_learns_a_text_and_its_sample_repeats_it(demo: ModuleType) -> None:
    torch.manual_seed(0)
    text = b"the cat sat on the mat. "
    rows = demo.Windows(text * 20, 24)
    model = demo.ByteLM(width=32, depth=1, heads=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = torch.stack([rows[i]["input_ids"] for i in range(len(rows))])
    for _ in range(120):
        optimizer.zero_grad()
        model(batch, batch)["loss"].backward()
        optimizer.step()
    said = demo.sample(model, b"the cat", 17, length=24, temperature=0)
    assert said == text
    warm = [demo.sample(model, b"the cat", 17, length=24, temperature=3.0, seed=seed) for seed in (1, 1, 2)]
    assert warm[0] == warm[1] != warm[2]


def test_a_saved_model_is_read_back_with_the_tied_weight_stored_once(demo: ModuleType, tmp_path: Path) -> None:
    own = demo.ByteArguments(width=16, depth=1, heads=2)
    model = demo.ByteLM(own.width, own.depth, own.heads)
    weights = {name: weight for name, weight in model.state_dict().items() if name != "head.weight"}
    save_file(weights, tmp_path / "model.safetensors")
    ids = torch.arange(8)[None]
    torch.testing.assert_close(demo.load_saved(tmp_path, own)(ids)["logits"], model(ids)["logits"])
    del weights["norm.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"norm\.weight"):
        demo.load_saved(tmp_path, own)


def text_of(table: Table) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_the_table_shows_before_middle_after_and_the_rate(demo: ModuleType) -> None:
    history = [
        {"step": 0, "eval_loss": 8 * math.log(2)},
        {"step": 10, "loss": 1.0},
        {"step": 50, "eval_loss": 4 * math.log(2)},
        {"step": 90, "eval_loss": 3.5 * math.log(2)},
        {"step": 100, "eval_loss": 3 * math.log(2)},
    ]
    evaluations = demo.bits_per_byte(history)
    assert [(step, round(bits, 6)) for step, bits in evaluations] == [(0, 8), (50, 4), (90, 3.5), (100, 3)]
    shown = text_of(demo.summary(evaluations, [5.0, 6.0, 7.0], 1000, 100))
    evaluated = ("8.000  (step 0)", "4.000  (step 50)", "3.000  (step 100)")
    for expected in (*evaluated, "100  (3 in this process)", "5.0", "1,000"):
        assert expected in shown
    only = text_of(demo.summary(evaluations[-1:], [], 1000, 100))
    assert "after" in only
    assert not {"before", "middle", "tokens"} & set(only.replace(",", " ").split())


def test_bytes_that_would_steer_a_terminal_are_not_shown(demo: ModuleType) -> None:
    assert demo.as_text(b"a\x1b[2J\tb\n\xc3\xa9\xff\x00") == "a\ufffd[2J\tb\n\u00e9\ufffd\ufffd"
