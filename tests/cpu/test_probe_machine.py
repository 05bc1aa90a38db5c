"""The doctor on posed machines: each situation gives just these findings, and a healthy machine none."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from posed_changes import (
    Change,
    both,
    built_by,
    busy_lock,
    cards,
    cards_without_driver,
    cpu_torch,
    drop,
    env,
    gxx,
    hidden_library,
    home_is_old_kit,
    infiniband,
    kit_of,
    limit,
    link_first,
    lock,
    no_cards,
    old_kit_first,
    only_pip_nvcc,
    other_major_library,
    own_build,
    prebuilt,
    same_library,
    smi_fails,
    stub,
    two_nodes,
    with_torch,
    wrapper_first,
)
from posed_machine import B200, GIB, H100, T4, V100, Posed, examine, says, script

pytestmark = pytest.mark.cpu

SITUATIONS: dict[str, tuple[Change, set[str]]] = {
    "healthy": (lambda m: None, set()),
    "a CPU machine with a CPU torch": (both(cpu_torch, no_cards), set()),
    "no torch": (drop("/site/torch"), {"HOST101"}),
    "an old deepspeed": (
        both(drop("/site/deepspeed-0.19.8.dist-info"), lambda m: m.at("/site/deepspeed-0.15.0.dist-info").mkdir()),
        {"HOST101"},
    ),
    "a CPU torch beside cards": (cpu_torch, {"HOST102"}),
    "a CPU torch beside cards, and meant": (both(cpu_torch, env(DS_ACCELERATOR="cpu")), set()),
    "ops of another torch inside deepspeed": (prebuilt("2.9", "13.0"), {"HOST103"}),
    "ops of another CUDA inside deepspeed": (prebuilt("2.13", "12.8"), {"HOST103"}),
    "ops of this torch inside deepspeed": (prebuilt("2.13", "13.0"), set()),
    "no ninja": (drop("/bin/ninja"), {"HOST104"}),
    "ninja in a Python environment that is not activated": (
        lambda m: [m.remove("/bin/ninja"), m.write("/venv/bin/ninja")],
        {"HOST104"},
    ),
    "no Python headers": (drop("/include/Python.h"), {"HOST105"}),
    "no libaio": (drop("/usr/include/libaio.h"), {"HOST106"}),
    "no compiler": (drop("/bin/c++"), {"HOST107"}),
    "CXX leads nowhere": (env(CXX="g++-99"), {"HOST107"}),
    "a compiler too old for C++20": (gxx("g++ (GCC) 8.5.0 20210514 (Red Hat 8.5.0-10)"), {"HOST108"}),
    "a compiler old enough for an older torch": (
        both(gxx("g++ (GCC) 9.4.0"), with_torch("2.11.0+cu130", "13.0")),
        set(),
    ),
    "a compiler newer than nvcc takes": (gxx("g++ (GCC) 16.1.0", "g++-14", "g++-16"), {"HOST109"}),
    "the newest compiler that nvcc takes": (gxx("g++ (GCC) 15.2.0"), set()),
    "gcc 14 with nvcc 12.4": (
        both(kit_of("12.4"), with_torch("2.13.0", "12.4"), gxx("g++ (GCC) 14.1.0")),
        {"HOST109"},
    ),
    "clang newer than nvcc takes": (gxx("clang version 21.1.0"), {"HOST109"}),
    "clang that nvcc takes": (gxx("Debian clang version 19.1.4"), set()),
    "no toolkit": (both(drop("/usr/local/cuda-13.0"), lambda m: m.environ.update(PATH=str(m.bin))), {"HOST110"}),
    "CUDA_HOME leads nowhere": (env(CUDA_HOME="/nowhere/cuda"), {"HOST111"}),
    "a runtime-only toolkit": (
        lambda m: m.environ.update(CUDA_HOME=str(m.write("/opt/rt/include/cuda_runtime.h").parent.parent)),
        {"HOST111"},
    ),
    "nvcc on PATH is a wrapper script": (wrapper_first, {"HOST112"}),
    "a wrapper, over a toolkit without math headers": (
        both(wrapper_first, drop("/usr/local/cuda-13.0/include/cusparse.h")),
        {"HOST112", "HOST115"},
    ),
    "a wrapper, over a toolkit without libraries": (
        both(wrapper_first, drop("/usr/local/cuda-13.0/lib64")),
        {"HOST112", "HOST114"},
    ),
    "a wrapper, and CUDA_HOME set right": (
        both(wrapper_first, lambda m: m.environ.update(CUDA_HOME=str(m.at("/usr/local/cuda-13.0")))),
        set(),
    ),
    "nvcc on PATH is a link": (link_first, {"HOST112"}),
    "nvcc does not run": (lambda m: script(m.at("/usr/local/cuda-13.0/bin/nvcc"), "exit 127"), {"HOST113"}),
    "nvcc says nothing": (lambda m: script(m.at("/usr/local/cuda-13.0/bin/nvcc"), says("hello")), {"HOST113"}),
    "a toolkit without headers": (kit_of("13.0", headers=False), {"HOST114"}),
    "a toolkit without libraries": (drop("/usr/local/cuda-13.0/lib64"), {"HOST114"}),
    "a toolkit without math headers": (kit_of("13.0", math=False), {"HOST115"}),
    "a whole toolkit from packages": (only_pip_nvcc, set()),
    "nvcc alone from a package": (both(only_pip_nvcc, drop("/site/nvidia/cu13/include")), {"HOST114"}),
    "a toolkit of another major": (kit_of("12.4"), {"HOST116"}),
    "toolkit 12.1, torch for 11.8": (both(kit_of("12.1"), with_torch("2.13.0+cu118", "11.8")), {"HOST116"}),
    "the wrong of two toolkits on PATH": (old_kit_first, {"HOST116"}),
    "the wrong of two toolkits in CUDA_HOME": (home_is_old_kit, {"HOST116", "HOST118"}),
    "a second toolkit that is not used": (lambda m: m.toolkit("12.4"), set()),
    "a minor version that deepspeed refuses": (kit_of("13.1"), {"HOST117"}),
    "a minor version that is fine": (both(kit_of("12.4"), with_torch("2.13.0", "12.8")), set()),
    "a library of another release first": (hidden_library, {"HOST119"}),
    "torch's own library first": (same_library, set()),
    "a library of another major first": (other_major_library, set()),
    "a stub of libcuda first": (stub, {"HOST120"}),
    "architectures by name": (env(TORCH_CUDA_ARCH_LIST="Hopper"), {"HOST131"}),
    "architectures that CUDA 13 dropped": (env(TORCH_CUDA_ARCH_LIST="7.0;9.0"), {"HOST132"}),
    "architectures without the card": (env(TORCH_CUDA_ARCH_LIST="10.0"), {"HOST133"}),
    "architectures with PTX for the card": (env(TORCH_CUDA_ARCH_LIST="8.0+PTX"), set()),
    "building an image without a GPU": (no_cards, {"HOST134", "HOST204"}),
    "building an image, architectures named": (both(no_cards, env(TORCH_CUDA_ARCH_LIST="9.0")), {"HOST204"}),
    "cards older than CUDA 13": (cards(V100, V100), {"HOST135", "HOST136"}),
    "cards newer than the toolkit": (
        both(kit_of("12.6"), with_torch("2.13.0", "12.6"), cards(B200, B200)),
        {"HOST135", "HOST136"},
    ),
    "cards older than torch, and no toolkit": (
        both(cards(V100), drop("/usr/local/cuda-13.0"), lambda m: m.environ.update(PATH=str(m.bin))),
        {"HOST110", "HOST136"},
    ),
    "a driver too old": (cards(H100, H100, driver="550.90.07", cuda="12.4"), {"HOST201"}),
    "a driver of the same major": (
        both(kit_of("12.8"), with_torch("2.13.0", "12.8"), cards(H100, driver="550.90.07", cuda="12.4")),
        set(),
    ),
    "a driver that was updated": (smi_fails, {"HOST202"}),
    "cards without a driver": (cards_without_driver, {"HOST203"}),
    "a mask with a card that is not there": (env(CUDA_VISIBLE_DEVICES="0,7"), {"HOST205"}),
    "a mask with a card twice": (env(CUDA_VISIBLE_DEVICES="1,1"), {"HOST205"}),
    "an empty mask": (env(CUDA_VISIBLE_DEVICES=""), {"HOST134", "HOST206"}),
    "a mask of UUIDs": (env(CUDA_VISIBLE_DEVICES="GPU-0aaa,GPU-1aaa"), {"HOST207"}),
    "a mask of all": (env(CUDA_VISIBLE_DEVICES="0,1"), set()),
    "a mask of the second": (env(CUDA_VISIBLE_DEVICES="1"), {"HOST208"}),
    "two MIG devices": (
        both(cards(H100, migs=("MIG-aa", "MIG-bb")), env(CUDA_VISIBLE_DEVICES="MIG-aa,MIG-bb")),
        {"HOST207", "HOST209"},
    ),
    "unlike cards": (cards(T4, H100), {"HOST210", "HOST211"}),
    "unlike cards in PCI order, one chosen": (
        both(cards(H100, T4), env(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_VISIBLE_DEVICES="0")),
        set(),
    ),
    "an unknown order": (env(CUDA_DEVICE_ORDER="PCI"), {"HOST212"}),
    "a card in use": (cards(H100, H100, used=(60000, 4)), {"HOST213"}),
    "an unknown accelerator": (env(DS_ACCELERATOR="gpu"), {"HOST214"}),
    "a mask wider than Slurm's": (env(SLURM_STEP_GPUS="3", CUDA_VISIBLE_DEVICES="0,1"), {"HOST215"}),
    "Slurm's mask": (env(SLURM_STEP_GPUS="2-3", CUDA_VISIBLE_DEVICES="0,1"), set()),
    "Docker's /dev/shm": (lambda m: m.space.update({"/dev/shm": (64 * 2**20, 100)}), {"HOST301"}),
    "a full control group": (
        lambda m: [
            m.write("/sys/fs/cgroup/memory.max", str(8 * GIB)),
            m.write("/sys/fs/cgroup/memory.current", str(6 * GIB)),
        ],
        {"HOST302"},
    ),
    "a control group without a limit": (lambda m: m.write("/sys/fs/cgroup/memory.max", "max"), set()),
    "few open files": (limit(resource.RLIMIT_NOFILE, 1024), {"HOST303"}),
    "InfiniBand and limited locked memory": (infiniband, {"HOST304"}),
    "limited locked memory alone": (limit(resource.RLIMIT_MEMLOCK, 65536), set()),
    "few processes": (limit(resource.RLIMIT_NPROC, 256), {"HOST305"}),
    "a read-only home": (lambda m: m.flags.update({"/home": os.ST_RDONLY}), {"HOST306"}),
    "a cache that is noexec": (lambda m: m.flags.update({"/home": os.ST_NOEXEC}), {"HOST307"}),
    "a full temporary folder": (lambda m: m.space.update({"/tmp": (GIB, 10**6)}), {"HOST308"}),
    "no inodes left": (lambda m: m.space.update({"/home": (100 * GIB, 12)}), {"HOST308"}),
    "a stale lock": (lock(900), {"HOST311"}),
    "a lock of this minute": (lock(5), set()),
    "a lock of a build that runs": (busy_lock, set()),
    "builds of another environment": (built_by("/old/lib/site-packages"), {"HOST312"}),
    "builds of this environment": (built_by("SITE"), set()),
    "dstrain's builds for another torch": (own_build("2.9.0"), {"HOST313"}),
    "dstrain's builds for this torch": (own_build("2.13.0+cu130"), set()),
    "no thread count": (lambda m: m.environ.pop("OMP_NUM_THREADS"), {"HOST401"}),
    "too many threads": (env(OMP_NUM_THREADS="64"), {"HOST402"}),
    "a thread count that is none": (env(OMP_NUM_THREADS="all"), {"HOST402"}),
    "a quota below the cores": (
        both(lambda m: m.write("/sys/fs/cgroup/cpu.max", "400000 100000"), lambda m: m.environ.pop("OMP_NUM_THREADS")),
        {"HOST401", "HOST403"},
    ),
    "NUMA without numactl": (two_nodes, {"HOST404"}),
    "NUMA on a CPU machine": (both(two_nodes, cpu_torch, no_cards), {"HOST404", "HOST405"}),
    "KMP_AFFINITY": (env(KMP_AFFINITY="compact"), {"HOST406"}),
    "an interface that is not there": (env(NCCL_SOCKET_IFNAME="ib0"), {"HOST411"}),
    "an interface that is down": (
        both(lambda m: m.write("/sys/class/net/ib0/operstate", "down"), env(GLOO_SOCKET_IFNAME="ib0")),
        {"HOST411"},
    ),
    "an interface by prefix": (env(NCCL_SOCKET_IFNAME="eth"), set()),
    "interfaces left out": (env(NCCL_SOCKET_IFNAME="^docker,lo"), set()),
    "Debian's own name": (lambda m: m.write("/etc/hosts", "127.0.1.1 node1\n"), {"HOST412"}),
    "left-over debugging": (env(CUDA_LAUNCH_BLOCKING="1"), {"HOST413"}),
    "left-over ranks": (env(RANK="0"), {"HOST414"}),
    "a comment in .deepspeed_env": (lambda m: m.write("/home/.deepspeed_env", "A=1\n# note\n"), {"HOST415"}),
}


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_situation_gives_just_its_findings(tmp_path: Path, name: str) -> None:
    change, expected = SITUATIONS[name]
    posed = Posed(tmp_path)
    change(posed)
    _, findings = examine(posed)
    assert {finding.id for finding in findings} == expected, [finding.message for finding in findings]


def test_every_rule_is_met_by_a_situation() -> None:
    from dstrain.rules.registry import RULES

    met = set().union(*(expected for _, expected in SITUATIONS.values()))
    own = {"HOST309", "HOST310"}  # below: they are about a folder that is given
    assert {name for name in RULES if name.startswith("HOST")} == met | own
