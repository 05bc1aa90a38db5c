"""`dstrain config check`: read, lint, and show the findings as text, JSON or annotations."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dstrain.core.errors import UsageError
from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Finding, Place, Severity, has_errors, ordered
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.reader import MAX_BYTES, for_mode, is_unreadable, read, read_bytes
from dstrain.rules import lint

_SUFFIXES = (".json", ".hjson", ".yaml", ".yml")
_COLOURS = {Severity.ERROR: "31", Severity.WARNING: "33", Severity.ADVICE: "36"}
_GITHUB = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


@dataclass(frozen=True, slots=True)
class Checked:
    """One file with all that was found in it."""

    path: str
    findings: tuple[Finding, ...]
    not_run: Mapping[str, tuple[str, ...]]
    unreadable: bool


def run(args: argparse.Namespace) -> int:
    """Check all files and print. Returns 0, 1 (errors) or 2 (a file could not be read)."""
    mode, world = Mode(args.mode), world_of(args)
    checked = [check(document, mode, world) for document in _documents(args.files)]
    if args.quiet:
        checked = [_errors_only(file) for file in checked]
    shown = {"text": _text, "json": _json, "github": _github}[args.format](checked)
    if args.format == "text" and not args.quiet:
        shown = "\n".join(part for part in (shown, _summary(checked)) if part)
    if shown:
        print(shown)
    if any(file.unreadable for file in checked):
        return 2
    return int(any(has_errors(file.findings) for file in checked))


def world_of(args: argparse.Namespace) -> WorldFacts | None:
    """The ranks as the flags say; None when nothing was said."""
    size = args.world_size or args.devices
    if size is None:
        return None
    local = min(args.devices or size, size)
    if size % local:
        raise UsageError(
            f"--world-size {size} is no multiple of --devices {local}", fix="whole machines: a multiple of the devices"
        )
    return WorldFacts(world_size=size, local_world_size=local)


def check(document: Document, mode: Mode, world: WorldFacts | None) -> Checked:
    """Lint a document. Nothing but reading findings is said of one that could not be read."""
    document = for_mode(document, mode)
    if is_unreadable(document):
        return Checked(document.name, tuple(ordered(document.findings)), {}, True)
    report = lint(doc=document, mode=mode, world=world)
    return Checked(document.name, report.findings, report.not_run, False)


# ---- what to read


def _documents(names: Sequence[str]) -> Iterator[Document]:
    for name in names:
        if name == "-":
            yield read_bytes(sys.stdin.buffer.read(MAX_BYTES + 1), "<stdin>")
        elif Path(name).is_dir():
            yield from map(_document, _below(name))
        else:
            yield _document(name)


def _below(folder: str) -> list[str]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(inner for inner in folders if not inner.startswith("."))
        found += [str(Path(root, file)) for file in sorted(files) if file.lower().endswith(_SUFFIXES)]
    if not found:
        raise UsageError(f"there is no {', '.join(_SUFFIXES)} file in this folder", where=folder)
    return found


def _document(name: str) -> Document:
    """One file; that it is missing is said among the findings of the others."""
    try:
        return read(Path(name))
    except UsageError as error:
        finding = Finding("DS001", Severity.ERROR, "", error.message, error.fix or "", Place(name))
        return Document(name, {}, findings=(finding,))


# ---- how to show


def _errors_only(file: Checked) -> Checked:
    kept = tuple(finding for finding in file.findings if finding.severity is Severity.ERROR)
    return Checked(file.path, kept, {}, file.unreadable)


def _text(checked: Iterable[Checked]) -> str:
    blocks = []
    for file in checked:
        lines = [line for finding in file.findings for line in lines_of(finding)]
        if lines:
            blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def lines_of(finding: Finding) -> Iterator[str]:
    """A finding as lines for a terminal, coloured where there is one."""
    severity = _coloured(finding.severity.value, _COLOURS[finding.severity])
    yield f"{_printable(str(finding.place))}: {severity} {finding.id}: {_printable(finding.message)}"
    for place in finding.also:
        yield f"  also: {_printable(str(place))}"
    for line in finding.proof:
        yield f"  saw: {_printable(line)}"
    if finding.fix:
        yield f"  fix: {_printable(finding.fix)}"


def _coloured(text: str, code: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{code}m{text}\033[0m"


def _printable(text: str) -> str:
    """A text whose control characters (they come from the file) do nothing to a terminal or a log."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _summary(checked: Sequence[Checked]) -> str:
    counts = Counter(finding.severity for file in checked for finding in file.findings)
    parts = [_plural(len(checked), "file"), _plural(counts[Severity.ERROR], "error")]
    parts += [_plural(counts[Severity.WARNING], "warning"), f"{counts[Severity.ADVICE]} advice"]
    lines = [("\n" if sum(counts.values()) else "") + ", ".join(parts)]
    needing = {rule for file in checked for rule, missing in file.not_run.items() if missing == ("world",)}
    if needing:
        lines.append(f"not run: {_plural(len(needing), 'rule')} that need the number of processes: pass --world-size N")
    return "\n".join(lines)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _json(checked: Iterable[Checked]) -> str:
    files = [{"path": file.path, "findings": [finding.as_json() for finding in file.findings]} for file in checked]
    return json.dumps({"files": files}, indent=2)


def _github(checked: Iterable[Checked]) -> str:
    lines = []
    for file in checked:
        for finding in file.findings:
            place = finding.place
            parts = [f"file={_property(place.file or file.path)}"]
            parts += [f"line={place.line}"] if place.line is not None else []
            parts += [f"col={place.column}"] if place.column is not None else []
            parts.append(f"title={finding.id}")
            message = _printable(finding.message) + (f"\nfix: {_printable(finding.fix)}" if finding.fix else "")
            lines.append(f"::{_GITHUB[finding.severity]} {','.join(parts)}::{_data(message)}")
    return "\n".join(lines)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
