"""Every rule: its examples, its page, its mend; and that no input, however odd, makes one raise."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dstrain.core.facts import HostFacts, Mode, ModelFacts, WorldFacts
from dstrain.core.finding import Finding, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules import RULES, lint, pages
from dstrain.rules.examples import configuration, facts, hits, patched

pytestmark = pytest.mark.paper

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
IDS = sorted(RULES)


@pytest.mark.parametrize("identity", IDS)
def test_a_rule_keeps_its_promises(identity: str) -> None:
    """It fires and is quiet as its examples say, has a page, says what to type, and its patch mends."""
    entry = RULES[identity]
    assert re.fullmatch(r"(DS|HOST)[1-9]\d\d", identity)
    assert len(inspect.cleandoc(entry.function.__doc__ or "")) > 60
    assert entry.title
    assert not entry.title.endswith(".")
    assert hits(entry, entry.quiet) == []
    found = hits(entry, entry.fires)
    assert found
    for hit in found:
        assert hit.message.strip() == hit.message != ""
        assert hit.fix, f"{identity} does not say what to type"
        assert "None" not in hit.fix
        if hit.patch:
            data = patched(configuration(entry.fires), hit.patch)
            again = hits(entry, {**data, "$facts": entry.fires.get("$facts", {})})
            assert hit.key not in {other.key for other in again}


def test_pages_on_disk_are_up_to_date() -> None:
    wanted = pages.pages()
    found = {path.name: path.read_text() for path in FOLDER.glob("*.md")}
    assert sorted(found) == sorted(wanted), "run: python -m dstrain.rules.pages docs/rules"
    stale = [name for name, text in wanted.items() if found[name] != text]
    assert not stale, f"run: python -m dstrain.rules.pages docs/rules (stale: {stale})"


def test_writing_pages_removes_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "DS999.md").write_text("old")
    assert tmp_path / "DS999.md" in pages.write(tmp_path)
    assert not (tmp_path / "DS999.md").exists()
    assert pages.write(tmp_path) == []


def test_linting_loads_no_torch() -> None:
    code = "import sys, dstrain.rules; print([m for m in ('torch', 'deepspeed', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_all_faults_come_in_one_run() -> None:
    faults = {
        "train_batch_size": 10,
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}, "legacy_stage1": True},
        "fp16": {"enabled": True},
        "bf16": {"enabled": True},
        "optimizer": {"type": "OneBitAdam", "params": {"max_grad_norm": 1.0}},
        "scheduler": {"type": "WarmupLR"},
    }
    report = lint(doc=Document("<dict>", faults), mode=Mode.DEEPSPEED, world=WorldFacts())
    found = {finding.id for finding in report.findings if finding.severity is Severity.ERROR}
    assert {"DS201", "DS301", "DS313", "DS401", "DS501", "DS505", "DS602"} <= found


def test_the_batch_equation_prints_its_numbers() -> None:
    (hit,) = hits(RULES["DS201"], {"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})
    assert {"10", "4", "2"} <= set(re.findall(r"\d+", hit.message))


@pytest.mark.parametrize(
    ("numbers", "world_size", "fires"),
    [
        ({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2}, 2, False),
        ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3}, 2, False),
        ({"train_batch_size": 12, "gradient_accumulation_steps": 3}, 4, False),
        ({"train_batch_size": 12, "gradient_accumulation_steps": 3}, 8, True),
        ({"train_batch_size": 12}, 8, True),
        ({"train_batch_size": 16}, 8, False),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}, 8, True),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "sequence_parallel_size": 2}, 8, False),
        ({"train_batch_size": "16", "train_micro_batch_size_per_gpu": "3"}, 1, True),
    ],
)
def test_batch_triangle(numbers: dict[str, Any], world_size: int, fires: bool) -> None:
    assert bool(hits(RULES["DS201"], {**numbers, "$facts": {"world_size": world_size}})) is fires


@pytest.mark.parametrize("written", [3, "3", 3.0])
def test_the_stage_is_read_as_deepspeed_reads_it(written: Any) -> None:
    zero = {"stage": written, "offload_param": {"device": "cpu"}}
    assert hits(RULES["DS301"], {"zero_optimization": zero}) == []


def test_unset_clipping_depends_on_who_reads_the_file() -> None:
    severities = {}
    for mode in Mode:
        known = facts({"train_micro_batch_size_per_gpu": 1, "$facts": {"mode": mode.value}})
        report = lint(doc=known["doc"], mode=mode)
        severities[mode] = [f.severity for f in report.findings if f.id == "DS410"]
    assert severities == {
        Mode.DEEPSPEED: [Severity.WARNING],
        Mode.TRANSFORMERS: [Severity.ADVICE],
        Mode.DSTRAIN: [],
    }


@pytest.mark.parametrize(
    ("lr", "peak", "mode", "fires"),
    [
        (1e-5, 5e-5, "deepspeed", True),
        (1e-5, 1e-5, "deepspeed", False),
        ("1e-5", 1e-5, "deepspeed", False),
        (1e-5, "auto", "transformers", True),
        ("auto", 1e-5, "transformers", True),
        ("auto", "auto", "transformers", False),
        (1e-5, None, "transformers", False),
    ],
)
def test_two_peak_rates(lr: Any, peak: Any, mode: str, fires: bool) -> None:
    params = {} if peak is None else {"warmup_max_lr": peak}
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "scheduler": {"type": "WarmupLR", "params": params},
        "$facts": {"mode": mode},
    }
    assert bool(hits(RULES["DS607"], config)) is fires


@pytest.mark.parametrize(
    ("path", "severity"),
    [("/no/such/folder", Severity.ERROR), ("swap", Severity.WARNING), ("{tmp}", None), ("{tmp}/run1", None)],
)
def test_nvme_folders_of_this_machine(path: str, severity: Severity | None, tmp_path: Path) -> None:
    offload = {"device": "nvme", "nvme_path": path.format(tmp=tmp_path)}
    found = hits(RULES["DS305"], {"zero_optimization": {"stage": 3, "offload_param": offload}})
    assert [hit.severity for hit in found] == ([] if severity is None else [severity])


def test_rules_without_their_facts_are_listed() -> None:
    report = lint(doc=Document("<dict>", {"train_micro_batch_size_per_gpu": 1}), mode=Mode.DEEPSPEED)
    assert report.not_run["DS201"] == ("world",)
    assert report.not_run["DS801"] == ("host",)


def _keys(value: Any, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    if not isinstance(value, dict):
        return {path}
    return {path}.union(*(_keys(inner, (*path, key)) for key, inner in value.items()))


PATHS = sorted(
    {p for entry in RULES.values() for e in (entry.fires, entry.quiet) for p in _keys(configuration(e)) if p}
)
NUMBERS = [0, 1, -1, 3, 0.5, 1e9, 1e400, -1e400, float("nan"), 10**400]
WORDS = ["", "auto", "true", "5e8", "\0", "9" * 5000, "nvme", "cpu", "bf16", "AdamW", "WarmupLR"]
ODD = st.sampled_from([None, True, False, *NUMBERS, *WORDS, [], [1], ["a", 2], [[]], {}, {"a": 1}, {1: 2}, {"": {}}])


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    identity=st.sampled_from(IDS),
    changes=st.lists(st.tuples(st.sampled_from(PATHS), ODD), max_size=6),
    mode=st.sampled_from(list(Mode)),
)
def test_odd_values_raise_nothing_and_patches_apply(
    identity: str, changes: list[tuple[tuple[str, ...], Any]], mode: Mode
) -> None:
    data = json.loads(json.dumps(configuration(RULES[identity].fires)))
    for path, value in changes:
        node = data
        for part in path[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[path[-1]] = value
    known = {"mode": mode, "world": WorldFacts(world_size=8), "host": HostFacts(), "model": ModelFacts("M", 1, 1)}
    report = lint(doc=Document("<dict>", data), **known)
    assert all(isinstance(finding, Finding) and finding.message for finding in report.findings)
    for finding in report.findings:
        patched(data, finding.patch)


@pytest.mark.parametrize(
    "data", [{}, {"zero_optimization": []}, {"optimizer": "AdamW", "scheduler": 1}, {"bf16": True}]
)
@pytest.mark.parametrize("mode", list(Mode))
def test_sections_that_are_no_sections(data: dict[str, Any], mode: Mode) -> None:
    lint(doc=Document("<dict>", data), mode=mode, world=WorldFacts(), host=HostFacts())
