"""`config fix` never makes a file worse: no setting is lost, no error is made, and twice is once."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstrain.cli._config_check import check
from dstrain.cli._config_fix import fixed, rounds
from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Finding
from dstrain.dsconfig.reader import read_text
from dstrain.rules import RULES
from dstrain.rules.examples import configuration

pytestmark = pytest.mark.paper
_FAULTS = [configuration(entry.fires) for entry in RULES.values() if not entry.id.startswith("DS9")]
_WORLDS = st.sampled_from([None, WorldFacts(world_size=8, local_world_size=8)])


def _merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(dict(left))
    for key, value in right.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), dict)
        result[key] = _merged(result[key], value) if both else copy.deepcopy(value)
    return result


@st.composite
def faulty(draw: Any) -> dict[str, Any]:
    """The faults of two or three rules in one file; often a key is in the wrong section, or a name misses a letter."""
    config: dict[str, Any] = {}
    for fault in draw(st.lists(st.sampled_from(_FAULTS), min_size=2, max_size=3)):
        config = _merged(config, fault)
    inner = [(name, key) for name, section in config.items() if isinstance(section, dict) for key in section]
    if inner and draw(st.booleans()):
        name, key = draw(st.sampled_from(inner))
        config[key] = config[name].pop(key)
    long = [key for key in config if len(key) > 4]
    if long and draw(st.booleans()):
        key = draw(st.sampled_from(long))
        config[key[:3] + key[4:]] = config.pop(key)
    return config


def _leaves(section: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _parts(operation: Mapping[str, Any]) -> list[str]:
    return str(operation["path"]).split("/")


def _errors(findings: tuple[Finding, ...]) -> set[tuple[str, str]]:
    return {(finding.id, finding.key) for finding in findings if finding.severity == "error"}


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(config=faulty(), mode=st.sampled_from(list(Mode)), world=_WORLDS)
def test_fix_never_makes_a_file_worse(config: dict[str, Any], mode: Mode, world: WorldFacts | None) -> None:
    text = json.dumps(config)
    document = read_text(text, "ds.json")
    before = check(document, mode, world).findings
    mended = fixed(document, mode, world)
    after = read_text(mended, "ds.json")
    assert fixed(after, mode, world) == mended

    states = [read_text(state, "ds.json") for state in (text, *rounds(document, mode, world))]
    said = [
        operation for state in states for finding in check(state, mode, world).findings for operation in finding.patch
    ]
    # An error that is new was hidden in a section that nobody read before it was put in its place.
    opened = [str(operation["path"])[1:].replace("/", ".") for operation in said if operation["op"] in ("add", "move")]
    for identity, key in _errors(check(after, mode, world).findings) - _errors(before):
        assert any(key == place or key.startswith(place + ".") for place in opened), (identity, key)

    gone = {
        part for operation in said if operation["op"] in ("remove", "replace") for part in operation["path"].split("/")
    }
    gone |= {
        operation["from"].split("/")[-1]
        for operation in said
        if operation["op"] == "move" and _parts(operation)[-1] in gone
    }
    kept = [value for _, value in _leaves(after.data)]
    for path, value in _leaves(config):
        assert value in kept or value == {} or gone & set(path), f"{'.'.join(path)} = {value!r} is lost"


@pytest.mark.parametrize("mode", list(Mode))
def test_a_section_that_was_misplaced_stays_after_it_is_moved(mode: Mode) -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "offload_optimizer": {"device": "cpu"}}
    mended = read_text(fixed(read_text(json.dumps(config), "ds.json"), mode, None), "ds.json")
    assert mended.get("zero_optimization.offload_optimizer") == {"device": "cpu"}


def test_a_section_that_was_misspelt_is_not_overwritten_by_the_one_that_is_missing() -> None:
    config = {"train_micro_batch_size_per_gpu": 1, "zer_optimization": {"stage": 3}}
    mended = read_text(fixed(read_text(json.dumps(config), "ds.json"), Mode.TRANSFORMERS, None), "ds.json")
    assert mended.get("zero_optimization.stage") == 3
