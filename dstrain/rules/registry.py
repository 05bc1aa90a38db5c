"""The linter's engine: a rule is one small function; facts are injected by the names of its parameters."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dstrain.core.finding import Finding, Hit, Place, Severity, ordered
from dstrain.core.nearest import nearest
from dstrain.dsconfig.document import Document

RuleFunction = Callable[..., Iterable[Hit]]


@dataclass(frozen=True)
class Rule:
    """A registered rule. `needs` are the names of the facts it is given; its docstring is its docs page.

    Args:
        id: `DS301`; stable for ever, never reused.
        severity: what a hit is unless it says otherwise.
        title: one line, shown in lists and as the head of its page.
        fires: an example configuration that fires (with `facts` overrides under the key `$facts`).
        quiet: an example, as near as possible, that does not.
    """

    id: str
    severity: Severity
    title: str
    function: RuleFunction
    needs: tuple[str, ...]
    fires: Mapping[str, Any]
    quiet: Mapping[str, Any]


RULES: dict[str, Rule] = {}
_UNKNOWN = "DS101"


def rule(
    id: str, severity: Severity, title: str, *, fires: Mapping[str, Any], quiet: Mapping[str, Any]
) -> Callable[[RuleFunction], RuleFunction]:
    """Register a rule. Its parameters name its facts: `doc`, `mode`, `world`, `host`, `model`, `data`, `args`."""

    def register(function: RuleFunction) -> RuleFunction:
        if id in RULES:
            raise ValueError(f"rule id {id} is taken by {RULES[id].function.__name__}")
        needs = tuple(inspect.signature(function).parameters)
        RULES[id] = Rule(id, severity, title, function, needs, fires, quiet)
        return function

    return register


@dataclass(frozen=True)
class Report:
    """All findings, and the rules that were not run because a fact they need is not known."""

    findings: tuple[Finding, ...]
    not_run: Mapping[str, tuple[str, ...]]


def lint(**facts: Any) -> Report:
    """Run every rule whose facts are all known (not None). `doc` gives findings their place in the file."""
    doc: Document | None = facts.get("doc")
    findings, not_run = _run(facts)
    if doc is not None:
        findings += doc.findings
        findings += _behind_misspelt_names(facts, doc, findings)
    return Report(tuple(ordered(_without_echoes(findings))), not_run)


def _run(facts: Mapping[str, Any]) -> tuple[list[Finding], dict[str, tuple[str, ...]]]:
    doc: Document | None = facts.get("doc")
    findings: list[Finding] = []
    not_run: dict[str, tuple[str, ...]] = {}
    for entry in RULES.values():
        missing = tuple(name for name in entry.needs if facts.get(name) is None)
        if missing:
            not_run[entry.id] = missing
            continue
        hits = entry.function(**{name: facts[name] for name in entry.needs})
        findings.extend(_complete(entry, hits, doc))
    return findings, not_run


def _behind_misspelt_names(facts: Mapping[str, Any], doc: Document, findings: Iterable[Finding]) -> list[Finding]:
    """What is wrong inside sections whose name is misspelt: found by reading them as what they were meant to be.

    The mends of these faults wait until the name is right, so these findings carry no patch.
    """
    meant, names = doc, []
    for finding in findings:
        if finding.id == _UNKNOWN and isinstance(doc.data.get(finding.key), Mapping):
            name = _meant_name(finding)
            if name is not None and name not in doc.data:
                meant = _renamed(meant, finding.key, name)
                names.append(name)
    if not names:
        return []
    again, _ = _run({**facts, "doc": meant})
    inside = [f for f in again if any(f.key.startswith(f"{name}.") for name in names)]
    known = {(finding.id, finding.key) for finding in findings}
    return [dataclasses.replace(f, patch=()) for f in inside if (f.id, f.key) not in known]


def _meant_name(finding: Finding) -> str | None:
    """The section that the rule itself would rename to, or one that is spelt nearly so."""
    from dstrain.dsconfig.catalogue import KEYS

    for operation in finding.patch:
        target = str(operation.get("path", ""))
        if operation.get("op") == "move" and target.count("/") == 1:
            return target[1:]
    return nearest(finding.key, (key for key in KEYS if "." not in key), cutoff=0.85)


def _renamed(doc: Document, old: str, new: str) -> Document:
    data = {new if key == old else key: value for key, value in doc.data.items()}
    places = {((new, *path[1:]) if path[:1] == (old,) else path): place for path, place in doc.places.items()}
    return dataclasses.replace(doc, data=data, places=places, findings=())


def _without_echoes(findings: list[Finding]) -> Iterator[Finding]:
    """Drop a finding of a per-key rule (DS1xx) where a rule that knows more says as much, as loudly, of that key."""
    rank = {severity: number for number, severity in enumerate(Severity)}
    for finding in findings:
        echo = finding.id.startswith("DS1") and any(
            other.key == finding.key
            and not other.id.startswith("DS1")
            and rank[other.severity] <= rank[finding.severity]
            and (other.patch or not finding.patch)
            for other in findings
        )
        if not echo:
            yield finding


def _complete(entry: Rule, hits: Iterable[Hit], doc: Document | None) -> Iterator[Finding]:
    for hit in hits:
        if hit.key.startswith("--"):
            place = Place(flag=hit.key)
        else:
            place = doc.place(hit.key) if doc is not None else Place()
        severity = hit.severity or entry.severity
        yield Finding(entry.id, severity, hit.key, hit.message, hit.fix, place, tuple(hit.patch), hit.also, hit.proof)
