"""Write safetensors files piece by piece: the library's own writer wants every tensor of a file in memory.

The format: eight bytes with the length of the header, the header as JSON (dtype, shape and place of each tensor), then
the tensors' bytes, one after another without gaps.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dstrain.core import atomic

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_OURS = re.compile(r"^model(-\d{5}-of-\d{5})?\.safetensors$")
_CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * self.dtype.itemsize


def supports(dtype: torch.dtype) -> bool:
    """Whether the format has a code for it."""
    return dtype in _CODES


def shards_of(entries: Sequence[Entry], max_shard_bytes: int) -> list[list[Entry]]:
    """Split in order: a file takes tensors until the next would exceed the limit. A larger tensor has its own file."""
    shards: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if shards[-1] and size + entry.size_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size += entry.size_bytes
    return shards


def shard_names(count: int) -> list[str]:
    """The names that `from_pretrained` looks for."""
    return [WEIGHTS] if count == 1 else [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]


class ShardFile:
    """A file that is filled in any order, by several threads. It has its name only when it is whole."""

    def __init__(self, path: Path, entries: Sequence[Entry]) -> None:
        self.path, self._part = path, path.with_name(f".{path.name}.part")
        # Wide dtypes first keeps every tensor aligned to its own size; readers map the file in place.
        ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        places, end = {}, 0
        for entry in ordered:
            places[entry.name] = end
            end += entry.size_bytes
            place = [places[entry.name], end]
            header[entry.name] = {
                "dtype": _CODES[entry.dtype],
                "shape": list(entry.shape),
                "data_offsets": place,
            }
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self.size_bytes = 8 + len(text) + end
        self._places = {name: 8 + len(text) + place for name, place in places.items()}
        self._descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            self._write(struct.pack("<Q", len(text)) + text, 0)
            os.truncate(self._descriptor, self.size_bytes)
        except BaseException:
            self.discard()
            raise

    def write(self, name: str, offset_bytes: int, flat: Tensor) -> None:
        """Elements of a tensor, contiguous and of the entry's dtype, at a place within it."""
        if flat.numel():
            self._write(memoryview(flat.view(torch.uint8).numpy().data), self._places[name] + offset_bytes)

    def _write(self, content: bytes | memoryview, place: int) -> None:
        view = memoryview(content)
        while len(view):
            written = os.pwrite(self._descriptor, view, place)
            view, place = view[written:], place + written

    def publish(self, name: str | None = None) -> Path:
        """Make it durable and give it its name."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        path = self.path if name is None else self.path.with_name(name)
        self._part.replace(path)
        return path

    def discard(self) -> None:
        """Throw it away, if it has not been published."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        self._part.unlink(missing_ok=True)


def models_in(folder: Path) -> list[Path]:
    """The files of a model in this format that a folder holds, index included."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _OURS.match(path.name) or path.name == INDEX)


def finish(folder: Path, held: Sequence[Path], placed: dict[str, str], size_bytes: int) -> None:
    """Write the index, if there are several files, and remove those of an earlier model that have no place in it."""
    if len(set(placed.values())) > 1:
        atomic.write_json(
            folder / INDEX, {"metadata": {"total_size": size_bytes}, "weight_map": dict(sorted(placed.items()))}
        )
        keep = {INDEX, *placed.values()}
    else:
        keep = {*placed.values()}
    for path in held:
        if path.name not in keep:
            path.unlink(missing_ok=True)
    atomic.fsync_folder(folder)
