"""Memory, limits, processors and network of a machine, from /proc, /sys and the environment."""

from __future__ import annotations

import re
import resource
from pathlib import Path

from dstrain.core.errors import UsageError
from dstrain.core.machine import Limits, Memory, Network, Threads, Unknown
from dstrain.probe.place import Place
from dstrain.probe.world import world_facts

_KIB = 1024
_GROUPS = "/sys/fs/cgroup"
_NO_LIMIT_BYTES = 2**60  # control groups v1 write a number near 2**63 for "no limit"


def memory(place: Place) -> tuple[Memory, list[Unknown]]:
    """Memory of the host and of this process's control group, and the size of /dev/shm."""
    fields = dict(line.partition(":")[::2] for line in (place.text("/proc/meminfo") or "").splitlines())
    total, available = _kibibytes(fields.get("MemTotal", "")), _kibibytes(fields.get("MemAvailable", ""))
    limit, used = _group_memory(place)
    unknown = [] if total else [Unknown("the host's memory", "/proc/meminfo does not say")]
    shm = place.at("/dev/shm")
    shm_bytes = None
    if shm.is_dir():
        try:
            stat = place.statvfs(shm)
            shm_bytes = stat.f_blocks * stat.f_frsize
        except OSError as error:
            unknown.append(Unknown("the size of /dev/shm", str(error.strerror)))
    return Memory(total, available, limit, used, shm_bytes), unknown


def _kibibytes(text: str) -> int | None:
    words = text.split()
    return int(words[0]) * _KIB if words and re.fullmatch(r"[0-9]{1,18}", words[0]) else None


def _group_memory(place: Place) -> tuple[int | None, int | None]:
    """(limit, used) in bytes of the tightest control group above this process; version 2, then version 1."""
    found: tuple[int | None, int | None] = (None, None)
    for folder in _group_folders(place):
        limit = place.number(f"{folder}/memory.max")
        if limit is not None and (found[0] is None or limit < found[0]):
            found = limit, place.number(f"{folder}/memory.current")
    if found[0] is None:
        limit = place.number(f"{_GROUPS}/memory/memory.limit_in_bytes")
        if limit is not None and limit < _NO_LIMIT_BYTES:
            found = limit, place.number(f"{_GROUPS}/memory/memory.usage_in_bytes")
    return found


def _group_folders(place: Place) -> list[str]:
    """This process's control group (version 2) and all above it; inside a container the first is the root."""
    lines = (place.text("/proc/self/cgroup") or "").splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    parts = [part for part in own.split("/") if part and part != ".."]
    return ["/".join([_GROUPS, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def limits(place: Place) -> tuple[Limits, list[Unknown]]:
    """`ulimit`s."""
    return (
        Limits(
            open_files=place.limit(resource.RLIMIT_NOFILE),
            locked_bytes=place.limit(resource.RLIMIT_MEMLOCK),
            processes=place.limit(resource.RLIMIT_NPROC),
        ),
        [],
    )


def threads(place: Place) -> tuple[Threads, list[Unknown]]:
    """Processors, NUMA nodes, and numactl."""
    lines = (place.text("/proc/cpuinfo") or "").splitlines()
    cpus = sum(line.startswith("processor") for line in lines) or None
    nodes = [name for name in place.names("/sys/devices/system/node") if name[4:].isdigit() and name.startswith("node")]
    unknown = [] if nodes else [Unknown("the NUMA nodes", "/sys/devices/system/node is not there")]
    return Threads(cpus, place.usable_cpus(), _quota(place), len(nodes) or None, place.which("numactl")), unknown


def _quota(place: Place) -> float | None:
    """Processors that the control group pays for; None without a limit."""
    found: list[float] = []
    for folder in _group_folders(place):
        words = (place.text(f"{folder}/cpu.max") or "").split()
        if len(words) == 2 and all(re.fullmatch(r"[1-9][0-9]{0,11}", word) for word in words):
            found.append(int(words[0]) / int(words[1]))
    quota, period = (place.number(f"{_GROUPS}/cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
    if quota and period:
        found.append(quota / period)
    return min(found, default=None)


def network(place: Place) -> tuple[Network, list[Unknown]]:
    """Interfaces, InfiniBand, this host's own name, and what earlier launchers left behind."""
    base = "/sys/class/net"
    names = place.names(base)
    up = tuple((name, place.text(f"{base}/{name}/operstate") in ("up", "unknown")) for name in names)
    unknown = [] if names else [Unknown("the network interfaces", f"{base} is not there")]
    leftover = ""
    try:
        world_facts(place.environ)
    except UsageError as error:
        leftover = error.message
    return (
        Network(
            hostname=place.hostname,
            interfaces=up or None,
            infiniband=tuple(place.names("/sys/class/infiniband")),
            host_address=_host_address(place),
            leftover=leftover,
            bad_env_file=_bad_env_lines(place),
        ),
        unknown,
    )


def _host_address(place: Place) -> str | None:
    """The first address of this host's name in /etc/hosts. No name server is asked: that may take long."""
    for line in (place.text("/etc/hosts") or "").splitlines():
        words = line.partition("#")[0].split()
        if place.hostname in words[1:]:
            return words[0]
    return None


def _bad_env_lines(place: Place) -> tuple[tuple[str, int, str], ...]:
    """Lines that `key, val = line.split('=')` of DeepSpeed 0.19.8's runner cannot take."""
    name = place.environ.get("DS_ENV_FILE") or ".deepspeed_env"
    found = []
    for path in dict.fromkeys((place.home() / name, place.working / name)):
        try:
            lines = Path(path).read_text(errors="replace").splitlines()
        except OSError:
            continue
        found += [(str(path), number, line) for number, line in enumerate(lines, 1) if not _is_assignment(line)]
    return tuple(found)


def _is_assignment(line: str) -> bool:
    return "=" in line
