"""The machine as a value: where to read, what to run, how long to wait. Readers get it, so that a test can pose one."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_UNLIMITED = -1


def _limits(which: int) -> tuple[int, int]:
    return resource.getrlimit(which)


def _usable_cpus() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command said: `text` when it worked, else `trouble`."""

    text: str = ""
    trouble: str = ""
    missing: bool = False


@dataclass(frozen=True)
class Place:
    """A machine to read.

    Args:
        root: stands for `/` wherever a reader looks at a system folder.
        environ: the environment, PATH included.
        packages: folders that hold installed packages, first one wins.
        wait_s: how long one command may take, in seconds.
        header: where `Python.h` belongs.
        scripts: the folder of this Python, where packages put their commands.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    packages: tuple[Path, ...] = field(default_factory=lambda: tuple(Path(entry or ".") for entry in sys.path))
    wait_s: float = 1.5
    header: Path = field(default_factory=lambda: Path(sysconfig.get_paths()["include"]) / "Python.h")
    scripts: Path = field(default_factory=lambda: Path(sys.executable).parent)
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}"
    hostname: str = field(default_factory=socket.gethostname)
    working: Path = field(default_factory=Path.cwd)
    limits: Callable[[int], tuple[int, int]] = _limits
    usable_cpus: Callable[[], int | None] = _usable_cpus
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs

    def at(self, path: str) -> Path:
        """A system path below `root`."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str | None:
        """The stripped text of a system file, or None when it cannot be read."""
        try:
            return self.at(path).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The whole number in a system file; None when there is none (`max`, not readable)."""
        text = self.text(path)
        return int(text) if text is not None and re.fullmatch(r"[0-9]{1,20}", text) else None

    def names(self, path: str) -> list[str]:
        """Names in a system folder, sorted; none when it is not there."""
        try:
            return sorted(entry.name for entry in self.at(path).iterdir())
        except OSError:
            return []

    def home(self) -> Path:
        """The user's home folder, as the environment says."""
        return Path(self.environ.get("HOME") or self.at("/root"))

    def which(self, name: str) -> str | None:
        """The first executable of this name on PATH."""
        return shutil.which(name, path=self.environ.get("PATH", ""))

    def ask(self, *command: str) -> Answer:
        """Run a command in this environment and take what it prints. Never raises."""
        found = command[0] if os.sep in command[0] else self.which(command[0])
        if found is None or not os.access(found, os.X_OK):
            return Answer(trouble=f"there is no {command[0]}", missing=True)
        try:
            done = subprocess.run(
                [found, *command[1:]],
                capture_output=True,
                timeout=self.wait_s,
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Answer(trouble=f"{command[0]} did not answer in {self.wait_s:g} s")
        except OSError as error:
            return Answer(trouble=f"{command[0]} does not run: {error.strerror}")
        text = done.stdout.decode(errors="replace").strip()
        if done.returncode == 0:
            return Answer(text=text)
        said = (text or done.stderr.decode(errors="replace").strip()).splitlines()
        ended = f"ended with {done.returncode}" + (f": {said[-1][:200]}" if said else "")
        return Answer(trouble=f"{' '.join([Path(command[0]).name, *command[1:2]])} {ended}")

    def package(self, name: str) -> Path | None:
        """The folder of an installed package, without importing it."""
        return next((folder / name for folder in self.packages if (folder / name).is_dir()), None)

    def version_of(self, name: str) -> str | None:
        """Version of a distribution, by the name of its metadata folder."""
        for folder in self.packages:
            for info in sorted(folder.glob(f"{name}-*.dist-info")):
                return info.name[len(name) + 1 : -len(".dist-info")]
        return None

    def limit(self, which: int) -> tuple[int, int]:
        """A resource limit (soft, hard); -1 for unlimited."""
        soft, hard = self.limits(which)
        return tuple(_UNLIMITED if value == resource.RLIM_INFINITY else value for value in (soft, hard))  # type: ignore[return-value]
