"""Arguments: flags, files and Python give the same object, and every mistake comes at once."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from dstrain.args import TrainingArguments, parse_args
from dstrain.core.docstrings import attribute_docstrings
from dstrain.core.errors import UsageError

pytestmark = pytest.mark.paper


@dataclass
class Mine(TrainingArguments):
    width: int = 3


@dataclass
class Beside:
    data: str
    depth: int = 2


def test_it_is_a_real_dataclass_with_output_dir_by_position() -> None:
    args = TrainingArguments("out", learning_rate="1e-3")
    assert args.output_dir == "out"
    assert args.learning_rate == 1e-3
    assert fields(args)[0].name == "output_dir"


def test_a_subclass_is_validated_too() -> None:
    assert Mine("x", width="4").width == 4
    with pytest.raises(UsageError, match="--width: got 'wide'"):
        Mine(width="wide")


def test_flags_files_and_python_agree(tmp_path: Path) -> None:
    values = {"learning_rate": 1e-3, "bf16": True, "max_steps": 7, "warmup_steps": 0.1, "label_names": ["a", "b"]}
    (tmp_path / "a.json").write_text(json.dumps(values))
    (tmp_path / "a.yaml").write_text(
        "learning_rate: 1.0e-3\nbf16: true\nmax_steps: 7\nwarmup_steps: 0.1\nlabel_names: [a, b]"
    )
    flags = ["--learning_rate=1e-3", "--bf16", "--max-steps", "7", "--warmup_steps", ".1", "--label_names", "a", "b"]
    expected = TrainingArguments(**values)
    for argv in ([str(tmp_path / "a.json")], ["--local_rank=1", str(tmp_path / "a.yaml")], flags):
        (parsed,) = parse_args(TrainingArguments, argv=argv)
        parsed.local_rank = -1
        assert parsed == expected


def test_flags_win_over_the_file_and_sources_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n "max_steps": 7,\n "seed": 1\n}')
    (args,) = parse_args(TrainingArguments, argv=[str(tmp_path / "a.json"), "--max_steps", "9"])
    assert (args.max_steps, args.seed) == (9, 1)
    assert str(args.sources["max_steps"]) == "--max_steps"
    assert str(args.sources["seed"]).endswith("a.json:3")
    assert args.sources["bf16"].kind == "default"


def test_several_classes_are_parsed_side_by_side() -> None:
    args, own = parse_args(TrainingArguments, Beside, argv=["--data", "x", "--depth", "5", "--seed", "3"])
    assert (own.data, own.depth, args.seed) == ("x", 5, 3)


def test_every_mistake_comes_at_once() -> None:
    argv = ["--max_step", "3", "--optim", "adm", "--learning_rate", "abc", "--depth", "x"]
    with pytest.raises(UsageError) as caught:
        parse_args(TrainingArguments, Beside, argv=argv)
    text = caught.value.message
    for part in (
        "--max_step; did you mean '--max_steps'",
        "--optim: got 'adm'",
        "--learning_rate: got 'abc'",
        "--data",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bf16": True, "fp16": True}, "choose one"),
        ({"max_steps": 0}, "0 is no number of steps"),
        ({"max_steps": -7}, "-7 is no number of steps"),
        ({"dataloader_prefetch_factor": 2}, "--dataloader_num_workers"),
        ({"per_device_train_batch_size": 0}, "greater than 0"),
        ({"adam_beta1": 1.0}, "less than 1"),
        ({"warmup_steps": 1.5}, "valid integer"),
        ({"weight_decay": -0.1}, "greater than or equal to 0"),
    ],
)
def test_values_that_cannot_be(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingArguments(**values)


@pytest.mark.parametrize("content", ["[1]", "{", "- a", ""])
def test_files_that_are_no_arguments(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"a\.json"):
        parse_args(TrainingArguments, argv=[str(path)])
    with pytest.raises(UsageError, match="No such file"):
        parse_args(TrainingArguments, argv=[str(tmp_path / "none.yaml")])


def test_every_argument_has_help() -> None:
    texts = attribute_docstrings(TrainingArguments)
    assert [field.name for field in fields(TrainingArguments) if not texts.get(field.name)] == []
