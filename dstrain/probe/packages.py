"""What this Python environment has: read from files, nothing is imported."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dstrain.core.machine import Software, Unknown
from dstrain.probe.place import Place

_LIBAIO = ("/usr/include/libaio.h", "/usr/local/include/libaio.h")


def software(place: Place) -> tuple[Software, list[Unknown]]:
    """Versions and build helpers; what could not be read is named in the list."""
    unknown: list[Unknown] = []
    torch, torch_cuda = _torch(place, unknown)
    folder = place.package("deepspeed")
    deepspeed = (place.version_of("deepspeed") or _version(folder)) if folder else None
    return (
        Software(
            python=place.python,
            torch=torch,
            torch_cuda=torch_cuda,
            deepspeed=deepspeed,
            prebuilt_for=_prebuilt(folder) if folder else None,
            ninja=place.which("ninja"),
            hidden_ninja=str(place.scripts / "ninja") if (place.scripts / "ninja").is_file() else None,
            python_header=str(place.header),
            has_python_header=place.header.is_file(),
            libaio_header=next((path for path in _LIBAIO if place.at(path).is_file()), None),
        ),
        unknown,
    )


def _torch(place: Place, unknown: list[Unknown]) -> tuple[str | None, str]:
    folder = place.package("torch")
    if folder is None:
        return None, ""
    try:
        text = (folder / "version.py").read_text()
    except OSError:
        unknown.append(Unknown("torch's CUDA version", f"there is no {folder / 'version.py'}"))
        return place.version_of("torch") or "unknown", ""
    return _value(text, "__version__") or "unknown", _value(text, "cuda")


def _value(text: str, name: str) -> str:
    match = re.search(rf"^{name}(?:\s*:[^=]*)?\s*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return match.group(1) if match else ""


def _installed(folder: Path) -> dict[str, object]:
    """The assignments of `git_version_info_installed.py`, which DeepSpeed's installation writes (0.19.8)."""
    values: dict[str, object] = {}
    try:
        body = ast.parse((folder / "git_version_info_installed.py").read_text()).body
    except (OSError, SyntaxError, ValueError):
        return values
    for line in body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                values[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    return values


def _version(folder: Path) -> str:
    return str(_installed(folder).get("version", "unknown"))


def _prebuilt(folder: Path) -> tuple[str, str] | None:
    values = _installed(folder)
    ops, info = values.get("installed_ops"), values.get("torch_info")
    if not isinstance(ops, dict) or not isinstance(info, dict) or not any(ops.values()):
        return None
    return str(info.get("version", "")), str(info.get("cuda_version", ""))
