"""The per-key check: what it finds, how loudly, for whom, and that its patches mend."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from blocks_cases import CLEAN, FAULTS, A, E, Found, W, params, zero
from hypothesis import given, settings
from hypothesis import strategies as st

from dstrain.core.facts import Mode, WorldFacts
from dstrain.dsconfig.catalogue import KEYS, REMOVED
from dstrain.dsconfig.check import Kind, problems
from dstrain.dsconfig.document import Document
from dstrain.rules import RULES, lint
from dstrain.rules.keys import unknown_key

pytestmark = pytest.mark.paper


def found(data: Mapping[str, Any], mode: Mode = Mode.DEEPSPEED) -> list[Found]:
    return [(p.hit.key, p.kind, p.hit.severity or E) for p in problems(Document("<dict>", data), mode)]


@pytest.mark.parametrize(("data", "expected"), FAULTS, ids=lambda value: str(value)[:60])
def test_each_fault_is_found_alone(data: dict[str, Any], expected: Found) -> None:
    assert found(data) == [expected]


@pytest.mark.parametrize("data", CLEAN, ids=lambda value: str(value)[:60])
def test_what_deepspeed_takes_as_it_is_meant_is_clean(data: dict[str, Any]) -> None:
    assert found(data) == []


AUTO = {
    "train_batch_size": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto", "warmup_max_lr": "auto"}},
    "zero_optimization": {
        "stage": 3,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
    },
}


def test_auto_is_fine_where_somebody_fills_it() -> None:
    assert found(AUTO, Mode.TRANSFORMERS) == []
    assert found(AUTO, Mode.DSTRAIN) == []
    assert len([1 for _, kind, _ in found(AUTO) if kind is Kind.AUTO]) == 12


def test_auto_that_nobody_fills_is_said_to_each_reader() -> None:
    data = zero(stage=3, allgather_bucket_size="auto", stage3_max_live_parameters="auto")
    live = "zero_optimization.stage3_max_live_parameters"
    for mode in (Mode.TRANSFORMERS, Mode.DSTRAIN):
        assert (live, Kind.AUTO, A) in found(data, mode)
    assert (live, Kind.AUTO, W) in found(data)
    assert found({"wall_clock_breakdown": "auto"}, Mode.DSTRAIN) == [("wall_clock_breakdown", Kind.AUTO, E)]


def test_what_dstrain_reads_is_no_error_for_dstrain() -> None:
    for data in ({"train_batch_size": "4"}, zero(reduce_bucket_size="5e8"), {"gradient_clipping": "1.0"}):
        assert [severity for _, _, severity in found(data, Mode.DSTRAIN)] == [A]
        assert [severity for _, _, severity in found(data, Mode.TRANSFORMERS)] == [E]
    assert found({"zero_optimization": None}, Mode.DSTRAIN) == [("zero_optimization", Kind.NULL, W)]


def test_transformers_does_not_see_a_stage_that_is_text() -> None:
    assert found(zero(stage="3")) == []
    assert found(zero(stage="3"), Mode.TRANSFORMERS) == [("zero_optimization.stage", Kind.TEXT, E)]


def test_all_faults_are_found_in_one_run() -> None:
    data: dict[str, Any] = {}
    for fault, (key, _, _) in FAULTS:
        head = key.partition(".")[0]
        if head not in data:
            data[head] = fault[head]
    assert len(found(data)) >= len(data)


def apply(data: dict[str, Any], patch: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    result = copy.deepcopy(data)

    def parent(pointer: str) -> tuple[dict[str, Any], str]:
        node: Any = result
        parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
        for part in parts[:-1]:
            node = node[part]
        return node, parts[-1]

    for operation in patch:
        node, name = parent(operation["path"])
        match operation["op"]:
            case "remove":
                del node[name]
            case "replace":
                assert name in node
                node[name] = operation["value"]
            case "add":
                assert name not in node
                node[name] = copy.deepcopy(operation["value"])
            case "move":
                source, old = parent(operation["from"])
                assert name not in node
                node[name] = source.pop(old)
            case other:
                raise AssertionError(other)
    return result


@pytest.mark.parametrize(("data", "expected"), FAULTS, ids=lambda value: str(value)[:60])
def test_a_patch_mends_what_it_is_for(data: dict[str, Any], expected: Found) -> None:
    (problem,) = problems(Document("<dict>", data), Mode.DEEPSPEED)
    if problem.hit.patch:
        mended = apply(data, problem.hit.patch)
        assert repr(mended) != repr(data)
        assert [entry for entry in found(mended) if entry[2] is E] == []
        assert expected[0] not in [key for key, _, _ in found(mended)]
    assert problem.hit.fix


def test_patches_write_what_was_meant() -> None:
    def patched(data: dict[str, Any]) -> dict[str, Any]:
        (problem,) = problems(Document("<dict>", data), Mode.DEEPSPEED)
        return apply(data, problem.hit.patch)

    assert patched({"offload_optimizer": {"device": "cpu"}}) == zero(offload_optimizer={"device": "cpu"})
    assert patched({"bf16": True}) == {"bf16": {"enabled": True}}
    assert patched(zero(stage=1, cpu_offload=True)) == zero(stage=1, offload_optimizer={"device": "cpu"})
    assert patched(zero(reduce_bucket_size="5e8")) == zero(reduce_bucket_size=500_000_000)
    assert patched({"zero_optimisation": {"stage": 3}}) == zero(stage=3)
    assert patched({"zero_allow_untested_optimizer": "false"}) == {"zero_allow_untested_optimizer": False}
    assert patched({"gradient_accumulation_dtype": "fp32"}) == {"data_types": {"grad_accum_dtype": "fp32"}}


COLLISIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"offload_optimizer": {"device": "cpu"}, "overlap_comm": True, "stage": 2},
        zero(offload_optimizer={"device": "cpu"}, overlap_comm=True, stage=2),
    ),
    (
        {"param_dtype": "bf16", "grad_accum_dtype": "fp32"},
        {"data_types": {"param_dtype": "bf16", "grad_accum_dtype": "fp32"}},
    ),
]


@pytest.mark.parametrize(("data", "mended"), COLLISIONS)
def test_patches_of_one_round_do_not_undo_each_other(data: dict[str, Any], mended: dict[str, Any]) -> None:
    for _ in range(4):
        for problem in problems(Document("<dict>", data), Mode.DEEPSPEED):
            data = apply(data, problem.hit.patch)
    assert data == mended


def test_two_misspellings_of_one_key_keep_both_values() -> None:
    data: dict[str, Any] = {"gradient_clip": 0.5, "grad_clip": 0.7}
    for _ in range(4):
        for problem in problems(Document("<dict>", data), Mode.DEEPSPEED):
            data = apply(data, problem.hit.patch)
    assert sorted(data.values()) == [0.5, 0.7]
    assert data["gradient_clipping"] == 0.5


def test_a_move_never_overwrites() -> None:
    data = {"lr_scheduler": {"type": "WarmupLR"}, "scheduler": {"type": "OneCycle"}}
    (problem,) = problems(Document("<dict>", data), Mode.DEEPSPEED)
    assert problem.hit.patch == ()
    assert "delete" in problem.hit.fix


def test_messages_say_value_expectation_and_mend() -> None:
    (problem,) = problems(Document("<dict>", zero(stage=7)), Mode.DEEPSPEED)
    assert "7" in problem.hit.message
    assert "0, 1, 2, 3" in problem.hit.message
    assert "0 or 1 or 2 or 3" in problem.hit.fix


@pytest.mark.parametrize("key", list(REMOVED))
def test_removed_keys_say_what_to_do(key: str) -> None:
    section, _, name = key.rpartition(".")
    data = {section: {name: {"enabled": False}}} if section else {name: {"enabled": False}}
    assert found(data) == [(key, Kind.REMOVED, E)]


OURS = [rule for rule in RULES.values() if rule.function.__module__ == unknown_key.__module__]


@pytest.mark.parametrize("rule", OURS, ids=lambda rule: rule.id)
def test_examples_fire_and_stay_quiet(rule: Any) -> None:
    def ids(example: Mapping[str, Any]) -> set[str]:
        data = {key: value for key, value in example.items() if key != "$facts"}
        mode = Mode(example.get("$facts", {}).get("mode", Mode.DEEPSPEED))
        return {hit.key for hit in rule.function(doc=Document("<dict>", data), mode=mode)}

    assert ids(rule.fires)
    assert not ids(rule.quiet)
    assert rule.function.__doc__


def test_every_kind_has_a_rule() -> None:
    kinds = {
        kind for data, _ in FAULTS for kind in [p.kind for p in problems(Document("<dict>", data), Mode.DEEPSPEED)]
    }
    assert kinds == set(Kind)
    assert len(OURS) == len(Kind)


def test_a_rule_that_knows_more_is_not_echoed() -> None:
    doc = Document("<dict>", {"train_batch_size": 4, **params("AdamW", lr=1e-3, wieght_decay=0.1)})
    report = lint(doc=doc, mode=Mode.DEEPSPEED, world=WorldFacts())
    of_key = [finding for finding in report.findings if finding.key == "optimizer.params.wieght_decay"]
    assert len(of_key) == 1


NAMES = st.sampled_from(sorted({part for key in KEYS for part in key.split(".")} | {"", "_c", "a.b", "~/"})) | st.text(
    max_size=8
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.sampled_from(["auto", "5e8"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.integers(), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=6), st.sampled_from(list(Mode)))
def test_no_content_raises(data: dict[Any, Any], mode: Mode) -> None:
    for problem in problems(Document("<dict>", data), mode):
        assert problem.hit.message
        if problem.hit.patch:
            apply(data, problem.hit.patch)


@pytest.mark.parametrize(
    ("data", "typed"),
    [
        ({"gradient_checkpointing": True}, "pass --gradient_checkpointing to the script"),
        ({"zero3_init_flag": True}, "accelerate config"),
        ({"mixed_precision": "bf16"}, '"bf16": {"enabled": true}'),
        ({"zero_optimization": {"stage": 3, "offload_param": True}}, '{"device": "cpu"}'),
        ({"bf16": "auto"}, '{"enabled": "auto"}'),
        ({"wandb": {"enabled": True, "name": "x"}}, "the keys of 'wandb' are enabled, group, project, team"),
        ({"compile": {"enabled": True}}, "the keys of 'compile' are"),
    ],
    ids=str,
)
def test_the_fix_is_what_to_type(data: dict[str, Any], typed: str) -> None:
    (problem,) = problems(Document("ds.json", data), Mode.TRANSFORMERS)
    assert typed in problem.hit.fix
