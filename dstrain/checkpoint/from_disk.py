"""A model from a checkpoint on disk: no process group, no model class, no deepspeed, and no more memory than chunks."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dstrain.checkpoint import manifest
from dstrain.checkpoint import safetensors_file as st
from dstrain.checkpoint.inspect import shard_faults
from dstrain.checkpoint.layout import Layout, find
from dstrain.checkpoint.weights import StoredTensor, stored_weights
from dstrain.core import atomic
from dstrain.core.errors import CheckpointError, UsageError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_CHUNK = 2 << 20  # elements: large enough for the disk, small beside any model
_DOCUMENTS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
)


@dataclass(frozen=True, slots=True)
class Exported:
    """From which checkpoint, what was written: files in order, tensors, their bytes; and lines for a person to read."""

    checkpoint: Path
    folder: Path
    files: list[Path]
    tensors: int
    size_bytes: int
    notes: list[str] = field(default_factory=list)


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    dtype: str | None = None,
    max_shard_bytes: int = 5_000_000_000,
    overwrite: bool = False,
    verify: bool = True,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Exported:
    """Write `model.safetensors` (or shards with an index) and `config.json` from a checkpoint of any ZeRO stage.

    Args:
        checkpoint: a checkpoint of dstrain or plain DeepSpeed, or a folder whose `latest` names one.
        dtype: "fp32" (from the fp32 master weights), "bf16" or "fp16"; None leaves every weight as the run had it.
        max_shard_bytes: bytes of tensors per file; a larger tensor has a file of its own.
        overwrite: replace a model that `out` holds.
        verify: hold every file that is read against its hash (of plain DeepSpeed: its checksums) first.
        workers: threads; by default one per core, four at most.
        progress: called with bytes done and bytes in all.

    Raises:
        CheckpointError: the checkpoint is damaged or of a kind that cannot be put together; nothing was written.
        UsageError: `out` holds a model already, or an argument has no meaning.
    """
    if max_shard_bytes < 1:
        raise UsageError(f"{max_shard_bytes} bytes per file: at least one is needed", where="--max-shard-size")
    held = st.models_in(out)
    if held and not overwrite:
        raise UsageError(f"holds a model already ({held[0].name})", where=str(out), fix="another folder, or --force")
    layout = find(checkpoint)
    wanted = None if dtype is None else DTYPES[dtype]
    if verify:
        _verify(layout, masters=wanted is not None)
    stored = stored_weights(layout, wanted)
    if not stored:
        raise CheckpointError("holds no weights", where=str(layout.shards))
    job = _Job(stored, wanted, max_shard_bytes, progress)
    try:
        _check_room(out, job.size_bytes)
        files = job.write(out, workers or min(4, os.cpu_count() or 1))
        st.finish(out, held, job.places, job.size_bytes)
        notes = _documents(layout, out, dtype, wanted)
    except OSError as error:
        raise CheckpointError(
            f"could not be written: {error.strerror or error}", where=str(error.filename or out), fix="make room there"
        ) from error
    narrow = sum(t.own.itemsize < 4 and t.own.is_floating_point and not t.is_master for t in stored)
    if wanted is torch.float32 and narrow:
        notes.append(
            f"{narrow} of {len(stored)} weights have no fp32 master in this checkpoint (frozen, or stage 0): "
            "their 16-bit values were widened"
        )
    return Exported(layout.folder, out, files, len(stored), job.size_bytes, notes)


def _verify(layout: Layout, *, masters: bool) -> None:
    """The files that are going to be read. Damage is found here; what would run is refused when they are opened."""
    read = [*layout.model_states, *(layout.optim_states if masters or layout.sharded_weights else ())]
    if layout.kind == "dstrain":
        faults = manifest.problems(layout.folder, only={str(path.relative_to(layout.folder)) for path in read})
    else:
        faults = shard_faults(read, deep=True)
    if faults:
        raise CheckpointError(
            "damaged: " + "; ".join(faults[:5]), where=str(layout.folder), fix="`dstrain ckpt list` shows others"
        )


class _Job:
    """The tensors, their files, and the writing."""

    def __init__(
        self,
        stored: Sequence[StoredTensor],
        wanted: torch.dtype | None,
        max_shard_bytes: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._stored = {tensor.name: tensor for tensor in stored}
        self._progress, self._done = progress, 0
        entries = [st.Entry(t.name, _dtype(t, wanted), t.shape) for t in stored]
        self.size_bytes = sum(entry.size_bytes for entry in entries)
        self._shards = st.shards_of(entries, max_shard_bytes)
        names = st.shard_names(len(self._shards))
        self._named = list(zip(names, self._shards, strict=True))
        self.places = {entry.name: name for name, shard in self._named for entry in shard}

    def write(self, out: Path, workers: int) -> list[Path]:
        """All files, then their names: a reader sees no half of a model."""
        out.mkdir(parents=True, exist_ok=True)
        opened: list[st.ShardFile] = []
        try:
            for name, shard in self._named:
                opened.append(st.ShardFile(out / name, shard))
                with ThreadPoolExecutor(workers) as pool:
                    list(pool.map(lambda entry, file=opened[-1]: self._copy(entry, file), shard))
            return [file.publish() for file in opened]
        finally:
            for file in opened:
                file.discard()

    def _copy(self, entry: st.Entry, file: st.ShardFile) -> None:
        offset = 0
        for chunk in self._stored[entry.name].chunks(_CHUNK):
            flat = _cast(chunk, entry)
            file.write(entry.name, offset, flat)
            offset += flat.numel() * flat.element_size()
        if offset != entry.size_bytes:
            raise CheckpointError(f"{entry.name}: {offset} bytes in the checkpoint, its shape needs {entry.size_bytes}")
        self._done += offset
        if self._progress is not None:
            self._progress(self._done, self.size_bytes)


def _dtype(tensor: StoredTensor, wanted: torch.dtype | None) -> torch.dtype:
    """Integers and booleans keep theirs whatever is wanted."""
    dtype = wanted if wanted is not None and tensor.own.is_floating_point else tensor.own
    if not st.supports(dtype):
        raise CheckpointError(f"{tensor.name} is of {dtype}, which safetensors has no code for")
    return dtype


def _cast(chunk: Tensor, entry: st.Entry) -> Tensor:
    flat = chunk.to(entry.dtype).contiguous()
    if entry.dtype is torch.float16 and chunk.dtype is not torch.float16:
        lost = int((flat.isinf() & ~chunk.isinf()).sum())
        if lost:
            raise CheckpointError(
                f"{entry.name}: {lost} of its numbers are too large for fp16 (65504 at most)", fix="--dtype bf16"
            )
    return flat


def _check_room(out: Path, size_bytes: int) -> None:
    place = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if free < size_bytes:
        raise CheckpointError(
            f"the model needs {size_bytes:,} bytes and {free:,} are free", where=str(out), fix="make room there"
        )


def _documents(layout: Layout, out: Path, dtype: str | None, wanted: torch.dtype | None) -> list[str]:
    """`config.json` with the dtype as it now is, and a tokenizer, when they lie with the checkpoint."""
    places = [layout.folder, layout.folder.parent]
    for name in _DOCUMENTS:
        source = next((place / name for place in places if (place / name).is_file()), None)
        if source is not None and not (out / name).exists():
            shutil.copyfile(source, out / name)
    source = next((place / "config.json" for place in places if (place / "config.json").is_file()), None)
    config = _read(source) if source is not None else None
    if config is None:
        return ["there is no config.json with this checkpoint: put the model's own beside the weights"]
    for key in ("dtype", "torch_dtype"):
        if wanted is not None and dtype is not None and key in config:
            config[key] = str(wanted).removeprefix("torch.")
    atomic.write_json(out / "config.json", config)
    return []


def _read(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
