"""DS30x to DS32x: the ZeRO stage and what it allows, ZeRO++, leaf modules."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import (
    ZERO,
    clipping,
    drop,
    flag,
    hit,
    integer,
    number,
    precision,
    put,
    stage,
    unread,
    zero_flag,
)
from dstrain.rules.view import offload_optimizer as optimizer_device

_PLUS = ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights")
_B = {"train_micro_batch_size_per_gpu": 1}


def _hpz(doc: Document) -> int:
    return integer(doc.get(f"{ZERO}.zero_hpz_partition_size", 1)) or 1


@rule(
    "DS310",
    Severity.WARNING,
    "ZeRO++ below stage 3 does nothing",
    fires={**_B, ZERO: {"stage": 2, "zero_hpz_partition_size": 8}},
    quiet={**_B, ZERO: {"stage": 3, "zero_hpz_partition_size": 8}},
)
def plus_below_3(doc: Document) -> Iterator[Hit]:
    """The ZeRO++ settings act on partitioned parameters, which only stage 3 has.

    At stage 0, 1 and 2 DeepSpeed accepts `zero_hpz_partition_size` and `zero_quantized_*` and never reads them: only
    the stage-3 branch passes them on (`runtime/engine.py:2787`). Set stage 3, or take the keys out.
    """
    at = stage(doc)
    if at not in (0, 1, 2):
        return
    keys = [key for key in _PLUS if zero_flag(doc, key, False)]
    if _hpz(doc) > 1:
        keys.append("zero_hpz_partition_size")
    for key in keys:
        full = f"{ZERO}.{key}"
        message = f"{key} has no effect at ZeRO stage {at}; it needs stage 3"
        yield hit(full, message, f'"stage": 3, or leave {key} out')


@rule(
    "DS311",
    Severity.WARNING,
    "zero_hpz_partition_size is larger than the run",
    fires={**_B, ZERO: {"stage": 3, "zero_hpz_partition_size": 16}, "$facts": {"world_size": 8}},
    quiet={**_B, ZERO: {"stage": 3, "zero_hpz_partition_size": 8}, "$facts": {"world_size": 8}},
)
def hpz_larger(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """`zero_hpz_partition_size` is the number of ranks that share a second copy of the parameters, usually one node.

    A value above the number of ranks is cut to it without a word (`utils/groups.py:942`): the second copy is then
    spread over all ranks, costs memory and saves no traffic between nodes.
    """
    if stage(doc) == 3 and _hpz(doc) > world.world_size:
        key = f"{ZERO}.zero_hpz_partition_size"
        yield hit(
            key,
            f"zero_hpz_partition_size is {_hpz(doc)}, but there are {world.world_size} rank(s)",
            f'"zero_hpz_partition_size": {world.local_world_size} (the ranks of one node), or leave it out',
            put(doc, key, max(1, world.local_world_size)),
        )


@rule(
    "DS312",
    Severity.ERROR,
    "zero_hpz_partition_size does not divide the ranks",
    fires={**_B, ZERO: {"stage": 3, "zero_hpz_partition_size": 3}, "$facts": {"world_size": 8}},
    quiet={**_B, ZERO: {"stage": 3, "zero_hpz_partition_size": 4}, "$facts": {"world_size": 8}},
)
def hpz_divides(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """The groups of `zero_hpz_partition_size` ranks must cover all ranks evenly (`utils/groups.py:943` asserts it)."""
    size = _hpz(doc)
    if stage(doc) == 3 and 1 < size <= world.world_size and world.world_size % size:
        yield hit(
            f"{ZERO}.zero_hpz_partition_size",
            f"zero_hpz_partition_size {size} does not divide {world.world_size} ranks "
            f"(remainder {world.world_size % size})",
            "the number of ranks of one node",
        )


@rule(
    "DS313",
    Severity.ERROR,
    "legacy_stage1 is gone",
    fires={**_B, ZERO: {"stage": 1, "legacy_stage1": True}},
    quiet={**_B, ZERO: {"stage": 1, "legacy_stage1": False}},
)
def legacy_stage_1(doc: Document) -> Iterator[Hit]:
    """`legacy_stage1: true` passes the parser and raises when the optimizer is built (`runtime/engine.py:2650`)."""
    if zero_flag(doc, "legacy_stage1", False) and stage(doc) != 0:
        key = f"{ZERO}.legacy_stage1"
        yield hit(key, "legacy_stage1 is no longer supported (since 0.5.9)", "leave legacy_stage1 out", drop(key))


@rule(
    "DS314",
    Severity.WARNING,
    "elastic_checkpoint at stage 3 saves what cannot be loaded",
    fires={**_B, ZERO: {"stage": 3, "elastic_checkpoint": True}},
    quiet={**_B, ZERO: {"stage": 1, "elastic_checkpoint": True}},
)
def elastic_stage_3(doc: Document) -> Iterator[Hit]:
    """At stage 3 `elastic_checkpoint: true` only warns, and saving works; loading raises NotImplementedError.

    See `zero/config.py:403` and `zero/stage3.py:3622`. To resume on another number of ranks, convert the checkpoint
    to the universal format.
    """
    if stage(doc) == 3 and zero_flag(doc, "elastic_checkpoint", False):
        key = f"{ZERO}.elastic_checkpoint"
        yield hit(key, "elastic_checkpoint at stage 3 cannot be loaded again", "leave it out", drop(key))


@rule(
    "DS315",
    Severity.ERROR,
    "compute_grad_norm off does not go with this",
    fires={**_B, ZERO: {"stage": 2, "compute_grad_norm": False}},
    quiet={**_B, "gradient_clipping": 0, ZERO: {"stage": 2, "compute_grad_norm": False}},
)
def no_grad_norm(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`compute_grad_norm: false` needs stage 1 or 2, no clipping, no optimizer offload and no ZenFlow.

    The stage is checked by the parser (`zero/config.py:388`); the rest when the optimizer is built
    (`zero/stage_1_and_2.py:212`). Clipping is on at 1.0 when `gradient_clipping` is left out, so it has to be
    written as 0. At stage 1, bf16 with fp32 accumulation is refused too (`runtime/engine.py:2308`).
    """
    key = f"{ZERO}.compute_grad_norm"
    if zero_flag(doc, "compute_grad_norm", True) is not False:
        return
    at, norm = stage(doc), clipping(doc, mode)
    if at in (0, 3):
        yield hit(key, f"compute_grad_norm false is refused at stage {at}; it needs stage 1 or 2", '"stage": 2')
        return
    if norm is not None and norm > 0:
        origin = "" if doc.has("gradient_clipping") else " (the default when the key is left out)"
        yield hit(
            key,
            f"compute_grad_norm false needs gradient_clipping 0, but it is {norm}{origin}",
            '"gradient_clipping": 0, or "compute_grad_norm": true',
        )
    if optimizer_device(doc) in ("cpu", "nvme"):
        yield hit(key, "compute_grad_norm false does not support offload_optimizer", "leave one of them out")
    if isinstance(doc.get(f"{ZERO}.zenflow"), Mapping):
        yield hit(key, "compute_grad_norm false does not support zenflow", "leave one of them out")
    accumulation = doc.get("data_types.grad_accum_dtype")
    if at == 1 and precision(doc, mode) == "bf16" and accumulation in ("fp32", "float32", "float"):
        yield hit(key, "compute_grad_norm false is refused at stage 1 with bf16 and fp32 accumulation", '"stage": 2')


@rule(
    "DS316",
    Severity.ERROR,
    "allgather_bucket_size is odd",
    fires={**_B, ZERO: {"stage": 2, "allgather_bucket_size": 5001}},
    quiet={**_B, ZERO: {"stage": 2, "allgather_bucket_size": 5000}},
)
def odd_bucket(doc: Document) -> Iterator[Hit]:
    """`allgather_bucket_size` counts elements and must be even at stage 1 and 2 (`zero/stage_1_and_2.py:389`)."""
    key = f"{ZERO}.allgather_bucket_size"
    size = integer(doc.get(key))
    if stage(doc) in (1, 2) and size is not None and size > 0 and size % 2:
        yield hit(
            key, f"allgather_bucket_size is {size}; expected an even number", str(size + 1), put(doc, key, size + 1)
        )


@rule(
    "DS317",
    Severity.ERROR,
    "gradient_allreduce_op sum does not go with this",
    fires={**_B, "gradient_allreduce_op": "sum", ZERO: {"stage": 3}},
    quiet={**_B, "gradient_allreduce_op": "sum", ZERO: {"stage": 2}},
)
def sum_reduce(doc: Document) -> Iterator[Hit]:
    """Summing gradients instead of averaging is refused at stage 3, with ZenFlow and with DeepCompile.

    `runtime/config.py:694`. Where it is accepted, the loss must be scaled by the caller for a mean over ranks.
    """
    value = doc.get("gradient_allreduce_op")
    if not isinstance(value, str) or value.lower() != "sum":
        return
    reasons = {
        "ZeRO stage 3": stage(doc) == 3,
        "ZenFlow": isinstance(doc.get(f"{ZERO}.zenflow"), Mapping),
        "DeepCompile": flag(doc.get("compile.deepcompile")) is True,
    }
    for reason, met in reasons.items():
        if met:
            yield hit(
                "gradient_allreduce_op",
                f'gradient_allreduce_op "sum" is not supported with {reason}; expected "mean"',
                '"gradient_allreduce_op": "mean"',
                put(doc, "gradient_allreduce_op", "mean"),
            )
            return


@rule(
    "DS318",
    Severity.ERROR,
    "Gradient pre-scaling does not go with reduce-scatter",
    fires={**_B, "prescale_gradients": True, ZERO: {"stage": 2}},
    quiet={**_B, "prescale_gradients": True, ZERO: {"stage": 1}},
)
def prescale(doc: Document) -> Iterator[Hit]:
    """At stage 2 and 3 with `reduce_scatter` (on by default), pre-scaling and a pre-divide factor are refused.

    DeepSpeed asserts it when the optimizer is built (`zero/stage_1_and_2.py:350`, `zero/stage3.py:395`). Stage 0 and
    1 accept both.
    """
    at = stage(doc)
    if at not in (2, 3) or zero_flag(doc, "reduce_scatter", True) is not True:
        return
    if at == 2 and str(doc.get("gradient_allreduce_op", "mean")).lower() == "sum":
        return
    if flag(doc.get("prescale_gradients")) is True:
        key = "prescale_gradients"
        yield hit(
            key, f"prescale_gradients is refused at stage {at} with reduce_scatter", "false", put(doc, key, False)
        )
    key = "gradient_predivide_factor"
    factor = number(doc.get(key))
    if factor is not None and factor != 1:
        yield hit(
            key, f"{key} {factor} is refused at stage {at} with reduce_scatter; expected 1.0", "1.0", put(doc, key, 1.0)
        )


@rule(
    "DS319",
    Severity.ADVICE,
    "save_16bit_model will write nothing",
    fires={**_B, ZERO: {"stage": 3}},
    quiet={**_B, ZERO: {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}},
)
def gather_on_save(doc: Document, mode: Mode) -> Iterator[Hit]:
    """At stage 3 `engine.save_16bit_model` returns False and writes no file unless the weights may be gathered.

    transformers then falls back to a full sharded checkpoint. dstrain streams the weights itself and does not need
    the key.
    """
    key = f"{ZERO}.stage3_gather_16bit_weights_on_model_save"
    old = f"{ZERO}.stage3_gather_fp16_weights_on_model_save"
    if mode is Mode.DSTRAIN or stage(doc) != 3 or doc.has(old):
        return
    if zero_flag(doc, "stage3_gather_16bit_weights_on_model_save", False) is False:
        yield hit(
            key,
            "at stage 3 save_16bit_model writes nothing without stage3_gather_16bit_weights_on_model_save",
            '"stage3_gather_16bit_weights_on_model_save": true',
            put(doc, key, True),
        )


@rule(
    "DS320",
    Severity.WARNING,
    "accelerate refuses a file without zero_optimization",
    fires={**_B, "$facts": {"mode": "transformers"}},
    quiet={**_B, ZERO: {"stage": 0}, "$facts": {"mode": "transformers"}},
)
def zero_missing(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Without a `zero_optimization` section plain DeepSpeed trains at stage 0; accelerate 1.15 raises ValueError.

    A boolean in its place (the oldest form) is accepted by DeepSpeed and breaks accelerate as well.
    """
    if mode is not Mode.TRANSFORMERS or unread(doc):
        return
    if not doc.has(ZERO):
        yield hit(
            ZERO,
            "there is no zero_optimization section, and accelerate refuses that",
            '"zero_optimization": {"stage": 0}',
            put(doc, ZERO, {"stage": 0}),
        )
    elif isinstance(doc.get(ZERO), bool):
        level = int(doc.get(ZERO))
        yield hit(
            ZERO,
            f"zero_optimization is {str(bool(level)).lower()}; accelerate expects a section",
            f'{{"stage": {level}}}',
            put(doc, ZERO, {"stage": level}),
        )


@rule(
    "DS321",
    Severity.WARNING,
    "sub_group_size 0 steps one parameter at a time",
    fires={**_B, ZERO: {"stage": 3, "sub_group_size": 0}},
    quiet={**_B, ZERO: {"stage": 3, "sub_group_size": 1e9}},
)
def sub_group_zero(doc: Document) -> Iterator[Hit]:
    """`sub_group_size` is the number of elements the stage-3 optimizer steps at once; 0 is accepted.

    Each parameter then becomes a group of its own, and the step runs one small kernel (and one swap) per parameter.
    """
    key = f"{ZERO}.sub_group_size"
    if stage(doc) == 3 and doc.has(key) and number(doc.get(key)) == 0:
        yield hit(
            key,
            "sub_group_size is 0: each parameter is stepped alone",
            "1000000000 (the default)",
            put(doc, key, 1_000_000_000),
        )


@rule(
    "DS322",
    Severity.WARNING,
    "Pipeline stages do not go with ZeRO-2 and 3",
    fires={**_B, "pipeline": {"stages": 2}, ZERO: {"stage": 2}},
    quiet={**_B, "pipeline": {"stages": 2}, ZERO: {"stage": 1}},
)
def pipeline_stage(doc: Document) -> Iterator[Hit]:
    """A `PipelineModule` is refused above stage 1 (`runtime/pipe/engine.py:76`).

    The `pipeline` section itself does not make a pipeline: the number of stages comes from the `PipelineModule`.
    """
    at, stages = stage(doc), integer(doc.get("pipeline.stages"))
    if at in (2, 3) and stages is not None and stages > 1:
        yield hit(
            "pipeline.stages",
            f"pipeline.stages is {stages}, and pipelines are refused at ZeRO stage {at}",
            '"stage": 1',
        )
