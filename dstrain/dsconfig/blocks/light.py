"""Classes that are read without pydantic, and become pydantic models when somebody validates with one.

A check of a file reads the annotations of the blocks and never makes an instance. Importing pydantic and building some
sixty models would be two thirds of its time (0.2 s); here both happen at the first `model_validate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, cast, get_args, get_origin

Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Bound:
    """The limits of a value, checked by the rules and by pydantic alike."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    min_length: int | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        limits = {name: getattr(self, name) for name in ("gt", "ge", "lt", "le", "min_length")}
        return {**handler(source), **{name: limit for name, limit in limits.items() if limit is not None}}


PositiveInt = Annotated[int, Bound(gt=0)]
NonNegativeInt = Annotated[int, Bound(ge=0)]
NonNegativeFloat = Annotated[float, Bound(ge=0)]
NonEmptyStr = Annotated[str, Bound(min_length=1)]


@dataclass(frozen=True, slots=True)
class AsItIs:
    """Dump the class that is there, not the one that is declared (pydantic's `SerializeAsAny`)."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import SerializeAsAny

        # Annotated[X, SerializeAsAny()] is what SerializeAsAny[X] means.
        return cast(Any, SerializeAsAny)().__get_pydantic_core_schema__(source, handler)


@dataclass(frozen=True, slots=True)
class _MadeBy:
    factory: Callable[[], Any]


def made_by(factory: Callable[[], Made]) -> Made:
    """A default that is made anew for each instance."""
    return cast(Made, _MadeBy(factory))


@dataclass(frozen=True, slots=True)
class Declared:
    """One annotated attribute: the bare type, the notes of its `Annotated`, and its default."""

    annotation: Any
    notes: tuple[Any, ...]
    default: Any

    def fresh(self) -> Any:
        """The default of one instance."""
        return self.default.factory() if isinstance(self.default, _MadeBy) else self.default

    def for_pydantic(self) -> Any:
        """The default in pydantic's own terms."""
        from pydantic import Field

        return Field(default_factory=self.default.factory) if isinstance(self.default, _MadeBy) else self.default


def declared(cls: type) -> Mapping[str, Declared]:
    """What a class declares, what its bases declare first."""
    result: dict[str, Declared] = {}
    for base in reversed(cls.__mro__):
        if not isinstance(base, _Light):
            continue
        for name, annotation in base.__annotations__.items():
            origin: Any = get_origin(annotation)
            if origin is ClassVar:
                continue
            arguments = get_args(annotation) if origin is Annotated else (annotation,)
            result[name] = Declared(arguments[0], tuple(arguments[1:]), vars(base)[name])
    return result


class _Light(type):
    """The metaclass: whatever pydantic gives a model is looked up on the model that belongs to the class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith(("model_", "__pydantic_")):
            return getattr(_model_of(cls), name)
        raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return _model_of(cls)(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _model_of(cls))


@cache
def _model_of(cls: Any) -> Any:
    """The pydantic model of a class: the same fields and bases, and the class's `as_meant` before its validation."""
    from pydantic import BaseModel, model_validator

    def before(_: Any, data: Any) -> Any:
        return cls.as_meant(data)

    own = {name: entry for name, entry in declared(cls).items() if name in cls.__annotations__}
    annotations = {
        name: Annotated[(entry.annotation, *entry.notes)] if entry.notes else entry.annotation
        for name, entry in own.items()
    }
    body: dict[str, Any] = {
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__annotations__": annotations,
        "model_config": {"extra": "allow", "frozen": True, "defer_build": True, "protected_namespaces": ()},
        **{name: entry.for_pydantic() for name, entry in own.items()},
    }
    bases = tuple(_model_of(base) for base in cls.__bases__ if isinstance(base, _Light))
    if not bases:
        return type("LightModel", (BaseModel,), {"__module__": __name__})
    # Of one name in the whole tree, so that the nearest class's validator replaces those of its bases.
    body["as_meant_first"] = model_validator(mode="before")(cast(Any, classmethod(before)))
    return type(cls.__name__, bases, body)


if TYPE_CHECKING:
    from pydantic import BaseModel

    class LightModel(BaseModel):
        """pydantic's `BaseModel`, to a type checker."""

        @classmethod
        def as_meant(cls, data: Any) -> Any:
            """What to validate in place of `data`."""

else:

    class LightModel(metaclass=_Light):
        """The base of light classes."""

        @classmethod
        def as_meant(cls, data: Any) -> Any:
            """What to validate in place of `data`."""
            return data

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return handler(_model_of(cls))
