"""HOST107 to HOST109: the host compiler."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Compiler, Cuda, Software
from dstrain.rules.machine_view import CLANG_RANGE, GCC_RANGE, dotted, machine, numbers, seen
from dstrain.rules.registry import rule


@rule(
    "HOST107",
    Severity.WARNING,
    "There is no C++ compiler",
    fires=machine(compiler={"path": None, "kind": None, "version": None}),
    quiet=machine(compiler={"path": "/usr/bin/c++"}),
)
def no_compiler(compiler: Compiler) -> Iterator[Hit]:
    """Ops are compiled with `$CXX`, or `c++`. Ops that are built already need none."""
    if compiler.path is None:
        word = compiler.command.split()[0]
        if compiler.from_variable:
            message = f"CXX={compiler.command}, and there is no {word}: no op can be compiled"
            fix = f"export CXX={compiler.others[-1]}" if compiler.others else "unset CXX"
        else:
            message = f"there is no C++ compiler ({word}): no op can be compiled"
            fix = f"export CXX={compiler.others[-1]}" if compiler.others else "apt install g++"
        yield seen("CXX", message, fix, f"no {word} on PATH")


@rule(
    "HOST108",
    Severity.ERROR,
    "The host compiler is too old for torch's headers",
    fires=machine(compiler={"version": [8, 5, 0], "said": "g++ (GCC) 8.5.0"}),
    quiet=machine(compiler={"version": [11, 4, 0], "said": "g++ (Ubuntu) 11.4.0"}),
)
def compiler_too_old(software: Software, compiler: Compiler) -> Iterator[Hit]:
    """DeepSpeed 0.19.8 compiles with -std=c++20 from torch 2.12 on, which takes gcc 10 or clang 10.

    For an older torch it is -std=c++17: gcc 9 (torch's headers) or clang 7.
    """
    if compiler.version is None or compiler.kind is None or software.torch is None:
        return
    new = numbers(software.torch) >= (2, 12)
    least = 10 if new else 9 if compiler.kind == "gcc" else 7
    if compiler.version[0] < least:
        yield seen(
            "CXX",
            f"{compiler.command} is {compiler.kind} {dotted(compiler.version)}; torch {software.torch} needs"
            f" C++{20 if new else 17}, which is {compiler.kind} {least} or later",
            _other_compiler(compiler, least, None),
            f"{compiler.path} --version: {compiler.said}",
        )


def _other_compiler(compiler: Compiler, least: int, below: int | None) -> str:
    """The newest compiler on PATH that fits, or which to install."""
    word, plain = ("g++", "gcc") if compiler.kind == "gcc" else ("clang++", "clang")
    found = [int(name.rpartition("-")[2]) for name in compiler.others if name.startswith(f"{word}-")]
    fitting = [number for number in found if number >= least and (below is None or number < below)]
    number = max(fitting, default=0)
    if below is None:
        return f"export CXX={word}-{number}" if number else f"apt install {word}, of version {least} or later"
    chosen = number or below - 1
    line = f"export CC={plain}-{chosen} CXX={word}-{chosen} NVCC_PREPEND_FLAGS='-ccbin {word}-{chosen}'"
    return line if number else f"apt install {word}-{chosen} && {line}"


@rule(
    "HOST109",
    Severity.ERROR,
    "The host compiler does not fit this nvcc",
    fires=machine(compiler={"version": [16, 1, 0], "said": "g++ 16.1.0", "others": ["g++-14", "g++-16"]}),
    quiet=machine(compiler={"version": [15, 2, 0], "said": "g++ 15.2.0"}),
)
def compiler_range(software: Software, cuda: Cuda, compiler: Compiler) -> Iterator[Hit]:
    """Each nvcc takes host compilers of a range, and refuses others: "unsupported GNU version!".

    | nvcc | gcc | clang |
    |---|---|---|
    | 11.4 to 11.8 | 6 to 11 | |
    | 12.0 to 12.1 | 6 to 12 | 7 to 14 |
    | 12.2 | 6 to 12 | 7 to 15 |
    | 12.3 | 6 to 13 | 7 to 15 |
    | 12.4 | 6 to 13 | 7 to 16 |
    | 12.5 to 12.6 | 6 to 13 | 7 to 17 |
    | 12.7 | 6 to 13 | 7 to 18 |
    | 12.8 to 12.9 | 6 to 14 | 7 to 18 |
    | 13.0 | 6 to 15 | 7 to 20 |

    `-allow-unsupported-compiler` gets past the check, and often fails in the headers of the C++ library.
    """
    kit = cuda.chosen()
    if not software.torch_cuda or kit is None or kit.version is None:
        return
    if compiler.version is None or compiler.kind is None:
        return
    table = GCC_RANGE if compiler.kind == "gcc" else CLANG_RANGE
    if kit.version not in table:
        return
    least, below = table[kit.version]
    major = compiler.version[0]
    if not least <= major < below:
        how = "new" if major >= below else "old"
        yield seen(
            "CXX",
            f"{compiler.command} is {compiler.kind} {dotted(compiler.version)}, too {how}"
            f" for nvcc {kit.version}, which takes {least} to {below - 1}",
            _other_compiler(compiler, least, below),
            f"{compiler.path} --version: {compiler.said}",
            f"{kit.root}/bin/nvcc -V: {kit.said}",
        )
