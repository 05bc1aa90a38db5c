"""The docs pages of the rules: one per rule, and an index. `python -m dstrain.rules.pages docs/rules` writes them."""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dstrain.core.errors import UsageError
from dstrain.dsconfig.codes import READING, Code
from dstrain.rules import (
    RULES,
    Rule,
    machine,  # registers HOSTxxx, which only the doctor needs
    run,  # noqa: F401  (registers DS9xx, which only a run with arguments needs)
)
from dstrain.rules.examples import FACTS, configuration, hits

_MEANING = {
    "error": "the run cannot start, or trains on wrong numbers",
    "warning": "the run works, but does not do what was meant",
    "advice": "the run works; it could be faster, smaller or plainer",
}
_FAMILIES = {
    "DS0": "Reading the file",
    "DS1": "Keys and their values",
    "DS2": "Batch sizes and ranks",
    "DS3": "ZeRO and offload",
    "DS4": "Precision and clipping",
    "DS5": "Optimizer",
    "DS6": "Learning-rate schedule",
    "DS7": "Other sections",
    "DS8": "Machine, ranks and model",
    "DS9": "Arguments and file together",
    "HOST1": "Toolkits, compilers and the Python environment",
    "HOST2": "GPUs, driver and the device mask",
    "HOST3": "Memory, limits, disks and caches",
    "HOST4": "Threads, network and environment",
}
_HEALTHY = "A healthy machine (two H100; CUDA 13.0 in torch, toolkit and driver)"
_GENERATED = "<!-- made by `python -m dstrain.rules.pages docs/rules` from the rule itself; edit the rule -->"


def _code(example: Mapping[str, Any]) -> str:
    if "machine" in (facts := example.get(FACTS, {})):
        if not facts["machine"]:
            return f"{_HEALTHY}."
        return f"{_HEALTHY}, but with\n\n```json\n{json.dumps(facts['machine'], indent=2)}\n```"
    return f"```json\n{json.dumps(configuration(example), indent=2)}\n```"


def _facts_text(example: Mapping[str, Any]) -> str:
    given = dict(example.get(FACTS, {}))
    given.pop("machine", None)
    if not given:
        return ""
    text = ", ".join(f"{name} = {json.dumps(value, default=str)}" for name, value in sorted(given.items()))
    return f"\n\nwith {text}"


def page(entry: Rule) -> str:
    """The page of one rule as Markdown: title, severity, why, an example that fires and one that does not."""
    body = inspect.cleandoc(entry.function.__doc__ or "")
    found = hits(entry, entry.fires)
    messages = "\n".join(
        f"- {hit.message}"
        + "".join(f"  \n  saw: {line}" for line in hit.proof)
        + (f"  \n  fix: `{hit.fix}`" if hit.fix else "")
        for hit in found
    )
    severity = entry.severity.value
    return f"""{_GENERATED}
# {entry.id}: {entry.title}

**{severity}**: {_MEANING[severity]}.

{body}

## Fires

{_code(entry.fires)}{_facts_text(entry.fires)}

{messages}

## Does not fire

{_code(entry.quiet)}{_facts_text(entry.quiet)}
"""


def reading_page(code: Code) -> str:
    """The page of a fault that reading finds: it is about the text, so there is no example as data."""
    severity = code.severity.value
    end = "\nNothing else is checked: the file could not be read.\n" if code.unreadable else ""
    return f"""{_GENERATED}
# {code.id}: {code.title}

**{severity}**: {_MEANING[severity]}.

{textwrap.fill(code.help, 116)}
{end}"""


def index() -> str:
    """The list of all rules as Markdown, by family."""
    lines = [_GENERATED, "# Rules", "", "What `dstrain config check` and `dstrain doctor` (HOST…) look for.", ""]
    lines += [f"- **{severity}**: {meaning}" for severity, meaning in _MEANING.items()]
    family = ""
    entries: list[Rule | Code] = [*RULES.values(), *READING.values()]
    for entry in sorted(entries, key=lambda rule: rule.id):
        if entry.id[:-2] != family:
            family = entry.id[:-2]
            lines += ["", f"## {_FAMILIES.get(family, family)}", "", "| rule | severity | title |", "|---|---|---|"]
        lines.append(f"| [{entry.id}]({entry.id}.md) | {entry.severity.value} | {entry.title} |")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Every file of the folder by its name."""
    rules = {f"{entry.id}.md": page(entry) for entry in RULES.values()}
    return rules | {f"{code.id}.md": reading_page(code) for code in READING.values()} | {"README.md": index()}


def write(folder: Path) -> list[Path]:
    """Write what is missing or has changed, remove pages of rules that are gone; returns the files touched."""
    wanted, touched = pages(), []
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            touched.append(path)
    for path in folder.glob("*.md"):
        if re.fullmatch(rf"(DS|{machine.PREFIX})\d+\.md", path.name) and path.name not in wanted:
            path.unlink()
            touched.append(path)
    return touched


def main(argv: list[str]) -> int:
    """Write the pages to the folder that is given."""
    if len(argv) != 1:
        raise UsageError("expected one folder", fix="python -m dstrain.rules.pages docs/rules")
    for path in write(Path(argv[0])):
        print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
