"""`dstrain config explain`, `diff` and `schema`."""

from __future__ import annotations

import argparse
import inspect
import json
import re
from pathlib import Path
from typing import Any

from dstrain.core.errors import UsageError
from dstrain.core.finding import has_errors, render
from dstrain.core.nearest import did_you_mean
from dstrain.dsconfig.codes import READING
from dstrain.dsconfig.document import Document
from dstrain.dsconfig.explain import Effective, diff_by_effect, effective, explain_key
from dstrain.dsconfig.reader import is_unreadable, read

_ID = re.compile(r"DS\d{3}")


def explain(args: argparse.Namespace) -> int:
    """Say what a key or an id means, or what values a file has."""
    key, file = args.key, args.file
    if key is not None and file is None and not _ID.fullmatch(key.upper()) and Path(key).is_file():
        key, file = None, key
    if key is None and file is None:
        print(_overview())
    elif key is not None and _ID.fullmatch(key.upper()):
        print(_explain_id(key.upper()))
    elif key is not None:
        print(explain_key(key))
    if file is not None:
        print(_values(_readable(file), key))
    return 0


def _overview() -> str:
    from dstrain.dsconfig.catalogue import KEYS

    top = {key: info for key, info in KEYS.items() if "." not in key}
    width = max(map(len, top))
    lines = [f"  {key:<{width}}  {info.help}" for key, info in top.items()]
    return "\n".join(["the keys of a configuration; `dstrain config explain KEY` says more:", *lines])


def _explain_id(id: str) -> str:
    from dstrain.rules import RULES

    if id in READING:
        code = READING[id]
        return f"{id} ({code.severity.value}): {code.title}\n\n{code.help}"
    if id not in RULES:
        raise UsageError(f"there is no finding {id}", fix=did_you_mean(id, [*READING, *RULES]) or None)
    entry = RULES[id]
    fires = json.dumps({key: value for key, value in entry.fires.items() if key != "$facts"}, indent=2)
    quiet = json.dumps({key: value for key, value in entry.quiet.items() if key != "$facts"}, indent=2)
    page = inspect.getdoc(entry.function) or ""
    return f"{id} ({entry.severity.value}): {entry.title}\n\n{page}\n\nfound in:\n{fires}\n\nnot in:\n{quiet}"


def _readable(name: str) -> Document:
    document = read(Path(name))
    if is_unreadable(document):
        raise UsageError(render(document.findings))
    if has_errors(document.findings):
        print(render(document.findings) + "\n")
    return document


def _values(document: Document, key: str | None) -> str:
    entries = effective(document)
    if key is not None:
        wanted = [entry for entry in entries if _is_under(entry.key, key)]
        entries = wanted or entries
    rows = [(entry.key, _shown(entry), entry.source) for entry in entries]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)] if rows else [0, 0]
    return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}".rstrip() for name, value, source in rows)


def _is_under(entry: str, key: str) -> bool:
    """`stage` asks for `zero_optimization.stage` too, as `explain_key` does."""
    return entry == key or entry.startswith(key + ".") or ("." not in key and entry.endswith("." + key))


def _shown(entry: Effective) -> str:
    return _json(entry.value)


def _json(value: Any) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else text[:59] + "…"


def diff(args: argparse.Namespace) -> int:
    """Compare by effect. Returns 0 for no difference, else 1."""
    left, right = _readable(args.left), _readable(args.right)
    differences = diff_by_effect(left, right)
    if not differences:
        print(f"{args.left} and {args.right} have the same effect")
        return 0
    for difference in differences:
        print(difference.key)
        for name, entry in ((args.left, difference.left), (args.right, difference.right)):
            print(f"  {name}: {_shown(entry)} ({entry.source})" if entry else f"  {name}: not there")
    return 1


def schema(args: argparse.Namespace) -> int:
    """Print the JSON Schema."""
    del args
    from dstrain.dsconfig.schema import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return 0
