"""`dstrain doctor`: what of this machine stops or slows a DeepSpeed run, with the proof, and the line to type.

It reads files and asks nvcc, nvidia-smi and the C++ compiler; torch and DeepSpeed are not imported. Exit code 1 when
there is an error.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dstrain.cli._config_check import lines_of
from dstrain.core.errors import UsageError
from dstrain.core.finding import Finding, Place, Severity, has_errors
from dstrain.core.machine import Compiler, Cuda, Driver, Gpu, Mask, Memory, Software, Threads
from dstrain.core.units import bytes_text
from dstrain.probe.devices import cuda_order, table
from dstrain.probe.machine import Reading, read_machine
from dstrain.probe.place import Place as Machine
from dstrain.rules.machine import diagnose
from dstrain.rules.registry import Report

HELP = "say what of this machine stands in the way of training"
# What may be shown of the environment: an environment holds keys and passwords too.
_SHOWN = re.compile(
    r"(CUDA|NCCL|GLOO|OMP|KMP|DS|DSTRAIN|SLURM_(STEP|JOB)_GPUS|NVIDIA_VISIBLE|TORCH|DEEPSPEED)\w*"
    r"|CC|CXX|PATH|LD_LIBRARY_PATH|TMPDIR|NVCC_\w+|RANK|WORLD_SIZE|LOCAL_\w*(RANK|SIZE)|MASTER_(ADDR|PORT)"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS", re.IGNORECASE)


def register(subparsers: Any) -> argparse.ArgumentParser:
    """Add the command to `dstrain`'s parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser("doctor", help=HELP, description=__doc__)
    parser.add_argument("--json", action="store_true", help="facts, findings and what is not known, as JSON")
    parser.add_argument("--quiet", action="store_true", help="errors only")
    parser.add_argument("--checkpoints", metavar="DIR", help="look at the folder that checkpoints will be written to")
    parser.add_argument(
        "--nvme", metavar="DIR", help="look at a folder for NVMe offload, and measure it (256 MB at most)"
    )
    parser.add_argument(
        "--wait", type=float, default=1.5, metavar="S", help="seconds one command may take (default 1.5)"
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Read the machine and print. Returns 1 when something is an error, else 0."""
    if not 0 < args.wait < 3600:
        raise UsageError(f"--wait {args.wait:g}: expected seconds, more than 0", fix="--wait 20")
    folders = {role: Path(text) for role in ("checkpoints", "nvme") if (text := getattr(args, role))}
    start = time.perf_counter()
    reading = read_machine(Machine(wait_s=args.wait), folders)
    report = diagnose(**reading.facts)
    took_s = time.perf_counter() - start
    findings = [placed(finding) for finding in report.findings]
    if args.quiet:
        findings = [finding for finding in findings if finding.severity is Severity.ERROR]
    if args.json:
        print(json.dumps(as_json(reading, report, findings, took_s), indent=2, ensure_ascii=False))
    else:
        print("\n".join(_text(reading, report, findings, took_s, quiet=args.quiet)))
    return int(has_errors(findings))


def placed(finding: Finding) -> Finding:
    """The finding with the part of the machine it is about as its place."""
    return dataclasses.replace(finding, place=Place(flag=finding.key))


def as_json(reading: Reading, report: Report, findings: list[Finding], took_s: float) -> dict[str, Any]:
    """The stable shape of `--json`. Of the environment only what the rules read is in it."""
    return {
        "findings": [
            {
                "id": finding.id,
                "severity": finding.severity.value,
                "about": finding.key,
                "message": finding.message,
                "proof": list(finding.proof),
                "fix": finding.fix,
            }
            for finding in findings
        ],
        "unknown": [dataclasses.asdict(item) for item in reading.unknown],
        "not_run": {name: list(missing) for name, missing in report.not_run.items()},
        "machine": {name: _plain(_visible(name, value)) for name, value in reading.facts.items()},
        "seconds": round(took_s, 3),
    }


def _visible(name: str, value: Any) -> Any:
    if name != "environ":
        return value
    return {key: text for key, text in sorted(value.items()) if _SHOWN.fullmatch(key) and not _SECRET.search(key)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (tuple, list)) else value


def _text(reading: Reading, report: Report, findings: list[Finding], took_s: float, *, quiet: bool) -> Iterator[str]:
    if not quiet:
        yield from summary(reading)
        yield ""
    for finding in findings:
        yield from lines_of(finding)
    if quiet:
        return
    yield from [""] if findings else []
    for item in reading.unknown:
        yield f"not known: {item.what} ({item.why})"
    if report.not_run:
        needed = sorted({name for missing in report.not_run.values() for name in missing})
        yield f"not run, because {', '.join(needed)} is not known: {', '.join(sorted(report.not_run))}"
    counts = Counter(finding.severity for finding in findings)
    yield (
        f"{counts[Severity.ERROR]} errors, {counts[Severity.WARNING]} warnings, {counts[Severity.ADVICE]} advice"
        f" ({took_s:.1f} s; what a rule means: docs/rules/<id>.md)"
    )


def summary(reading: Reading) -> Iterator[str]:
    """The machine in a few lines: software, toolkits, compiler, driver, cards, processors and memory."""
    facts = reading.facts
    software: Software = facts["software"]
    cuda = f"for CUDA {software.torch_cuda}" if software.torch_cuda else "without CUDA"
    torch = f"torch {software.torch} ({cuda})" if software.torch else "no torch"
    deepspeed = f"deepspeed {software.deepspeed}" if software.deepspeed else "no deepspeed"
    yield f"software   python {software.python}, {torch}, {deepspeed}"
    yield from _toolkits(facts["cuda"], software)
    compiler: Compiler = facts["compiler"]
    yield f"compiler   {compiler.said if compiler.path else 'none'}{f' ({compiler.path})' if compiler.path else ''}"
    yield from _cards(facts["driver"], facts["gpus"], facts["mask"], facts["environ"])
    threads: Threads = facts["threads"]
    quota = f", quota {threads.quota:g}" if threads.quota is not None else ""
    yield f"cores      {threads.usable or 'not known'} of {threads.cpus or 'not known'}{quota}," + (
        f" NUMA nodes: {threads.numa_nodes or 'not known'}"
    )
    memory: Memory = facts["memory"]
    limit = f", limit {bytes_text(memory.limit_bytes)}" if memory.limit_bytes is not None else ""
    parts = (("free", memory.available_bytes), ("in all", memory.total_bytes), ("in /dev/shm", memory.shm_bytes))
    yield "memory     " + ", ".join(f"{_size(value)} {word}" for word, value in parts) + limit
    for disk in facts["disks"]:
        speed = f", writes {disk.write_bytes_s / 1e6:.0f} MB/s" if disk.write_bytes_s else ""
        speed += f", reads {disk.read_bytes_s / 1e6:.0f} MB/s" if disk.read_bytes_s else ""
        yield f"disk       {disk.role}: {disk.path}, {_size(disk.free_bytes)} free ({disk.filesystem or '?'}){speed}"


def _size(value: int | None) -> str:
    return "unknown" if value is None else bytes_text(value)


def _toolkits(cuda: Cuda, software: Software) -> Iterator[str]:
    if not cuda.toolkits:
        yield "toolkit    none found"
    for kit in cuda.toolkits:
        used = f"; torch takes it ({cuda.home_by})" if kit.root == cuda.home and software.torch_cuda else ""
        yield f"toolkit    {kit.root}: CUDA {kit.version or 'not known'}, by {', '.join(kit.found_by) or '?'}{used}"
    if cuda.toolkits and not software.torch_cuda:
        yield "           (not judged: a torch without CUDA uses none of them)"


def _cards(driver: Driver, gpus: tuple[Gpu, ...] | None, mask: Mask, environ: Mapping[str, str]) -> Iterator[str]:
    if driver.version:
        yield f"driver     {driver.version}, up to CUDA {driver.cuda or 'not known'}"
    if gpus is None:
        yield "gpus       not known"
        return
    if not gpus:
        yield "gpus       none"
        return
    visible = {card.bus or card.index for card in mask.known()}
    lines = table(environ, gpus)
    for line, card in zip(lines, cuda_order(gpus, environ)[0], strict=True):
        hidden = "" if (card.bus or card.index) in visible else f" (hidden by {mask.source})"
        yield f"gpu        {line}{hidden}"
