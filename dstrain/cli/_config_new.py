"""`dstrain config new`: the DeepSpeed JSON that a set of training flags comes to."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from dstrain.cli._config_check import lines_of, world_of
from dstrain.core.atomic import write_text
from dstrain.core.errors import UsageError
from dstrain.core.facts import DataFacts, HostFacts, ModelFacts, WorldFacts
from dstrain.dsconfig._write import json_document
from dstrain.dsconfig.document import Document


def run(args: argparse.Namespace) -> int:
    """Resolve and write. Returns 0, or 1 when a finding is an error."""
    from dstrain.args import TrainingArguments, parse_args
    from dstrain.resolve import resolve

    if any(word.partition("=")[0] == "--deepspeed" for word in args.rest):
        raise UsageError("--deepspeed has no place here: its file is what is being written", fix="--output FILE")
    world = world_of(args)
    (training,) = parse_args(TrainingArguments, argv=[*args.rest, "--deepspeed", args.output or "ds_config.json"])
    document = Document("<flags>", {"zero_optimization": _zero(args)})
    resolution = resolve(
        training,
        document,
        world=world or WorldFacts(),
        host=HostFacts("cuda", world.local_world_size if world else 1, supports_bf16=True, supports_fp16=True),
        model=ModelFacts("the model", 1, 1),
        data=DataFacts(),
    )
    for finding in resolution.findings:
        print("\n".join(lines_of(finding)), file=sys.stderr)
    if resolution.plan is None:
        return 1
    text = json_document(resolution.plan.deepspeed)
    if not args.output:
        print(text, end="")
        return 0
    if Path(args.output).exists():
        raise UsageError("this file is already there", where=args.output, fix="another name, or remove it first")
    write_text(Path(args.output), text)
    print(f"{args.output}: written")
    return 0


def _zero(args: argparse.Namespace) -> dict[str, Any]:
    section: dict[str, Any] = {"stage": args.stage}
    for name, device in (("offload_optimizer", args.offload_optimizer), ("offload_param", args.offload_param)):
        if device == "none":
            continue
        section[name] = {"device": device}
        if device == "nvme":
            if not args.nvme_path:
                raise UsageError(f"--{name.replace('_', '-')} nvme needs a folder", fix="--nvme-path /local_nvme")
            section[name]["nvme_path"] = args.nvme_path
    return section
