"""CUDA toolkits, the host compiler, and which CUDA libraries the dynamic linker will find first."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from dstrain.core.machine import Compiler, Cuda, Library, Toolkit, Unknown
from dstrain.probe.place import Answer, Place

_FOLDERS = ("/opt/cuda", "/usr/lib/cuda", "/usr/lib/nvidia-cuda-toolkit")
_MATH_HEADERS = ("cublas_v2.h", "cusparse.h", "curand.h", "cusolverDn.h")
_SONAME = re.compile(r"lib[\w+-]+\.so\.\d+")
_GXX = re.compile(r"(?:g\+\+|clang\+\+)-[0-9]{1,3}")
_SCRIPT_BYTES = 64 * 1024


def cuda(place: Place) -> tuple[Cuda, list[Unknown]]:
    """Every toolkit that is found, the one torch takes, and the libraries that LD_LIBRARY_PATH puts first."""
    nvcc = place.which("nvcc") or ""
    target = _wrapped(Path(nvcc)) if nvcc else ""
    home, home_by = _home(place, nvcc)
    roots: dict[str, list[str]] = {}
    for candidate, how in _candidates(place, nvcc, target):
        hows = roots.setdefault(_real(candidate, roots), [])
        if how not in hows:
            hows.append(how)
    home = _real(Path(home), roots) if home else ""
    kits, unknown = [], []
    for root, found_by in roots.items():
        kit, silent = _toolkit(place, Path(root), tuple(found_by))
        if kit.has_nvcc or root == home:
            kits.append(kit)
        if silent and kit.has_nvcc:
            unknown.append(Unknown(f"the version of the toolkit {root}", silent))
    return (
        Cuda(
            toolkits=tuple(kits),
            home=home,
            home_by=home_by,
            nvcc=nvcc,
            nvcc_target=target,
            math_packages=any(True for _ in _math_packages(place)),
            first_libraries=tuple(_first_libraries(place)),
        ),
        unknown,
    )


def _home(place: Place, nvcc: str) -> tuple[str, str]:
    """As torch 2.13 `utils/cpp_extension.py` `_find_cuda_home` finds it, which DeepSpeed 0.19.8 takes over."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if given := place.environ.get(name):
            return given.rstrip("/") or "/", name
    if nvcc:
        return str(Path(nvcc).parent.parent), "nvcc on PATH"
    usual = place.at("/usr/local/cuda")
    return (str(usual), "/usr/local/cuda") if usual.exists() else ("", "")


def _candidates(place: Place, nvcc: str, target: str) -> Iterator[tuple[Path, str]]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if given := place.environ.get(name):
            yield Path(given), name
    if nvcc:
        yield Path(target) if target else Path(nvcc).parent.parent, "PATH"
        if target:
            yield Path(nvcc).parent.parent, "PATH (folder of the wrapper)"
    for folder in place.environ.get("PATH", "").split(os.pathsep):
        if folder and (Path(folder) / "nvcc").is_file() and str(Path(folder) / "nvcc") != nvcc:
            yield Path(folder).parent, "later on PATH"
    for name in place.names("/usr/local"):
        if name.startswith("cuda"):
            yield place.at(f"/usr/local/{name}"), "folder"
    for name in _FOLDERS:
        if place.at(name).is_dir():
            yield place.at(name), "folder"
    for site in place.packages:
        for packed in (*sorted(site.glob("nvidia/cu[0-9]*")), site / "nvidia" / "cuda_nvcc"):
            if (packed / "bin" / "nvcc").is_file():
                yield packed, "pip"


def _real(root: Path, known: dict[str, list[str]]) -> str:
    """A root that is a link to one that is known already is that one; else as it was written."""
    text = str(root)
    if text in known:
        return text
    resolved = os.path.realpath(root)
    return next((other for other in known if os.path.realpath(other) == resolved), text)


def _wrapped(nvcc: Path) -> str:
    """The toolkit that a wrapper script starts or a link leads to; "" when nvcc is neither, or leads nowhere."""
    if nvcc.is_symlink():
        return str(nvcc.resolve().parent.parent)
    try:
        with nvcc.open("rb") as file:
            head = file.read(_SCRIPT_BYTES)
    except OSError:
        return ""
    if not head.startswith(b"#!"):
        return ""
    for found in re.findall(r"(/[^\s\"']*)/bin/nvcc\b", head.decode(errors="replace")):
        if (Path(found) / "bin" / "nvcc").is_file() and os.path.realpath(Path(found) / "bin" / "nvcc") != str(nvcc):
            return str(found)
    return ""


def _toolkit(place: Place, root: Path, found_by: tuple[str, ...]) -> tuple[Toolkit, str]:
    nvcc = root / "bin" / "nvcc"
    answer = place.ask(str(nvcc), "-V") if nvcc.is_file() else Answer(trouble=f"there is no {nvcc}", missing=True)
    line = next((line.strip() for line in answer.text.splitlines() if "release" in line), "")
    version = re.search(r"release (\d+\.\d+)", line)
    silent = answer.trouble or ("" if version else f"{nvcc} -V names no release")
    includes = [root / "include", *sorted(root.glob("targets/*/include"))]
    libraries = [root / "lib64", root / "lib", *sorted(root.glob("targets/*/lib"))]
    if root == place.at("/usr"):  # Debian's own toolkit is spread over /usr
        libraries += sorted(root.glob("lib/*-linux-gnu"))
    return (
        Toolkit(
            root=str(root),
            found_by=found_by,
            version=version.group(1) if version else None,
            said=line or silent,
            has_nvcc=nvcc.is_file(),
            has_headers=_holds(includes, "cuda_runtime.h"),
            has_libraries=any(any(folder.glob("libcudart*.so*")) for folder in libraries if folder.is_dir()),
            math_missing=tuple(name for name in _MATH_HEADERS if not _holds(includes, name)),
        ),
        silent,
    )


def _holds(folders: list[Path], name: str) -> bool:
    return any((folder / name).is_file() for folder in folders)


def _math_packages(place: Place) -> Iterator[Path]:
    for folder in place.packages:
        for name in ("cusparse.h", "cublas_v2.h"):
            yield from folder.glob(f"nvidia/*/include/{name}")


def _first_libraries(place: Place) -> Iterator[Library]:
    """What LD_LIBRARY_PATH puts before torch's own copies: torch's wheels have RUNPATH, which is searched after it."""
    own = _torch_libraries(place)
    folders = [Path(text) for text in place.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if text]
    seen: set[str] = set()
    for folder in folders:
        try:
            names = sorted(entry.name for entry in folder.iterdir() if ".so." in entry.name)
        except OSError:
            continue
        for name in names:
            match = _SONAME.match(name)
            if match is None or match.group(0) in seen:
                continue
            soname = match.group(0)
            seen.add(soname)
            path, theirs = folder / name, own.get(soname)
            same = theirs is not None and os.path.realpath(theirs) == os.path.realpath(path)
            if soname.startswith("libcuda.so") or (theirs is not None and not same):
                yield Library(soname, str(path), "" if theirs is None else str(theirs))


def _torch_libraries(place: Place) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in place.packages:
        for path in sorted(folder.glob("nvidia/*/lib/lib*.so.*")):
            if match := _SONAME.match(path.name):
                found.setdefault(match.group(0), path)
    return found


def compiler(place: Place) -> tuple[Compiler, list[Unknown]]:
    """The host compiler, and what it says of itself."""
    given = place.environ.get("CXX", "").strip()
    try:
        words = shlex.split(given) or ["c++"]
    except ValueError:
        words = [given]
    command = " ".join(words)
    path = words[0] if os.sep in words[0] and os.access(words[0], os.X_OK) else place.which(words[0])
    others = tuple(sorted(_others(place)))
    if path is None:
        return Compiler(command, bool(given), said=f"there is no {words[0]}", others=others), []
    answer = place.ask(path, *words[1:], "--version")
    line = answer.text.splitlines()[0].strip() if answer.text else ""
    kind: Literal["gcc", "clang"] | None = None
    if "clang" in line:
        kind = "clang"
    elif "g++" in line or "gcc" in line or "Free Software Foundation" in answer.text:
        kind = "gcc"
    found = re.findall(r"\b([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?", line)
    version = tuple(int(part) for part in found[-1 if kind == "gcc" else 0] if part) if found else None
    known = kind is not None and version is not None
    why = answer.trouble or f"it says {line!r}"
    unknown = [] if known else [Unknown(f"which compiler {command} is", why)]
    return Compiler(command, bool(given), path, kind, version, line or answer.trouble, others), unknown


def _others(place: Place) -> set[str]:
    names = set()
    for folder in place.environ.get("PATH", "").split(os.pathsep):
        try:
            names |= {entry.name for entry in Path(folder or ".").iterdir() if _GXX.fullmatch(entry.name)}
        except OSError:
            continue
    return names
