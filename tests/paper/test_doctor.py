"""The machine rules as a set, and how the doctor shows what they find."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dstrain.cli import doctor
from dstrain.core.machine import Unknown
from dstrain.dsconfig.document import Document
from dstrain.probe.machine import Reading
from dstrain.rules import lint
from dstrain.rules.examples import configuration
from dstrain.rules.machine import PREFIX, diagnose
from dstrain.rules.machine_view import CLANG_RANGE, GCC_RANGE, HEALTHY, machine_facts, pair, targets
from dstrain.rules.registry import RULES

pytestmark = pytest.mark.paper

IDS = sorted(name for name in RULES if name.startswith(PREFIX))


def test_a_healthy_machine_has_no_finding_and_every_rule_was_run() -> None:
    report = diagnose(**HEALTHY)
    assert report.findings == ()
    assert report.not_run == {}
    assert len(IDS) >= 60


@pytest.mark.parametrize("name", IDS)
def test_a_finding_is_complete(name: str) -> None:
    entry = RULES[name]
    assert configuration(entry.fires) == {}
    changes = entry.fires["$facts"]["machine"]
    findings = [finding for finding in diagnose(**machine_facts(changes)).findings if finding.id == name]
    assert findings
    for finding in findings:
        assert finding.proof
        assert finding.fix
        assert finding.key
        assert "None" not in f"{finding.message} {finding.fix} {finding.proof}".replace("cuda = None", "")
    assert len(inspect.cleandoc(entry.function.__doc__ or "")) > 60


@pytest.mark.parametrize("name", IDS)
def test_an_unknown_fact_silences_the_rules_that_need_it_and_is_listed(name: str) -> None:
    for need in RULES[name].needs:
        report = diagnose(**{**HEALTHY, need: None})
        assert report.not_run[name] == (need,)
        assert name not in {finding.id for finding in report.findings}


_VALUES = st.one_of(st.none(), st.text(max_size=8), st.sampled_from(["0", "-1", "²", "9" * 5000, "1,2", "^=", "13.x"]))
_VARIABLES = sorted(
    {
        "OMP_NUM_THREADS",
        "SLURM_STEP_GPUS",
        "SLURM_JOB_GPUS",
        "NCCL_SOCKET_IFNAME",
        "GLOO_SOCKET_IFNAME",
        "DS_ACCELERATOR",
    }
    | {"TORCH_CUDA_ARCH_LIST", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH", "KMP_AFFINITY", "CUDA_VISIBLE_DEVICES"}
)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(_VARIABLES), _VALUES, max_size=4), _VALUES, _VALUES)
def test_no_value_makes_a_rule_raise(environ: dict[str, str | None], version: str | None, cuda: str | None) -> None:
    given_values = {name: text for name, text in environ.items() if text is not None}
    facts = machine_facts(
        {
            "environ": given_values,
            "software": {"torch": version, "torch_cuda": cuda or "", "deepspeed": version},
            "cuda": {"toolkits": [{"version": cuda}]},
            "driver": {"cuda": cuda},
            "mask": {"source": "CUDA_VISIBLE_DEVICES=x", "ids": ["0"], "cards": [{"capability": version}]},
        }
    )
    for finding in diagnose(**facts).findings:
        assert finding.fix


def test_config_check_lists_no_machine_rule_and_loads_none() -> None:
    code = (
        "import sys, dstrain.cli._config_check; from dstrain.rules import RULES;"
        "print([m for m in sys.modules if m.startswith(('dstrain.rules.machine', 'dstrain.probe', 'torch'))],"
        " [name for name in RULES if name.startswith('HOST')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_machine_rules_say_nothing_of_a_configuration() -> None:
    report = lint(doc=Document("<dict>", {"train_micro_batch_size_per_gpu": 1}))
    assert not any(finding.id.startswith(PREFIX) for finding in report.findings)


def test_the_tables_know_the_same_releases() -> None:
    assert set(CLANG_RANGE) <= set(GCC_RANGE)
    for version, (least, below) in GCC_RANGE.items():
        assert least < below
        span = targets(version)
        assert span is not None
        assert span[0] < span[1]
    assert targets("13.1") is None
    assert targets("12.7") == ((5, 0), (9, 0))
    assert [pair(text) for text in ("13.0", "12.4+x", "", "a.b", "13")] == [(13, 0), (12, 4), (0, 0), (0, 0), (0, 0)]


def reading(**changes: Any) -> Reading:
    return Reading(machine_facts(changes), (Unknown("the weather", "nobody asked"),))


def test_the_summary_says_which_index_is_which_card() -> None:
    text = "\n".join(doctor.summary(reading()))
    assert "torch 2.13.0 (for CUDA 13.0)" in text
    assert "torch takes it (nvcc on PATH)" in text
    assert "cuda index 1 = nvidia-smi 1: NVIDIA H100, 80 GiB at 0000:02:00.0" in text
    hidden = "\n".join(
        doctor.summary(
            reading(
                mask={"source": "CUDA_VISIBLE_DEVICES=1", "ids": ["1"], "cards": [{"index": 1, "bus": "0000:02:00.0"}]}
            )
        )
    )
    assert "0000:01:00.0 (hidden by CUDA_VISIBLE_DEVICES=1)" in hidden
    assert hidden.count("hidden") == 1


def test_json_has_proof_and_no_secret() -> None:
    read = reading(
        environ={
            "RANK": "0",
            "WANDB_API_KEY": "s3cr3t",
            "DS_TOKEN": "s3cr3t",
            "HOME": "/home/me",
            "NCCL_DEBUG": "INFO",
        },
        software={"ninja": None},
    )
    report = diagnose(**read.facts)
    shown = doctor.as_json(read, report, [doctor.placed(finding) for finding in report.findings], 0.25)
    text = json.dumps(shown)
    assert "s3cr3t" not in text
    assert "/home/me" not in json.dumps(shown["machine"]["environ"])
    assert shown["machine"]["environ"]["NCCL_DEBUG"] == "INFO"
    assert [finding["id"] for finding in shown["findings"]] == ["HOST104"]
    assert shown["findings"][0]["proof"] == ["no ninja on PATH"]
    assert shown["unknown"] == [{"what": "the weather", "why": "nobody asked"}]
    assert shown["not_run"] == {}
