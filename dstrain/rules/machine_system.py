"""HOST3xx: memory, limits, folders, and the caches of compiled ops."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Caches, Disk, Limits, Memory, Network
from dstrain.core.units import bytes_text, duration_text
from dstrain.rules.machine_view import GIB, machine, seen
from dstrain.rules.registry import rule

_LEAST_SHM_BYTES = GIB
_LEAST_FREE_BYTES = 4 * GIB
_LEAST_FILES = 4096
_LEAST_PROCESSES = 4096
_LEAST_INODES = 10_000
_NVME_BYTES_S = 10**9
_FREE_BYTES = {"cache": 2 * GIB, "temporary": 2 * GIB, "checkpoints": 20 * GIB, "nvme": 50 * GIB}
_NAMES = {
    "cache": "the cache of compiled ops",
    "temporary": "the temporary folder",
    "checkpoints": "the folder of checkpoints",
    "nvme": "the folder for NVMe offload",
}
_MOVES = {
    "cache": "export DSTRAIN_OPS_DIR=/a/folder/on/another/disk",
    "temporary": "export TMPDIR=/a/folder/on/another/disk",
    "checkpoints": "--output_dir /a/folder/on/another/disk",
    "nvme": '"nvme_path": "/a/folder/on/another/disk"',
}
_NETWORK = frozenset({"nfs", "nfs4", "lustre", "cifs", "smb3", "ceph", "gpfs", "beegfs", "glusterfs", "9p", "afs"})
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@rule(
    "HOST301",
    Severity.WARNING,
    "/dev/shm is small",
    fires=machine(memory={"shm_bytes": 64 * 2**20}),
    quiet=machine(memory={"shm_bytes": 16 * GIB}),
)
def small_shm(memory: Memory) -> Iterator[Hit]:
    """DataLoader workers and NCCL hand data over in /dev/shm; full, it ends in a bus error.

    Docker gives a container 64 MiB unless it is told otherwise.
    """
    if memory.shm_bytes is not None and memory.shm_bytes < _LEAST_SHM_BYTES:
        yield seen(
            "/dev/shm",
            f"/dev/shm has {bytes_text(memory.shm_bytes)}; workers and NCCL need {bytes_text(_LEAST_SHM_BYTES)}+",
            "docker run --shm-size=16g … (or --ipc=host); elsewhere: mount -o remount,size=16g /dev/shm",
            f"statvfs /dev/shm: {memory.shm_bytes} bytes",
        )


@rule(
    "HOST302",
    Severity.WARNING,
    "Little memory is left",
    fires=machine(memory={"limit_bytes": 8 * GIB, "used_bytes": 6 * GIB}),
    quiet=machine(memory={"limit_bytes": 64 * GIB, "used_bytes": 6 * GIB}),
)
def little_memory(memory: Memory) -> Iterator[Hit]:
    """A control group ends a process that goes over its limit, with no message from Python.

    What is left is the smaller of the group's limit less its use, and what the host has available.
    """
    left = []
    if memory.limit_bytes is not None and memory.used_bytes is not None:
        left.append((memory.limit_bytes - memory.used_bytes, f"memory.max {bytes_text(memory.limit_bytes)}"))
    if memory.available_bytes is not None:
        left.append((memory.available_bytes, "/proc/meminfo MemAvailable"))
    if left and min(left)[0] < _LEAST_FREE_BYTES:
        free, source = min(left)
        used = f", memory.current {bytes_text(memory.used_bytes)}" if memory.used_bytes and "max" in source else ""
        yield seen(
            "memory",
            f"{bytes_text(max(0, free))} of memory are left for this process; starting takes about"
            f" {bytes_text(_LEAST_FREE_BYTES)}",
            "docker run --memory=32g … (Slurm: --mem=32G), or end what else runs here",
            f"{source}{used}",
        )


@rule(
    "HOST303",
    Severity.WARNING,
    "Few files may be open at once",
    fires=machine(limits={"open_files": [1024, 1048576]}),
    quiet=machine(limits={"open_files": [65536, 1048576]}),
)
def few_files(limits: Limits) -> Iterator[Hit]:
    """Each tensor that a DataLoader worker hands over may hold a file open, and each rank its sockets.

    1024, a usual soft limit, ends in "Too many open files" in long runs with workers.
    """
    if limits.open_files is not None and 0 <= limits.open_files[0] < _LEAST_FILES:
        soft, hard = limits.open_files
        most = 65536 if hard < 0 else min(hard, 65536)
        yield seen(
            "ulimit -n",
            f"{soft} files may be open at once; with DataLoader workers {_LEAST_FILES} or more are needed",
            f"ulimit -n {most}" if most > soft else "docker run --ulimit nofile=65536 …, or limits.conf",
            f"RLIMIT_NOFILE: soft {soft}, hard {'unlimited' if hard < 0 else hard}",
            severity=Severity.ADVICE if soft >= 1024 else None,
        )


@rule(
    "HOST304",
    Severity.WARNING,
    "Locked memory is limited, and there is InfiniBand",
    fires=machine(limits={"locked_bytes": [65536, 65536]}, network={"infiniband": ["mlx5_0"]}),
    quiet=machine(limits={"locked_bytes": [65536, 65536]}),
)
def locked_memory(limits: Limits, network: Network) -> Iterator[Hit]:
    """InfiniBand registers memory, and registered memory is locked. With a limit NCCL fails in ibv_reg_mr."""
    if network.infiniband and limits.locked_bytes is not None and 0 <= limits.locked_bytes[0] < GIB:
        yield seen(
            "ulimit -l",
            f"{bytes_text(limits.locked_bytes[0])} may be locked; {', '.join(network.infiniband)} needs it unlimited",
            "docker run --ulimit memlock=-1 …; elsewhere: ulimit -l unlimited, or limits.conf",
            f"RLIMIT_MEMLOCK: soft {limits.locked_bytes[0]}, hard {limits.locked_bytes[1]}",
        )


@rule(
    "HOST305",
    Severity.WARNING,
    "Few processes and threads are allowed",
    fires=machine(limits={"processes": [512, 512]}),
    quiet=machine(limits={"processes": [-1, -1]}),
)
def few_processes(limits: Limits) -> Iterator[Hit]:
    """Every rank starts threads for its cores, its workers and its collectives. All of a user's count together."""
    if limits.processes is not None and 0 <= limits.processes[0] < _LEAST_PROCESSES:
        yield seen(
            "ulimit -u",
            f"this user may have {limits.processes[0]} processes and threads; ranks and workers need more than"
            f" {_LEAST_PROCESSES}",
            f"ulimit -u {_LEAST_PROCESSES * 4} (docker run --ulimit nproc={_LEAST_PROCESSES * 4} …)",
            f"RLIMIT_NPROC: soft {limits.processes[0]}, hard {limits.processes[1]}",
        )


@rule(
    "HOST306",
    Severity.ERROR,
    "A folder cannot be written",
    fires=machine(disks=[{"trouble": "it is mounted read-only"}]),
    quiet=machine(disks=[{}]),
)
def not_writable(disks: tuple[Disk, ...]) -> Iterator[Hit]:
    """Ops, temporary files and checkpoints need their folders. A missing folder is made; one for NVMe must be there."""
    for disk in disks:
        if disk.trouble:
            yield seen(
                disk.role,
                f"{_NAMES[disk.role]}, {disk.path}, cannot be written: {disk.trouble}",
                f"mkdir -p {disk.path}" if "not exist" in disk.trouble else _MOVES[disk.role],
                f"{disk.path}: {disk.trouble}",
                severity=Severity.WARNING if disk.role == "cache" else None,
            )


@rule(
    "HOST307",
    Severity.WARNING,
    "Compiled ops cannot be loaded from a folder that is mounted noexec",
    fires=machine(disks=[{"noexec": True}]),
    quiet=machine(disks=[{"role": "checkpoints", "noexec": True}]),
)
def noexec(disks: tuple[Disk, ...]) -> Iterator[Hit]:
    """A shared library cannot be mapped from there ("failed to map segment from shared object")."""
    for disk in disks:
        if disk.noexec and disk.role == "cache":
            yield seen(
                disk.role,
                f"{_NAMES[disk.role]}, {disk.path}, is on a filesystem that is mounted noexec",
                _MOVES[disk.role],
                f"/proc/mounts: {disk.filesystem or 'filesystem'} with noexec",
            )


@rule(
    "HOST308",
    Severity.WARNING,
    "A disk is almost full",
    fires=machine(disks=[{"free_bytes": GIB // 2}]),
    quiet=machine(disks=[{"free_bytes": 100 * GIB}]),
)
def full_disk(disks: tuple[Disk, ...]) -> Iterator[Hit]:
    """Builds and temporary files need room. A checkpoint takes 14 to 16 bytes per parameter (Adam, mixed precision).

    Free inodes run out too: a cache of many small files fills a disk that has space left.
    """
    for disk in disks:
        least = _FREE_BYTES.get(disk.role, 0)
        if not disk.trouble and disk.free_bytes is not None and disk.free_bytes < least:
            yield seen(
                disk.role,
                f"{_NAMES[disk.role]}, {disk.path}, has {bytes_text(disk.free_bytes)} left; {bytes_text(least)} are"
                " little already",
                f"free some space, or {_MOVES[disk.role]}",
                f"statvfs {disk.path}: {disk.free_bytes} bytes",
                severity=Severity.ADVICE if disk.role in ("checkpoints", "nvme") else None,
            )
        elif disk.free_inodes is not None and disk.free_inodes < _LEAST_INODES and not disk.trouble:
            yield seen(
                disk.role,
                f"{_NAMES[disk.role]}, {disk.path}, has room for {disk.free_inodes} more files only",
                f"remove small files there, or {_MOVES[disk.role]}",
                f"statvfs {disk.path}: {disk.free_inodes} inodes free",
            )


@rule(
    "HOST309",
    Severity.WARNING,
    "The folder for NVMe offload is not on an NVMe disk",
    fires=machine(disks=[{"role": "nvme", "filesystem": "nfs4"}]),
    quiet=machine(disks=[{"role": "nvme", "filesystem": "xfs", "rotational": False}]),
)
def not_nvme(disks: tuple[Disk, ...]) -> Iterator[Hit]:
    """Offloading moves all optimizer state at every step: a network, a spinning disk or memory is no help."""
    for disk in disks:
        if disk.role != "nvme" or disk.trouble:
            continue
        if disk.filesystem in _NETWORK:
            why = f"on a network filesystem ({disk.filesystem})"
        elif disk.filesystem in _IN_MEMORY:
            why = f"in memory ({disk.filesystem}): offloading to it saves nothing"
        elif disk.rotational and disk.write_bytes_s is None:
            why = "on a disk that says it spins"
        else:
            continue
        yield seen("nvme", f"{disk.path} is {why}", _MOVES["nvme"], f"/proc/mounts, /sys/dev/block: {disk.path}")


@rule(
    "HOST310",
    Severity.WARNING,
    "The disk for NVMe offload is slow",
    fires=machine(disks=[{"role": "nvme", "write_bytes_s": 2e8, "read_bytes_s": 5e8}]),
    quiet=machine(disks=[{"role": "nvme", "write_bytes_s": 2.5e9, "read_bytes_s": 6e9}]),
)
def slow_nvme(disks: tuple[Disk, ...]) -> Iterator[Hit]:
    """Measured with one writer and one reader past the page cache. Below 1 GB/s most of a step is waiting.

    Per parameter, a step with Adam reads and writes 12 bytes: a billion parameters at 0.5 GB/s take 48 s.
    """
    for disk in disks:
        speeds = [speed for speed in (disk.write_bytes_s, disk.read_bytes_s) if speed is not None]
        if disk.role == "nvme" and speeds and min(speeds) < _NVME_BYTES_S:
            step_s = sum(12e9 / speed for speed in speeds)
            yield seen(
                "nvme",
                f"{disk.path}: {min(speeds) / 1e6:.0f} MB/s; a step of a billion parameters would wait"
                f" {duration_text(step_s)} for it",
                'offload to a faster disk, or to the CPU: "device": "cpu"',
                f"wrote at {(disk.write_bytes_s or 0) / 1e6:.0f} MB/s",
                f"read at {(disk.read_bytes_s or 0) / 1e6:.0f} MB/s",
            )


@rule(
    "HOST311",
    Severity.WARNING,
    "A build that was killed left a lock",
    fires=machine(caches={"locks": [{"path": "/h/.cache/torch_extensions/py311_cu130/fused_adam/lock", "age_s": 900}]}),
    quiet=machine(
        caches={
            "locks": [{"path": "/h/.cache/torch_extensions/py311_cu130/fused_adam/lock", "age_s": 900, "busy": True}]
        }
    ),
)
def stale_lock(caches: Caches) -> Iterator[Hit]:
    """torch's lock is a file that exists (2.13 `utils/file_baton.py`). Killed in a build, nobody removes it, and every
    later DeepSpeed start that compiles waits for ever, in silence. Ops built by dstrain are locked by the kernel
    instead, and do not wait for it."""
    for lock in caches.locks:
        if not lock.busy and lock.age_s > 60:
            yield seen(
                "torch_extensions",
                f"a build left {lock.path} {duration_text(lock.age_s)} ago: DeepSpeed's own builds wait for ever",
                f"rm {lock.path}",
                "no compiler and no ninja works in that folder",
            )


@rule(
    "HOST312",
    Severity.WARNING,
    "torch's extension cache holds builds of another environment",
    fires=machine(caches={"foreign": [["/h/.cache/torch_extensions/py311_cu130/cpu_adam", "/old/site-packages"]]}),
    quiet=machine(),
)
def foreign_builds(caches: Caches) -> Iterator[Hit]:
    """torch names that cache by Python and CUDA version only. Two environments compile each other's ops again and
    again, and one may load what the other built. dstrain's own cache has a key for each environment."""
    if caches.foreign:
        folders = [folder for folder, _ in caches.foreign]
        root = folders[0].rpartition("/")[0]
        yield seen(
            "torch_extensions",
            f"{', '.join(folder.rpartition('/')[2] for folder in folders)} in {root} "
            f"{'was' if len(folders) == 1 else 'were'} built for another environment",
            f"rm -r {' '.join(folders)}, and give each environment its own TORCH_EXTENSIONS_DIR",
            *(f"{folder}/build.ninja includes {other}/torch/include" for folder, other in caches.foreign[:5]),
        )


@rule(
    "HOST313",
    Severity.ADVICE,
    "dstrain's cache holds ops that nothing here uses",
    fires=machine(caches={"unused": [["/h/.cache/dstrain/ops/cpu_adam/0123", "torch 2.9.0, here 2.13.0", 9000000]]}),
    quiet=machine(),
)
def unused_builds(caches: Caches) -> Iterator[Hit]:
    """Each build is kept under a key of what it was built for. After an upgrade the old ones only take space.

    Other environments of this user may still use them.
    """
    if caches.unused:
        size = sum(taken for _, _, taken in caches.unused)
        yield seen(
            "cache",
            f"{len(caches.unused)} compiled ops ({bytes_text(size)}) are for other versions than those installed here",
            "dstrain ops clean (if no other environment uses them)",
            *(f"{folder}: {why}" for folder, why, _ in caches.unused[:5]),
        )
