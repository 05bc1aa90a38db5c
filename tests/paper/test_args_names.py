"""Older spellings, refused names and later assignment; flags, files and Python alike."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstrain.args import TrainingArguments, parse_args, spelling
from dstrain.core.errors import UsageError

pytestmark = pytest.mark.paper


@pytest.fixture(autouse=True)
def _nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling, "_said", set())
    monkeypatch.delenv("RANK", raising=False)


@dataclass
class Mine(TrainingArguments):
    width: int = 3


@dataclass
class Silent(TrainingArguments):
    """Does not call the checks of its parent."""

    def __post_init__(self) -> None:
        self.extra = 1


class Wrapped(TrainingArguments):
    def __init__(self, *args: Any, depth: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "depth", depth)


OLDER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"evaluation_strategy": "steps"}, {"eval_strategy": "steps", "do_eval": True}),
    ({"warmup_ratio": 0.25}, {"warmup_steps": 0.25}),
    ({"no_cuda": True}, {"use_cpu": True}),
    ({"include_tokens_per_second": True}, {"include_num_input_tokens_seen": "all"}),
    ({"activation_checkpointing": True}, {"gradient_checkpointing": True}),
    ({"logging_dir": "logs"}, {}),
]


def _flags(values: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in values.items():
        items = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else str(value)]
        words += [f"--{name}", *map(str, items)]
    return words


def _everywhere(folder: Path, values: dict[str, Any]) -> list[Any]:
    """The same values as flags, JSON and YAML; each as the object or as the error."""
    (folder / "a.json").write_text(json.dumps(values))
    (folder / "a.yaml").write_text(yaml.safe_dump(values))
    results: list[Any] = []
    for argv in (_flags(values), [str(folder / "a.json")], [str(folder / "a.yaml")]):
        try:
            results += parse_args(TrainingArguments, argv=argv)
        except UsageError as error:
            results.append(error)
    return results


@pytest.mark.parametrize(("older", "newer"), OLDER)
def test_older_spellings_work_everywhere_with_one_line(
    older: dict[str, Any], newer: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = TrainingArguments(**newer)
    assert _everywhere(tmp_path, older) == [expected] * 3
    capsys.readouterr()
    assert TrainingArguments(**older) == expected
    (name,) = older
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert name in shown
    TrainingArguments(**older)
    assert capsys.readouterr().err == ""  # once in a process


def test_only_rank_0_says_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    TrainingArguments(no_cuda=True)
    assert capsys.readouterr().err == ""


REFUSED: list[tuple[str, Any, str]] = [
    ("per_gpu_train_batch_size", 3, "use per_device_train_batch_size"),
    ("per_gpu_eval_batch_size", 3, "use per_device_eval_batch_size"),
    ("fp16_opt_level", "O2", "use fp16 or bf16"),
    ("torch_compile", True, "not yet supported"),
    ("fsdp", "full_shard auto_wrap", "ZeRO stage 3"),
    ("push_to_hub", True, "not yet supported"),
    ("report_to", "wandb", "not yet"),
    ("train_sampling_strategy", "group_by_length", "not yet"),
    ("group_by_length", True, "not yet"),
    ("save_strategy", "best", "'best' is not yet there"),
    ("optim", "adafactor", "'adafactor' is not yet there"),
    ("optim", "galore_adamw", "'galore_adamw' is not supported"),
    ("lr_scheduler_type", "reduce_lr_on_plateau", "not yet there"),
    ("save_safetensors", False, "always"),
    ("warmup_ratio", 1.5, "from 0 to below 1"),
    ("predict_with_generate", True, "not yet supported"),
    ("evaluation_strateg", "no", "did you mean 'eval_strategy'"),
]


@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_refused_by_name_everywhere(name: str, value: Any, text: str, tmp_path: Path) -> None:
    results = _everywhere(tmp_path, {name: value})
    with pytest.raises(UsageError) as caught:
        TrainingArguments(**{name: value})
    shown = [caught.value.message, *(error.message for error in results if isinstance(error, UsageError))]
    assert len(shown) == 4
    for message in shown:
        assert text.replace("'eval", "'--eval") in message or text in message
        assert len(message.splitlines()) == 1


def test_every_name_that_is_no_field_is_refused_with_a_value_of_its_own_and_taken_with_its_default() -> None:
    own = {field.name for field in dataclasses.fields(TrainingArguments)}
    names = spelling.others(own)
    assert len(names) > 60
    for name in names:
        entry = spelling.entries()[name]
        TrainingArguments(**{name: entry.default})
        if entry.status in ("absent", "not yet"):
            with pytest.raises(UsageError, match=f"{name} is not (yet )?supported"):
                TrainingArguments(**{name: "another"})
            assert getattr(TrainingArguments(), name) == entry.default


def test_all_mistakes_of_python_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        Mine(
            width="wide",
            evaluation_strateg="no",
            per_gpu_eval_batch_size=2,
            learning_rate="abc",
            warmup_ratio=3,
            bf17=1,
        )
    text = caught.value.message
    for part in ("--width", "'eval_strategy'", "per_gpu_eval_batch_size", "'abc'", "got 3", "did you mean 'bf16'"):
        assert part in text
    assert len(text.splitlines()) == 6


@pytest.mark.parametrize("name", ["hub_token", "push_to_hub_token"])
def test_a_secret_is_not_shown(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        TrainingArguments(**{name: "hf_secret"})
    assert name in caught.value.message
    assert "hf_secret" not in caught.value.message


@pytest.mark.parametrize(
    "values",
    [
        {"seed": True},
        {"learning_rate": True},
        {"learning_rate": float("inf")},
        {"num_train_epochs": float("nan")},
        {"output_dir": ""},
        {"lr_scheduler_kwargs": "{bad"},
    ],
)
def test_values_that_cannot_be_meant(values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(UsageError, match=f"--{name}: got "):
        TrainingArguments(**values)


def test_bad_json_in_a_flag_comes_with_the_other_mistakes() -> None:
    with pytest.raises(UsageError) as caught:
        parse_args(argv=["--lr_scheduler_kwargs", "{bad", "--seed", "x", "--report_to", "wandb", "mlflow"])
    assert len(caught.value.message.splitlines()) == 3
    assert "wandb, mlflow" in caught.value.message


def test_older_fields_that_a_dump_holds_as_none() -> None:
    older = {"evaluation_strategy": None, "warmup_ratio": None, "no_cuda": None, "per_gpu_train_batch_size": None}
    assert TrainingArguments(**older) == TrainingArguments()


def test_an_older_and_a_newer_name_that_disagree() -> None:
    with pytest.raises(UsageError, match="give eval_strategy alone"):
        TrainingArguments(evaluation_strategy="steps", eval_strategy="epoch")
    assert TrainingArguments(evaluation_strategy="steps", eval_strategy="steps").eval_strategy == "steps"


def test_a_flag_wins_over_the_file_in_either_spelling(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for inside, flag in (("evaluation_strategy", "eval_strategy"), ("eval_strategy", "evaluation_strategy")):
        path.write_text(json.dumps({inside: "epoch"}))
        (args,) = parse_args(TrainingArguments, argv=[str(path), f"--{flag}", "steps"])
        assert args.eval_strategy == "steps"
        assert args.sources["eval_strategy"].text == f"--{flag}"


def test_older_names_can_be_read_and_assigned() -> None:
    args = TrainingArguments(eval_strategy="epoch", warmup_steps=0.5)
    assert (args.evaluation_strategy, args.warmup_ratio, args.no_cuda, args.fsdp) == ("epoch", 0.5, False, None)
    args.evaluation_strategy = "steps"
    assert args.eval_strategy == "steps"
    assert args.sources["eval_strategy"].text == "args.evaluation_strategy = …"
    assert not hasattr(args, "nonsense")
    with pytest.raises(AttributeError, match="did you mean 'learning_rate'"):
        _ = args.learning_rat


def test_assignment_is_validated() -> None:
    args = TrainingArguments("out")
    args.learning_rate = "3e-4"
    args.my_own_note = {"kept": True}
    assert (args.learning_rate, args.my_own_note) == (3e-4, {"kept": True})
    for name, value, text in (
        ("learning_rate", "fast", "args.learning_rate: got 'fast'"),
        ("learning_rat", 1.0, "did you mean 'learning_rate'"),
        ("torch_compile", True, "not yet supported"),
        ("warmup_ratio", 2, "from 0 to below 1"),
    ):
        with pytest.raises(UsageError, match=text):
            setattr(args, name, value)
    assert args.learning_rate == 3e-4
    args.torch_compile = False  # what is done anyway


@pytest.mark.parametrize("cls", [TrainingArguments, Mine, Silent])
def test_it_stays_a_dataclass_that_copies_and_pickles(cls: Any) -> None:
    args = cls("out", evaluation_strategy="steps", learning_rate="1e-3")
    assert args.learning_rate == 1e-3
    assert pickle.loads(pickle.dumps(args)) == copy.deepcopy(args) == args
    assert dataclasses.replace(args, seed=1).seed == 1
    assert cls(**args.to_dict()) == args
    with pytest.raises(UsageError, match="got 'x'"):
        cls(learning_rate="x")


def test_an_init_of_a_users_own() -> None:
    args = Wrapped("out", depth=4, evaluation_strategy="steps")
    assert (args.depth, args.eval_strategy) == (4, "steps")  # type: ignore[attr-defined]


def test_fields_of_any_kind() -> None:
    @dataclass
    class Odd(TrainingArguments):
        pair: Callable[[int], int] | None = None
        where: Path = Path("x")
        names: tuple[str, ...] = ()

    args = Odd(pair=abs, where="a/b", names=["c"])
    assert (args.pair, args.where, args.names) == (abs, Path("a/b"), ("c",))


def test_a_users_field_with_an_older_name_is_theirs() -> None:
    @dataclass
    class Own(TrainingArguments):
        group_by_length: bool = False

    assert Own(group_by_length=True).group_by_length is True


def test_setters_chain_and_check_everything() -> None:
    args = (
        TrainingArguments("out")
        .set_training(learning_rate=1e-4, batch_size=2, gradient_checkpointing=True)
        .set_evaluate("steps", steps=5, delay=2)
        .set_testing(batch_size=3)
        .set_save("epoch", total_limit=2)
        .set_logging(steps=7, level="info", nan_inf_filter=True)
        .set_optimizer("sgd", learning_rate=0.1)
        .set_lr_scheduler("cosine", max_steps=9, warmup_ratio=0.1)
        .set_dataloader(train_batch_size=4, num_workers=2, prefetch_factor=3, sampler_seed=5)
    )
    found = (args.learning_rate, args.train_batch_size, args.eval_steps, args.eval_delay, args.eval_batch_size)
    assert found == (0.1, 4, 5, 2, 8)
    assert (args.do_train, args.do_eval, args.do_predict, args.warmup_steps) == (True, True, True, 0.1)
    assert (args.save_total_limit, args.logging_nan_inf_filter, args.data_seed) == (2, True, 5)
    with pytest.raises(UsageError) as caught:
        args.set_dataloader(train_batch_size=0, num_workers=-1, in_order=False)
    assert len(caught.value.message.splitlines()) == 3
    assert args.per_device_train_batch_size == 4
    with pytest.raises(UsageError, match="not yet supported"):
        args.set_push_to_hub("me/model")


def test_who_this_process_is(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = TrainingArguments()
    assert (alone.world_size, alone.process_index, alone.parallel_mode.value) == (1, 0, "not_parallel")
    for name, value in {"RANK": 5, "WORLD_SIZE": 8, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 4, "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("RANK", "4")
    args = TrainingArguments(log_level="error", log_level_replica="info")
    assert (args.world_size, args.process_index, args.local_process_index) == (8, 4, 0)
    assert (args.parallel_mode, args.should_log, args.should_save) == ("distributed", False, False)
    assert args.get_process_log_level() == 20
    args.log_on_each_node = True
    assert (args.should_log, args.get_process_log_level()) == (True, 40)


def test_numbers_that_scripts_ask_for() -> None:
    args = TrainingArguments(warmup_steps=0.1, per_device_train_batch_size=3)
    assert (args.get_warmup_steps(101), TrainingArguments(warmup_steps=7).get_warmup_steps(3)) == (11, 7)
    assert args.to_sanitized_dict()["train_batch_size"] == 3
    assert {type(value) for value in args.to_sanitized_dict().values()} <= {bool, int, float, str}
    assert args.ddp_timeout_delta.total_seconds() == 1800


@pytest.mark.parametrize(
    ("given_values", "expected"),
    [
        ({"eval_strategy": False}, {"eval_strategy": "no"}),  # YAML's unquoted `no`
        ({"max_steps": "1e3"}, {"max_steps": 1000}),
        ({"logging_steps": "5e1"}, {"logging_steps": 50}),
        ({"label_names": "labels"}, {"label_names": ["labels"]}),
        ({"lr_scheduler_kwargs": '{"power": 2}'}, {"lr_scheduler_kwargs": {"power": 2}}),
        ({"report_to": []}, {"report_to": "none"}),
        ({"include_num_input_tokens_seen": True}, {"include_num_input_tokens_seen": "all"}),
        ({"output_dir": Path("a/b")}, {"output_dir": "a/b"}),
    ],
)
def test_ways_to_write_one_value(given_values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert TrainingArguments(**given_values) == TrainingArguments(**expected)


_VALUES = st.fixed_dictionaries(
    {},
    optional={
        "learning_rate": st.floats(1e-9, 10),
        "max_steps": st.integers(1, 10**6),
        "warmup_steps": st.integers(0, 500) | st.floats(0.001, 0.99),
        "evaluation_strategy": st.sampled_from(["no", "steps", "epoch"]),
        "logging_steps": st.integers(1, 900) | st.floats(0.01, 0.99),
        "bf16": st.booleans(),
        "no_cuda": st.booleans(),
        "tf32": st.booleans(),
        "run_name": st.text("abc xyz-_", min_size=1).filter(lambda text: not text.startswith("-")),
        "label_names": st.lists(st.sampled_from(["labels", "starts", "ends"]), min_size=1, max_size=3),
        "lr_scheduler_kwargs": st.dictionaries(st.sampled_from(["power", "lr_end"]), st.floats(0.1, 5), min_size=1),
        "train_sampling_strategy": st.sampled_from(["random", "sequential"]),
        "include_num_input_tokens_seen": st.sampled_from(["no", "all", "non_padding"]),
        "push_to_hub": st.just(False),
        "seed": st.integers(0, 2**31),
    },
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=_VALUES)
def test_flags_json_yaml_and_python_give_the_same_object(values: dict[str, Any], tmp_path: Path) -> None:
    expected = TrainingArguments(**values)
    assert _everywhere(tmp_path, values) == [expected] * 3
    assert TrainingArguments(**json.loads(expected.to_json_string())) == expected


def test_arguments_import_no_torch() -> None:
    code = (
        "import sys; from dstrain import TrainingArguments as T; a = T('o', evaluation_strategy='steps');"
        "a.process_index, a.should_log, a.set_training(); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ}, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
