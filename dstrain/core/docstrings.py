"""The string under a field is its help text: read lazily from the source, only when help is wanted.

pydantic's `use_attribute_docstrings` parses sources while classes are made: every start of a command would pay for it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from functools import cache
from pathlib import Path

Docs = dict[str, str]


def attribute_docstrings(cls: type) -> Docs:
    """The strings under the annotated attributes of a class, inherited ones included; the nearest class wins.

    Line breaks are folded to spaces. A class whose source is not on disk (made in a shell) contributes nothing.
    """
    result: Docs = {}
    for base in reversed(cls.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "pydantic"):
            continue
        result.update(_of_module(base.__module__).get(base.__qualname__, {}))
    return result


@cache
def _of_module(module_name: str) -> dict[str, Docs]:
    """Class name -> attribute -> text, for one module; one parse per module and process."""
    path = getattr(sys.modules.get(module_name), "__file__", None)
    if path is None or not path.endswith(".py"):
        return {}
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError):
        return {}
    found: dict[str, Docs] = {}
    _collect(tree, "", found)
    return found


def _collect(node: ast.Module | ast.ClassDef, prefix: str, found: dict[str, Docs]) -> None:
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            name = f"{prefix}{child.name}"
            found[name] = _of_class(child)
            _collect(child, f"{name}.", found)


def _of_class(node: ast.ClassDef) -> Docs:
    docs: Docs = {}
    for statement, after in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[statement.target.id] = " ".join(inspect.cleandoc(after.value.value).split())
    return docs
