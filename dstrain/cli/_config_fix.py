"""`dstrain config fix`: apply the patches of the findings until nothing changes."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

from dstrain.cli._config_check import Checked, check, lines_of, world_of
from dstrain.core.atomic import write_bytes
from dstrain.core.errors import UsageError
from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Severity, has_errors
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.edit import apply
from dstrain.dsconfig.reader import is_unreadable, read, read_text

_ROUNDS = 20
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
    seen: set[str] = set()
    text = document.text or ""
    for _ in range(_ROUNDS):
        mended = document.mended if document.mended is not None else text
        patches = [finding.patch for finding in check(document, mode, world).findings if finding.patch]
        for patch in patches:
            # Each on what the one before left: two findings of one key must not act on a place that has moved.
            mended = apply(read_text(mended, document.name), patch)
        if mended == text or mended in seen:
            return mended
        seen.add(mended)
        text = mended
        document = read_text(text, document.name)
        if is_unreadable(document):
            return text
    return text


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
