"""Builds under the lock, with real processes: one compiles, the others find it; a killed one blocks nobody."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest
from ops_helpers import Counting, compile_c, leave_file, needs_cc

from dstrain.core.errors import OpError
from dstrain.ops import build as build_module
from dstrain.ops import cache
from dstrain.ops.build import BYTES_PER_JOB, Request, build, default_jobs, portable_level
from dstrain.ops.catalogue import get
from dstrain.ops.diagnose import first_error
from dstrain.probe.op_cache import environment, find
from dstrain.probe.toolchain import cuda_search_paths

pytestmark = pytest.mark.cpu

# A fresh interpreter would import psutil and no more; fork keeps ten of them within a second, and nothing here has
# threads.
FORK = multiprocessing.get_context("fork")


def slot_of(root: Path, name: str = "fused_adam") -> cache.Slot:
    return cache.slot(name, environment("cpu"), root=root)


def build_and_tell(root: Path, compile: Counting, told: Any, **options: Any) -> None:
    lines: list[str] = []
    try:
        library = build("fused_adam", root=root, accelerator="cpu", say=lines.append, compile=compile, **options)
        told.put(("built", str(library), lines))
    except OpError as error:
        told.put(("error", str(error), lines))


@contextlib.contextmanager
def builders(count: int, root: Path, compile: Counting, **options: Any) -> Iterator[tuple[list[BaseProcess], Any]]:
    told = FORK.Queue()
    processes: list[BaseProcess] = [
        FORK.Process(target=build_and_tell, args=(root, compile, told), kwargs=options) for _ in range(count)
    ]
    try:
        for process in processes:
            process.start()
        yield processes, told
    finally:
        for process in processes:
            process.kill()
            process.join()


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.02)


def test_ten_processes_ask_and_one_compiles(tmp_path: Path) -> None:
    counting = Counting(tmp_path, seconds=1.0)
    with builders(10, tmp_path / "ops", counting) as (processes, told):
        answers = [told.get(timeout=30) for _ in processes]
    assert counting.times() == 1
    assert {(kind, text) for kind, text, _ in answers} == {
        ("built", str(slot_of(tmp_path / "ops").folder / "fused_adam.so"))
    }
    said = sorted(lines[0].split(";")[0] for _, _, lines in answers if lines)
    assert sum(line.startswith("building fused_adam") for line in said) == 1
    waiting = [lines[0] for _, _, lines in answers if lines and "is being built by" in lines[0]]
    late = sum(not lines for _, _, lines in answers)  # on a busy machine: started when it was all over
    assert len(waiting) + late == 9
    assert late < 9
    assert all("waiting for it; log " in line for line in waiting)


def test_what_is_there_is_not_compiled_again_unless_forced(tmp_path: Path) -> None:
    counting = Counting(tmp_path)
    options: dict[str, Any] = {
        "root": tmp_path / "ops",
        "accelerator": "cpu",
        "compile": counting,
        "say": lambda _: None,
    }
    first = build("fused_adam", **options)
    assert build("fused_adam", **options) == first
    assert counting.times() == 1
    assert build("fused_adam", force=True, **options) == first
    assert counting.times() == 2
    build("cpu_adam", **options)
    assert counting.times() == 3


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_build_blocks_nobody(tmp_path: Path, how: signal.Signals) -> None:
    root = tmp_path / "ops"
    with builders(1, root, Counting(tmp_path, seconds=60)) as (processes, _):
        wait_for(lambda: list(slot_of(root).folder.glob("staging-*/half")))
        assert cache.is_locked(slot_of(root))
        os.kill(processes[0].pid or 0, how)
        processes[0].join()
    assert list(slot_of(root).folder.glob("staging-*/half"))  # what it left
    assert find("fused_adam", environment("cpu"), root) is None
    started = time.monotonic()
    build("fused_adam", root=root, accelerator="cpu", say=lambda _: None, compile=leave_file)
    assert time.monotonic() - started < 5
    assert find("fused_adam", environment("cpu"), root) is not None
    assert not list(slot_of(root).folder.glob("staging-*"))


def test_those_who_wait_go_on_when_the_builder_is_killed(tmp_path: Path) -> None:
    root = tmp_path / "ops"
    with builders(1, root, Counting(tmp_path, seconds=60)) as (first, _):
        wait_for(lambda: cache.is_locked(slot_of(root)) and (tmp_path / "compiled").exists())
        second = Counting(tmp_path, seconds=0)
        with builders(1, root, second) as (_, told):
            time.sleep(0.5)
            assert second.times() == 1  # still only the first
            os.kill(first[0].pid or 0, signal.SIGKILL)
            kind, _, lines = told.get(timeout=5)
    assert kind == "built"
    assert f"process {first[0].pid} on this host" in lines[0]
    assert second.times() == 2


def test_a_wait_can_have_an_end(tmp_path: Path) -> None:
    root = tmp_path / "ops"
    with builders(1, root, Counting(tmp_path, seconds=60)) as (first, _):
        wait_for(lambda: (tmp_path / "compiled").exists())
        with pytest.raises(OpError) as caught:
            build("fused_adam", root=root, accelerator="cpu", timeout_s=0.5, say=lambda _: None, compile=leave_file)
    assert f"still being built by process {first[0].pid} on this host" in str(caught.value)
    assert "waited 0.5 s" in str(caught.value)


def test_one_failure_is_everybodys_failure_but_not_for_ever(tmp_path: Path) -> None:
    root, failing = tmp_path / "ops", Counting(tmp_path, seconds=1.0, fail=True)
    with builders(4, root, failing) as (processes, told):
        answers = [told.get(timeout=20) for _ in processes]
    assert failing.times() == 1
    assert {kind for kind, _, _ in answers} == {"error"}
    assert all("no luck" in text and "fix: try again" in text for _, text, _ in answers)
    assert find("fused_adam", environment("cpu"), root) is None
    build("fused_adam", root=root, accelerator="cpu", say=lambda _: None, compile=leave_file)  # asked anew, tried anew
    assert find("fused_adam", environment("cpu"), root) is not None


def test_a_failed_rebuild_keeps_what_was_there(tmp_path: Path) -> None:
    root = tmp_path / "ops"
    library = build("fused_adam", root=root, accelerator="cpu", say=lambda _: None, compile=leave_file)
    failing = Counting(tmp_path, fail=True)
    with pytest.raises(OpError, match="no luck"):
        build("fused_adam", root=root, accelerator="cpu", force=True, say=lambda _: None, compile=failing)
    assert library.read_bytes() == b"library"
    assert find("fused_adam", environment("cpu"), root) is not None


def test_a_portable_build_is_another_build(tmp_path: Path) -> None:
    requests: list[Request] = []

    def remember(request: Request) -> None:
        requests.append(request)
        leave_file(request)

    options: dict[str, Any] = {"root": tmp_path, "accelerator": "cpu", "say": lambda _: None, "compile": remember}
    native, portable = build("cpu_adam", **options), build("cpu_adam", portable=True, **options)
    assert native != portable
    assert [request.march for request in requests] == ["native", portable_level()]


def test_what_an_op_requires_is_built_before_it(tmp_path: Path) -> None:
    names: list[str] = []

    def remember(request: Request) -> None:
        names.append(request.op.name)
        leave_file(request)

    lines: list[str] = []
    build("async_io", root=tmp_path, accelerator="cpu", say=lines.append, compile=remember)
    assert names == ["pin_memory", "async_io"]
    assert lines[0].startswith("building pin_memory, needed by async_io")


def test_cuda_headers_of_the_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia" / "cu13" / "include").mkdir(parents=True)
    (tmp_path / "nvidia" / "cu13" / "lib").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CPATH", "/mine")
    monkeypatch.delenv("LIBRARY_PATH", raising=False)
    cu13 = tmp_path / "nvidia" / "cu13"
    paths = cuda_search_paths()
    assert paths["CPATH"].split(os.pathsep)[:2] == ["/mine", str(cu13 / "include")]
    assert paths["LIBRARY_PATH"].split(os.pathsep)[0] == str(cu13 / "lib")


def test_ops_of_another_accelerator_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OpError, match="no op 'quantizer' for the cpu accelerator"):
        build("quantizer", root=tmp_path, accelerator="cpu", compile=leave_file)


def test_jobs_follow_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Memory:
        available = 5 * BYTES_PER_JOB + 1

    monkeypatch.setattr(build_module.psutil, "virtual_memory", lambda: Memory)
    monkeypatch.setattr(build_module, "_cgroup_free_bytes", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    assert default_jobs() == 5
    monkeypatch.setattr(build_module, "_cgroup_free_bytes", lambda: [3 * BYTES_PER_JOB])
    assert default_jobs() == 3
    monkeypatch.setattr(build_module, "_cgroup_free_bytes", lambda: [10])
    assert default_jobs() == 1
    monkeypatch.setattr(build_module, "_cgroup_free_bytes", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    assert default_jobs() == 2


LOGS = {
    "missing header": (
        "[1/3] c++ -MMD -c cpu_adam.cpp\n/src/x.cpp:3:10: fatal error: libaio.h: No such file or directory\n"
        "ninja: build stopped: subcommand failed.\nRuntimeError: Error building extension 'cpu_adam'",
        "libaio is not installed",
        "fatal error: libaio.h",
        "apt install libaio-dev",
    ),
    "no memory": (
        "c++: fatal error: Killed signal terminated program cc1plus\ncompilation terminated.",
        "ran out of memory",
        "Killed signal",
        "--jobs 1",
    ),
    "disk": (
        "/tmp/x.s: fatal error: error writing to /tmp/x.s: No space left on device",
        "the disk is full",
        "No space",
        "DSTRAIN_OPS_DIR",
    ),
    "plain error": (
        "FAILED: x.o\nx.cpp:9:1: error: 'foo' was not declared in this scope\nx.cpp:12:1: error: expected ';'\n",
        "did not build",
        "'foo' was not declared",
        "read the log",
    ),
    "new gcc": (
        "#error -- unsupported GNU version! gcc versions later than 15 are not supported!",
        "newer than this nvcc",
        "unsupported GNU version",
        "older g++",
    ),
    "no ninja": (
        "RuntimeError: Unable to JIT load the cpu_adam op due to ninja not being installed.",
        "ninja is not installed",
        "",
        "pip install ninja",
    ),
}


@pytest.mark.parametrize("case", sorted(LOGS))
def test_a_log_becomes_one_message(tmp_path: Path, case: str) -> None:
    text, reason, line, fix = LOGS[case]
    log = tmp_path / "build.log"
    log.write_text(text)
    shown = str(first_error(get("cpu_adam"), log, 1))
    assert reason in shown
    assert line in shown
    assert fix in shown.partition("fix: ")[2]
    assert str(log) in shown
    assert "expected ';'" not in shown  # the first error only


def test_a_signal_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    assert "ended by SIGSEGV" in str(first_error(get("cpu_adam"), tmp_path / "log", -11))


@needs_cc
def test_a_real_compiler_error_is_shown(tmp_path: Path) -> None:
    def broken(request: Request) -> None:
        source = tmp_path / "broken.c"
        source.write_text("int f(void) { return missing_name; }\n")
        with open(request.log, "wb") as log:
            done = subprocess.run(["cc", "-c", str(source), "-o", "/dev/null"], stdout=log, stderr=log, check=False)
        raise first_error(request.op, request.log, done.returncode)

    with pytest.raises(OpError, match="missing_name") as caught:
        build("cpu_adam", root=tmp_path / "ops", accelerator="cpu", say=lambda _: None, compile=broken)
    assert "build.log" in str(caught.value)


@needs_cc
def test_a_real_library_goes_through(tmp_path: Path) -> None:
    library = build("cpu_adam", root=tmp_path, accelerator="cpu", say=lambda _: None, compile=compile_c)
    assert library.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_compilers_end_with_the_process_that_started_them(tmp_path: Path, how: signal.Signals) -> None:
    child = (
        "import subprocess, os, pathlib; from dstrain.ops.worker import _die_with_parent; _die_with_parent();"
        f"s = subprocess.Popen(['sleep', '60'], process_group=0); file = pathlib.Path({str(tmp_path)!r}, 'pids');"
        "file.write_text(f'{os.getpid()} {s.pid}'); s.wait()"
    )
    parent = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True).wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent])
    try:
        wait_for(lambda: len((tmp_path / "pids").read_text().split()) == 2 if (tmp_path / "pids").exists() else False)
        pids = [int(word) for word in (tmp_path / "pids").read_text().split()]
        os.kill(process.pid, how)
        process.wait()
        wait_for(lambda: not any(_alive(pid) for pid in pids), 5)
    finally:
        process.kill()
        process.wait()


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
