"""A configuration with every value written as what it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dstrain.dsconfig.document import Document

if TYPE_CHECKING:
    from dstrain.dsconfig.blocks.base import Block, BlockField


def canonical(doc: Document) -> dict[str, Any]:
    """The data with `"5e8"` as 500000000, `"true"` as true, `4.0` as 4 and `"CPU"` as "cpu", where that is meant.

    Keys keep their order; second spellings (`prefetch_bucket_size`) get their first name; a null that DeepSpeed cannot
    take is left out. Unknown keys, "auto", deprecated keys and values that cannot be read stay as they are.
    """
    from dstrain.dsconfig.blocks.root import DSConfig

    return _block(doc, DSConfig, doc.data, ())


def chosen_block(doc: Document, path: tuple[str, ...], field: BlockField) -> type[Block] | None:
    """The block of a section; that of `params` follows the `type` beside it."""
    from dstrain.dsconfig.blocks.optimizers import optimizer_params
    from dstrain.dsconfig.blocks.schedulers import scheduler_params

    if path == ("optimizer", "params"):
        return optimizer_params(doc.get("optimizer.type"))
    if path == ("scheduler", "params"):
        return scheduler_params(doc.get("scheduler.type"))
    return field.section


def _block(doc: Document, block: type[Block], mapping: Mapping[Any, Any], path: tuple[str, ...]) -> dict[str, Any]:
    return dict(_entries(doc, block, mapping, path))


def _entries(
    doc: Document, block: type[Block], mapping: Mapping[Any, Any], path: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    from dstrain.dsconfig.blocks.base import find_field
    from dstrain.dsconfig.values import READ, read

    for key, value in mapping.items():
        field = find_field(block, key)
        if field is None:
            yield str(key), value
            continue
        inner = (*path, field.name)
        name = str(key) if field.name in mapping else field.name
        section = chosen_block(doc, inner, field)
        if value is None and not field.type.nullable:
            continue
        if section is not None and isinstance(value, Mapping):
            yield name, _block(doc, section, value, inner)
        elif field.type.entries is not None and isinstance(value, Mapping):
            entry: Any = field.type.entries
            yield name, {k: _block(doc, entry, v, inner) if isinstance(v, Mapping) else v for k, v in value.items()}
        elif section is not None or value == "auto":
            yield name, value
        else:
            reading = read(field.type, value)
            yield name, reading.value if reading.fit in READ else value
