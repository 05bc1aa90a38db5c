"""Frozen facts about one machine, for the doctor's rules. `probe/machine.py` gathers them; tests make them up.

None, in a field or for a whole fact, means that it is not known: a rule says nothing of what it does not know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Software:
    """What is installed in this Python environment. Versions are None where the package is not there.

    Args:
        torch_cuda: CUDA version that torch was compiled with; "" for a build without CUDA.
        prebuilt_for: (torch, CUDA) versions that ops compiled into DeepSpeed were made for; None: there are none.
        ninja: the one on PATH.
        hidden_ninja: the one beside this Python, when PATH does not lead to it.
        python_header: path where `Python.h` belongs.
    """

    python: str = "3.11"
    torch: str | None = None
    torch_cuda: str = ""
    deepspeed: str | None = None
    prebuilt_for: tuple[str, str] | None = None
    ninja: str | None = None
    hidden_ninja: str | None = None
    python_header: str = ""
    has_python_header: bool = True
    libaio_header: str | None = None


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A folder that is, or poses as, a CUDA toolkit.

    Args:
        found_by: `CUDA_HOME`, `PATH`, `folder`, `pip`.
        version: `13.0` as its nvcc says; None when there is no nvcc or it does not say.
        said: the line of `nvcc -V`, or how it failed.
        math_missing: headers that torch's own headers include and that are not in it.
    """

    root: str
    found_by: tuple[str, ...] = ()
    version: str | None = None
    said: str = ""
    has_nvcc: bool = True
    has_headers: bool = True
    has_libraries: bool = True
    math_missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Library:
    """A shared library that the dynamic linker finds first, and torch's own copy that it hides ("" for none)."""

    name: str
    path: str
    hides: str = ""


@dataclass(frozen=True, slots=True)
class Cuda:
    """The toolkits of this machine, and which one torch's extension builder takes.

    Args:
        home: the folder that torch 2.13 `_find_cuda_home` returns; "" for none.
        home_by: why: `CUDA_HOME`, `CUDA_PATH`, `nvcc on PATH`, `/usr/local/cuda`.
        nvcc: first nvcc on PATH; "" for none.
        nvcc_target: the toolkit that a wrapper script or link on PATH leads to; "" when it is neither.
        math_packages: `nvidia` packages beside torch carry the headers of the math libraries.
        first_libraries: those that LD_LIBRARY_PATH puts before torch's own, and any libcuda there.
    """

    toolkits: tuple[Toolkit, ...] = ()
    home: str = ""
    home_by: str = ""
    nvcc: str = ""
    nvcc_target: str = ""
    math_packages: bool = False
    first_libraries: tuple[Library, ...] = ()

    def chosen(self) -> Toolkit | None:
        """The toolkit that is at `home`."""
        return next((kit for kit in self.toolkits if kit.root == self.home), None)

    def meant(self) -> Toolkit | None:
        """The chosen toolkit, or the one behind it where that is only the folder of a wrapper or a link."""
        kit = self.chosen()
        if kit is None or kit.has_headers or self.home_by != "nvcc on PATH" or not self.nvcc_target:
            return kit
        return next((other for other in self.toolkits if other.root == self.nvcc_target), kit)

    def usable(self, version: str) -> Toolkit | None:
        """A toolkit of just this CUDA version with all it needs."""
        fitting = (kit for kit in self.toolkits if kit.version == version and kit.has_headers and kit.has_libraries)
        return next(fitting, None)


@dataclass(frozen=True, slots=True)
class Compiler:
    """The host compiler that extension builds call: `$CXX`, else `c++`."""

    command: str = "c++"
    from_variable: bool = False
    path: str | None = None
    kind: Literal["gcc", "clang"] | None = None
    version: tuple[int, ...] | None = None
    said: str = ""
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. `index` is its place in PCI order, which is nvidia-smi's; memory in bytes."""

    index: int
    name: str = "GPU"
    uuid: str = ""
    bus: str = ""
    memory_bytes: int | None = None
    used_bytes: int | None = None
    capability: str | None = None
    mig: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f", {self.memory_bytes / 2**30:.0f} GiB" if self.memory_bytes else ""
        return f"{self.index}: {self.name}{size} at {self.bus or 'an unknown address'}"


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver.

    Args:
        version: `580.65.06`; None: no driver, or it does not answer.
        cuda: the newest CUDA version it runs; None when not known.
        trouble: what nvidia-smi said instead of an answer.
        kernel: version of the loaded kernel module, from /proc.
        pci_cards: NVIDIA display devices on the PCI bus.
        device_files: /dev/nvidia0 and so on are there.
    """

    version: str | None = None
    cuda: str | None = None
    trouble: str = ""
    kernel: str | None = None
    pci_cards: int = 0
    device_files: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """What the environment leaves visible.

    Args:
        source: the variable and its value (`CUDA_VISIBLE_DEVICES=1,3`); "" when nothing limits.
        ids: as they are to be written into CUDA_VISIBLE_DEVICES; None: no limit, and the cards are not known.
        cards: the card of each id; None where it is not known.
        problems: (what is wrong, what to type).
    """

    source: str = ""
    ids: tuple[str, ...] | None = None
    cards: tuple[Gpu | None, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()

    def known(self) -> tuple[Gpu, ...]:
        """The visible cards of which something is known."""
        return tuple(card for card in self.cards if card is not None)


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes. `limit_bytes` and `used_bytes` are the control group's, None without a limit."""

    total_bytes: int | None = None
    available_bytes: int | None = None
    limit_bytes: int | None = None
    used_bytes: int | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """`ulimit`s of this process, soft and hard; -1 is unlimited. Memory in bytes."""

    open_files: tuple[int, int] | None = None
    locked_bytes: tuple[int, int] | None = None
    processes: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    """A folder that will be written to.

    Args:
        role: `cache`, `temporary`, `checkpoints`, `nvme`.
        filesystem: its type (`ext4`, `nfs4`, `tmpfs`).
        trouble: why it cannot be written, "" when it can.
        write_bytes_s, read_bytes_s: measured past the page cache, bytes per second; None when not measured.
    """

    role: str
    path: str
    free_bytes: int | None = None
    free_inodes: int | None = None
    filesystem: str | None = None
    rotational: bool | None = None
    noexec: bool = False
    trouble: str = ""
    write_bytes_s: float | None = None
    read_bytes_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lock:
    """A `lock` file in torch's extension cache. `age_s` in seconds; `busy`: a process works in its folder."""

    path: str
    age_s: float
    busy: bool


@dataclass(frozen=True, slots=True)
class Caches:
    """Caches of compiled ops: torch's, which all environments share, and dstrain's.

    Args:
        foreign: (folder, site folder of the other environment that it was built for), in torch's cache.
        unused: (folder, why nothing here uses it, bytes), in dstrain's cache.
    """

    locks: tuple[Lock, ...] = ()
    foreign: tuple[tuple[str, str], ...] = ()
    unused: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Threads:
    """Processors: all of the machine, what this process may use, and what the control group pays for."""

    cpus: int | None = None
    usable: int | None = None
    quota: float | None = None
    numa_nodes: int | None = None
    numactl: str | None = None

    def effective(self) -> int | None:
        """Processors that can really work at once."""
        known = [value for value in (self.usable or self.cpus, self.quota) if value]
        return max(1, int(min(known))) if known else None


@dataclass(frozen=True, slots=True)
class Network:
    """Interfaces (name -> up), InfiniBand ports, and the address that /etc/hosts gives this host's name."""

    hostname: str = "localhost"
    interfaces: tuple[tuple[str, bool], ...] | None = None
    infiniband: tuple[str, ...] = ()
    host_address: str | None = None
    leftover: str = ""
    """What is wrong with launcher variables that an earlier run left in this shell."""
    bad_env_file: tuple[tuple[str, int, str], ...] = ()
    """(file, line number, line) of `.deepspeed_env` files that DeepSpeed's launcher stops at."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that could not be read, and why."""

    what: str
    why: str
