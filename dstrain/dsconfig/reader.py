"""Reading a DeepSpeed configuration: JSON, HJSON, YAML, base64 or a dict, as people write them."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dstrain.core.errors import UsageError
from dstrain.core.facts import Mode
from dstrain.core.finding import Severity
from dstrain.core.nearest import did_you_mean
from dstrain.dsconfig._hjson import parse
from dstrain.dsconfig._reading import collapsed, decode, duplicates, extension_findings, finding, from_fault, unreadable
from dstrain.dsconfig._tree import Edit, Fault, Lines, Node, Stop, apply_edits
from dstrain.dsconfig.codes import READING
from dstrain.dsconfig.document import Document

MAX_BYTES = 64 * 1024 * 1024
YAML_SUFFIXES = (".yaml", ".yml")
JSON_SUFFIXES = (".json", ".hjson")
_YAML_LINE = re.compile(r"-\s|[\w.]+:(?:\s|$)")


def read(source: str | Path | Mapping[str, Any]) -> Document:
    """Read a configuration file, a dict, or a base64 text (as DeepSpeed accepts) as a `Document`.

    What is wrong with the content is in `Document.findings`, never an exception. Values are those that DeepSpeed's
    own reader (hjson 3.1.0) gives, so `5e8` is the integer 500000000, except where a finding says otherwise.

    Raises:
        UsageError: there is no such file, or it cannot be opened.
    """
    if isinstance(source, Mapping):
        return Document("<dict>", source)
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # a long base64 text is no valid file name
        exists = False
    if not exists and isinstance(source, str):
        decoded = _from_base64(source)
        if decoded is not None:
            return decoded
    try:
        size = path.stat().st_size
        content = b"" if size > MAX_BYTES else path.read_bytes()
    except (OSError, ValueError) as error:
        raise _cannot_read(path, error) from error
    if size > MAX_BYTES:
        return unreadable(str(source), "DS018", f"the file has {size} bytes; the limit is {MAX_BYTES}")
    return read_bytes(content, str(source))


def read_bytes(content: bytes, name: str) -> Document:
    """Read the bytes of a file. `name` is shown in findings, and its suffix (.yaml, .yml) chooses YAML."""
    if len(content) > MAX_BYTES:
        return unreadable(name, "DS018", f"there are {len(content)} bytes; the limit is {MAX_BYTES}")
    faults: list[Fault] = []
    text = decode(content, faults)
    if text is None:
        return unreadable(name, "DS001", "this is a binary file, not a text", (1, 1))
    return _read_text(text, name, faults)


def read_text(text: str, name: str = "<text>") -> Document:
    """Read a text. `name` is shown in findings, and its suffix (.yaml, .yml) chooses YAML."""
    return _read_text(text, name, [])


def read_tree(text: str, *, yaml: bool) -> Node:
    """The tree of a text with the spans of its values, for edits.

    Raises:
        Stop: it cannot be read.
    """
    return _root(text, ".yaml" if yaml else "", [])[0]


def is_unreadable(document: Document) -> bool:
    """Whether nothing could be read, so that rules have nothing to say (exit code 2 of `dstrain config check`)."""
    return any(finding.id in READING and READING[finding.id].unreadable for finding in document.findings)


def for_mode(document: Document, mode: Mode) -> Document:
    """The document with its reading findings weighed for who will read the file.

    DeepSpeed reads HJSON but not YAML. transformers 5.24 reads strict JSON (`json.load`): comments, trailing commas
    and a byte order mark stop it. dstrain reads all of it.
    """
    findings = list(document.findings)
    if document.format == "yaml" and mode is not Mode.DSTRAIN and not any(f.id == "DS014" for f in findings):
        message = f"{mode.value} reads JSON, not YAML"
        findings.append(finding(document.name, "DS014", message, (1, 1), "write the file as JSON"))
    if mode is Mode.TRANSFORMERS:
        if document.format == "hjson" and not any(f.id == "DS010" for f in findings):
            message = "transformers reads strict JSON, and this file is HJSON"
            findings.append(finding(document.name, "DS010", message, (1, 1), "write the file as strict JSON"))
        strict = ("DS010", "DS013")
        findings = [replace(f, severity=Severity.ERROR) if f.id in strict else f for f in findings]
    return replace(document, findings=tuple(findings))


def _from_base64(source: str) -> Document | None:
    try:
        text = base64.urlsafe_b64decode(source).decode("utf-8")
    except (ValueError, binascii.Error):
        return None
    if not text.lstrip().startswith("{"):
        return None
    document = read_text(text, "<base64>")
    return replace(document, text=None, mended=None, format="dict")


# ---- from text to a document


def _read_text(text: str, name: str, faults: list[Fault]) -> Document:
    suffix = Path(name).suffix.lower()
    if not text.strip():
        return unreadable(name, "DS009", "the file is empty", (1, 1), "write {} and the keys of the configuration")
    try:
        root, extensions, format_ = _root(text, suffix, faults)
    except Stop as stop:
        return unreadable(name, stop.id, stop.message, Lines(text).place(stop.at), "", faults)
    if root.kind != "object":
        what = "a list" if root.kind == "array" else f"the single value {_shown(root.value)}"
        return unreadable(name, "DS008", f"the configuration is {what}, not {{...}}", Lines(text).place(root.start))
    if not root.children and root.style in ("bare", "block"):
        return unreadable(name, "DS009", "the file holds comments only", (1, 1), "write the keys of the configuration")
    duplicates(root, (), faults, text)
    lines = Lines(text)
    findings = [from_fault(fault, name, lines) for fault in collapsed(faults)]
    findings += extension_findings(extensions, name, lines, suffix)
    return Document(
        name,
        root.data(),
        {path: lines.place(child.start) for path, child in root.walk()},
        tuple(findings),
        text,
        format_,
        _mended(text, suffix, root, faults, extensions),
    )


def _root(text: str, suffix: str, faults: list[Fault]) -> tuple[Node, dict[str, list[int]], str]:
    if suffix in YAML_SUFFIXES:
        from dstrain.dsconfig._yaml import compose

        return compose(text, faults), {}, "yaml"
    return _braces_or_yaml(text, suffix, faults)


def _braces_or_yaml(text: str, suffix: str, faults: list[Fault]) -> tuple[Node, dict[str, list[int]], str]:
    try:
        tree = parse(text)
        indented = _quiet_yaml(text) if _reads_like_yaml(tree.root) else None
        if indented is not None:
            return _as_yaml(indented, suffix, faults)
        if not tree.suspects:
            return tree.root, tree.extensions, "hjson" if tree.extensions else "json"
        stop = None
    except Stop as first:
        if first.id == "DS017":
            raise
        stop = first
    if stop is not None and not text.lstrip().startswith(("{", "[", "`")):
        root = _quiet_yaml(text)
        if root is not None:
            return _as_yaml(root, suffix, faults)
    from dstrain.dsconfig._recover import recover

    try:
        root, found, extensions = recover(text)
    except Stop as second:
        raise (second if second.id == "DS017" or stop is None else stop) from None
    if not root.children and stop is not None and root.kind == "object":
        raise stop
    faults += found
    if stop is not None and not found:
        faults.append(Fault("DS002", stop.at, stop.message))
    return root, extensions, "hjson" if extensions else "json"


def _quiet_yaml(text: str) -> Node | None:
    from dstrain.dsconfig._yaml import compose_quietly  # with PyYAML, which most checks never need

    return compose_quietly(text)


def _reads_like_yaml(root: Node) -> bool:
    """Whether HJSON read `key:` and an indented line below it as one text, which is YAML as it is written."""
    return root.style == "bare" and any(
        child.node.style == "plain" and _YAML_LINE.match(child.node.value) for child in root.children
    )


def _as_yaml(root: Node, suffix: str, faults: list[Fault]) -> tuple[Node, dict[str, list[int]], str]:
    if suffix in JSON_SUFFIXES:
        message = f"the file is named {suffix} and holds YAML, which DeepSpeed cannot read"
        faults.append(Fault("DS014", root.start, message, "name it .yaml, or write it as JSON"))
    return root, {}, "yaml"


def _mended(text: str, suffix: str, root: Node, faults: list[Fault], extensions: Mapping[str, list[int]]) -> str | None:
    """The text with all mechanical mends made, when there are any and they change nothing that was read."""
    edits = [edit for fault in faults for edit in fault.edits]
    if suffix != ".hjson":  # DeepSpeed takes a trailing comma, and nobody writes one on purpose
        edits += [Edit(at, at + 1, "") for at in extensions.get("a trailing comma", [])]
    if not edits:
        return None
    mended = apply_edits(text, edits)
    try:
        again = _root(mended, suffix, [])[0]
    except Stop:
        return None
    return mended if again.data() == root.data() else None


def _cannot_read(path: Path, error: Exception) -> UsageError:
    reason = getattr(error, "strerror", None) or str(error)
    fix = None
    if isinstance(error, FileNotFoundError):
        try:
            siblings = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
        except OSError:
            siblings = []
        fix = did_you_mean(path.name, siblings) or "check the path"
    shown = str(path) if len(str(path)) < 200 else str(path)[:200] + "…"
    return UsageError(f"cannot read the configuration: {reason}", where=shown, fix=fix)


def _shown(value: object) -> str:
    """A value as JSON writes it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value!r:.60}"
