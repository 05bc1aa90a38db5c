"""Explanations, effective values, differences by effect, and the JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dstrain.core.errors import UsageError
from dstrain.dsconfig.catalogue import KEYS
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.explain import ABSENT, DEFAULT, diff_by_effect, effective, explain_key
from dstrain.dsconfig.schema import json_schema

pytestmark = pytest.mark.paper


def doc(data: dict[str, Any], **places: tuple[int, int]) -> Document:
    return Document("a.json", data, {tuple(key.split("__")): place for key, place in places.items()})


def values(data: dict[str, Any]) -> dict[str, Any]:
    return {entry.key: entry.value for entry in effective(doc(data))}


def test_a_key_is_explained_with_default_effect_and_place() -> None:
    text = explain_key("zero_optimization.stage3_prefetch_bucket_size")
    for part in (
        "50000000",
        "elements",
        "stage 3 only",
        "prefetch_bucket_size",
        "deepspeed/runtime/zero/config.py:222",
    ):
        assert part in text


def test_a_unique_last_name_will_do_and_an_ambiguous_one_lists_its_sections() -> None:
    assert explain_key("stage").startswith("zero_optimization.stage\n")
    with pytest.raises(UsageError) as failure:
        explain_key("nvme_path")
    assert "offload_param.nvme_path" in str(failure.value)
    assert "offload_optimizer.nvme_path" in str(failure.value)


def test_removed_and_remembered_names_lead_on() -> None:
    assert "Removed" in explain_key("amp")
    assert "Write 'scheduler'" in explain_key("lr_scheduler")


def test_a_miss_names_the_nearest_key() -> None:
    with pytest.raises(UsageError, match="has no key") as failure:
        explain_key("zero_optimisation.stagee")
    assert "zero_optimization.stage" in str(failure.value)
    with pytest.raises(UsageError):
        explain_key("xyzzy")


@pytest.mark.parametrize("key", ["zero_optimization", "checkpoint.writer", "optimizer"])
def test_a_section_lists_its_keys(key: str) -> None:
    text = explain_key(key)
    assert all(inner in text for inner in KEYS if inner.rpartition(".")[0] == key)


def test_effective_values_carry_their_source() -> None:
    written = doc({"gradient_clipping": "0.5"}, gradient_clipping=(3, 5))
    entries = {entry.key: entry for entry in effective(written)}
    assert (entries["gradient_clipping"].value, entries["gradient_clipping"].source) == (0.5, "a.json:3:5")
    assert entries["zero_optimization.stage"].source == DEFAULT


def test_hidden_defaults_are_in_the_open() -> None:
    found = values({})
    assert found["gradient_clipping"] == 1.0
    assert found["zero_optimization.offload_param.pin_memory"] is True
    assert found["optimizer"] == ABSENT
    assert "checkpoint.writer.type" not in found
    assert values({"checkpoint": {"writer": {}}})["checkpoint.writer.type"] == "FAST"


def test_params_are_those_of_the_type() -> None:
    found = values({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 10}}})
    assert found["scheduler.params.warmup_max_lr"] == 0.001
    assert found["scheduler.params.total_num_steps"] == 10
    found = values({"scheduler": {"type": "WarmupLR", "params": {}}})
    assert found["scheduler.params.warmup_max_lr"] is None


@pytest.mark.parametrize(("stage", "overlaps"), [(0, False), (2, False), (3, True), ("3", True)])
def test_overlap_follows_the_stage(stage: object, overlaps: bool) -> None:
    assert values({"zero_optimization": {"stage": stage}})["zero_optimization.overlap_comm"] is overlaps


def test_auto_that_deepspeed_drops_is_the_default_and_says_so() -> None:
    data = {"zero_optimization": {"stage": 3, "stage3_max_live_parameters": "auto", "reduce_bucket_size": "auto"}}
    entries = {entry.key: entry for entry in effective(doc(data, zero_optimization__stage3_max_live_parameters=(4, 2)))}
    live = entries["zero_optimization.stage3_max_live_parameters"]
    assert live.value == 1_000_000_000
    assert "a.json:4:2" in live.source
    assert entries["zero_optimization.reduce_bucket_size"].value == "auto"


SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"gradient_clipping": 1.0, "zero_optimization": {"stage": 0}}),
    ({"zero_optimization": {"cpu_offload": True}}, {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}),
    ({"zero_optimization": True}, {"zero_optimization": {"stage": 1}}),
    ({"bfloat16": {"enabled": True}}, {"bf16": {"enabled": True}}),
    (
        {"zero_optimization": {"prefetch_bucket_size": "1e3"}},
        {"zero_optimization": {"stage3_prefetch_bucket_size": 1000}},
    ),
    ({"zero_optimization": {"offload_param": {"device": "none"}}}, {}),
    ({"optimizer": {"type": "ADAM", "params": {"betas": [0.9, 0.999]}}}, {"optimizer": {"type": "Adam", "params": {}}}),
    ({"unknown": 1}, {}),
]


@pytest.mark.parametrize(("left", "right"), SAME)
def test_files_of_one_effect_do_not_differ(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert diff_by_effect(doc(left), doc(right)) == []


def test_differences_name_both_values_and_sources() -> None:
    (difference,) = diff_by_effect(doc({}), doc({"gradient_clipping": 0}, gradient_clipping=(1, 3)))
    assert difference.key == "gradient_clipping"
    assert difference.left is not None
    assert difference.right is not None
    assert (difference.left.value, difference.right.value) == (1.0, 0)
    assert (difference.left.source, difference.right.source) == (DEFAULT, "a.json:1:3")


def test_a_section_that_acts_by_its_presence_is_a_difference() -> None:
    keys = {difference.key for difference in diff_by_effect(doc({}), doc({"checkpoint": {"writer": {}}}))}
    assert "checkpoint.writer" in keys


def _follow(schema: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", ())):
        if "$ref" in option:
            return schema["$defs"][option["$ref"].rsplit("/", 1)[1]]
    return node


def test_the_schema_has_every_key_with_help() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    for key in KEYS:
        node: dict[str, Any] = schema
        for part in key.split("."):
            if part == "<metric>":
                options = (node, *node.get("anyOf", ()))
                (mapping,) = [option for option in options if "additionalProperties" in option]
                node = _follow(schema, mapping["additionalProperties"])
            else:
                node = _follow(schema, node["properties"][part])
        assert node.get("description"), key


def test_the_schema_closes_what_deepspeed_rejects_and_offers_auto_where_it_is_filled() -> None:
    schema = json_schema()
    zero = schema["$defs"]["ZeroOptimization"]
    assert zero["additionalProperties"] is False
    assert "additionalProperties" not in schema
    assert {"const": "auto"} in zero["properties"]["reduce_bucket_size"]["anyOf"]
    assert zero["properties"]["stage"]["enum"] == [0, 1, 2, 3]
    assert zero["properties"]["cpu_offload"]["deprecated"] is True
    assert zero["properties"]["sub_group_size"]["minimum"] == 0
