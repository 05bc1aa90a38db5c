"""The string under a field is its help text: read from the source, lazily, and cached."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache


@lru_cache(maxsize=None)
def attribute_docstrings(cls: type) -> dict[str, str]:
    """Help text by field name, inherited fields included. Reads sources, so call it only when help is wanted."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            texts.update(_own(base))
    return texts


@lru_cache(maxsize=None)
def _own(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    definition = tree.body[0]
    if not isinstance(definition, ast.ClassDef):
        return {}
    texts = {}
    for node, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            texts[node.target.id] = inspect.cleandoc(after.value.value)
    return texts
