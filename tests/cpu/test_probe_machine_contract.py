"""What the doctor says of torch and DeepSpeed, against the torch and the DeepSpeed that are installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from posed_changes import MASK, link_first, old_kit_first, wrapper_first
from posed_machine import Posed, script

from dstrain.core.machine import Gpu
from dstrain.probe.cuda import cuda
from dstrain.probe.devices import read_mask
from dstrain.rules.machine_gpu import _ACCELERATORS
from dstrain.rules.machine_toolkit import _MINOR_FINE
from dstrain.rules.machine_view import CLANG_RANGE, GCC_RANGE

pytestmark = pytest.mark.cpu


def test_the_toolkit_is_the_one_that_torch_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.cpp_extension import _find_cuda_home

    changes = {
        "PATH": lambda m: None,
        "wrapper": wrapper_first,
        "link": link_first,
        "two on PATH": old_kit_first,
        "CUDA_HOME": lambda m: m.environ.update(CUDA_HOME=str(m.toolkit("12.4"))),
        "CUDA_PATH": lambda m: m.environ.update(CUDA_PATH=str(m.toolkit("12.4"))),
        "both": lambda m: m.environ.update(CUDA_HOME=str(m.toolkit("12.4")), CUDA_PATH="/other"),
        "CUDA_HOME leads nowhere": lambda m: m.environ.update(CUDA_HOME="/nowhere"),
    }
    for name, change in changes.items():
        posed = Posed(tmp_path / name.replace(" ", "-"))
        change(posed)
        for variable in ("CUDA_HOME", "CUDA_PATH", "PATH"):
            monkeypatch.delenv(variable, raising=False)
            if variable in posed.environ:
                monkeypatch.setenv(variable, posed.environ[variable])
        assert cuda(posed.place())[0].home == _find_cuda_home(), name


def test_the_tables_of_host_compilers_are_torchs() -> None:
    from torch.utils.cpp_extension import CUDA_CLANG_VERSIONS, CUDA_GCC_VERSIONS

    for ours, theirs in ((GCC_RANGE, CUDA_GCC_VERSIONS), (CLANG_RANGE, CUDA_CLANG_VERSIONS)):
        for version, (least, below) in theirs.items():
            if version in ours:
                assert ours[version] == (least[0], below[0]), version
        assert max(ours, key=lambda text: tuple(map(int, text.split(".")))) in theirs


def test_the_minor_versions_that_fit_are_deepspeeds() -> None:
    from deepspeed.ops.op_builder.builder import cuda_minor_mismatch_ok

    assert {
        version for major, all_of in cuda_minor_mismatch_ok.items() if major > 10 for version in all_of
    } == _MINOR_FINE


def test_the_accelerators_are_deepspeeds() -> None:
    from deepspeed.accelerator.real_accelerator import SUPPORTED_ACCELERATOR_LIST

    assert sorted(_ACCELERATORS) == sorted(SUPPORTED_ACCELERATOR_LIST)


def test_a_line_of_deepspeed_env_stops_its_launcher_as_the_doctor_says() -> None:
    import inspect

    from deepspeed.launcher import runner

    assert "var.split('=', maxsplit=1)" in inspect.getsource(runner.main)


@pytest.mark.parametrize(
    "mask", ["0,1", "1,0", "0,0", "", "-1", "1,-1,0", "0,,1", "GPU-1a,GPU-0a", "GPU-1a,0", "MIG-a,MIG-b"]
)
def test_a_mask_leaves_what_torch_reads_in_it(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.cuda import _parse_visible_devices

    monkeypatch.setenv(MASK, mask)
    cards = (Gpu(0, uuid="GPU-0a", mig=("MIG-a", "MIG-b")), Gpu(1, uuid="GPU-1a"))
    assert list(read_mask({MASK: mask}, cards).ids or ()) == [str(entry) for entry in _parse_visible_devices()]


def doctor(*flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys; from dstrain.cli.main import main; code = main(sys.argv[1:]);"
        " print([m for m in ('torch', 'deepspeed', 'transformers') if m in sys.modules], file=sys.stderr);"
        " sys.exit(code)"
    )
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("CUDA", "NCCL", "RANK"))}
    return subprocess.run(
        [sys.executable, "-c", code, "doctor", *flags], capture_output=True, text=True, env=kept | environ, timeout=60
    )


def test_this_machine_is_read_fast_and_without_torch() -> None:
    done = doctor("--json")
    shown = json.loads(done.stdout)
    assert done.stderr.strip() == "[]"
    assert done.returncode == int(any(finding["severity"] == "error" for finding in shown["findings"]))
    assert shown["machine"]["software"]["torch"]
    assert shown["machine"]["memory"]["total_bytes"] > 2**28
    # The best of three: other tests share these cores.
    assert shown["seconds"] < 2 or min(json.loads(doctor("--json").stdout)["seconds"] for _ in range(2)) < 2


def test_an_error_is_told_with_its_proof_and_exit_code() -> None:
    done = doctor(NCCL_SOCKET_IFNAME="nosuch9")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    place = next(number for number, line in enumerate(lines) if "error HOST411: NCCL_SOCKET_IFNAME=nosuch9" in line)
    assert lines[place + 1].startswith("  saw: /sys/class/net: ")
    assert lines[place + 2].startswith("  fix: export NCCL_SOCKET_IFNAME=")


def test_quiet_shows_errors_only() -> None:
    done = doctor("--quiet", NCCL_SOCKET_IFNAME="nosuch9", KMP_AFFINITY="compact")
    assert "HOST411" in done.stdout
    assert "HOST406" not in done.stdout
    assert "software" not in done.stdout


@pytest.mark.parametrize("wait", ["0", "-1", "nan", "1e9"])
def test_a_wait_that_is_none_is_refused(wait: str) -> None:
    done = doctor("--wait", wait)
    assert done.returncode == 2
    assert "--wait" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fake_nvidia_smi_on_path_is_believed(tmp_path: Path) -> None:
    posed = Posed(tmp_path)
    script(tmp_path / "only" / "nvidia-smi", (posed.bin / "nvidia-smi").read_text().partition("\n")[2])
    done = doctor(
        "--json", "--wait", "20", PATH=f"{tmp_path / 'only'}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES="0,5"
    )
    shown = json.loads(done.stdout)
    assert [card["name"] for card in shown["machine"]["gpus"]] == ["NVIDIA H100 80GB HBM3"] * 2
    assert "HOST205" in {finding["id"] for finding in shown["findings"]}
    assert done.returncode == 1
