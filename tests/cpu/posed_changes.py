"""What can be wrong with a posed machine: each is a change to a healthy one."""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Callable

from posed_machine import Posed, says, script

Change = Callable[[Posed], object]
MASK = "CUDA_VISIBLE_DEVICES"


def env(**values: str) -> Change:
    return lambda m: m.environ.update(values)


def drop(*paths: str) -> Change:
    return lambda m: [m.remove(path) for path in paths]


def cpu_torch(m: Posed) -> None:
    m.torch("2.13.0+cpu", "")


def old_kit_first(m: Posed) -> None:
    kit = m.toolkit("12.4")
    m.environ["PATH"] = f"{kit}/bin:{m.environ['PATH']}"


def home_is_old_kit(m: Posed) -> None:
    m.environ["CUDA_HOME"] = str(m.toolkit("12.4"))


def wrapper_first(m: Posed) -> None:
    script(m.at("/usr/local/bin/nvcc"), f'exec {m.at("/usr/local/cuda-13.0")}/bin/nvcc "$@"')
    m.environ["PATH"] = f"{m.at('/usr/local/bin')}:{m.bin}"


def link_first(m: Posed) -> None:
    m.at("/opt/bin").mkdir(parents=True)
    m.at("/opt/bin/nvcc").symlink_to(m.at("/usr/local/cuda-13.0/bin/nvcc"))
    m.environ["PATH"] = f"{m.at('/opt/bin')}:{m.bin}"


def kit_of(version: str, **how: bool) -> Change:
    def change(m: Posed) -> None:
        m.remove("/usr/local/cuda-13.0")
        kit = m.toolkit(version, **how)
        m.environ["PATH"] = f"{kit}/bin:{m.bin}"

    return change


def only_pip_nvcc(m: Posed) -> None:
    m.remove("/usr/local/cuda-13.0")
    kit = m.toolkit("13.0", "/site/nvidia/cu13", math=True)
    m.environ |= {"PATH": str(m.bin), "CUDA_HOME": str(kit)}


def with_torch(version: str, cuda: str) -> Change:
    return lambda m: m.torch(version, cuda)


def gxx(line: str, *others: str) -> Change:
    def change(m: Posed) -> None:
        m.compiler("c++", line)
        for name in others:
            m.compiler(name, name)

    return change


def hidden_library(m: Posed) -> None:
    m.write("/site/nvidia/cu13/lib/libcublas.so.13")
    m.write("/other/lib/libcublas.so.13.0.1")
    m.environ["LD_LIBRARY_PATH"] = f"{m.at('/other/lib')}:{m.at('/fine')}"


def same_library(m: Posed) -> None:
    m.write("/site/nvidia/cu13/lib/libcublas.so.13")
    m.environ["LD_LIBRARY_PATH"] = str(m.at("/site/nvidia/cu13/lib"))


def other_major_library(m: Posed) -> None:
    m.write("/site/nvidia/cu13/lib/libcublas.so.13")
    m.write("/other/lib/libcublas.so.12")
    m.environ["LD_LIBRARY_PATH"] = str(m.at("/other/lib"))


def stub(m: Posed) -> None:
    m.write("/usr/local/cuda-13.0/lib64/stubs/libcuda.so.1")
    m.environ["LD_LIBRARY_PATH"] = str(m.at("/usr/local/cuda-13.0/lib64/stubs"))


def no_cards(m: Posed) -> None:
    m.cards([])


def cards(*kinds: tuple[str, int, str], **how: object) -> Change:
    return lambda m: m.cards(kinds, **how)  # type: ignore[arg-type]


def smi_fails(m: Posed) -> None:
    script(m.bin / "nvidia-smi", says("Failed to initialize NVML: Driver/library version mismatch") + "\nexit 18")


def cards_without_driver(m: Posed) -> None:
    (m.bin / "nvidia-smi").unlink()
    for path in ("/dev/nvidia0", "/dev/nvidia1", "/proc/driver"):
        m.remove(path)


def lock(age_s: float) -> Change:
    def change(m: Posed) -> None:
        path = m.write("/home/.cache/torch_extensions/py311_cu130/fused_adam/lock")
        then = time.time() - age_s
        os.utime(path, (then, then))

    return change


def busy_lock(m: Posed) -> None:
    lock(900)(m)
    m.write("/proc/77/comm", "ninja\n")
    m.at("/proc/77/cwd").symlink_to(m.at("/home/.cache/torch_extensions/py311_cu130/fused_adam"))


def built_by(site: str) -> Change:
    def change(m: Posed) -> None:
        where = site.replace("SITE", str(m.site))
        m.write(
            "/home/.cache/torch_extensions/py311_cu130/cpu_adam/build.ninja", f"cflags = -isystem {where}/torch/include"
        )

    return change


def own_build(torch: str) -> Change:
    def change(m: Posed) -> None:
        folder = "/home/.cache/dstrain/ops/cpu_adam/0123456789abcdef"
        m.write(f"{folder}/cpu_adam.so", "x" * 100)
        record = {"op": "cpu_adam", "bytes": 100, "torch": f"{torch} abcdef12", "deepspeed": "0.19.8"}
        m.write(f"{folder}/build.json", json.dumps(record))

    return change


def limit(which: int, soft: int) -> Change:
    return lambda m: m.limits.update({which: (soft, 1048576)})


def infiniband(m: Posed) -> None:
    m.at("/sys/class/infiniband/mlx5_0").mkdir(parents=True)
    m.limits[resource.RLIMIT_MEMLOCK] = (65536, 65536)


def prebuilt(torch: str, cuda: str) -> Change:
    def change(m: Posed) -> None:
        info = f"torch_info={{'version': '{torch}', 'cuda_version': '{cuda}'}}"
        m.write("/site/deepspeed/git_version_info_installed.py", f"installed_ops={{'cpu_adam': True}}\n{info}\n")

    return change


def two_nodes(m: Posed) -> None:
    m.write("/sys/devices/system/node/node1/cpulist", "8-15")
    (m.bin / "numactl").unlink()


def both(*changes: Change) -> Change:
    return lambda m: [change(m) for change in changes]
