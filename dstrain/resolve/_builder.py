"""The working state of one `resolve()`: inputs, and the record of who decided each value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dstrain.args.training import TrainingArguments
from dstrain.core.facts import DataFacts, HostFacts, ModelFacts, WorldFacts
from dstrain.core.numbers import as_bool, as_float
from dstrain.core.source import Source, derived
from dstrain.dsconfig.document import Document

AUTO = "auto"


@dataclass
class Builder:
    """Inputs of resolution, with the sources and notices collected on the way."""

    args: TrainingArguments
    doc: Document
    world: WorldFacts
    host: HostFacts
    model: ModelFacts
    data: DataFacts
    sources: dict[str, Source] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)

    def put(self, name: str, value: Any, source: Source) -> Any:
        """Record where `value` of `name` came from, and return it."""
        self.sources[name] = source
        return value

    def arg(self, plan_name: str, name: str) -> Any:
        """An argument's value as it is, with its own source."""
        return self.put(plan_name, getattr(self.args, name), self.args.sources[name])

    def stated(self, key: str) -> bool:
        """Whether the file gives the key a value of its own (not null, not `auto`)."""
        return self.doc.get(key) is not None and self.doc.get(key) != AUTO

    def from_file(self, key: str) -> Source:
        """The source of a key of the file."""
        return Source("file", f"{self.doc.place(key)}")

    def number(self, plan_name: str, key: str, name: str) -> float:
        """A number: the file's if it states one, else the argument's."""
        value = as_float(self.doc.get(key)) if self.stated(key) else None
        if value is not None:
            return float(self.put(plan_name, value, self.from_file(key)))
        return float(self.arg(plan_name, name))

    def truth(self, key: str) -> bool | None:
        """A boolean that the file states; None when it states none."""
        return as_bool(self.doc.get(key)) if self.stated(key) else None

    def derive(self, plan_name: str, value: Any, formula: str) -> Any:
        """Record a computed value with its formula."""
        return self.put(plan_name, value, derived(formula))
