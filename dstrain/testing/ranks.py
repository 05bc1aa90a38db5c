"""Run a function in several real processes that are the ranks of one job, and get every rank's result back.

    def mean_rank() -> float: ...                  # a module-level function; torch.distributed is its own affair
    results = run_ranks(mean_rank, 2)              # fresh processes
    with RankPool(2) as pool:                      # the same processes for many calls: torch is imported once
        results = pool.run(mean_rank)

A script as a user starts it, through a launcher: `dstrain.testing.launching`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dstrain.core.errors import RankError
from dstrain.testing._frames import read_frame, write_frame
from dstrain.testing._processes import base_environment, free_port, kill_tagged, new_tag, tail
from dstrain.testing.launching import Completed, Running, launch, start

__all__ = ["Completed", "RankPool", "RanksFailed", "Running", "launch", "run_ranks", "start"]

_OTHERS_GRACE_S = 0.5  # long enough for the other ranks of a common failure to say so too


class RanksFailed(RankError):
    """A call that failed in some rank, or did not end in time. `failures` holds the text of each failing rank."""

    def __init__(self, message: str, failures: Mapping[int, str]) -> None:
        self.failures = dict(failures)
        super().__init__(message)


@dataclass
class _Rank:
    """One live process: its pipes, and the file that its stdout and stderr go to."""

    process: subprocess.Popen[bytes]
    request_fd: int
    log: Path
    call_offset: int = 0

    def output(self) -> str:
        """What the rank has printed since the present call began."""
        with self.log.open("rb") as stream:
            stream.seek(self.call_offset)
            return stream.read().decode(errors="replace")


def _reference(function: Callable[..., Any]) -> str:
    """`module:qualname`, or `/script.py:qualname` for a function of the running script."""
    name = getattr(function, "__qualname__", repr(function))
    if "<" in name or not inspect.isroutine(function):
        raise TypeError(f"{name}: ranks import the function by name, so it must be a function of a module")
    if function.__module__ == "__main__":
        return f"{Path(inspect.getfile(function)).resolve()}:{name}"
    return f"{function.__module__}:{name}"


def _spawn(rank: int, world_size: int, environment: dict[str, str], folder: Path) -> tuple[_Rank, int]:
    """Start one worker; gives it and the descriptor its replies come from."""
    request_read, request_write = os.pipe()
    reply_read, reply_write = os.pipe()
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": world_size}
    log = folder / f"rank{rank}.log"
    try:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "dstrain.testing._worker", str(request_read), str(reply_write)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=environment | {name: str(value) for name, value in places.items()},
                pass_fds=(request_read, reply_write),
                start_new_session=True,
            )
    finally:
        os.close(request_read)
        os.close(reply_write)
    return _Rank(process, request_write, log), reply_read


def _forward(rank: int, reply_fd: int, replies: queue.Queue[tuple[int, bytes | None]]) -> None:
    """Thread of one rank: each reply into the queue, None at the end."""
    reply: bytes | None = b""
    while reply is not None:
        reply = read_frame(reply_fd)
        replies.put((rank, reply))
    os.close(reply_fd)


class _Team:
    """The processes of one start of a pool; thrown away whole after any failure."""

    def __init__(self, world_size: int, env: Mapping[str, str] | None) -> None:
        self._tag = new_tag()
        self._folder = tempfile.TemporaryDirectory(prefix="dstrain-ranks-")
        self.replies: queue.Queue[tuple[int, bytes | None]] = queue.Queue()
        self.ranks: list[_Rank] = []
        self._finalizer = weakref.finalize(self, _end_team, self._tag, self.ranks, self._folder)
        environment = base_environment(self._tag, env)
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        for rank in range(world_size):
            worker, reply_fd = _spawn(rank, world_size, environment, Path(self._folder.name))
            self.ranks.append(worker)
            threading.Thread(target=_forward, args=(rank, reply_fd, self.replies), daemon=True).start()

    def dead(self) -> dict[int, str]:
        """Ranks that have ended, with how."""
        codes = {rank: worker.process.poll() for rank, worker in enumerate(self.ranks)}
        return {rank: _ending(code) for rank, code in codes.items() if code is not None}

    def dump_stacks(self) -> None:
        """Have every rank print where it is, into its own output."""
        for worker in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)

    def end(self) -> None:
        """Kill what is left and remove the folder."""
        self._finalizer()


def _ending(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"


def _end_team(tag: str, ranks: list[_Rank], folder: tempfile.TemporaryDirectory[str]) -> None:
    for worker in ranks:
        with contextlib.suppress(OSError):
            os.close(worker.request_fd)
    kill_tagged(tag)
    for worker in ranks:
        worker.process.wait()
    folder.cleanup()


class RankPool:
    """`world_size` processes that stay alive from call to call, started at the first one.

    A process group that a function has set up is there in the next call too. After a failure or a timeout the
    processes are killed, and the next call starts fresh ones. Not for use from several threads at once.

    Args:
        world_size: number of ranks.
        env: variables for the ranks, on top of this process's own.
    """

    def __init__(self, world_size: int = 2, *, env: Mapping[str, str] | None = None) -> None:
        if world_size < 1:
            raise ValueError(f"world_size {world_size}: at least one rank is needed")
        self.world_size = world_size
        self.outputs: list[str] = []
        self._env = dict(env or {})
        self._team: _Team | None = None

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 120.0) -> list[Any]:
        """`function(*args)` in every rank; the results in rank order. `outputs` then holds what each rank printed.

        Raises:
            RanksFailed: a rank raised (its traceback is shown), died, or was not done after `timeout_s`
                (the stacks of all ranks are shown). No process is left.
            TypeError: the function cannot be imported by name.
        """
        reference = _reference(function)
        request = pickle.dumps((reference, sys.path, str(Path.cwd()), pickle.dumps(args)))
        if self._team is None or self._team.dead():
            self.close()
            self._team = _Team(self.world_size, self._env)
        team = self._team
        try:
            for worker in team.ranks:
                worker.call_offset = worker.log.stat().st_size
                with contextlib.suppress(BrokenPipeError):  # the rank has died; `_collect` says how
                    write_frame(worker.request_fd, request)
            results, failures = _collect(team, timeout_s)
            self.outputs = [worker.output() for worker in team.ranks]
            if failures:
                raise RanksFailed(_story(reference, failures, self.outputs), failures)
        except BaseException:
            self.close()
            raise
        return [results[rank] for rank in range(self.world_size)]

    def close(self) -> None:
        """End the processes; a later call starts new ones."""
        team, self._team = self._team, None
        if team is not None:
            team.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _collect(team: _Team, timeout_s: float) -> tuple[dict[int, Any], dict[int, str]]:
    """Wait for a reply of every rank; after the first failure only a moment longer."""
    deadline = time.monotonic() + timeout_s
    results: dict[int, Any] = {}
    failures: dict[int, str] = {}
    while len(results) + len(failures) < len(team.ranks) and (left_s := deadline - time.monotonic()) > 0:
        dead = team.dead()  # before the queue: a rank may reply and end, and the reply must be seen first
        try:
            rank, reply = team.replies.get(timeout=min(0.2, left_s))
        except queue.Empty:
            ended = {rank: how for rank, how in dead.items() if rank not in results}
        else:
            ended = {}
            if reply is not None:
                kind, value = pickle.loads(reply)
                (results if kind == "result" else failures)[rank] = value
        new = {rank: how for rank, how in ended.items() if rank not in failures}
        if (new or failures) and deadline > time.monotonic() + _OTHERS_GRACE_S:
            deadline = time.monotonic() + _OTHERS_GRACE_S
        failures |= new
    missing = [rank for rank in range(len(team.ranks)) if rank not in results and rank not in failures]
    if missing and not failures:
        team.dump_stacks()
        failures = dict.fromkeys(missing, f"was not done after {timeout_s:g} s; its output ends with its stacks")
    return results, failures


def _story(reference: str, failures: Mapping[int, str], outputs: list[str]) -> str:
    """The whole text of a failure: each failing rank's traceback, then what each of them printed."""
    parts = [f"{reference} failed in rank {', '.join(map(str, sorted(failures)))} of {len(outputs)}"]
    for rank, why in sorted(failures.items()):
        parts.append(f"--- rank {rank}: {why.rstrip()}")
        if printed := tail(outputs[rank], lines=80):
            parts.append(f"--- rank {rank} printed:\n{printed}")
    return "\n".join(parts)


def run_ranks(
    function: Callable[..., Any],
    world_size: int = 2,
    *args: Any,
    timeout_s: float = 120.0,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """`function(*args)` in `world_size` fresh processes; the results in rank order.

    Raises:
        RanksFailed: as `RankPool.run`.
    """
    with RankPool(world_size, env=env) as pool:
        return pool.run(function, *args, timeout_s=timeout_s)
