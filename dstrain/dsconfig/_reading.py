"""From bytes to text, and from faults to findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from dstrain.core.finding import Finding, Place
from dstrain.dsconfig._tree import Child, Edit, Fault, Lines, Node
from dstrain.dsconfig.codes import READING
from dstrain.dsconfig.document import Document, Path, dotted

_COLLAPSED = ("DS007", "DS015", "DS016")
_UTF16 = ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16"))


def decode(content: bytes, faults: list[Fault]) -> str | None:
    for mark, encoding in _UTF16:
        if content.startswith(mark):
            try:
                text = content.decode(encoding)
            except UnicodeDecodeError:
                return None
            faults.append(_encoding_fault("the file is UTF-16, not UTF-8"))
            return text
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        if b"\0" in content or _looks_binary(content):
            return None
        text = content.decode("cp1252", errors="replace")
        place = Lines(text).place(error.start)
        message = f"the byte 0x{content[error.start]:02x} on line {place[0]} is not UTF-8"
        faults.append(_encoding_fault(message, error.start))
    if _looks_binary(content):
        return None
    if text.startswith("\ufeff"):
        text = text[1:]
        faults.append(
            Fault(
                "DS013", 0, "the file starts with a byte order mark", "save it as UTF-8 without one", (Edit(0, 0, ""),)
            )
        )
    return text


def _encoding_fault(message: str, at: int = 0) -> Fault:
    return Fault("DS012", at, message, "save the file as UTF-8", (Edit(0, 0, ""),))


def _looks_binary(content: bytes) -> bool:
    head = content[:4096]
    odd = sum(byte < 32 and byte not in b"\t\n\r\f" for byte in head)
    return b"\0" in head or odd * 10 > len(head)


def duplicates(node: Node, path: Path, faults: list[Fault], text: str) -> None:
    seen: dict[str, Child] = {}
    for index, child in enumerate(node.children):
        inner = (*path, child.key if child.key is not None else index)
        if child.key is not None and not child.merged:
            if child.key in seen:
                faults.append(_duplicate(seen[child.key], child, inner, text))
            seen[child.key] = child
        if child.node.style != "alias":
            duplicates(child.node, inner, faults, text)


def _duplicate(first: Child, second: Child, path: Path, text: str) -> Fault:
    same = first.node.data() == second.node.data()
    edits: tuple[Edit, ...] = ()
    if same and first.node.style not in ("block", "plain") and text[first.node.end : first.node.end + 1] == ",":
        tail = len(text[first.node.end + 1 :]) - len(text[first.node.end + 1 :].lstrip(" \t\r\n"))
        edits = (Edit(first.start, first.node.end + 1 + tail, ""),)
    line = Lines(text).place(first.start)[0]
    how = "with the same value" if same else f"with other values ({_brief(first.node)} and {_brief(second.node)})"
    message = f"the key {dotted(path)} is written twice in one section, {how}; it is also on line {line}"
    return Fault("DS003", second.start, message, "keep one of the two", edits, path, (first.start,))


def _brief(node: Node) -> str:
    return f"{node.value!r:.40}" if node.kind == "scalar" else "a section" if node.kind == "object" else "a list"


def collapsed(faults: list[Fault]) -> list[Fault]:
    """Faults of the kinds that come by the dozen, as one fault each that counts its places."""
    kept: list[Fault] = []
    counts: dict[str, int] = {}
    for fault in faults:
        if fault.id not in _COLLAPSED or fault.id not in counts:
            kept.append(fault)
        counts[fault.id] = counts.get(fault.id, 0) + 1
    return [
        dataclasses.replace(fault, message=f"{fault.message} (here and in {counts[fault.id] - 1} more places)")
        if fault.id in _COLLAPSED and counts[fault.id] > 1
        else fault
        for fault in kept
    ]


def from_fault(fault: Fault, name: str, lines: Lines) -> Finding:
    also = tuple(Place(name, *lines.place(at)) for at in fault.also)
    return finding(name, fault.id, fault.message, lines.place(fault.at), fault.fix, dotted(fault.path), also)


def extension_findings(extensions: Mapping[str, list[int]], name: str, lines: Lines, suffix: str) -> Iterable[Finding]:
    if suffix == ".hjson" or not extensions:
        return
    first = min(places[0] for places in extensions.values())
    kinds = ", ".join(f"{kind} (line {lines.place(places[0])[0]})" for kind, places in extensions.items())
    message = f"only HJSON readers such as DeepSpeed's accept this file: {kinds}"
    yield finding(name, "DS010", message, lines.place(first), "write strict JSON, or name the file .hjson")


def finding(
    name: str,
    id: str,
    message: str,
    place: tuple[int, int],
    fix: str = "",
    key: str = "",
    also: tuple[Place, ...] = (),
) -> Finding:
    return Finding(id, READING[id].severity, key, message, fix, Place(name, *place), (), also)


_WHAT_TO_DO = {
    "DS001": "correct the text there, or just before",
    "DS008": 'write the keys in braces: {"train_batch_size": 8}',
    "DS017": "give the configuration itself: it has some five levels",
    "DS018": "give the configuration itself: it has some kilobytes",
}


def unreadable(
    name: str,
    id: str,
    message: str,
    place: tuple[int, int] = (1, 1),
    fix: str = "",
    faults: Iterable[Fault] = (),
) -> Document:
    if not READING[id].unreadable:
        id = "DS001"
    fix = fix or _WHAT_TO_DO.get(id, "")
    if id == "DS001" and place == (1, 1):
        fix = "give the name of a JSON, HJSON or YAML file"
    found = [finding(name, id, message, place, fix)]
    found += [finding(name, fault.id, fault.message, (1, 1), fault.fix) for fault in faults if fault.id == "DS012"]
    return Document(name, {}, findings=tuple(found), format="json")
