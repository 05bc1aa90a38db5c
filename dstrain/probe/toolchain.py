"""Who compiled what, read without importing it: torch, deepspeed, Python's ABI, the host compiler, this cpu."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from dstrain.core.errors import OpError

_NO_DEVICES = ("", "-1", "none", "void", "NoDevFiles")


def package_folder(name: str) -> Path | None:
    """Where a top-level package is installed, without importing it; None if it is not."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def _installed(name: str) -> Path:
    folder = package_folder(name)
    if folder is None:
        raise OpError(f"{name} is not installed in {sys.prefix}", fix=f"pip install {name}")
    return folder


@lru_cache(maxsize=1)
def torch_identity() -> tuple[str, str]:
    """(version, CUDA version it was compiled with or ""), from `torch/version.py`.

    The text is read and not imported: `import torch` takes seconds. The commit is part of the version, because wheels
    of one version from different builds need not share an ABI.

    Raises:
        OpError: torch is not installed.
    """
    text = (_installed("torch") / "version.py").read_text()

    def value(name: str) -> str:
        match = re.search(rf"^{name}(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
        return match.group(1) if match else ""

    return f"{value('__version__')} {value('git_version')[:8]}".strip(), value("cuda")


@lru_cache(maxsize=1)
def deepspeed_identity() -> tuple[str, str]:
    """(version, digest of the sources of its ops and of the builders that hold their flags).

    The digest is over the whole tree (2.4 MB in 0.19.8, about 15 ms): headers are shared between ops.

    Raises:
        OpError: deepspeed is not installed.
    """
    ops = _installed("deepspeed") / "ops"
    digest = hashlib.sha256()
    for folder in ("csrc", "op_builder"):
        for path in sorted((ops / folder).rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                digest.update(path.relative_to(ops).as_posix().encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
    try:
        version = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:  # a checkout on PYTHONPATH; its sources still identify it
        version = "unknown"
    return version, digest.hexdigest()[:16]


def python_abi() -> str:
    """`cpython-311-x86_64-linux-gnu`."""
    return str(sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag)


def compiler_command() -> list[str]:
    """The host compiler that torch's extension builder calls: `$CXX`, else `c++`."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


@lru_cache(maxsize=1)
def compiler_identity() -> str | None:
    """`12.2.0 x86_64-linux-gnu`, or None where there is no host compiler. Asked once per process, 10 ms."""
    command = compiler_command()
    if shutil.which(command[0]) is None:
        return None
    answers = []
    for question in (["-dumpfullversion", "-dumpversion"], ["-dumpmachine"]):
        try:
            done = subprocess.run([*command, *question], capture_output=True, text=True, timeout=10, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        answers.append(done.stdout.strip().splitlines()[0] if done.stdout.strip() else "?")
    return " ".join(answers)


@lru_cache(maxsize=1)
def cpu_identity() -> tuple[str, frozenset[str]]:
    """(digest, instruction sets) of this cpu. The digest is over the sets: they decide what may be executed."""
    flags: frozenset[str] = frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    if match := re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE):
        flags = frozenset(match.group(1).split())
    described = " ".join([platform.machine(), *(sorted(flags) or [platform.processor()])])
    return hashlib.sha256(described.encode()).hexdigest()[:12], flags


def default_accelerator() -> str:
    """The accelerator that DeepSpeed has chosen, or will choose as far as files tell.

    0.19.8 asks `torch.cuda.device_count()`; here a CUDA torch, a driver's device file and a mask that leaves a device
    stand for it, so that no torch import is needed. Other accelerators are found only by DeepSpeed itself.
    """
    if given := os.environ.get("DS_ACCELERATOR"):
        return given
    chosen = getattr(sys.modules.get("deepspeed.accelerator.real_accelerator"), "ds_accelerator", None)
    if chosen is not None:
        return str(chosen._name)
    masked = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in _NO_DEVICES
    visible = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
    return "cuda" if torch_identity()[1] and visible and not masked else "cpu"


@lru_cache(maxsize=1)
def device_archs() -> str:
    """Compute capabilities of the NVIDIA devices (`8.0;9.0`), or "" when the driver does not say. Asked once."""
    if shutil.which("nvidia-smi") is None:
        return ""
    question = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(question, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return ";".join(
        sorted({line.strip() for line in done.stdout.splitlines() if re.fullmatch(r"\d+\.\d+", line.strip())})
    )


def cuda_search_paths() -> dict[str, str]:
    """`CPATH` and `LIBRARY_PATH`, with the CUDA headers and libraries that torch's own packages carry added.

    A toolkit of which only the compiler is installed lacks cusparse, cublas and the like, which torch's headers
    include; torch 2.13's extension builder does not look into the `nvidia` packages beside it.
    """
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(place) for place in spec.submodule_search_locations or ()] if spec is not None else []
    paths = {}
    for variable, folder in (("CPATH", "include"), ("LIBRARY_PATH", "lib")):
        found = [str(path) for root in roots for path in sorted(root.glob(f"*/{folder}")) if path.is_dir()]
        if joined := os.pathsep.join(filter(None, [os.environ.get(variable, ""), *found])):
            paths[variable] = joined
    return paths
