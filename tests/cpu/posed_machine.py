"""A machine posed with files and small scripts: toolkits, compilers, nvidia-smi, /proc, /sys. Healthy as it comes."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dstrain.core.finding import Finding
from dstrain.probe.machine import Reading, read_machine
from dstrain.probe.place import Place
from dstrain.rules.machine import diagnose

GIB = 2**30
MATH = ("cublas_v2.h", "cusparse.h", "curand.h", "cusolverDn.h")
H100 = ("NVIDIA H100 80GB HBM3", 81559, "9.0")
T4 = ("Tesla T4", 15360, "7.5")
V100 = ("Tesla V100-SXM2-16GB", 16384, "7.0")
B200 = ("NVIDIA B200", 183359, "10.0")


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def says(*lines: str) -> str:
    """A body that prints lines; the shell's own printf, because PATH holds nothing else."""
    return "\n".join(f"printf '%s\\n' '{line}'" for line in lines) or ":"


@dataclass
class Posed:
    """The machine. `place()` is what the readers get."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    limits: dict[int, tuple[int, int]] = field(default_factory=dict)
    space: dict[str, tuple[int, int]] = field(default_factory=dict)
    flags: dict[str, int] = field(default_factory=dict)
    cpus: int = 16
    wait_s: float = 10.0

    def __post_init__(self) -> None:
        self.bin, self.site = self.root / "bin", self.root / "site"
        kit = self.toolkit("13.0")
        self.environ = {"PATH": f"{kit}/bin:{self.bin}", "HOME": str(self.root / "home"), "OMP_NUM_THREADS": "8"}
        self.limits = {
            resource.RLIMIT_NOFILE: (1048576, 1048576),
            resource.RLIMIT_MEMLOCK: (resource.RLIM_INFINITY, resource.RLIM_INFINITY),
            resource.RLIMIT_NPROC: (1048576, 1048576),
        }
        self.compiler("c++", "c++ (Debian 12.2.0-14) 12.2.0")
        script(self.bin / "ninja", says("1.13.0"))
        script(self.bin / "numactl", says("numactl"))
        self.torch("2.13.0+cu130", "13.0")
        (self.site / "deepspeed").mkdir()
        (self.site / "deepspeed-0.19.8.dist-info").mkdir()
        self.cards([H100, H100])
        self.write("/usr/include/libaio.h")
        self.write("/proc/meminfo", f"MemTotal: {256 * 2**20} kB\nMemAvailable: {250 * 2**20} kB\n")
        self.write("/proc/cpuinfo", "".join(f"processor : {cpu}\n" for cpu in range(self.cpus)))
        self.write("/proc/mounts", "/dev/sda1 / ext4 rw,relatime 0 0\n")
        self.write("/etc/hosts", "127.0.0.1 localhost\n10.0.0.1 node1\n")
        self.write("/include/Python.h")
        self.write("/sys/class/net/eth0/operstate", "up")
        self.write("/sys/class/net/lo/operstate", "unknown")
        self.write("/sys/devices/system/node/node0/cpulist", "0-15")
        for folder in ("/dev/shm", "/tmp", "/home", "/nvme"):
            self.at(folder).mkdir(parents=True, exist_ok=True)

    def at(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def write(self, path: str, text: str = "") -> Path:
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        return target

    def remove(self, path: str) -> None:
        target = self.at(path)
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    def toolkit(self, version: str, folder: str | None = None, *, headers: bool = True, math: bool = True) -> Path:
        root = self.at(folder or f"/usr/local/cuda-{version}")
        script(
            root / "bin" / "nvcc", says("nvcc: NVIDIA (R) Cuda compiler driver", f"Cuda tools, release {version}, V1")
        )
        if headers:
            (root / "include").mkdir()
            for name in ("cuda_runtime.h", *(MATH if math else ())):
                (root / "include" / name).write_text("")
            (root / "lib64").mkdir()
            (root / "lib64" / "libcudart.so.13").write_text("")
        return root

    def compiler(self, name: str, line: str) -> None:
        script(self.bin / name, says(line, "Copyright (C) Free Software Foundation, Inc."))

    def torch(self, version: str, cuda: str) -> None:
        (self.site / "torch").mkdir(parents=True, exist_ok=True)
        shown = f"'{cuda}'" if cuda else "None"
        (self.site / "torch" / "version.py").write_text(
            f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {shown}\ngit_version = 'abc'\n"
        )

    def cards(
        self,
        kinds: Sequence[tuple[str, int, str]],
        *,
        driver: str = "580.65.06",
        cuda: str = "13.0",
        used: Sequence[int] = (),
        migs: Sequence[str] = (),
    ) -> None:
        """Cards on the bus, with driver and nvidia-smi; none at all for an empty list."""
        for folder in ("/dev", "/sys/bus", "/proc/driver"):
            shutil.rmtree(self.at(folder), ignore_errors=True)
        self.at("/dev/shm").mkdir(parents=True, exist_ok=True)
        (self.bin / "nvidia-smi").unlink(missing_ok=True)
        rows, listed = [], []
        for place, (name, memory, capability) in enumerate(kinds):
            bus = f"0000{place + 1:04x}:00:00.0"
            taken = used[place] if place < len(used) else 4
            rows.append(f"{place}, {name}, GPU-{place}aaa-bbb, {bus}, {memory}, {taken}, {capability}")
            listed.append(f"GPU {place}: {name} (UUID: GPU-{place}aaa-bbb)")
            listed += [f"  MIG 1g.10gb Device: (UUID: {mig})" for mig in migs if place == 0]
            self.write(f"/dev/nvidia{place}")
            self.write(f"/sys/bus/pci/devices/{bus}/vendor", "0x10de")
            self.write(f"/sys/bus/pci/devices/{bus}/class", "0x030200")
        if not kinds:
            return
        self.write("/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX Kernel Module  {driver}  Sun")
        banner = [f"| NVIDIA-SMI {driver}  Driver Version: {driver}  CUDA Version: {cuda} |", "| MIG M. |"]
        script(
            self.bin / "nvidia-smi",
            f'case "$1" in\n--query-gpu=*) {says(*rows)};;\n-L) {says(*listed)};;\n*) {says(*banner)};;\nesac',
        )

    def place(self) -> Place:
        return Place(
            root=self.root,
            environ=self.environ,
            packages=(self.site,),
            wait_s=self.wait_s,
            header=self.at("/include/Python.h"),
            scripts=self.at("/venv/bin"),
            hostname="node1",
            working=self.at("/home"),
            limits=lambda which: self.limits[which],
            usable_cpus=lambda: self.cpus,
            statvfs=self._statvfs,
        )

    def _statvfs(self, path: Path) -> os.statvfs_result:
        name = "/" + str(path.relative_to(self.root)) if path.is_relative_to(self.root) else str(path)
        free, inodes = self.space.get(name, (500 * GIB, 10**7))
        block = 4096
        return os.statvfs_result(
            (
                block,
                block,
                free // block,
                free // block,
                free // block,
                inodes,
                inodes,
                inodes,
                self.flags.get(name, 0),
                255,
            )
        )


def examine(posed: Posed, **folders: Path) -> tuple[Reading, list[Finding]]:
    reading = read_machine(posed.place(), folders)
    report = diagnose(**reading.facts)
    for finding in report.findings:
        assert finding.proof, f"{finding.id} shows no proof"
        assert finding.fix, f"{finding.id} does not say what to type"
    return reading, list(report.findings)
