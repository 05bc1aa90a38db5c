"""What is in the cache of compiled DeepSpeed ops, and what of it fits here. Files only: no torch, no deepspeed.

Layout below `$DSTRAIN_OPS_DIR` (default `~/.cache/dstrain/ops`):

    <op>/<key>/<op>.so      the library
    <op>/<key>/build.json   its record, written last: without it nothing is there
    <op>/<key>/build.log    what the compiler said
    <op>/<key>/lock         held with flock by the process that builds

DeepSpeed's own cache is keyed by op name, Python and CUDA tag only, so two environments rebuild each other's files,
and a killed build leaves a `lock` file there that later processes wait on for ever (torch 2.13
`utils/file_baton.py`). It is not used here.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dstrain.core.errors import OpError
from dstrain.probe.toolchain import (
    compiler_identity,
    cpu_identity,
    deepspeed_identity,
    default_accelerator,
    device_archs,
    package_folder,
    python_abi,
    torch_identity,
)

RECORD = "build.json"
LOG = "build.log"
LOCK = "lock"

# What a library compiled for a named level may use; `/proc/cpuinfo` spelling. The cpu that loads it must have all.
PORTABLE_NEEDS: Mapping[str, frozenset[str]] = {
    "x86-64-v3": frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    "armv8-a": frozenset({"asimd"}),
}


@dataclass(frozen=True, slots=True)
class Environment:
    """All that decides whether a compiled op fits: any change of these fields is another key.

    Args:
        compiler: None where no host compiler is installed (an image that only runs); a record is then accepted whatever
            compiler made it.
        cpu: digest of the instruction sets of this cpu; DeepSpeed compiles cpu ops with `-march=native`.
        cuda_archs: for the cuda accelerator `TORCH_CUDA_ARCH_LIST`, or what the visible devices are; "" when neither
            is known.
    """

    deepspeed: str
    sources: str
    torch: str
    torch_cuda: str
    python: str
    accelerator: str
    compiler: str | None
    cpu: str
    cpu_flags: frozenset[str] = field(repr=False)
    cuda_archs: str = ""

    def fields(self, march: str) -> dict[str, str]:
        """What the key and the record of a build for `march` (`native`, or a name of `PORTABLE_NEEDS`) hold."""
        return {
            "deepspeed": self.deepspeed,
            "sources": self.sources,
            "torch": self.torch,
            "torch_cuda": self.torch_cuda,
            "python": self.python,
            "accelerator": self.accelerator,
            "compiler": self.compiler or "none",
            "march": f"native:{self.cpu}" if march == "native" else march,
            "cuda_archs": self.cuda_archs,
        }


@dataclass(frozen=True, slots=True)
class Entry:
    """One whole build in the cache."""

    op: str
    folder: Path
    record: Mapping[str, Any]

    @property
    def library(self) -> Path:
        """The file to load."""
        return self.folder / f"{self.op}.so"

    @property
    def bytes(self) -> int:
        """Size of the library in bytes."""
        return int(self.record.get("bytes", 0))


def cache_root() -> Path:
    """`$DSTRAIN_OPS_DIR`, or `~/.cache/dstrain/ops` (`$XDG_CACHE_HOME` is obeyed)."""
    if given := os.environ.get("DSTRAIN_OPS_DIR"):
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "dstrain" / "ops"


def environment(accelerator: str | None = None) -> Environment:
    """This process's environment; costs two small subprocesses and about 30 ms once, then nothing.

    Raises:
        OpError: torch or deepspeed is not installed.
    """
    torch, cuda = torch_identity()
    deepspeed, sources = deepspeed_identity()
    cpu, flags = cpu_identity()
    chosen = accelerator or default_accelerator()
    archs = (os.environ.get("TORCH_CUDA_ARCH_LIST") or device_archs()) if chosen == "cuda" else ""
    return Environment(
        deepspeed=deepspeed,
        sources=sources,
        torch=torch,
        torch_cuda=cuda,
        python=python_abi(),
        accelerator=chosen,
        compiler=compiler_identity(),
        cpu=cpu,
        cpu_flags=flags,
        cuda_archs=normal_archs(archs),
    )


def normal_archs(text: str) -> str:
    """`"9.0 8.0+PTX"` and `"8.0+PTX;9.0"` are one list: `8.0+PTX;9.0`."""
    return ";".join(sorted(set(text.replace(";", " ").replace(",", " ").split())))


def read_entry(op: str, folder: Path) -> Entry | None:
    """The entry in a key folder, or None when it is not whole (no record, or the library is not the one recorded)."""
    try:
        record = json.loads((folder / RECORD).read_text())
        size = (folder / f"{op}.so").stat().st_size
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("op") != op or record.get("bytes") != size:
        return None
    return Entry(op, folder, record)


def entries(root: Path | None = None, op: str | None = None) -> list[Entry]:
    """Every whole build in the cache (of `op`, if given), for any environment, sorted by op and key."""
    base = root or cache_root()
    found = [
        read_entry(folder.parent.name, folder)
        for folder in sorted(base.glob(f"{op or '*'}/*"))
        if (folder / RECORD).is_file()
    ]
    return [entry for entry in found if entry is not None]


def misfit(entry: Entry, env: Environment) -> str | None:
    """Why a build cannot be used in `env` (`torch 2.9.0, here 2.13.0+cpu`), or None when it can."""
    here = env.fields("native")
    for name in ("deepspeed", "torch", "python", "accelerator", "torch_cuda"):
        if entry.record.get(name) != here[name]:
            return f"{name} {entry.record.get(name) or 'none'}, here {here[name] or 'none'}"
    if entry.record.get("sources") != env.sources:
        return "the op's source files are not those of the installed deepspeed"
    if env.compiler is not None and entry.record.get("compiler") != env.compiler:
        return f"compiler {entry.record.get('compiler')}, here {env.compiler}"
    built_for = str(entry.record.get("cuda_archs", ""))
    if uncovered := [arch for arch in env.cuda_archs.split(";") if arch and not _covers(built_for, arch)]:
        return f"compiled for CUDA architectures {built_for or 'not recorded'}, here {', '.join(uncovered)}"
    return _cpu_misfit(str(entry.record.get("march", "")), env)


def _covers(built_for: str, arch: str) -> bool:
    """Whether code for the list `built_for` runs on `arch`: same major and no newer minor, or PTX of an older one.

    DeepSpeed 0.19.8 adds PTX to the highest entry when no entry asks for it (`compute_capability_args`, JIT mode).
    """
    wanted = _capability(arch)
    targets = [(_capability(item), "+PTX" in item) for item in built_for.split(";") if item]
    if targets and not any(ptx for _, ptx in targets):
        highest = max(capability for capability, _ in targets)
        targets.append((highest, True))
    return any(
        (target[0] == wanted[0] and target[1] <= wanted[1]) or (ptx and target <= wanted) for target, ptx in targets
    )


def _capability(arch: str) -> tuple[int, int]:
    major, _, minor = arch.removesuffix("+PTX").rstrip("af").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _cpu_misfit(march: str, env: Environment) -> str | None:
    if march in ("", f"native:{env.cpu}"):
        return None
    if march.startswith("native:"):
        return "compiled with -march=native on another cpu"
    missing = PORTABLE_NEEDS.get(march, frozenset({march})) - env.cpu_flags
    return f"compiled for {march}; this cpu lacks {', '.join(sorted(missing))}" if missing else None


def find(op: str, env: Environment | None = None, root: Path | None = None) -> Entry | None:
    """The build of `op` that fits `env` (default: this process), native before portable, or None."""
    candidates = entries(root, op)
    if not candidates:
        return None
    here = env or environment()
    fitting = [entry for entry in candidates if misfit(entry, here) is None]
    fitting.sort(key=lambda entry: not str(entry.record.get("march", "")).startswith("native"))
    return fitting[0] if fitting else None


def prebuilt_ops(accelerator: str) -> frozenset[str]:
    """Ops compiled into the installed DeepSpeed (`DS_BUILD_OPS=1` at install), which it uses before any other.

    Read from `deepspeed/git_version_info_installed.py`, under the conditions of 0.19.8 `OpBuilder.load`: same
    accelerator and same torch major.minor, or DeepSpeed refuses them.
    """
    folder = package_folder("deepspeed")
    values = _assignments(folder / "git_version_info_installed.py") if folder else {}
    installed, info = values.get("installed_ops"), values.get("torch_info")
    if not isinstance(installed, dict) or not isinstance(info, dict) or values.get("accelerator_name") != accelerator:
        return frozenset()
    if info.get("version") != ".".join(torch_identity()[0].split(".")[:2]):
        return frozenset()
    return frozenset(name for name, built in installed.items() if built)


def _assignments(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    try:
        body = ast.parse(path.read_text()).body
    except (OSError, SyntaxError):
        return values
    for line in body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                values[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    return values


def ready_ops(accelerator: str | None = None, root: Path | None = None) -> frozenset[str]:
    """Names of the ops that need no compiler here: in our cache and fitting, or compiled into DeepSpeed itself.

    Never raises: without torch or deepspeed nothing is ready.
    """
    try:
        env = environment(accelerator)
    except OpError:
        return frozenset()
    cached = {entry.op for entry in entries(root) if misfit(entry, env) is None}
    return frozenset(cached) | prebuilt_ops(env.accelerator)
