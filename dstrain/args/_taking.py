"""How a class of arguments is called: older spellings, unknown names and wrong values, all seen before any is refused.

A metaclass, because the generated `__init__` of a user's own `@dataclass` subclass knows its fields only. Unpickling
and copying do not pass through here.
"""

from __future__ import annotations

import inspect
from abc import ABCMeta
from typing import Any

from dstrain.args.spelling import announce, entries, spell
from dstrain.core.errors import UsageError


class Taking(ABCMeta):
    """`cls(…)` takes older spellings, and refuses what is unknown with the nearest name."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """An object of the class.

        Raises:
            UsageError: every name and every value that is wrong.
        """
        own, open_ended = _parameters(cls)
        # An __init__ of a user's own with **kwargs gets what only it can know.
        unknown = {name: value for name, value in kwargs.items() if open_ended and not _is_known(name, own)}
        said = spell(
            {name: value for name, value in kwargs.items() if name not in unknown},
            own,
            lambda name: f"{cls.__name__}({name}=…)",
        )
        problems = list(said.problems)
        try:
            made = super().__call__(*args, **said.values, **unknown)
            made._finish(said.written)
        except UsageError as error:
            raise UsageError("\n".join([*problems, error.message]), where=error.where, fix=error.fix) from None
        if problems:
            raise UsageError("\n".join(problems))
        announce(said.notices)
        return made


def _parameters(cls: type[Any]) -> tuple[list[str], bool]:
    parameters = list(inspect.signature(cls.__init__).parameters.values())[1:]
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if open_ended:  # handed on to the generated __init__, most likely
        named += [name for name in getattr(cls, "__dataclass_fields__", {}) if name not in named]
    return named, open_ended


def _is_known(name: str, own: list[str]) -> bool:
    return name in own or name in entries()
