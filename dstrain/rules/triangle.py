"""Batch arithmetic: global batch = micro-batch x gradient accumulation steps x data-parallel world size."""

from __future__ import annotations

from dataclasses import dataclass

from dstrain.args.training import TrainingArguments
from dstrain.core.numbers import as_int
from dstrain.core.source import Source, derived
from dstrain.dsconfig.document import Document

MICRO, ACCUMULATION, TRAIN = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size"


@dataclass(frozen=True)
class Triangle:
    """The three numbers, where each came from, and why they cannot be (None when they hold)."""

    micro: int
    accumulation: int
    train: int
    sources: dict[str, Source]
    problem: str | None = None


def _stated(doc: Document, key: str) -> tuple[int, Source] | None:
    value = as_int(doc.get(key))
    return (value, Source("file", str(doc.place(key)))) if value is not None and value > 0 else None


def _argued(args: TrainingArguments, name: str) -> tuple[int, Source] | None:
    source = args.sources[name]
    return None if source.kind == "default" else (getattr(args, name), source)


def solve(args: TrainingArguments, doc: Document, world_size: int) -> Triangle:
    """The triangle from what file and arguments state; what neither states is derived, then the arguments' default.

    A number that the file states wins over an argument's default; two that disagree are another rule's finding.
    """
    micro = _stated(doc, MICRO) or _argued(args, "per_device_train_batch_size")
    accumulation = _stated(doc, ACCUMULATION) or _argued(args, "gradient_accumulation_steps")
    train = _stated(doc, TRAIN)
    if train is None:
        micro = micro or (args.per_device_train_batch_size, args.sources["per_device_train_batch_size"])
        accumulation = accumulation or (args.gradient_accumulation_steps, args.sources["gradient_accumulation_steps"])
        product = micro[0] * accumulation[0] * world_size
        formula = f"micro-batch x accumulation x world size = {micro[0]} x {accumulation[0]} x {world_size}"
        return _triangle(micro, accumulation, (product, derived(formula)), None)
    if micro and not accumulation:
        share = micro[0] * world_size
        formula = f"train_batch_size / (micro-batch x world size) = {train[0]} / ({micro[0]} x {world_size})"
        quotient = (max(1, train[0] // share), derived(formula))
        return _triangle(micro, quotient, train, _remainder(train[0], share, f"{micro[0]} x {world_size}"))
    accumulation = accumulation or (1, derived("1, since train_batch_size stands alone"))
    if not micro:
        share = accumulation[0] * world_size
        formula = f"train_batch_size / (accumulation x world size) = {train[0]} / ({accumulation[0]} x {world_size})"
        quotient = (max(1, train[0] // share), derived(formula))
        return _triangle(
            quotient, accumulation, train, _remainder(train[0], share, f"{accumulation[0]} x {world_size}")
        )
    product = micro[0] * accumulation[0] * world_size
    problem = None
    if product != train[0]:
        problem = (
            f"train_batch_size {train[0]} is not micro-batch {micro[0]} x accumulation {accumulation[0]} x "
            f"world size {world_size} = {product}"
        )
    return _triangle(micro, accumulation, train, problem)


def _remainder(train: int, share: int, text: str) -> str | None:
    rest = train % share
    return f"train_batch_size {train} is not a multiple of {text} = {share}: {rest} left over" if rest else None


def _triangle(
    micro: tuple[int, Source], accumulation: tuple[int, Source], train: tuple[int, Source], problem: str | None
) -> Triangle:
    sources = {"micro": micro[1], "accumulation": accumulation[1], "train": train[1]}
    return Triangle(micro[0], accumulation[0], train[0], sources, problem)
