"""Hold the linter against a folder of labelled configurations: `corpus_check.py LABELS FOLDER`.

The label file is tab-separated with the columns `file`, `verdict`, `world_size`, `unknown_keys`. A file labelled
`accepted_clean` may have no error and no unknown-key finding. Every other one needs a loud finding (error or warning)
that names each labelled key. Prints counts per verdict, then false alarms and misses; exit code 1 if there are any.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dstrain.core.errors import DstrainError
from dstrain.core.facts import Mode, WorldFacts
from dstrain.core.finding import Finding, Severity
from dstrain.dsconfig.reader import read
from dstrain.rules import lint

_SKIPPED = {"env_dependent"}
_UNKNOWN_KEY = "DS101"
_CLEAN = "accepted_clean"
_LOUD_KINDS = {"inconsistent", "engine_reject", "wrong_section"}


@dataclass
class Tally:
    """What came of a run over the corpus."""

    verdicts: Counter[str] = field(default_factory=Counter)
    false_alarms: list[str] = field(default_factory=list)
    misses: list[str] = field(default_factory=list)
    noise: Counter[str] = field(default_factory=Counter)


def findings_of(path: Path, world_size: int, mode: Mode) -> tuple[Finding, ...]:
    """Everything that is found in one file; a file that cannot be read is one finding."""
    try:
        report = lint(doc=read(path), mode=mode, world=WorldFacts(world_size=world_size, local_world_size=world_size))
    except DstrainError as error:
        return (Finding("DS001", Severity.ERROR, "", error.message),)
    return report.findings


def _named(key: str, findings: Iterable[Finding]) -> bool:
    last = key.split(".")[-1]
    return any(last in finding.key or last in finding.message for finding in findings)


def judge(row: Mapping[str, str], findings: tuple[Finding, ...], tally: Tally) -> None:
    """Add one file's result to the tally."""
    verdict, name = row["verdict"], row["file"]
    tally.verdicts[verdict] += 1
    loud = [f for f in findings if f.severity is not Severity.ADVICE]
    if verdict == _CLEAN:
        for finding in findings:
            if finding.severity is Severity.ERROR or finding.id == _UNKNOWN_KEY:
                tally.false_alarms.append(f"{name}: {finding.id} {finding.key}: {finding.message}")
        tally.noise.update(f.id for f in loud)
        return
    if not loud:
        tally.misses.append(f"{name} ({verdict}): nothing loud; {row.get('findings', '')}")
    for keys in _said(row):
        if keys and not any(_named(key, loud) for key in keys):
            tally.misses.append(f"{name} ({verdict}): none of {keys} is named loudly")
    for column in ("unknown_keys", "deprecated_or_removed"):
        for key in (row.get(column) or "").replace("|", ",").split(","):
            word = key.strip().split(" ")[0]
            if word and not word.startswith("?") and not _named(word, findings):
                tally.misses.append(f"{name} ({verdict}): {column} {word} is not named")


def _said(row: Mapping[str, str]) -> Iterator[list[str]]:
    """The keys of each labelled fault that is not about one unknown key; any one of them has to be named loudly."""
    for fault in (row.get("findings") or "").split("|"):
        kind, _, text = fault.strip().partition(":")
        if kind in _LOUD_KINDS:
            yield [word for word in re.findall(r"\w+", text) if "_" in word or word.lower().endswith(("adam", "lamb"))]


def main(argv: list[str] | None = None) -> int:
    """Run over the corpus; 0 if every label holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("labels", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prefix", default="ds/", help="only rows whose file starts with this (default: ds/)")
    parser.add_argument("--for", dest="mode", type=Mode, default=Mode.TRANSFORMERS, choices=list(Mode))
    options = parser.parse_args(argv)
    tally, started = Tally(), time.perf_counter()
    with options.labels.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream, delimiter="\t") if row["file"].startswith(options.prefix)]
    for row in rows:
        if row["verdict"] not in _SKIPPED:
            world_size = int(row.get("world_size") or 8)
            judge(row, findings_of(options.folder / row["file"], world_size, options.mode), tally)
    for verdict, count in sorted(tally.verdicts.items()):
        print(f"{count:5d} {verdict}")
    print("warnings on clean files:", dict(tally.noise.most_common()))
    for line in tally.false_alarms:
        print("false alarm", line)
    for line in tally.misses:
        print("missed", line)
    print(f"{time.perf_counter() - started:.2f} s")
    print(f"{len(tally.false_alarms)} false alarms, {len(tally.misses)} misses")
    return int(bool(tally.false_alarms or tally.misses))


if __name__ == "__main__":
    sys.exit(main())
