"""arguments + DeepSpeed file + facts -> `RunPlan`. Pure: no torch, no files, no environment."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from dstrain.args.training import TrainingArguments
from dstrain.core.facts import DataFacts, HostFacts, Mode, ModelFacts, WorldFacts
from dstrain.core.finding import Finding, has_errors
from dstrain.core.source import derived, fact
from dstrain.dsconfig.canonical import canonical
from dstrain.dsconfig.document import Document
from dstrain.resolve import deepspeed, topics
from dstrain.resolve._builder import Builder
from dstrain.resolve.optimizer import optimizer
from dstrain.resolve.plan import BackendName, RunPlan
from dstrain.resolve.process import process, run_name
from dstrain.rules import lint
from dstrain.rules import run as _rules_of_a_run  # noqa: F401  (registers DS9xx; `config check` does not pay for them)

NO_FILE = Document("<no DeepSpeed file>", {})


@dataclass(frozen=True)
class Resolution:
    """`plan` is None when a finding is an error."""

    plan: RunPlan | None
    findings: tuple[Finding, ...]


def resolve(
    args: TrainingArguments,
    doc: Document | None,
    *,
    world: WorldFacts,
    host: HostFacts,
    model: ModelFacts,
    data: DataFacts,
) -> Resolution:
    """Check everything, then fill everything.

    Args:
        doc: the DeepSpeed configuration, or None for a run without DeepSpeed.
    """
    read = doc if doc is not None else NO_FILE
    # Rules about a DeepSpeed file (`doc`) do not run without one; rules about the arguments get an empty `file`.
    mode = Mode.DSTRAIN if doc is not None else None
    report = lint(doc=doc, file=read, mode=mode, world=world, host=host, model=model, data=data, args=args)
    if has_errors(report.findings):
        return Resolution(None, report.findings)
    # What was written as text or in another form (`"5e8"`, `4.0`) goes on as the value that it means.
    meant = dataclasses.replace(read, data=canonical(read)) if doc is not None else read
    builder = Builder(args, meant, world, host, model, data)
    return Resolution(_plan(builder, doc is not None), report.findings)


def _plan(b: Builder, uses_deepspeed: bool) -> RunPlan:
    backend: BackendName = "deepspeed" if uses_deepspeed else "single"
    b.put("backend", backend, b.args.sources["deepspeed"] if uses_deepspeed else derived("no --deepspeed"))
    b.put("device", b.host.device, fact("what torch sees") if not b.args.use_cpu else b.args.sources["use_cpu"])
    batch = topics.batch(b)
    length = topics.length(b, batch)
    precision = topics.precision(b)
    stage = deepspeed.zero_stage(b) if uses_deepspeed else 0
    optimizer_plan, section, ops = optimizer(b, backend, stage)
    schedule = topics.schedule(b, length.max_steps)
    config = deepspeed.emit(b, batch, precision, stage, optimizer_plan, section, schedule) if uses_deepspeed else {}
    return RunPlan(
        output_dir=b.arg("output_dir", "output_dir"),
        backend=backend,
        device=b.host.device,
        precision=precision,
        zero_stage=stage,
        world=b.world,
        model=b.model,
        data=b.data,
        batch=batch,
        length=length,
        optimizer=optimizer_plan,
        schedule=schedule,
        report=topics.report(b, length.max_steps),
        loader=topics.loader(b),
        process=process(b),
        run_name=run_name(b),
        deepspeed=config,
        needed_ops=ops,
        notices=tuple(b.notices),
        sources=b.sources,
    )
