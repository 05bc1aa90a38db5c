"""Compiling one op, once: a private staging folder, a lock that dies with its owner, a record written last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from dstrain.core.errors import OpError
from dstrain.ops import cache
from dstrain.ops.catalogue import Op, get
from dstrain.ops.diagnose import first_error
from dstrain.ops.session import kill_session
from dstrain.probe.op_cache import PORTABLE_NEEDS, Entry, Environment, environment, find, prebuilt_ops
from dstrain.probe.toolchain import cuda_search_paths

BYTES_PER_JOB = 2 * 2**30  # one cc1plus on a torch header took 1.5 to 2.1 GB
_TYPICAL_CPU_S = 200


@dataclass(frozen=True, slots=True)
class Request:
    """What a compile function gets: it must leave `<staging>/<op>/<op>.so` and write what the compiler says to `log`.

    It raises `OpError` when the op does not build.
    """

    op: Op
    accelerator: str
    staging: Path
    log: Path
    jobs: int
    march: str


Compile = Callable[[Request], None]


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def build(
    name: str,
    *,
    jobs: int | None = None,
    portable: bool = False,
    force: bool = False,
    timeout_s: float | None = None,
    accelerator: str | None = None,
    root: Path | None = None,
    why: str = "",
    say: cache.Say = _print,
    compile: Compile | None = None,
) -> Path:
    """Make sure that an op is built for this environment, and return its library.

    It is compiled by DeepSpeed's own builder in a process of its own, into a staging folder of this attempt, under
    the lock of its key; then it is moved into place and recorded. Whoever comes while it is being built waits, and
    finds it ready.

    Args:
        jobs: compilers at a time; None sizes them to the cores and to the memory at 2 GB each.
        portable: compile for a named cpu level (x86-64-v3, armv8-a) and not for the cpu of this machine.
        force: compile even if it is there.
        timeout_s: how long to wait for somebody else's build; None for ever. The own compilation is not limited.
        why: for the line that is printed (`needed by zero_optimization.offload_optimizer`).
        say: where the lines for the user go.
        compile: what compiles; DeepSpeed's builder by default.

    Raises:
        OpError: unknown op, not an op of this accelerator, a compile error (with the compiler's first error and the
            log's place), or the wait ended.
    """
    op, env = get(name), environment(accelerator)
    _check(op, env)
    march = portable_level() if portable else "native"
    where = cache.slot(name, env, march, root)
    asked_at = time.time()
    if not force and (entry := _ready(where, env, portable, root)):
        return entry.library
    for needed in op.requires:  # its symbols are resolved when the op is first loaded, at the end of its build
        if needed not in prebuilt_ops(env.accelerator):
            build(
                needed,
                jobs=jobs,
                portable=portable,
                timeout_s=timeout_s,
                accelerator=accelerator,
                root=root,
                why=f"needed by {name}",
                say=say,
                compile=compile,
            )
    with cache.locked(where, timeout_s=timeout_s, say=say):
        if entry := _ready(where, env, portable, root):
            if not force or _built_since(entry, asked_at):
                return entry.library
        elif failed := cache.failure_since(where, asked_at):
            raise failed
        return _build_locked(op, env, where, march, jobs or default_jobs(), why, say, compile or compile_in_child)


def _check(op: Op, env: Environment) -> None:
    if env.accelerator not in op.accelerators:
        has = ", ".join(sorted(op.accelerators))
        raise OpError(
            f"DeepSpeed has no op '{op.name}' for the {env.accelerator} accelerator (it has one for {has})",
            fix="dstrain ops list",
        )
    if op.name in prebuilt_ops(env.accelerator):
        raise OpError(
            f"{op.name} is compiled into the installed DeepSpeed, which uses that one",
            fix="nothing to do",
        )


def _ready(where: cache.Slot, env: Environment, portable: bool, root: Path | None) -> Entry | None:
    return where.entry() if portable else find(where.op, env, root)


def _built_since(entry: Entry, moment: float) -> bool:
    return entry.library.stat().st_mtime >= moment


def _build_locked(
    op: Op, env: Environment, where: cache.Slot, march: str, jobs: int, why: str, say: cache.Say, compile: Compile
) -> Path:
    reason = f", {why}" if why else ""
    minutes = max(1, round((op.cpu_s or _TYPICAL_CPU_S) / 60))
    say(f"building {op.name}{reason}; about {minutes} min of one core; log {where.log}")
    started = time.monotonic()
    staging = cache.new_staging(where)
    try:
        compile(Request(op, env.accelerator, staging, where.log, jobs, march))
        library = staging / op.name / f"{op.name}.so"
        if not library.is_file():
            raise OpError(f"{op.name}: the build ended without a library", where=str(where.log))
        seconds = time.monotonic() - started
        entry = cache.commit(where, library, seconds=seconds, jobs=jobs)
    except OpError as error:
        cache.note_failure(where, error.message, error.fix)
        raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    say(f"built {op.name} in {seconds:.0f} s: {entry.library}")
    return entry.library


def portable_level() -> str:
    """The cpu level of `--portable` on this kind of machine.

    Raises:
        OpError: none is defined for it, or this cpu itself is below it and could not test what it built.
    """
    import platform

    level = {"x86_64": "x86-64-v3", "AMD64": "x86-64-v3", "aarch64": "armv8-a", "arm64": "armv8-a"}.get(
        platform.machine()
    )
    if level is None:
        raise OpError(f"no portable cpu level is defined for {platform.machine()}", fix="build without --portable")
    if missing := PORTABLE_NEEDS[level] - environment().cpu_flags:
        raise OpError(
            f"the portable level {level} needs {', '.join(sorted(missing))}, which this cpu lacks",
            fix="build without --portable, or on a newer machine",
        )
    return level


def default_jobs() -> int:
    """Compilers at a time: cores that this process may use, and 2 GB of free memory for each; at least one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_bytes = min([psutil.virtual_memory().available, *_cgroup_free_bytes()])
    return max(1, min(cores, int(memory_bytes // BYTES_PER_JOB)))


def _cgroup_free_bytes() -> list[int]:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            return [int(Path(limit).read_text()) - int(Path(used).read_text())]
        except (OSError, ValueError):  # no such cgroup version, or "max"
            continue
    return []


def compile_in_child(request: Request) -> None:
    """Compile with DeepSpeed's builder in a child process, which ends when this one does.

    A process of its own, because a JIT build imports what it built (a second copy of an op that registers torch
    operators aborts), reads its settings from the environment, and prints from ninja at will.
    """
    command = [sys.executable, "-P", "-m", "dstrain.ops.worker", request.op.builder, request.op.name, request.march]
    here = str(Path(__file__).parents[2])
    environ = {
        **os.environ,
        "TORCH_EXTENSIONS_DIR": str(request.staging),
        "MAX_JOBS": str(request.jobs),
        "DS_ACCELERATOR": request.accelerator,
        "DSTRAIN_OPS_DIR": str(request.staging.parents[2]),
        "DSTRAIN_PARENT_PID": str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
    }
    if request.accelerator == "cuda":
        environ |= cuda_search_paths()
    request.log.parent.mkdir(parents=True, exist_ok=True)
    with open(request.log, "wb") as log:
        child = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = child.wait()
        except BaseException:  # Ctrl-C here must also end ninja and the compilers: they are in the child's session
            kill_session(child.pid)
            child.wait()
            raise
    if code != 0:
        raise first_error(request.op, request.log, code)
