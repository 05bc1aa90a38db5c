"""HOST11x: the CUDA toolkit that torch and DeepSpeed will take, and the order in which it is found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Cuda, Software, Toolkit
from dstrain.rules.machine_view import machine, pair, seen
from dstrain.rules.registry import rule

_OLD = {
    "root": "/usr/local/cuda-12.4",
    "version": "12.4",
    "said": "Cuda compilation tools, release 12.4, V12.4.131",
}
_AT_OLD = {"home": "/usr/local/cuda-12.4", "nvcc": "/usr/local/cuda-12.4/bin/nvcc"}


def take(kit: Toolkit) -> str:
    """The line that makes a toolkit the one that is used, for torch and for the shell."""
    return f"export CUDA_HOME={kit.root} PATH={kit.root}/bin:$PATH"


def _named(kit: Toolkit) -> str:
    return f"{kit.root}/bin/nvcc -V: {kit.said}" if kit.said else kit.root


def _install(software: Software) -> str:
    major, minor = pair(software.torch_cuda)
    return f"install the toolkit of CUDA {major}.{minor} (cuda-toolkit-{major}-{minor}), and set CUDA_HOME to it"


def _mend(software: Software, cuda: Cuda) -> str:
    fitting = cuda.usable(software.torch_cuda)
    return take(fitting) if fitting else _install(software)


@rule(
    "HOST110",
    Severity.WARNING,
    "No CUDA toolkit was found",
    fires=machine(cuda={"toolkits": [], "home": "", "home_by": "", "nvcc": ""}),
    quiet=machine(software={"torch": "2.13.0+cpu", "torch_cuda": ""}, cuda={"toolkits": [], "home": "", "nvcc": ""}),
)
def no_toolkit(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """DeepSpeed compiles its CUDA ops when they are first used, and needs nvcc, headers and libraries for it.

    Without a toolkit only ops that are built already can be used; torch's own optimizers stand in for the fused ones.
    A torch without CUDA needs none.
    """
    if software.torch_cuda and not cuda.toolkits and not cuda.home:
        yield seen(
            "CUDA_HOME",
            f"torch is built for CUDA {software.torch_cuda}, and no toolkit was found: no CUDA op can be compiled",
            _install(software),
            "CUDA_HOME and CUDA_PATH are not set, no nvcc on PATH, no /usr/local/cuda*, no nvcc from a package",
        )


@rule(
    "HOST111",
    Severity.ERROR,
    "CUDA_HOME has no nvcc",
    fires=machine(cuda={"home": "/opt/cuda", "home_by": "CUDA_HOME"}),
    quiet=machine(cuda={"home_by": "CUDA_HOME"}),
)
def home_without_nvcc(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """`CUDA_HOME` (or `CUDA_PATH`) wins over every other toolkit, also when there is no compiler in it.

    DeepSpeed 0.19.8 raises MissingCUDAException when an op is built. A runtime-only installation looks like that.
    """
    kit = cuda.chosen()
    if software.torch_cuda and cuda.home and (kit is None or not kit.has_nvcc):
        yield seen(
            cuda.home_by,
            f"{cuda.home_by} leads to {cuda.home}, where there is no bin/nvcc",
            _mend(software, cuda),
            f"there is no {cuda.home}/bin/nvcc",
            *(f"another toolkit: {_named(other)}" for other in cuda.toolkits if other.has_nvcc),
        )


@rule(
    "HOST112",
    Severity.ERROR,
    "nvcc on PATH is a wrapper, and the toolkit is guessed from its folder",
    fires=machine(
        cuda={
            "toolkits": [{}, {"root": "/usr/local", "has_headers": False, "has_libraries": False}],
            "home": "/usr/local",
            "nvcc": "/usr/local/bin/nvcc",
            "nvcc_target": "/usr/local/cuda-13.0",
        }
    ),
    quiet=machine(cuda={"home_by": "CUDA_HOME", "nvcc": "/usr/local/bin/nvcc", "nvcc_target": "/usr/local/cuda-13.0"}),
)
def wrapper(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """torch 2.13 takes the folder above the first nvcc on PATH as the toolkit (`_find_cuda_home`).

    Where that nvcc is a script which starts the real one, or a link to it, the version is right while headers and
    libraries are missing: checks pass, and compilation fails.
    """
    kit = cuda.chosen()
    if software.torch_cuda and kit is not None and kit is not cuda.meant():
        yield seen(
            "PATH",
            f"{cuda.nvcc} only leads to {cuda.nvcc_target}/bin/nvcc, and torch takes {cuda.home} for the toolkit",
            f"export CUDA_HOME={cuda.nvcc_target}",
            f"first nvcc on PATH: {cuda.nvcc}",
            f"there is no {cuda.home}/include/cuda_runtime.h",
        )


@rule(
    "HOST113",
    Severity.ERROR,
    "nvcc does not say which CUDA it is",
    fires=machine(cuda={"toolkits": [{"version": None, "said": "nvcc -V ended with 127"}]}),
    quiet=machine(),
)
def silent_nvcc(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """DeepSpeed 0.19.8 reads `nvcc -V` for the word `release` and stops with ValueError when it is not there."""
    kit = cuda.chosen()
    timed_out = kit is not None and "did not answer" in kit.said
    if software.torch_cuda and kit is not None and kit.has_nvcc and kit.version is None and not timed_out:
        yield seen(
            "CUDA_HOME",
            f"{kit.root}/bin/nvcc -V does not name a release",
            f"repair the toolkit in {kit.root}, or {_mend(software, cuda)}",
            kit.said,
        )


@rule(
    "HOST114",
    Severity.ERROR,
    "The CUDA toolkit has no headers or no libraries",
    fires=machine(cuda={"toolkits": [{"has_headers": False}]}),
    quiet=machine(),
)
def hollow_toolkit(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """A compiler alone (a package of nvcc only, or a half-removed toolkit) cannot build an op.

    What is looked for: `include/cuda_runtime.h`, and `libcudart` in `lib64` or `lib`.
    """
    kit = cuda.meant()
    if not software.torch_cuda or kit is None or not kit.has_nvcc:
        return
    missing = [] if kit.has_headers else ["include/cuda_runtime.h"]
    missing += [] if kit.has_libraries else ["lib64/libcudart.so"]
    if missing:
        yield seen(
            cuda.home_by,
            f"the toolkit {kit.root} has nvcc, but lacks {' and '.join(missing)}",
            _mend(software, cuda),
            *(f"there is no {kit.root}/{name}" for name in missing),
        )


@rule(
    "HOST115",
    Severity.WARNING,
    "The CUDA toolkit lacks the headers of the math libraries",
    fires=machine(cuda={"toolkits": [{"math_missing": ["cusparse.h", "cublas_v2.h"]}]}),
    quiet=machine(),
)
def no_math_headers(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """torch's headers include cusparse, cublas and cusolver, which a minimal toolkit leaves out.

    `dstrain ops build` finds those that torch's own CUDA packages carry. A build by DeepSpeed itself does not, and
    ends in "cusparse.h: No such file or directory".
    """
    kit = cuda.meant()
    if not software.torch_cuda or kit is None or not (kit.has_nvcc and kit.has_headers and kit.math_missing):
        return
    if cuda.math_packages:
        message = "dstrain finds them in torch's packages; DeepSpeed's own builds do not"
        fix, severity = "dstrain ops build --all", Severity.ADVICE
    else:
        message, severity = "every CUDA op that includes torch's headers fails to compile", Severity.WARNING
        fix = f"install the full toolkit of CUDA {software.torch_cuda}, or torch's nvidia-* packages"
    yield seen(
        "CUDA_HOME",
        f"the toolkit {kit.root} lacks {', '.join(kit.math_missing)}: {message}",
        fix,
        f"there is no {kit.root}/include/{kit.math_missing[0]}",
        severity=severity,
    )


@rule(
    "HOST116",
    Severity.ERROR,
    "The CUDA toolkit is of another major version than torch",
    fires=machine(cuda={"toolkits": [_OLD, {}], **_AT_OLD}),
    quiet=machine(software={"torch_cuda": "12.8"}, cuda={"toolkits": [_OLD, {}], **_AT_OLD}),
)
def major_mismatch(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """An op must be compiled with the CUDA that torch was compiled with, at least with its major version.

    DeepSpeed 0.19.8 checks only when it is built ahead (CUDAMismatchException). Compiled at first use, the op is made
    with the wrong toolkit and fails when it is loaded, or when it runs. `DS_SKIP_CUDA_CHECK=1` silences the check only.
    """
    kit = cuda.chosen()
    if not software.torch_cuda or kit is None or kit.version is None or not kit.has_nvcc:
        return
    if pair(kit.version)[0] != pair(software.torch_cuda)[0]:
        yield seen(
            cuda.home_by,
            f"torch {software.torch} is built for CUDA {software.torch_cuda}, and the toolkit {kit.root} is CUDA"
            f" {kit.version}",
            _mend(software, cuda),
            _named(kit),
            f"it is taken because of: {cuda.home_by}",
            *(f"also found: {_named(other)}" for other in cuda.toolkits if other is not kit),
        )


_MINOR_FINE = frozenset(f"12.{minor}" for minor in (0, 1, 2, 3, 4, 5, 6, 8, 9)) | {f"11.{minor}" for minor in range(9)}


@rule(
    "HOST117",
    Severity.WARNING,
    "DeepSpeed refuses this minor version of the CUDA toolkit",
    fires=machine(cuda={"toolkits": [{"version": "13.1", "said": "release 13.1"}]}),
    quiet=machine(software={"torch_cuda": "12.6"}, cuda={"toolkits": [{"version": "12.4", "said": "release 12.4"}]}),
)
def minor_mismatch(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """Minor versions of one major version work together, and torch accepts them.

    DeepSpeed 0.19.8 keeps a list of the pairs it accepts (`cuda_minor_mismatch_ok`): all of 11, all of 12 but 12.7,
    none of 13. It refuses others when it is built ahead, unless DS_SKIP_CUDA_CHECK=1.
    """
    kit = cuda.chosen()
    if not software.torch_cuda or kit is None or kit.version is None:
        return
    ours, theirs = pair(kit.version), pair(software.torch_cuda)
    accepted = {f"{ours[0]}.{ours[1]}", f"{theirs[0]}.{theirs[1]}"} <= _MINOR_FINE
    if ours[0] == theirs[0] and ours != theirs and not accepted:
        fitting = cuda.usable(software.torch_cuda)
        yield seen(
            cuda.home_by,
            f"the toolkit is CUDA {kit.version} and torch's is {software.torch_cuda}: torch accepts that, DeepSpeed"
            " built ahead does not",
            take(fitting) if fitting else "export DS_SKIP_CUDA_CHECK=1",
            _named(kit),
        )


@rule(
    "HOST118",
    Severity.WARNING,
    "Another toolkit comes first on PATH",
    fires=machine(cuda={"toolkits": [{}, _OLD], "home_by": "CUDA_HOME", "nvcc": "/usr/local/cuda-12.4/bin/nvcc"}),
    quiet=machine(cuda={"toolkits": [{}, _OLD], "home_by": "CUDA_HOME"}),
)
def path_order(software: Software, cuda: Cuda) -> Iterator[Hit]:
    """With several toolkits, torch's builder follows CUDA_HOME while cmake, setup scripts and people follow PATH.

    Libraries built by the two do not fit together.
    """
    kit = cuda.chosen()
    first = next((other for other in cuda.toolkits if _of_path(other, cuda)), None)
    if not software.torch_cuda or kit is None or first is None or None in (kit.version, first.version):
        return
    if first.version != kit.version:
        best = cuda.usable(software.torch_cuda) or kit
        yield seen(
            "PATH",
            f"nvcc on PATH is CUDA {first.version} ({first.root}), and {cuda.home_by} is CUDA {kit.version}"
            f" ({kit.root})",
            take(best),
            f"first on PATH: {_named(first)}",
            f"{cuda.home_by}: {_named(kit)}",
        )


def _of_path(kit: Toolkit, cuda: Cuda) -> bool:
    return kit.root == (cuda.nvcc_target or cuda.nvcc.removesuffix("/bin/nvcc")) and bool(cuda.nvcc)


@rule(
    "HOST119",
    Severity.WARNING,
    "LD_LIBRARY_PATH hides libraries of torch",
    fires=machine(
        environ={"LD_LIBRARY_PATH": "/usr/local/cuda-13.1/lib64:/opt/lib"},
        cuda={
            "first_libraries": [
                {
                    "name": "libcublas.so.13",
                    "path": "/usr/local/cuda-13.1/lib64/libcublas.so.13",
                    "hides": "/site-packages/nvidia/cu13/lib/libcublas.so.13",
                }
            ]
        },
    ),
    quiet=machine(environ={"LD_LIBRARY_PATH": "/opt/lib"}),
)
def hidden_libraries(environ: Mapping[str, str], cuda: Cuda) -> Iterator[Hit]:
    """torch brings the CUDA libraries it was tested with; LD_LIBRARY_PATH is searched before them.

    Another release with the same name then fails with an undefined symbol (libnvJitLink, libcublasLt), or is used
    unnoticed (libnccl, libcudnn).
    """
    hidden = [library for library in cuda.first_libraries if library.hides]
    if not hidden:
        return
    folders = {os.path.dirname(library.path) for library in hidden}  # noqa: PTH120  (text, not a file of this machine)
    kept = [part for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part and part.rstrip("/") not in folders]
    yield seen(
        "LD_LIBRARY_PATH",
        f"LD_LIBRARY_PATH puts {', '.join(library.name for library in hidden)} before torch's own",
        f"export LD_LIBRARY_PATH={':'.join(kept)}" if kept else "unset LD_LIBRARY_PATH",
        *(f"{library.path} hides {library.hides}" for library in hidden[:5]),
    )


@rule(
    "HOST120",
    Severity.ERROR,
    "The stub of libcuda comes before the driver's",
    fires=machine(
        cuda={"first_libraries": [{"name": "libcuda.so.1", "path": "/usr/local/cuda-13.0/lib64/stubs/libcuda.so.1"}]}
    ),
    quiet=machine(
        cuda={"first_libraries": [{"name": "libcuda.so.1", "path": "/usr/local/cuda-13.0/compat/libcuda.so.1"}]}
    ),
)
def stub_first(cuda: Cuda) -> Iterator[Hit]:
    """The `stubs` folder of a toolkit is for linking on machines without a driver. At run time it finds no GPU.

    A `compat` folder is another thing: it holds a real, newer driver library.
    """
    for library in cuda.first_libraries:
        if library.name.startswith("libcuda.so") and "/stubs/" in library.path:
            yield seen(
                "LD_LIBRARY_PATH",
                f"LD_LIBRARY_PATH finds the stub {library.path} for {library.name}: no GPU will be found",
                f"take {library.path.rpartition('/')[0]} out of LD_LIBRARY_PATH",
                library.path,
            )
