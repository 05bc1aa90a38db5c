"""From a build log to one message: the compiler's first error, why it came, and what to type."""

from __future__ import annotations

import re
import shutil
import signal
from pathlib import Path

from dstrain.core.errors import OpError
from dstrain.ops.catalogue import Op
from dstrain.probe.toolchain import compiler_command

_ERROR_LINE = re.compile(
    r"fatal error:|\berror:|error -- |undefined reference|cannot find -l|Killed signal|[A-Za-z]*(Exception|Error): "
)
_NOISE = re.compile(
    r"^(ninja: |FAILED: |Traceback |subprocess\.CalledProcessError|RuntimeError: Error building extension)"
)

# (pattern in the log, reason, what to type). The first that matches wins: the more particular ones come first.
_REASONS: tuple[tuple[str, str, str], ...] = (
    (r"No space left on device", "the disk is full", "free some space, or set DSTRAIN_OPS_DIR to another disk"),
    (
        r"Killed signal terminated program|virtual memory exhausted|cc1plus: out of memory",
        "the compiler ran out of memory (it takes about 2 GB for each job)",
        "dstrain ops build {op} --jobs 1",
    ),
    (r"Python\.h: No such file", "Python's headers are not installed", "apt install python3-dev"),
    (
        r"libaio\.h: No such file|cannot find -laio|{op} requires the dev libaio",
        "libaio is not installed",
        "apt install libaio-dev",
    ),
    (r"CCL_ROOT", "oneCCL is not installed", "install oneCCL and set CCL_ROOT; without it gloo is used"),
    (
        r"cufile\.h: No such file|cannot find -lcufile",
        "GPUDirect Storage (cufile) is not installed",
        "install the cufile headers and library",
    ),
    (
        r"unsupported GNU version",
        "the host compiler is newer than this nvcc allows",
        "install an older g++ and set CXX, and NVCC_PREPEND_FLAGS='-ccbin …', to it",
    ),
    (
        r"(cusparse|cublas|curand|cusolver)[\w]*\.h: No such file",
        "the CUDA toolkit lacks the headers of the math libraries",
        "set CPATH and LIBRARY_PATH to include and lib of the installed nvidia-* packages, or install the full toolkit",
    ),
    (
        r"CUDA_HOME|nvcc: not found|nvcc.*No such file",
        "no CUDA toolkit was found",
        "set CUDA_HOME to a toolkit that has bin/nvcc",
    ),
    (
        r"found no CUDA devices",
        "no GPU is visible here to take the architecture from",
        "set TORCH_CUDA_ARCH_LIST, for example to 9.0",
    ),
    (r"ninja not being installed|Ninja is required|'ninja'", "ninja is not installed", "pip install ninja"),
    (
        r"(GLIBC|GLIBCXX)_[\d.]+' not found",
        "it was compiled against a newer C library than it runs with",
        "check LD_LIBRARY_PATH: another libstdc++ comes first",
    ),
)


def first_error(op: Op, log: Path, code: int) -> OpError:
    """The failure of a build as one error. `code` is the exit status of the process that built (negative: a signal)."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        text = ""
    reason, fix = _reason(op, text)
    line = error_line(text)
    if not reason and code < 0:
        reason = f"it was ended by {signal_name(-code)}"
    said = f"; the first error was: {line}" if line else ""
    head = (
        f"{op.name} did not build: {reason}{said}" if reason else f"{op.name} did not build{said or f' (exit {code})'}"
    )
    return OpError(head, where=str(log), fix=fix or f"read the log, then `dstrain ops build {op.name}`")


def error_line(text: str) -> str:
    """The first line of a log that states an error; "" if none does."""
    for line in text.splitlines():
        if _ERROR_LINE.search(line) and not _NOISE.match(line):
            return line.strip()[:300]
    return ""


def _reason(op: Op, text: str) -> tuple[str, str]:
    if shutil.which(compiler_command()[0]) is None:
        return f"there is no C++ compiler ({compiler_command()[0]})", "apt install g++ (or set CXX)"
    for pattern, reason, fix in _REASONS:
        if re.search(pattern.replace("{op}", op.name), text):
            return reason, fix.replace("{op}", op.name)
    return "", ""


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; the number where the platform has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
