"""YAML as the same tree as JSON: events of PyYAML, put together without recursion, with anchors and merge keys.

PyYAML is imported when the first YAML text is read: it costs more than all of a JSON check.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from dstrain.dsconfig._tree import MAX_DEPTH, Child, Edit, Fault, Node, Stop, brief
from dstrain.dsconfig._yaml_write import LOOSE_NUMBER, yaml_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    import yaml

_MAX_NODES = 200_000
"""Values after all aliases are followed: an alias of aliases of aliases can name billions of them in ten lines."""

_YAML11_WORDS = re.compile(r"yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF")
_NAME = re.compile(r"[\w.-]+")
_TAG = "tag:yaml.org,2002:"
_DEEP = re.compile(r"maximum nesting|nesting level|depth", re.IGNORECASE)


def compose(text: str, faults: list[Fault]) -> Node:
    """The tree of a YAML text. Spans of block collections end with their last value.

    Raises:
        Stop: it is no YAML, holds several documents, or is nested too deep.
    """
    import yaml

    builder = _Builder(text, faults)
    try:
        for event in _events(text):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = ", ".join(part for part in (error.context, error.problem) if part)
        at = mark.index if mark else 0
        if _DEEP.search(words):
            raise Stop(min(at, len(text)), words, "DS017") from None
        raise Stop(min(at, len(text)), f"this is no YAML: {words}") from None
    except yaml.YAMLError as error:
        at = getattr(error, "position", 0)
        reason = getattr(error, "reason", None) or str(error).splitlines()[0]
        raise Stop(min(at if isinstance(at, int) else 0, len(text)), f"this is no YAML: {reason}") from None
    except RecursionError:
        raise Stop(0, f"nested deeper than {MAX_DEPTH} levels", "DS017") from None
    if builder.root is None:
        return Node("object", 0, 0, style="block")
    return builder.root


def compose_quietly(text: str) -> Node | None:
    """The tree when the text is a YAML mapping of plain keys without a fault; else None."""
    faults: list[Fault] = []
    try:
        root = compose(text, faults)
    except Stop:
        return None
    wanted = root.kind == "object" and root.style == "block" and bool(root.children)
    wanted = wanted and all(_NAME.fullmatch(child.key or "") for child in root.children)
    return root if wanted and not any(fault.id == "DS002" for fault in faults) else None


def _events(text: str) -> Iterator[yaml.Event]:
    import yaml

    # libyaml is ten times faster; its marks count characters like those of the Python parser.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Stop(error.start, "half of a surrogate pair stands in the text") from None
    return iter(yaml.parse(text, Loader=loader))


class _Builder:
    """Puts events together. The stack holds open containers and the key that waits for its value."""

    def __init__(self, text: str, faults: list[Fault]) -> None:
        self.text, self.faults = text, faults
        self.root: Node | None = None
        self.stack: list[Node] = []
        self.keys: list[tuple[str, int, int] | None] = []
        self.anchors: dict[str, Node] = {}
        self.sizes: dict[int, int] = {}
        self.nodes = 0

    def take(self, event: yaml.Event) -> None:
        import yaml

        at = event.start_mark.index if event.start_mark else 0
        end = event.end_mark.index if event.end_mark else at
        if isinstance(event, yaml.DocumentStartEvent) and self.root is not None:
            raise Stop(at, "a second YAML document follows the first; keep one in a file")
        if isinstance(event, yaml.AliasEvent):
            self._alias(str(event.anchor), at, end)
        elif isinstance(event, yaml.ScalarEvent):
            self._scalar(event, at, end)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            kind = "object" if isinstance(event, yaml.MappingStartEvent) else "array"
            node = Node(
                "object" if kind == "object" else "array", at, at, style="braces" if event.flow_style else "block"
            )
            self._open(node, event.anchor)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close(end)

    def _open(self, node: Node, anchor: str | None) -> None:
        if self.stack and self.stack[-1].kind == "object" and self.keys[-1] is None:
            raise Stop(node.start, "a key of YAML is a list or section here; keys are texts")
        self._place(node)
        self.stack.append(node)
        self.keys.append(None)
        if len(self.stack) > MAX_DEPTH:
            raise Stop(node.start, f"nested deeper than {MAX_DEPTH} levels", "DS017")
        if anchor:
            self.anchors[anchor] = node

    def _close(self, end: int) -> None:
        node = self.stack.pop()
        self.keys.pop()
        node.end = end if node.style == "braces" else max([node.start, *(child.node.end for child in node.children)])
        if node.kind == "object":
            _merge(node)

    def _alias(self, name: str, at: int, end: int) -> None:
        target = self.anchors.get(name)
        if target is None:
            raise Stop(at, f"the alias *{name} names no anchor before it")
        if target in self.stack:
            raise Stop(at, f"the alias *{name} holds itself")
        if self.stack and self.stack[-1].kind == "object" and self.keys[-1] is None:
            self._key(str(target.value), at, end)
            return
        self.nodes += self._size(target)
        if self.nodes > _MAX_NODES:
            raise Stop(at, f"the aliases stand for more than {_MAX_NODES} values")
        self._place(Node(target.kind, at, end, target.value, target.children, style="alias"))

    def _size(self, node: Node) -> int:
        """Values below a node, aliases followed; remembered, as aliases of aliases would be counted for ever."""
        key = id(node.children)
        if key not in self.sizes:
            self.sizes[key] = 1
            self.sizes[key] += sum(self._size(child.node) for child in node.children)
        return self.sizes[key]

    def _scalar(self, event: yaml.ScalarEvent, start: int, end: int) -> None:
        if event.style in ("|", ">"):
            end = start + len(self.text[start:end].rstrip())
        if self.stack and self.stack[-1].kind == "object" and self.keys[-1] is None:
            self._key(event.value, start, end)
            return
        node = Node("scalar", start, end, event.value, style="quoted" if event.style else "plain")
        if not event.style or event.tag not in (None, "!"):
            node.value = self._value(event, start, end)
        if event.anchor:
            self.anchors[event.anchor] = node
        self._place(node)

    def _key(self, value: str, start: int, end: int) -> None:
        self.keys[-1] = (value, start, end)

    def _place(self, node: Node) -> None:
        if not self.stack:
            self.root = node
            return
        parent, key = self.stack[-1], self.keys[-1]
        if parent.kind == "array" or key is None:
            parent.children.append(Child(None, node.start, node.start, node))
            return
        parent.children.append(Child(key[0], key[1], key[2], node))
        self.keys[-1] = None

    def _value(self, event: yaml.ScalarEvent, start: int, end: int) -> Any:
        raw = event.value
        tag = _resolved(raw) if event.tag in (None, "!") else event.tag
        if tag == _TAG + "str" and LOOSE_NUMBER.fullmatch(raw) and event.tag is None:
            value = float(raw)
            if not math.isinf(value):
                value = int(value) if value.is_integer() and abs(value) < 1e10 else value
                self._loose(raw, value, start, end)
                return value
        if tag == _TAG + "bool" and _YAML11_WORDS.fullmatch(raw):
            word = "true" if raw.lower() in ("yes", "on") else "false"
            message = f"{raw} is a boolean in YAML 1.1 and a text in YAML 1.2"
            self._fault("DS016", start, message, f"write {word}", Edit(start, end, word))
            return word == "true"
        value = _construct(tag, raw)
        if (isinstance(value, float) and not math.isfinite(value)) or (
            isinstance(value, int) and abs(value) >= 10**308
        ):
            self._fault("DS006", start, f"{brief(raw)} is no number that JSON can hold", "write a finite number")
            return raw
        if value is None and tag not in (_TAG + "null", _TAG + "str"):
            self._fault("DS002", start, f"the tag {tag} is none that a configuration can hold", "write a plain value")
            return raw
        return value

    def _loose(self, raw: str, value: float, start: int, end: int) -> None:
        written = repr(value)
        self._fault("DS015", start, f"{raw} is a text to YAML 1.1 readers such as PyYAML; read as {written}",
                    f"write {yaml_number(value)}", Edit(start, end, yaml_number(value)))  # fmt: skip

    def _fault(self, id: str, at: int, message: str, fix: str, *edits: Edit) -> None:
        path: list[str | int] = []
        for node, key in zip(self.stack, self.keys, strict=True):
            path.append(key[0] if key else len(node.children))
        for index, node in enumerate(self.stack[:-1]):
            last = node.children[-1]
            path[index] = last.key if last.key is not None else len(node.children) - 1
        self.faults.append(Fault(id, at, message, fix, edits, tuple(path)))


def _merge(node: Node) -> None:
    """Put what `<<` names in the mapping's children, written keys winning, as YAML 1.1 says."""
    if not any(child.key == "<<" for child in node.children):
        return
    own = [child for child in node.children if child.key != "<<"]
    written = {child.key for child in own}
    merged: dict[str | None, Child] = {}
    rest: list[Child] = []
    for child in node.children:
        if child.key != "<<":
            continue
        sources = [item.node for item in child.node.children] if child.node.kind == "array" else [child.node]
        if any(source.kind != "object" for source in sources):
            rest.append(child)
            continue
        for source in sources:
            for inner in source.children:
                if inner.key not in written and inner.key not in merged:
                    merged[inner.key] = Child(inner.key, inner.start, inner.key_end, _as_alias(inner.node), merged=True)
    node.children = [*merged.values(), *own, *rest]


def _as_alias(node: Node) -> Node:
    return Node(node.kind, node.start, node.end, node.value, node.children, style="alias")


def _resolved(raw: str) -> str:
    import yaml

    global _resolver
    if _resolver is None:
        _resolver = yaml.SafeLoader("")
    return str(_resolver.resolve(yaml.ScalarNode, raw, (True, False)))


_resolver: Any = None


def _construct(tag: str, raw: str) -> Any:
    """The value of a plain scalar. Dates stay text; a tag of another kind gives None."""
    import yaml

    if tag in (_TAG + "str", _TAG + "timestamp", _TAG + "value", _TAG + "merge"):
        return raw
    if tag not in (_TAG + "int", _TAG + "float", _TAG + "bool", _TAG + "null"):
        return None
    if tag == _TAG + "int" and len(raw) > 4000:
        return math.inf
    try:
        value = _resolver_instance().construct_object(yaml.ScalarNode(tag, raw))
    except (ValueError, KeyError, IndexError, OverflowError, yaml.YAMLError):
        return raw
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e10:
        return int(value)
    return value


def _resolver_instance() -> Any:
    _resolved("")
    return _resolver
