"""Start a script as a user does, with `deepspeed`, `torchrun` or `python`, and leave nothing of it behind.

done = launch(["train.py", "--max_steps", "10"], num_ranks=2)             # waits
with start(["train.py"], num_ranks=2) as job:                            # does not
    job.wait_for("step 5")
    job.kill_rank(1)
    done = job.wait(timeout_s=30)
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Literal, Self

import psutil

from dstrain.core.errors import RankError
from dstrain.testing._processes import base_environment, environment_of, free_port, kill_tagged, new_tag, tagged, tail

Launcher = Literal["deepspeed", "torchrun", "python"]
_POLL_S = 0.05


@dataclass(frozen=True)
class Completed:
    """How a script ended. `survivors`: processes that were still there after the launcher had gone (now killed)."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    survivors: tuple[int, ...] = ()


def _command(argv: Sequence[str], num_ranks: int, launcher: Launcher) -> list[str]:
    port = str(free_port())
    if launcher == "python":
        if num_ranks != 1:
            raise ValueError(f"launcher 'python' starts one process, not {num_ranks}: take 'torchrun' or 'deepspeed'")
        return [sys.executable, *argv]
    if launcher == "torchrun":
        places = ["--nproc_per_node", str(num_ranks), "--master_addr", "127.0.0.1", "--master_port", port]
        return [sys.executable, "-m", "torch.distributed.run", *places, *argv]
    if launcher == "deepspeed":
        places = ["--num_gpus", str(num_ranks), "--master_addr", "127.0.0.1", "--master_port", port]
        # What the `deepspeed` script of this environment does; the script itself may not be there in a plain tree.
        return [sys.executable, "-m", "deepspeed.launcher.runner", *places, *argv]
    raise ValueError(f"launcher {launcher!r}: one of 'deepspeed', 'torchrun', 'python'")


def _end(tag: str, folder: tempfile.TemporaryDirectory[str], streams: Sequence[IO[bytes]]) -> None:
    kill_tagged(tag)
    for stream in streams:
        stream.close()
    folder.cleanup()


class Running:
    """A started script. Leaving its `with` block kills every process that came of it."""

    def __init__(self, command: list[str], alone: bool, env: Mapping[str, str] | None, cwd: Path | None) -> None:
        self._alone = alone  # one process without a launcher: it is rank 0, and no variable says so
        self._tag = new_tag()
        self._folder = tempfile.TemporaryDirectory(prefix="dstrain-launch-")
        # Files, not pipes: an orphan that holds a pipe open would keep its reader waiting.
        self._paths = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        streams = [path.open("wb") for path in self._paths]
        self._finalizer = weakref.finalize(self, _end, self._tag, self._folder, streams)
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=streams[0],
            stderr=streams[1],
            env=base_environment(self._tag, env),
            cwd=cwd,
            start_new_session=True,
        )

    @property
    def stdout(self) -> str:
        """What has been printed so far, all ranks together."""
        return self._paths[0].read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """What has gone to stderr so far, all ranks together."""
        return self._paths[1].read_text(errors="replace")

    def rank_pids(self) -> dict[int, int]:
        """Process id by rank, of the live ranks. Only their first process: children inherit RANK as well."""
        if self._alone:
            return {0: self.process.pid} if self.process.poll() is None else {}
        found: dict[int, int] = {}
        for process in tagged(self._tag):
            place = environment_of(process).get("RANK", "")
            if place.isdigit() and int(place) not in found:
                found[int(place)] = process.pid
        return found

    def wait_for(self, text: str, timeout_s: float = 120.0) -> None:
        """Until `text` has been printed, to stdout or stderr.

        Raises:
            RankError: the script ended, or `timeout_s` passed, without it.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.process.poll() is not None  # before the look: the text may be the last thing printed
            if text in self.stdout or text in self.stderr:
                return
            if ended or time.monotonic() > deadline:
                why = f"ended with {self.process.poll()}" if ended else f"ran for {timeout_s:g} s"
                raise RankError(f"the script {why} and did not print {text!r}{self._shown()}")
            time.sleep(_POLL_S)

    def kill_rank(self, rank: int, sig: signal.Signals = signal.SIGKILL, *, timeout_s: float = 60.0) -> int:
        """Send `sig` to one rank, waiting for it to be there; gives its process id.

        Raises:
            RankError: there was no such rank within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while rank not in (pids := self.rank_pids()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RankError(f"no rank {rank} to kill; ranks: {sorted(pids)}{self._shown()}")
            time.sleep(_POLL_S)
        psutil.Process(pids[rank]).send_signal(sig)
        return pids[rank]

    def signal(self, sig: signal.Signals) -> None:
        """Send `sig` to the launcher only."""
        self.process.send_signal(sig)

    def wait(self, timeout_s: float = 120.0, *, leave_s: float = 5.0) -> Completed:
        """Until the launcher has ended; its processes have `leave_s` more, then they are killed and listed.

        Raises:
            RankError: not done after `timeout_s`; every process has been killed.
        """
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            shown = self._shown()
            self.kill()
            raise RankError(f"the script was not done after {timeout_s:g} s; it was killed{shown}") from None
        seconds = time.monotonic() - self._started
        deadline = time.monotonic() + leave_s
        while (left := tagged(self._tag)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        kill_tagged(self._tag)
        return Completed(code, self.stdout, self.stderr, seconds, tuple(process.pid for process in left))

    def kill(self) -> None:
        """SIGKILL to every process at once; what they printed can still be read."""
        kill_tagged(self._tag)
        self.process.wait()

    def _shown(self) -> str:
        return f"\n--- stdout:\n{tail(self.stdout)}\n--- stderr:\n{tail(self.stderr)}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Kill every process and remove the captured output."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._finalizer()


def start(
    argv: Sequence[str | Path],
    num_ranks: int = 2,
    launcher: Launcher = "deepspeed",
    env: Mapping[str, str] | None = None,
    *,
    cwd: Path | None = None,
) -> Running:
    """Start `argv` (script, then its flags) under a launcher of this Python environment, in a session of its own."""
    return Running(_command([str(word) for word in argv], num_ranks, launcher), launcher == "python", env, cwd)


def launch(
    argv: Sequence[str | Path],
    num_ranks: int = 2,
    launcher: Launcher = "deepspeed",
    env: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
    *,
    cwd: Path | None = None,
) -> Completed:
    """`start`, then wait for the end. A non-zero `returncode` is not an error here.

    Raises:
        RankError: not done after `timeout_s`; every process has been killed, and the message shows the output.
    """
    with start(argv, num_ranks, launcher, env, cwd=cwd) as job:
        return job.wait(timeout_s)
