"""DS33x: ZenFlow, which updates the important gradients at once and the rest on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, drop, flag, hit, integer, put, stage, zero_flag
from dstrain.rules.view import offload_optimizer as optimizer_device

_B = {"train_micro_batch_size_per_gpu": 1}
_OPT = f"{ZERO}.offload_optimizer"


@rule(
    "DS330",
    Severity.ERROR,
    "ZenFlow cannot start like this",
    fires={**_B, ZERO: {"stage": 2, "zenflow": {"topk_ratio": 0.1}}},
    quiet={**_B, ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"topk_ratio": 0.1}}},
)
def zenflow(doc: Document) -> Iterator[Hit]:
    """ZenFlow needs ZeRO with CPU offload, and intervals that fit its strategy.

    Checked late: no offload (`zenflow_stage_1_and_2.py:115`), a number with the "auto" strategy or "auto" with
    another one (`zenflow/engine.py:38`), a selection more frequent than the update (`zenflow/engine.py:62`), its own
    offload without `overlap_comm` (`zenflow_stage_1_and_2.py:76`). At stage 0 the section is ignored.
    """
    key = f"{ZERO}.zenflow"
    if not isinstance(doc.get(key), Mapping):
        return
    at = stage(doc)
    if at == 0:
        fix = '"stage": 2, or leave zenflow out'
        yield Hit(key, "zenflow has no effect at ZeRO stage 0", fix, severity=Severity.WARNING)
        return
    if optimizer_device(doc) == "none":
        yield hit(
            key,
            "zenflow needs offload_optimizer to the CPU",
            '"offload_optimizer": {"device": "cpu"}',
        )
    strategy, select = doc.get(f"{key}.select_strategy", "auto"), doc.get(f"{key}.select_interval", "auto")
    if strategy == "auto" and integer(select) is not None:
        yield hit(
            f"{key}.select_interval",
            f'select_interval {select} with select_strategy "auto" is refused',
            "leave one of them out",
            drop(f"{key}.select_interval"),
        )
    if strategy in ("step", "epoch") and select == "auto":
        yield hit(
            f"{key}.select_interval",
            f'select_strategy "{strategy}" needs a number as select_interval',
            '"select_interval": 1',
        )
    update, chosen = integer(doc.get(f"{key}.update_interval", "auto")), integer(select)
    if strategy == "step" and update and chosen and chosen < update:
        yield hit(
            f"{key}.select_interval",
            f"select_interval {chosen} is below update_interval {update}",
            f'"select_interval": {update}',
        )
    if flag(doc.get(f"{key}.offload")) is True and at in (1, 2) and not zero_flag(doc, "overlap_comm", False):
        yield hit(
            f"{key}.offload",
            "zenflow.offload needs overlap_comm",
            '"overlap_comm": true',
            put(doc, f"{ZERO}.overlap_comm", True),
        )


@rule(
    "DS331",
    Severity.WARNING,
    "ZenFlow sets the accumulation steps",
    fires={
        **_B,
        "gradient_accumulation_steps": 8,
        ZERO: {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "zenflow": {"select_strategy": "step", "select_interval": 4, "update_interval": 4},
        },
    },
    quiet={
        **_B,
        "gradient_accumulation_steps": 4,
        ZERO: {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "zenflow": {"select_strategy": "step", "select_interval": 4, "update_interval": 4},
        },
    },
)
def zenflow_steps(doc: Document) -> Iterator[Hit]:
    """ZenFlow overwrites `gradient_accumulation_steps` with its `update_interval` (`zenflow/engine.py:69`)."""
    key = f"{ZERO}.zenflow.update_interval"
    update, steps = integer(doc.get(key)), integer(doc.get("gradient_accumulation_steps"))
    if stage(doc) and update and steps and update != steps:
        yield hit(
            key,
            f"zenflow.update_interval {update} replaces gradient_accumulation_steps {steps}",
            f'"update_interval": {steps}, or "gradient_accumulation_steps": {update}',
        )
