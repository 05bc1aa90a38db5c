"""DS7xx: checkpoints, and tensor, expert and pipeline parallelism."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, drop, flag, hit, integer, is_auto, put, stage, zero_flag

_B = {"train_micro_batch_size_per_gpu": 1}


@rule(
    "DS706",
    Severity.ERROR,
    "checkpoint.writer makes checkpoints that do not load",
    fires={**_B, "checkpoint": {"writer": {"type": "python"}}},
    quiet={**_B, "checkpoint": {"tag_validation": "Warn"}},
)
def writer(doc: Document) -> Iterator[Hit]:
    """The fast checkpoint writer of 0.19.8 is not usable for a run that has to resume (measured).

    Started by anything but the `deepspeed` launcher it raises KeyError 'CROSS_SIZE'. With `data_parallel` left out
    it raises AttributeError (`data_parallel_writer_factory.py:95`). With it, saving works, and loading raises
    UnpicklingError with torch 2.6 or later. Type "mock" writes empty files and says that all is well.
    """
    value = doc.get("checkpoint.writer")
    if value is not None and not is_auto(value):
        kind = doc.section("checkpoint.writer").get("type", "fast")
        message = f'checkpoint.writer (type "{kind}") makes checkpoints that DeepSpeed 0.19.8 cannot load'
        yield hit("checkpoint.writer", message, "leave checkpoint.writer out", drop("checkpoint.writer"))


@rule(
    "DS707",
    Severity.ADVICE,
    "load_universal reads converted checkpoints only",
    fires={**_B, "checkpoint": {"load_universal": True}},
    quiet={**_B, "checkpoint": {"load_universal": False}},
)
def load_universal(doc: Document) -> Iterator[Hit]:
    """With `checkpoint.load_universal` every load expects the output of `deepspeed.checkpoint.ds_to_universal`.

    Resuming from a normal checkpoint then fails on a missing `latest_universal`. Take the key out once the run has
    saved a checkpoint of its own. At stage 3 the conversion knows Adam's states only.
    """
    if doc.get("checkpoint.load_universal") is True:
        key = "checkpoint.load_universal"
        yield hit(
            key,
            "load_universal is on: only converted checkpoints can be loaded",
            '"load_universal": false to resume from normal ones',
        )


@rule(
    "DS708",
    Severity.WARNING,
    "datastates_ckpt needs a package that DeepSpeed does not bring",
    fires={**_B, "datastates_ckpt": {"host_cache_size": 16}},
    quiet=_B,
)
def datastates(doc: Document) -> Iterator[Hit]:
    """Any value but false selects the DataStates engine; without its package the engine raises RuntimeError."""
    value = doc.get("datastates_ckpt")
    if value is not None and value is not False:
        key = "datastates_ckpt"
        fix = '"datastates_ckpt": false, or install the package on every rank'
        yield hit(key, "datastates_ckpt needs the datastates package on every rank", fix)


@rule(
    "DS709",
    Severity.ERROR,
    "tensor_parallel sizes disagree",
    fires={**_B, "tensor_parallel": {"autotp_size": 4, "tp": {"tp_size": 2}}},
    quiet={**_B, "tensor_parallel": {"autotp_size": 2, "tp": {"tp_size": 2}}},
)
def tensor_parallel(doc: Document) -> Iterator[Hit]:
    """For training, `autotp_size` switches tensor parallelism on; `tp.tp_size` alone is read and does nothing
    (a warning).

    With both, `tp.tp_size` must be 1 or the same (`runtime/engine.py:1021`).
    """
    key = "tensor_parallel.tp.tp_size"
    tp, auto = integer(doc.get(key)), integer(doc.get("tensor_parallel.autotp_size", 0))
    if tp is None or tp <= 1 or auto is None:
        return
    if auto == 0:
        patch = (put(doc, "tensor_parallel.autotp_size", tp),)
        message = f"tp.tp_size {tp} does nothing without autotp_size"
        yield Hit(key, message, f'"autotp_size": {tp}', patch, severity=Severity.WARNING)
    elif auto != tp:
        yield hit(key, f"tp.tp_size {tp} is not autotp_size {auto}", f'"tp_size": {auto}', put(doc, key, auto))


@rule(
    "DS710",
    Severity.ADVICE,
    "The pipeline section makes no pipeline",
    fires={**_B, "pipeline": {"stages": 2}},
    quiet=_B,
)
def pipeline(doc: Document) -> Iterator[Hit]:
    """`pipeline.stages` is kept and not read: the stages are those of the `PipelineModule` given to `initialize`."""
    if doc.section("pipeline") and doc.has("pipeline.stages") and not is_auto(doc.get("pipeline.stages")):
        yield hit(
            "pipeline.stages",
            "pipeline.stages has no effect; a PipelineModule sets the stages",
            "leave it out",
            drop("pipeline.stages"),
        )


@rule(
    "DS711",
    Severity.ERROR,
    "Expert parallelism does not go with this",
    fires={
        **_B,
        "expert_parallel": {"enabled": True, "autoep_size": 1},
        ZERO: {"stage": 3, "zero_quantized_gradients": True},
    },
    quiet={**_B, "expert_parallel": {"enabled": True, "autoep_size": 1}, ZERO: {"stage": 3}},
)
def expert_stage_3(doc: Document) -> Iterator[Hit]:
    """AutoEP at stage 3 refuses sequence parallelism, quantized gradients, hpZ and expert tensor parallelism.

    `runtime/engine.py:2219`. Stage 2 needs `contiguous_gradients` and `reduce_scatter`
    (`zero/stage_1_and_2.py:865`). `async_split_plan` and `combine_impl: "fused_weighted_sum"` do not go with tensor
    parallelism at any stage (`module_inject/auto_ep_config.py:133`).
    """
    if flag(doc.get("expert_parallel.enabled")) is not True:
        return
    if stage(doc) == 3:
        sizes = (
            "sequence_parallel_size",
            f"{ZERO}.zero_hpz_partition_size",
            "expert_parallel.expert_tensor_parallel_size",
        )
        for key in sizes:
            value = integer(doc.get(key, 1))
            if value is not None and value > 1:
                yield hit(
                    key, f"{key} {value} is refused with expert_parallel at stage 3; expected 1", "1", put(doc, key, 1)
                )
        key = f"{ZERO}.zero_quantized_gradients"
        if flag(doc.get(key)) is True:
            yield hit(
                key,
                "zero_quantized_gradients is refused with expert_parallel at stage 3",
                "false",
                put(doc, key, False),
            )
    if stage(doc) == 2:
        for name in ("contiguous_gradients", "reduce_scatter"):
            if zero_flag(doc, name, True) is False:
                message = f"expert_parallel at stage 2 needs {name}"
                yield hit(f"{ZERO}.{name}", message, "true", put(doc, f"{ZERO}.{name}", True))
    tensor = integer(doc.get("tensor_parallel.autotp_size", 0)) or 0
    if tensor > 1 and flag(doc.get("expert_parallel.async_split_plan")) is True:
        key = "expert_parallel.async_split_plan"
        yield hit(key, f"async_split_plan is refused with autotp_size {tensor}", "false", put(doc, key, False))
    if tensor > 1 and doc.get("expert_parallel.combine_impl") == "fused_weighted_sum":
        yield hit(
            "expert_parallel.combine_impl", f'"fused_weighted_sum" is refused with autotp_size {tensor}', '"auto"'
        )


@rule(
    "DS712",
    Severity.ADVICE,
    "deepcompile needs engine.compile()",
    fires={**_B, "compile": {"deepcompile": True}},
    quiet={**_B, "compile": {"deepcompile": False}},
)
def deepcompile(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`compile.deepcompile` is only a choice for `engine.compile()`; without that call it does nothing but log."""
    if mode is not Mode.DSTRAIN and flag(doc.get("compile.deepcompile")) is True:
        yield hit(
            "compile.deepcompile", "deepcompile has no effect until engine.compile() is called", "call engine.compile()"
        )
