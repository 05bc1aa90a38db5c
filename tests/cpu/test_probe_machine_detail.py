"""The doctor on posed machines: what a finding says, what is not known, and that nothing read is a traceback."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from posed_changes import MASK, both, cards, env, gxx, hidden_library, kit_of, old_kit_first, with_torch
from posed_machine import GIB, H100, Posed, examine, says, script

from dstrain.core.finding import Finding
from dstrain.probe.machine import read_machine
from dstrain.rules.machine import diagnose

pytestmark = pytest.mark.cpu


@pytest.fixture
def posed(tmp_path: Path) -> Posed:
    return Posed(tmp_path)


def one(findings: list[Finding], name: str) -> Finding:
    return next(finding for finding in findings if finding.id == name)


def test_the_corrected_order_is_a_line_to_type(posed: Posed) -> None:
    old_kit_first(posed)
    finding = one(examine(posed)[1], "HOST116")
    right = posed.at("/usr/local/cuda-13.0")
    assert finding.fix == f"export CUDA_HOME={right} PATH={right}/bin:$PATH"
    assert "12.4" in finding.message
    assert "13.0" in finding.message
    # Typed, it mends: the same machine with what the line sets.
    posed.environ |= {"CUDA_HOME": str(right), "PATH": f"{right}/bin:{posed.environ['PATH']}"}
    assert examine(posed)[1] == []


def test_the_library_path_without_what_hides_torch(posed: Posed) -> None:
    hidden_library(posed)
    finding = one(examine(posed)[1], "HOST119")
    assert finding.fix == f"export LD_LIBRARY_PATH={posed.at('/fine')}"
    posed.environ["LD_LIBRARY_PATH"] = str(posed.at("/fine"))
    assert examine(posed)[1] == []


def test_the_newest_compiler_that_fits_is_named(posed: Posed) -> None:
    gxx("g++ (GCC) 16.1.0", "g++-12", "g++-14", "g++-16")(posed)
    assert one(examine(posed)[1], "HOST109").fix.startswith("export CC=gcc-14 CXX=g++-14 ")


def test_math_headers_beside_torch_are_advice(posed: Posed) -> None:
    kit_of("13.0", math=False)(posed)
    assert one(examine(posed)[1], "HOST115").severity == "warning"
    posed.write("/site/nvidia/cu13/include/cusparse.h")
    assert one(examine(posed)[1], "HOST115").severity == "advice"


def test_a_driver_that_does_not_answer_in_time_is_not_known(posed: Posed) -> None:
    script(posed.bin / "nvidia-smi", "while :; do :; done")
    posed.wait_s = 0.5
    start = time.perf_counter()
    reading, findings = examine(posed)
    assert time.perf_counter() - start < 2
    assert reading.facts["gpus"] is None
    assert any(item.what == "the GPUs" and "0.5 s" in item.why for item in reading.unknown)
    assert not any(finding.id.startswith("HOST2") for finding in findings)
    assert "HOST206" in diagnose(**reading.facts).not_run


def test_a_toolkit_newer_than_the_tables_is_said_to_be_unknown(posed: Posed) -> None:
    both(
        kit_of("13.2"), with_torch("2.15.0", "13.2"), gxx("g++ (GCC) 17.1.0"), env(TORCH_CUDA_ARCH_LIST="15.0+PTX;9.0")
    )(posed)
    reading, findings = examine(posed)
    assert {finding.id for finding in findings} == set()
    assert {item.what for item in reading.unknown} == {
        "which host compilers this nvcc takes",
        "which architectures this nvcc targets",
    }


def test_a_compiler_that_is_neither_is_said_to_be_unknown(posed: Posed) -> None:
    script(posed.bin / "c++", says("icpc 2021.1"))
    reading, findings = examine(posed)
    assert findings == []
    assert any("which compiler c++ is" in item.what for item in reading.unknown)


def test_nothing_at_all_is_read_without_a_traceback(tmp_path: Path) -> None:
    from dstrain.probe.place import Place

    bare = Place(root=tmp_path, environ={}, packages=(tmp_path,), working=tmp_path, hostname="", header=tmp_path / "no")
    reading = read_machine(bare)
    assert {item.what for item in reading.unknown} >= {"the host's memory", "the network interfaces"}
    found = {finding.id for finding in diagnose(**reading.facts).findings}
    assert {"HOST101", "HOST104", "HOST107"} <= found


@pytest.mark.parametrize("garbage", ["", "\\x00\\xff", "N/A, [Unknown Error]", "0, x", "release", "-1, , , , , , "])
def test_garbage_from_every_command_is_no_traceback(posed: Posed, garbage: str) -> None:
    for path in (posed.bin / "nvidia-smi", posed.bin / "c++", posed.at("/usr/local/cuda-13.0/bin/nvcc")):
        script(path, f"printf '{garbage}'")
    for name in ("/proc/meminfo", "/proc/cpuinfo", "/proc/mounts", "/etc/hosts", "/sys/fs/cgroup/cpu.max"):
        posed.write(name, f"{garbage}\n{garbage} x: y kB\nMemTotal:\n")
    reading, _ = examine(posed)
    assert reading.facts["gpus"] in ((), None)


def test_a_folder_for_nvme_is_measured(posed: Posed) -> None:
    reading, _ = examine(posed, nvme=posed.at("/nvme"))
    disk = next(disk for disk in reading.facts["disks"] if disk.role == "nvme")
    refused = any("O_DIRECT" in item.why for item in reading.unknown)
    assert refused or (disk.write_bytes_s and disk.read_bytes_s)
    assert list(posed.at("/nvme").iterdir()) == []


@pytest.mark.parametrize(("kind", "fires"), [("nfs4", True), ("tmpfs", True), ("xfs", False)])
def test_a_folder_for_nvme_on_another_filesystem(posed: Posed, kind: str, fires: bool) -> None:
    posed.write("/proc/mounts", f"/dev/sda1 / ext4 rw 0 0\nx {posed.at('/nvme')} {kind} rw 0 0\n")
    assert ("HOST309" in {finding.id for finding in examine(posed, nvme=posed.at("/nvme"))[1]}) is fires


def test_a_folder_for_nvme_that_is_not_there(posed: Posed) -> None:
    finding = one(examine(posed, nvme=posed.at("/none"))[1], "HOST306")
    assert finding.fix == f"mkdir -p {posed.at('/none')}"
    assert finding.severity == "error"


def test_mig_devices_belong_to_their_card(posed: Posed) -> None:
    cards(H100, H100, migs=("MIG-aa",))(posed)
    posed.environ[MASK] = "MIG-aa"
    reading, _ = examine(posed)
    assert [card.index for card in reading.facts["mask"].known()] == [0]


def test_a_nested_control_group_counts_the_tightest(posed: Posed) -> None:
    posed.write("/proc/self/cgroup", "0::/a/b\n")
    posed.write("/sys/fs/cgroup/a/memory.max", str(5 * GIB))
    posed.write("/sys/fs/cgroup/a/memory.current", str(4 * GIB))
    posed.write("/sys/fs/cgroup/a/b/memory.max", str(50 * GIB))
    posed.write("/sys/fs/cgroup/a/b/memory.current", str(GIB))
    posed.write("/sys/fs/cgroup/memory.max", "max")
    reading, findings = examine(posed)
    assert reading.facts["memory"].limit_bytes == 5 * GIB
    assert {finding.id for finding in findings} == {"HOST302"}


def test_a_ninja_that_is_installed_is_put_on_the_path(posed: Posed) -> None:
    posed.remove("/bin/ninja")
    assert one(examine(posed)[1], "HOST104").fix == "pip install ninja"
    posed.write("/venv/bin/ninja")
    assert one(examine(posed)[1], "HOST104").fix == f"export PATH={posed.at('/venv/bin')}:$PATH"


def proc_cards(m: Posed) -> None:
    for place in range(2):
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{place}\nBus Location: \t 0000:0{place}:00.0\n"
        m.write(f"/proc/driver/nvidia/gpus/0000:0{place}:00.0/information", text)


def test_without_nvidia_smi_the_kernel_module_says_which_cards(posed: Posed) -> None:
    proc_cards(posed)
    (posed.bin / "nvidia-smi").unlink()
    posed.environ |= {MASK: "GPU-1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    reading, findings = examine(posed)
    assert [card.uuid for card in reading.facts["gpus"]] == ["GPU-0", "GPU-1"]
    assert [card.index for card in reading.facts["mask"].known()] == [1]
    assert [item.what for item in reading.unknown] == ["the GPUs' memory, use and compute capability"]
    assert {finding.id for finding in findings} == {"HOST207"}


def test_an_nvidia_smi_without_the_field_is_asked_again(posed: Posed) -> None:
    path = posed.bin / "nvidia-smi"
    refuse = says('Field "compute_cap" is not a valid field to query.')
    script(path, path.read_text().replace("#!/bin/sh\n", f'case "$1" in *compute_cap*) {refuse}; exit 2;; esac\n'))
    reading, findings = examine(posed)
    assert [card.name for card in reading.facts["gpus"]] == [H100[0]] * 2
    assert [item.what for item in reading.unknown] == ["the compute capability of the GPUs"]
    assert findings == []


def test_an_nvidia_smi_where_no_card_is(posed: Posed) -> None:
    posed.cards([])
    script(posed.bin / "nvidia-smi", says("NVIDIA-SMI has failed because it could not reach the driver.") + "\nexit 9")
    assert {finding.id for finding in examine(posed)[1]} == {"HOST134", "HOST204"}


def test_the_banner_of_newer_drivers(posed: Posed) -> None:
    path = posed.bin / "nvidia-smi"
    text = path.read_text().replace("Driver Version", "KMD Version").replace("CUDA Version", "CUDA UMD Version")
    path.write_text(text)
    driver = examine(posed)[0].facts["driver"]
    assert (driver.version, driver.cuda) == ("580.65.06", "13.0")
