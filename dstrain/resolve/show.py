"""The plan as text: each value with where it came from, then the exact DeepSpeed JSON."""

from __future__ import annotations

import json
from typing import Any

from dstrain.core.finding import Finding, render
from dstrain.resolve.plan import RunPlan

_HIDDEN = ("sources", "deepspeed", "notices", "world", "model", "data", "needed_ops", "zero_stage")


def as_text(plan: RunPlan | None, findings: tuple[Finding, ...]) -> str:
    """What `dstrain plan` prints."""
    blocks = []
    if plan is not None:
        blocks += [_values(plan), *_notices(plan), _config(plan)]
    if findings:
        blocks.append(render(findings))
    blocks.append("This plan can run." if plan is not None else "This plan cannot run: see the errors above.")
    return "\n\n".join(blocks)


def as_json(plan: RunPlan | None, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """What `dstrain plan --format json` prints."""
    return {
        "plan": plan.as_json() if plan is not None else None,
        "deepspeed": plan.as_json()["deepspeed"] if plan is not None else None,
        "findings": [finding.as_json() for finding in findings],
    }


def _values(plan: RunPlan) -> str:
    rows: list[tuple[str, str, str]] = [
        ("world_size", str(plan.world.world_size), f"launcher: {plan.world.launcher or 'none'}"),
        ("model", plan.model.class_name, f"{plan.model.parameters:,} parameters"),
    ]
    if plan.backend == "deepspeed":
        rows.append(("zero_stage", str(plan.zero_stage), str(plan.sources.get("zero_stage", ""))))
    for name, value in _flat({key: v for key, v in plan.as_json().items() if key not in _HIDDEN}, ""):
        source = plan.sources.get(name) or plan.sources.get(name.rpartition(".")[0])
        rows.append((name, _short(value), str(source) if source else ""))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    return "\n".join(f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in rows)


def _flat(value: Any, prefix: str) -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, inner in value.items() for pair in _flat(inner, f"{prefix}.{key}" if prefix else key)]
    return [(prefix, value)]


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _notices(plan: RunPlan) -> list[str]:
    return ["\n".join(f"note: {notice}" for notice in plan.notices)] if plan.notices else []


def _config(plan: RunPlan) -> str:
    if plan.backend != "deepspeed":
        return "No DeepSpeed: plain torch on one device."
    text = "DeepSpeed gets exactly this JSON:\n" + json.dumps(plan.as_json()["deepspeed"], indent=2)
    filled = {name: source for name, source in plan.sources.items() if name.startswith("deepspeed.")}
    if not filled:
        return text
    width = max(map(len, filled)) - len("deepspeed.")
    lines = [f"  {name.removeprefix('deepspeed.'):<{width}}  {source}" for name, source in filled.items()]
    return "\n".join([text, "", "Filled in there, beside the values above:", *lines])
