"""Configurations made from our own types, held against the installed DeepSpeed: what we call clean constructs there.

Every key that the blocks declare takes part, with values inside its limits, at them, just beyond them, and of other
types: nothing here is written by hand for one key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from deepspeed_oracle import Oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Severity
from dstrain.dsconfig.blocks.base import Block, BlockField, fields_of
from dstrain.dsconfig.blocks.optimizers import OPTIMIZERS
from dstrain.dsconfig.blocks.root import DSConfig
from dstrain.dsconfig.blocks.schedulers import SCHEDULERS
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.values import ValueType
from dstrain.rules import lint

pytestmark = pytest.mark.cpu
_ODD = st.sampled_from([None, True, False, 0, 1, -1, 2.5, 1e3, "auto", "true", "7", "1e3", "", [], [1], {}, "cpu"])


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    process = Oracle()
    yield process
    process.close()


def _numbers(kind: ValueType, whole: bool) -> list[Any]:
    least = kind.at_least if kind.at_least is not None else kind.above if kind.above is not None else 0
    most = kind.at_most if kind.at_most is not None else kind.below
    edges = [least, least + 1, 8, 1000] if whole else [least, 0.5, 1, 1e-3]
    edges += [most] if most is not None else []
    return [int(edge) if whole else float(edge) for edge in edges]


def _values(kind: ValueType) -> list[Any]:
    """Values that the type has, its edges included (an open edge is just outside)."""
    options: list[Any] = list(kind.choices)
    if "bool" in kind.kinds:
        options += [True, False]
    if "int" in kind.kinds:
        options += _numbers(kind, True)
    if "float" in kind.kinds:
        options += _numbers(kind, False)
    if "str" in kind.kinds:
        options += ["word"]
    if "list" in kind.kinds:
        options += [[]]
    if kind.nullable:
        options += [None]
    return options or [1, "word", True]


def _of_field(field: BlockField, depth: int) -> st.SearchStrategy[Any]:
    if field.section is not None and depth < 4:
        return st.one_of(_of_block(field.section, depth + 1), _of_block(field.section, depth + 1), _ODD)
    if field.type.entries is not None and depth < 4:
        return st.dictionaries(st.just("name"), _of_block(field.type.entries, depth + 1), max_size=1)
    good = st.sampled_from(_values(field.type))
    return st.one_of(good, good, good, _ODD)


def _of_block(block: type[Block], depth: int = 0) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: field for name, field in fields_of(block).items() if name != "params"}

    @st.composite
    def some(draw: Any) -> dict[str, Any]:
        names = draw(st.lists(st.sampled_from(sorted(fields)), max_size=4, unique=True))
        return {name: draw(_of_field(fields[name], depth)) for name in names}

    return some() if fields else st.just({})


@st.composite
def configurations(draw: Any) -> dict[str, Any]:
    """A few sections and keys of the whole tree; often with an optimizer and a scheduler of ours."""
    config: dict[str, Any] = draw(_of_block(DSConfig))
    config.setdefault("train_micro_batch_size_per_gpu", draw(st.sampled_from([1, 2, 4])))
    for name, known in (("optimizer", OPTIMIZERS), ("scheduler", SCHEDULERS)):
        if draw(st.booleans()):
            kind = draw(st.sampled_from(sorted(known)))
            config[name] = {"type": kind, "params": draw(_of_block(known[kind]))}
    return config


def _errors(config: dict[str, Any]) -> list[str]:
    report = lint(doc=Document("ds_config.json", config), mode=Mode.DEEPSPEED, world=WorldFacts())
    return [f"{found.id} {found.key}: {found.message}" for found in report.findings if found.severity is Severity.ERROR]


def _alone(block: type[Block], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Each key of the tree with each value that is worth a try."""
    for name, field in fields_of(block).items():
        if field.section is not None:
            yield from (((*path, name), value) for value in (None, True, "word", {}))
            yield from _alone(field.section, (*path, name))
        else:
            yield from (((*path, name), value) for value in (*_values(field.type), None, -1, "auto", "7"))


def _needs_cuda(config: dict[str, Any]) -> bool:
    """`aio.use_gds` is refused on a CPU (0.19.8): a fact of this machine, not of the file."""
    aio = config.get("aio")
    return isinstance(aio, dict) and bool(aio.get("use_gds"))


def test_each_key_alone(oracle: Oracle) -> None:
    """No error of ours about the one key that is there: DeepSpeed takes it."""
    tried, missed = 0, []
    for path, value in _alone(DSConfig):
        config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
        node = config
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
        if _needs_cuda(config) or _errors(config):
            continue
        answer = oracle.ask(config, "config")
        tried += 1
        if answer["at"] != "ok":
            missed.append((".".join(path), value, answer["error"]))
    assert missed == []
    assert tried > 1000


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(config=configurations())
def test_what_we_call_clean_deepspeed_constructs(oracle: Oracle, config: dict[str, Any]) -> None:
    """No error of ours: `DeepSpeedConfig` takes it. What it refuses, we have refused."""
    errors = _errors(config)
    answer = oracle.ask(config, "config")
    assert errors or _needs_cuda(config) or answer["at"] == "ok", (config, answer)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    block=st.sampled_from([field for field in fields_of(DSConfig).values() if field.section is not None]),
    data=st.data(),
)
def test_a_section_alone_that_we_call_clean_initializes(oracle: Oracle, block: BlockField, data: Any) -> None:
    """One section beside an optimizer that needs no compiled op: without an error of ours an engine starts."""
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    }
    if block.section is not None and block.name not in config:
        config[block.name] = data.draw(_of_block(block.section))
    if not _errors(config):
        answer = oracle.ask(config, "initialize")
        assert answer["at"] in ("ok", "compile"), (config, answer)
