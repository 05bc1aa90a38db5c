"""The JSON Schema of a DeepSpeed configuration, for editors: completion, help on hover, marks on wrong values."""

from __future__ import annotations

from typing import Any

from dstrain.dsconfig.blocks.base import Block, BlockField, fields_of, takes_auto
from dstrain.dsconfig.blocks.notes import Also, AnyCase, Dead, Filled, Replaced, Unit
from dstrain.dsconfig.values import ValueType

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string", "list": "array", "dict": "object"}


def json_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the whole configuration, made from the typed blocks with their help texts.

    Sections that DeepSpeed declares as pydantic models are closed (`additionalProperties` false); the others are open,
    as DeepSpeed ignores unknown keys there. "auto" is allowed where transformers or dstrain fill it.
    """
    from dstrain.dsconfig.blocks.root import DSConfig

    definitions: dict[str, Any] = {}
    root = _object(DSConfig, definitions)
    return {"$schema": _DIALECT, "title": "DeepSpeed configuration", **root, "$defs": definitions}


def _object(block: type[Block], definitions: dict[str, Any]) -> dict[str, Any]:
    from dstrain.core.docstrings import attribute_docstrings

    helps = attribute_docstrings(block)
    properties: dict[str, Any] = {}
    for field in fields_of(block).values():
        schema = _property(block, field, helps.get(field.name, ""), definitions)
        properties[field.name] = schema
        note = field.note(Also)
        for other in note.names if note else ():
            properties[other] = {**schema, "description": f"Another name of {field.name}. {helps.get(field.name, '')}"}
    return {
        "type": "object",
        "description": (block.__doc__ or "").strip().partition("\n")[0],
        "properties": properties,
        **({"additionalProperties": False} if block.strict else {}),
    }


def _property(block: type[Block], field: BlockField, text: str, definitions: dict[str, Any]) -> dict[str, Any]:
    unit = field.note(Unit)
    schema: dict[str, Any] = {"description": f"{text} Unit: {unit.text}." if unit else text}
    schema.update(_type(field.type, definitions))
    if field.note(Filled) is not None and not takes_auto(field):
        schema = _with_auto(schema)
    if field.section is None and field.default is not None and not field.required:
        schema["default"] = field.default
    if field.note(Replaced) is not None or field.note(Dead) is not None:
        schema["deprecated"] = True
    if field.name == "params" and field.section is not None:
        return {"description": schema["description"], **_params(block, definitions)}
    if field.note(AnyCase) is not None and "enum" in schema:
        words = [word for word in schema.pop("enum") if isinstance(word, str)]
        schema["anyOf"] = [{"enum": [*words, *(word.lower() for word in words if word != word.lower())]}]
        if field.type.nullable:
            schema["anyOf"].append({"type": "null"})
    return schema


def _with_auto(schema: dict[str, Any]) -> dict[str, Any]:
    rest = {key: value for key, value in schema.items() if key != "description"}
    return {"description": schema["description"], "anyOf": [rest, {"const": "auto"}]}


def _params(block: type[Block], definitions: dict[str, Any]) -> dict[str, Any]:
    """Every argument that any of the types takes: which type takes which is the business of the rules."""
    from dstrain.dsconfig.blocks.optimizers import OPTIMIZERS
    from dstrain.dsconfig.blocks.root import Optimizer
    from dstrain.dsconfig.blocks.schedulers import SCHEDULERS

    blocks = OPTIMIZERS if block is Optimizer else SCHEDULERS
    properties: dict[str, Any] = {}
    for params in blocks.values():
        for name, schema in _object(params, definitions)["properties"].items():
            properties.setdefault(name, schema)
    return {"type": "object", "properties": properties}


def _type(kind: ValueType, definitions: dict[str, Any]) -> dict[str, Any]:
    if "any" in kind.kinds:
        return {}
    options = [_kind(name, kind, definitions) for name in kind.kinds]
    if kind.section is not None:
        options.append(_reference(kind.section, definitions))
    if kind.choices:
        options.append({"enum": list(kind.choices)})
    if kind.nullable:
        options.append({"type": "null"})
    return options[0] if len(options) == 1 else {"anyOf": options}


def _kind(name: str, kind: ValueType, definitions: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": _TYPES[name]}
    if name in ("int", "float"):
        bounds = {
            "exclusiveMinimum": kind.above,
            "minimum": kind.at_least,
            "exclusiveMaximum": kind.below,
            "maximum": kind.at_most,
        }
        schema.update({word: bound for word, bound in bounds.items() if bound is not None})
    if name == "list" and kind.item is not None:
        schema["items"] = _type(kind.item, definitions)
    if name == "dict" and kind.entries is not None:
        schema["additionalProperties"] = _reference(kind.entries, definitions)
    return schema


def _reference(block: type[Block], definitions: dict[str, Any]) -> dict[str, Any]:
    name = block.__name__
    if name not in definitions:
        definitions[name] = {}  # holds the place, should a block ever hold itself
        definitions[name] = _object(block, definitions)
    return {"$ref": f"#/$defs/{name}"}
