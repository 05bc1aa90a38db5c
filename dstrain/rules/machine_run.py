"""HOST4xx: threads, NUMA, network, and what the environment still holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Mask, Network, Software, Threads
from dstrain.rules.machine_view import machine, plural, seen, whole
from dstrain.rules.registry import rule

_OMP = "OMP_NUM_THREADS"
_SLOW = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel waits for the one before"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "every tensor is allocated by the driver"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked on all ranks"),
    "NCCL_P2P_DISABLE": ("1", "cards talk through host memory"),
    "NCCL_SHM_DISABLE": ("1", "ranks of one host talk through sockets"),
}


def _ranks(mask: Mask, threads: Threads) -> int:
    """How many ranks a launcher starts here: one per visible card, else one per NUMA node (DeepSpeed 0.19.8)."""
    return len(mask.ids or ()) or threads.numa_nodes or 1


@rule(
    "HOST401",
    Severity.ADVICE,
    "OMP_NUM_THREADS is not set",
    fires=machine(environ={"OMP_NUM_THREADS": ""}),
    quiet=machine(environ={"OMP_NUM_THREADS": "8"}),
)
def no_threads(environ: Mapping[str, str], threads: Threads, mask: Mask) -> Iterator[Hit]:
    """The deepspeed launcher leaves it alone: each rank then starts a thread per core, and they take them from each
    other. (torchrun sets 1.) Work on the CPU, such as optimizer offload, gets slower by the number of ranks."""
    ranks, cores = _ranks(mask, threads), threads.effective()
    if not environ.get(_OMP) and ranks > 1 and cores and cores > 1:
        yield seen(
            _OMP,
            f"{_OMP} is not set: each of {ranks} ranks would use all {cores} cores",
            f"export {_OMP}={max(1, cores // ranks)}",
            f"{plural(ranks, 'rank')} on {plural(cores, 'core')}",
        )


@rule(
    "HOST402",
    Severity.WARNING,
    "OMP_NUM_THREADS is more than there are cores",
    fires=machine(environ={"OMP_NUM_THREADS": "64"}),
    quiet=machine(environ={"OMP_NUM_THREADS": "16"}),
)
def many_threads(environ: Mapping[str, str], threads: Threads) -> Iterator[Hit]:
    """Threads that share a core wait for each other at every parallel loop. A value that is no number is ignored."""
    value, cores = environ.get(_OMP, "").strip(), threads.effective()
    count = whole(value.split(",")[0].strip())
    if not value or cores is None or (count is not None and 1 <= count <= cores):
        return
    what = f"is more than the {plural(cores, 'core')} of this process" if count else "is no count"
    yield seen(_OMP, f"{_OMP}={value} {what}", f"export {_OMP}={cores}", f"{_OMP}={value}", f"usable: {cores}")


@rule(
    "HOST403",
    Severity.WARNING,
    "The control group pays for fewer cores than are shown",
    fires=machine(threads={"quota": 4.0}, environ={"OMP_NUM_THREADS": ""}),
    quiet=machine(threads={"quota": 4.0}, environ={"OMP_NUM_THREADS": "2"}),
)
def cpu_quota(environ: Mapping[str, str], threads: Threads) -> Iterator[Hit]:
    """torch counts the cores it may run on, and not the quota (docker --cpus, a Kubernetes limit).

    It starts too many threads, and all of them are stopped for the rest of each period when the quota is spent.
    """
    if threads.quota is not None and threads.usable and threads.quota < threads.usable and not environ.get(_OMP):
        cores = max(1, int(threads.quota))
        yield seen(
            _OMP,
            f"{threads.usable} cores are shown, and the control group pays for {threads.quota:g}: torch would start"
            f" {threads.usable} threads",
            f"export {_OMP}={cores}",
            f"cpu.max: {threads.quota:g} cores",
        )


@rule(
    "HOST404",
    Severity.ADVICE,
    "Several NUMA nodes, and no numactl",
    fires=machine(threads={"numa_nodes": 2, "numactl": None}),
    quiet=machine(threads={"numa_nodes": 2}),
)
def no_numactl(threads: Threads) -> Iterator[Hit]:
    """`deepspeed --bind_cores_to_rank` keeps each rank on the cores and memory beside it, and needs numactl."""
    if threads.numa_nodes is not None and threads.numa_nodes > 1 and threads.numactl is None:
        yield seen(
            "numactl",
            f"{threads.numa_nodes} NUMA nodes and no numactl: ranks cannot be bound to their cores",
            "apt install numactl, then deepspeed --bind_cores_to_rank …",
            f"/sys/devices/system/node: {threads.numa_nodes} nodes; no numactl on PATH",
        )


@rule(
    "HOST405",
    Severity.ADVICE,
    "Plain deepspeed starts one rank per NUMA node on a CPU",
    fires=machine(software={"torch": "2.13.0+cpu", "torch_cuda": ""}, threads={"numa_nodes": 2}),
    quiet=machine(software={"torch": "2.13.0+cpu", "torch_cuda": ""}, threads={"numa_nodes": 1}),
)
def numa_ranks(software: Software, threads: Threads) -> Iterator[Hit]:
    """DeepSpeed 0.19.8 counts NUMA nodes for devices on the CPU, so the global batch depends on the machine."""
    if software.torch and not software.torch_cuda and (threads.numa_nodes or 1) > 1:
        yield seen(
            "numa",
            f"`deepspeed train.py` starts {threads.numa_nodes} ranks here, one per NUMA node",
            "deepspeed --num_gpus N train.py",
            f"/sys/devices/system/node: {threads.numa_nodes} nodes",
        )


@rule(
    "HOST406",
    Severity.ADVICE,
    "KMP_AFFINITY and binding of cores exclude each other",
    fires=machine(environ={"KMP_AFFINITY": "granularity=fine,compact"}),
    quiet=machine(),
)
def kmp_affinity(environ: Mapping[str, str]) -> Iterator[Hit]:
    """`deepspeed --bind_cores_to_rank` raises ValueError while KMP_AFFINITY is set (0.19.8)."""
    if value := environ.get("KMP_AFFINITY"):
        yield seen(
            "KMP_AFFINITY",
            f"KMP_AFFINITY={value}: deepspeed --bind_cores_to_rank would refuse to start",
            "unset KMP_AFFINITY",
            f"KMP_AFFINITY={value}",
        )


@rule(
    "HOST411",
    Severity.ERROR,
    "The network interface that is named is not there, or is down",
    fires=machine(environ={"NCCL_SOCKET_IFNAME": "ib0"}),
    quiet=machine(environ={"NCCL_SOCKET_IFNAME": "eth"}),
)
def interface(environ: Mapping[str, str], network: Network) -> Iterator[Hit]:
    """NCCL_SOCKET_IFNAME is a list of prefixes (`eth`), of names (`=eth0`), or of what to leave out (`^docker`).

    GLOO_SOCKET_IFNAME is a list of names. With none that is up, ranks fail when they connect.
    """
    if network.interfaces is None:
        return
    up = [name for name, is_up in network.interfaces if is_up]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        value = environ.get(variable, "").strip()
        if not value or _matches(value, up, prefixes=variable.startswith("NCCL")):
            continue
        down = _matches(value, [name for name, _ in network.interfaces], prefixes=variable.startswith("NCCL"))
        best = next((name for name in up if name != "lo" and not name.startswith(("docker", "veth", "br-"))), "lo")
        yield seen(
            variable,
            f"{variable}={value}: {'it is down' if down else 'there is no such interface'}",
            f"export {variable}={best}",
            "/sys/class/net: "
            + ", ".join(f"{name} ({'up' if is_up else 'down'})" for name, is_up in network.interfaces),
        )


def _matches(value: str, names: list[str], *, prefixes: bool) -> bool:
    if prefixes and value.startswith("^"):
        exact, words = value[1:].startswith("="), value.lstrip("^=").split(",")
        return any(not _one_of(name, words, prefix=not exact) for name in names)
    exact = value.startswith("=") or not prefixes
    return any(_one_of(name, value.lstrip("=").split(","), prefix=not exact) for name in names)


def _one_of(name: str, words: list[str], *, prefix: bool) -> bool:
    plain = [word.strip().partition(":")[0] for word in words]
    return any(name.startswith(word) if prefix else name == word for word in plain if word)


@rule(
    "HOST412",
    Severity.ADVICE,
    "This host's name is an address of this host only",
    fires=machine(network={"host_address": "127.0.1.1"}),
    quiet=machine(network={"host_address": "10.0.0.1"}),
)
def loopback_name(network: Network) -> Iterator[Hit]:
    """With several hosts, gloo and torch's rendezvous give out the address of the host's own name.

    Debian writes 127.0.1.1 for it into /etc/hosts, and other hosts then connect to themselves. One host alone is fine.
    """
    address = network.host_address or ""
    if address.startswith("127.") or address == "::1":
        yield seen(
            "/etc/hosts",
            f"{network.hostname} is {address} in /etc/hosts: with several hosts, others cannot reach it",
            f"write this host's real address for {network.hostname}, or export GLOO_SOCKET_IFNAME=eth0",
            f"/etc/hosts: {address} {network.hostname}",
        )


@rule(
    "HOST413",
    Severity.WARNING,
    "A variable for debugging makes training slow",
    fires=machine(environ={"CUDA_LAUNCH_BLOCKING": "1"}),
    quiet=machine(environ={"CUDA_LAUNCH_BLOCKING": "0"}),
)
def slow_variables(environ: Mapping[str, str], network: Network) -> Iterator[Hit]:
    """Variables that help to find a fault, and stay in a shell profile afterwards."""
    slow = {name: why for name, (value, why) in _SLOW.items() if environ.get(name, "").upper() == value}
    if network.infiniband and environ.get("NCCL_IB_DISABLE") == "1":
        slow["NCCL_IB_DISABLE"] = f"{', '.join(network.infiniband)} is not used"
    for name, why in slow.items():
        yield seen(name, f"{name}={environ[name]}: {why}", f"unset {name}", f"{name}={environ[name]}")


@rule(
    "HOST414",
    Severity.ERROR,
    "The shell holds half of a launcher's variables",
    fires=machine(network={"leftover": "RANK=0 is set, but WORLD_SIZE and LOCAL_RANK are not"}),
    quiet=machine(network={"leftover": ""}),
)
def leftover(network: Network) -> Iterator[Hit]:
    """RANK, WORLD_SIZE and LOCAL_RANK belong to a launcher. Left in a shell, a plain start waits for ranks that never
    come, or takes the wrong device."""
    if network.leftover:
        yield seen(
            "environment",
            network.leftover,
            "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT",
            "the environment of this shell",
        )


@rule(
    "HOST415",
    Severity.WARNING,
    "DeepSpeed's launcher stops at a line of .deepspeed_env",
    fires=machine(network={"bad_env_file": [["/home/me/.deepspeed_env", 3, "# comment"]]}),
    quiet=machine(network={"bad_env_file": []}),
)
def env_file(network: Network) -> Iterator[Hit]:
    """With several hosts, DeepSpeed 0.19.8 splits every line at `=`: a blank line or a comment ends in a ValueError."""
    for path, number, line in network.bad_env_file:
        yield seen(
            ".deepspeed_env",
            f"line {number} of {path} is {line!r}, and not NAME=VALUE: a start on several hosts fails",
            f"sed -i {number}d {path}",
            f"{path}:{number}: {line}",
        )
