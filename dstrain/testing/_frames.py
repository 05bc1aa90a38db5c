"""Length-prefixed byte frames over pipes."""

from __future__ import annotations

import os
import struct

_HEAD = struct.Struct(">Q")
_CHUNK_BYTES = 1 << 20


def _read_exactly(descriptor: int, size_bytes: int) -> bytes | None:
    parts: list[bytes] = []
    while size_bytes:
        part = os.read(descriptor, min(size_bytes, _CHUNK_BYTES))
        if not part:
            return None
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


def read_frame(descriptor: int) -> bytes | None:
    """The next frame, or None when the other side has closed the pipe (also in the middle of a frame)."""
    head = _read_exactly(descriptor, _HEAD.size)
    return None if head is None else _read_exactly(descriptor, _HEAD.unpack(head)[0])


def write_frame(descriptor: int, content: bytes) -> None:
    """Write one frame whole.

    Raises:
        BrokenPipeError: the other side is gone.
    """
    rest = memoryview(_HEAD.pack(len(content)) + content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
