"""`dstrain ckpt show`: all that can be known of one checkpoint."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from dstrain.checkpoint import manifest
from dstrain.checkpoint.inspect import info
from dstrain.checkpoint.layout import find
from dstrain.core.errors import CheckpointError
from dstrain.core.units import bytes_text, count_text, duration_text


def facts(folder: Path) -> dict[str, Any]:
    """Plain values of the checkpoint at a folder, or of the one that its `latest` names.

    Raises:
        CheckpointError: there is none.
    """
    layout = None
    try:
        layout = find(folder)
        place = layout.folder
    except CheckpointError:
        if manifest.read(folder) is None:
            raise
        place = folder
    shown = info(place).as_json()
    if layout is not None and layout.kind == "deepspeed":
        shown |= _of_deepspeed(layout.model_states[0])
    else:
        shown["identity"] = (manifest.read(place) or {}).get("identity", {})
        state = _json(place / "trainer_state.json")
        shown |= {key: state[key] for key in ("epoch", "max_steps", "best_metric") if state.get(key) is not None}
    shown["files_bytes"] = {
        str(path.relative_to(place)): path.stat().st_size for path in sorted(place.rglob("*")) if path.is_file()
    }
    return shown


def _of_deepspeed(model_states: Path) -> dict[str, Any]:
    """What the model file of plain DeepSpeed says of itself. A file that cannot be opened is a fault of it."""
    from dstrain.checkpoint.opening import open_shard  # torch comes with it

    try:
        state = open_shard(model_states)
    except CheckpointError as error:
        return {"health": "damaged", "faults": [f"{model_states.name} {error.message}"]}
    found = state.get("module")
    module: dict[str, Any] = found if isinstance(found, dict) else {}
    shapes = {name: shape for group in state.get("param_shapes") or [] for name, shape in group.items()}
    shapes |= state.get("frozen_param_shapes") or {}
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in module.values() if hasattr(t, "dtype")})
    sizes = [math.prod(shape) for shape in shapes.values()] or [t.numel() for t in module.values()]
    return {
        "step": state.get("global_steps"),
        "world_size": state.get("dp_world_size"),
        "deepspeed": state.get("ds_version"),
        "parameters": sum(sizes),
        "dtypes": dtypes,
        "tied": state.get("shared_params") or {},
        "frozen": list(state.get("frozen_param_shapes") or {}),
    }


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def text(shown: dict[str, Any]) -> str:
    """For a person."""
    marks = [word for key, word in (("is_latest", "the newest"), ("is_best", "the best")) if shown[key]]
    lines = [f"{shown['path']}: {shown['health']}" + (f" ({', '.join(marks)})" if marks else "")]
    lines += [f"  {fault}" for fault in shown["faults"]]
    rows: list[tuple[str, Any]] = [
        ("written by", shown["kind"] + (f" {shown['deepspeed']}" if shown.get("deepspeed") else "")),
        ("step", _of(shown.get("step"), shown.get("max_steps"))),
        ("epoch", shown.get("epoch")),
        ("age", duration_text(shown["age_s"])),
        ("size", f"{bytes_text(shown['size_bytes'])} in {shown['files']} files"),
        ("ranks", shown.get("world_size")),
        ("ZeRO stage", shown.get("zero_stage")),
        ("precision", shown.get("precision") or ", ".join(shown.get("dtypes", []))),
        ("best metric", shown.get("best_metric")),
        ("parameters", count_text(shown["parameters"]) if shown.get("parameters") else None),
        ("tied", ", ".join(f"{a} = {b}" for a, b in shown.get("tied", {}).items())),
        ("frozen", f"{len(shown['frozen'])} weights" if shown.get("frozen") else None),
    ]
    told = {"zero_stage", "precision", "world_size"}
    rows += [(key, value) for key, value in shown.get("identity", {}).items() if key not in told]
    rows = [(key, value) for key, value in rows if value not in (None, "")]
    width = max(len(key) for key, _ in rows)
    lines += [f"  {key.ljust(width)}  {value}" for key, value in rows]
    lines.append("  files")
    lines += [f"    {bytes_text(size):>10}  {name}" for name, size in shown["files_bytes"].items()]
    return "\n".join(lines)


def _of(step: Any, total: Any) -> str | None:
    if step is None:
        return None
    return f"{step} of {total}" if total else str(step)
