"""`dstrain config fix`: apply the patches of the findings until nothing changes."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dstrain.cli._config_check import Checked, check, lines_of, world_of
from dstrain.core.atomic import write_bytes
from dstrain.core.errors import UsageError
from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Finding, Severity, has_errors
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.edit import apply
from dstrain.dsconfig.reader import is_unreadable, read, read_text

Patch = Sequence[Mapping[str, Any]]
_ROUNDS = 40
"""A patch may uncover the next fault. Rules whose patches undo each other must not keep us for ever."""


def run(args: argparse.Namespace) -> int:
    """Mend a file, or show how. Returns 0, 1 (errors are left) or 2 (it cannot be read)."""
    if args.file == "-":
        raise UsageError("standard input cannot be mended in place", fix="give the name of a file")
    mode, world = Mode(args.mode), world_of(args)
    path = Path(args.file)
    document = read(path)
    left = check(document, mode, world)
    if is_unreadable(document) or document.text is None:
        _print_left(left)
        return 2
    text = fixed(document, mode, world)
    left = check(read_text(text, document.name), mode, world)
    if args.diff:
        _print_diff(document, text)
    elif text.encode("utf-8", "surrogatepass") != path.read_bytes():
        # A link stays a link: the file that it names is replaced.
        write_bytes(path.resolve(), text.encode("utf-8"))
        print(f"{args.file}: mended")
    else:
        print(f"{args.file}: nothing to mend")
    _print_left(left)
    return int(has_errors(left.findings))


def fixed(document: Document, mode: Mode, world: WorldFacts | None) -> str:
    """The text with all mechanical mends made, to a fixed point."""
    return [document.text or "", *rounds(document, mode, world)][-1]


def rounds(document: Document, mode: Mode, world: WorldFacts | None) -> Iterator[str]:
    """The text after each round of mends; none where there is nothing to mend."""
    text = document.text or ""
    seen: set[str] = {text}
    for _ in range(_ROUNDS):
        mended = document.mended if document.mended is not None else text
        for patch in _together(check(document, mode, world).findings):
            mended = apply(read_text(mended, document.name), patch)
        if mended in seen:
            return
        seen.add(mended)
        yield mended
        text, document = mended, read_text(mended, document.name)
        if is_unreadable(document):
            return


def _together(findings: Sequence[Finding]) -> Iterator[Patch]:
    """The patches that may be applied in one round: no two of them touch one place, or a place inside the other's.

    A patch was made for the text as it was. Where a misspelt section has just been moved to its name, the patch that
    adds this section because it is missing would overwrite it. What is left out here is looked at in the next round.
    """
    taken: list[str] = []
    for finding in findings:
        places = [
            str(operation[end]) + "/" for operation in finding.patch for end in ("path", "from") if end in operation
        ]
        if any(place.startswith(other) or other.startswith(place) for place in places for other in taken):
            continue
        taken += places
        if finding.patch:
            yield finding.patch


def _print_diff(document: Document, text: str) -> None:
    before, after = (document.text or "").splitlines(), text.splitlines()
    lines = difflib.unified_diff(before, after, document.name, f"{document.name} (mended)", lineterm="")
    for line in lines:
        print(line)


def _print_left(left: Checked) -> None:
    """What is left, errors and warnings, to stderr: stdout is the diff."""
    lines = [line for finding in left.findings if finding.severity is not Severity.ADVICE for line in lines_of(finding)]
    if lines:
        print("\n".join(lines), file=sys.stderr)
