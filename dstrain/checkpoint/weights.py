"""The full weights of a checkpoint on disk, as pieces of mapped files: nothing is read until it is asked for.

Where DeepSpeed 0.19.8 keeps them:

* stages 0 to 2: whole, in the run's own dtype, in the model file;
* the fp32 master weights of stages 1 and 2: one flat vector per parameter group, cut into one part per rank. Parameters
  follow each other in the order of `param_shapes`, each with the gap of `param_alignment_paddings`, where there is one;
* stage 3: each parameter is cut into one part per rank, padded to a multiple of the ranks. A rank's parts of all
  parameters follow each other over its flat groups; a part may begin in one group and end in the next;
* frozen parameters: in the model file, and at stage 3 as fragments in the model file of each rank;
* stage 0 in 16 bit: master weights as lists without names; dstrain saves the names with them.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dstrain.checkpoint.layout import Layout
from dstrain.checkpoint.opening import is_mappable, open_shard
from dstrain.core.errors import CheckpointError
from dstrain.core.shard_globals import MASTER_NAMES

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Piece:
    """A flat run of elements. `mapped`: it lies in a file mapping, whose pages may be given back after use."""

    flat: Tensor
    mapped: bool

    def part(self, start: int, count: int) -> Piece:
        """Elements from `start` on, at most `count`."""
        return Piece(self.flat[start : start + count], self.mapped)

    def release(self) -> None:
        """Give the pages back: they would count as this process's memory until its end."""
        if not self.mapped or not hasattr(_LIBC, "madvise"):
            return
        page = mmap.PAGESIZE
        begin = -(-self.flat.data_ptr() // page) * page
        end = (self.flat.data_ptr() + self.flat.numel() * self.flat.element_size()) // page * page
        if end > begin:
            _LIBC.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One full tensor: its elements are those of the pieces, in order. `own`: the dtype that the run trained in."""

    name: str
    shape: tuple[int, ...]
    own: torch.dtype
    pieces: tuple[Piece, ...]

    @property
    def is_master(self) -> bool:
        """Whether the pieces are wider than the run's own dtype."""
        return any(piece.flat.dtype.itemsize > self.own.itemsize for piece in self.pieces)

    def chunks(self, count: int) -> Iterator[Tensor]:
        """All elements in order, at most `count` at a time; a chunk is valid until the next is asked for."""
        for piece in self.pieces:
            for start in range(0, piece.flat.numel(), count):
                part = piece.part(start, count)
                yield part.flat
                part.release()


def stored_weights(layout: Layout, dtype: torch.dtype | None) -> list[StoredTensor]:
    """Every tensor of the state dict, in its order, tied ones under each of their names.

    Args:
        dtype: what is wanted of floating-point weights. When it is not the run's own, the fp32 master weights are the
            source; None takes the weights as the run has them.

    Raises:
        CheckpointError: the files are damaged, do not fit together, or are of model, pipeline or expert parallelism.
    """
    if layout.odd:
        raise CheckpointError(
            f"holds parts of model, pipeline or expert parallelism ({layout.odd[0]}), which are not put together here",
            where=str(layout.shards),
        )
    states = [(open_shard(path), is_mappable(path)) for path in layout.model_states]
    state, mapped = states[0]
    module = state.get("model" if layout.engine == "single" else "module")
    if not isinstance(module, dict):
        raise CheckpointError("holds no weights under 'module'", where=str(layout.model_states[0]))
    if layout.sharded_weights:
        return _Zero3(layout, states).tensors(module)
    stored = {
        name: StoredTensor(name, tuple(value.shape), value.dtype, (_piece(value, mapped),))
        for name, value in module.items()
        if isinstance(value, Tensor)
    }
    wider = {name for name, t in stored.items() if dtype not in (None, t.own) and t.own.itemsize < 4}
    if wider and layout.optim_states:
        stored |= _masters(layout, state, stored)
    elif wider and MASTER_NAMES in state:
        stored |= _stage0_masters(state, stored, mapped)
    return list(stored.values())


def _piece(tensor: Tensor, mapped: bool) -> Piece:
    flat = tensor.detach().reshape(-1)
    return Piece(flat, mapped and flat.data_ptr() == tensor.data_ptr())


def _optimizers(layout: Layout) -> list[tuple[dict[str, Any], bool]]:
    found = []
    for path in layout.optim_states:
        state = open_shard(path).get("optimizer_state_dict")
        if not isinstance(state, dict):
            raise CheckpointError("holds no optimizer state", where=str(path))
        found.append((state, is_mappable(path)))
    count = found[0][0].get("partition_count") if found else None
    wanted = max(count) if isinstance(count, list) and count else count
    if isinstance(wanted, int) and wanted != len(found):
        raise CheckpointError(
            f"{wanted} ranks wrote this checkpoint, and {len(found)} of their optimizer files are here",
            where=str(layout.shards),
        )
    return found


def _masters(layout: Layout, state: dict[str, Any], stored: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
    """fp32 weights of stages 1 and 2, tied names included; frozen ones have no master and stay as they are."""
    ranks, where = _optimizers(layout), str(layout.shards)
    groups: list[dict[str, Any]] = state.get("param_shapes") or []
    parts = [rank.get("single_partition_of_fp32_groups") or [] for rank, _ in ranks]
    if any(len(part) != len(groups) for part in parts):
        raise CheckpointError(f"{len(groups)} groups of weights, but not in every optimizer file", where=where)
    paddings = ranks[0][0].get("param_alignment_paddings")
    masters: dict[str, StoredTensor] = {}
    for index, shapes in enumerate(groups):
        line = [Piece(part[index].reshape(-1), mapped) for part, (_, mapped) in zip(parts, ranks, strict=True)]
        gaps = paddings[index] if paddings else [0] * len(shapes)
        if len(gaps) != len(shapes):
            raise CheckpointError(f"group {index}: {len(gaps)} gaps for {len(shapes)} weights", where=where)
        offset = 0
        for (name, shape), gap in zip(shapes.items(), gaps, strict=True):
            own = stored[name].own if name in stored else line[0].flat.dtype
            masters[name] = StoredTensor(name, tuple(shape), own, _cut(line, offset, math.prod(shape), name, where))
            offset += math.prod(shape) + int(gap)
    for alias, name in (state.get("shared_params") or {}).items():
        if name in masters:
            masters[alias] = StoredTensor(alias, masters[name].shape, masters[name].own, masters[name].pieces)
    return {name: tensor for name, tensor in masters.items() if name in stored}


def _stage0_masters(state: dict[str, Any], stored: dict[str, StoredTensor], mapped: bool) -> dict[str, StoredTensor]:
    """fp32 weights of stage 0, by the names that dstrain saves with them; tied ones share their storage in the file."""
    names = [name for group in state[MASTER_NAMES] for name in group]
    groups: list[list[Tensor]] = (state.get("optimizer") or {}).get("fp32_groups") or []
    masters = {
        name: StoredTensor(name, stored[name].shape, stored[name].own, (_piece(tensor, mapped),))
        for name, tensor in zip(names, (tensor for group in groups for tensor in group), strict=False)
        if name in stored and tuple(tensor.shape) == stored[name].shape
    }
    places = {stored[name].pieces[0].flat.data_ptr(): name for name in masters if stored[name].pieces[0].flat.numel()}
    for alias, tensor in stored.items():
        source = places.get(tensor.pieces[0].flat.data_ptr())
        if alias not in masters and source is not None:
            masters[alias] = StoredTensor(alias, tensor.shape, tensor.own, masters[source].pieces)
    return masters


def _cut(line: list[Piece], offset: int, count: int, name: str, where: str) -> tuple[Piece, ...]:
    """`count` elements from `offset` on of a vector that lies in several parts."""
    pieces, left = [], count
    for piece in line:
        size = piece.flat.numel()
        if left and offset < size:
            pieces.append(piece.part(offset, left))
            left -= pieces[-1].flat.numel()
        offset = max(0, offset - size)
    if left:
        raise CheckpointError(f"{name}: {left} of {count} numbers are missing in the optimizer files", where=where)
    return tuple(pieces)


class _Zero3:
    """Stage 3: weights come from the optimizer's flat groups of all ranks, frozen ones from fragments."""

    def __init__(self, layout: Layout, states: list[tuple[dict[str, Any], bool]]) -> None:
        self._states, self._state, self._where = states, states[0][0], str(layout.shards)
        ranks = _optimizers(layout)
        if not ranks or len(states) != len(ranks):
            raise CheckpointError(
                f"{len(states)} model files and {len(ranks)} optimizer files; stage 3 has one of each per rank",
                where=self._where,
            )
        self._lines = [[Piece(flat.reshape(-1), mapped) for flat in _flat_groups(rank)] for rank, mapped in ranks]

    def tensors(self, module: dict[str, Any]) -> list[StoredTensor]:
        """In the order of the state dict, whose parameters are empty placeholders of the run's dtype."""
        full = self._trained() | self._frozen()
        tied: dict[str, str] = self._state.get("shared_params") or {}
        buffers = set(self._state.get("buffer_names") or [])
        found = []
        for name, shown in module.items():
            if name in buffers:
                found.append(StoredTensor(name, tuple(shown.shape), shown.dtype, (_piece(shown, self._states[0][1]),)))
                continue
            source = name if name in full else tied.get(name, name)
            if source not in full:
                raise CheckpointError(f"{name} is in no file of this checkpoint", where=self._where)
            shape, pieces = full[source]
            found.append(StoredTensor(name, shape, shown.dtype, pieces))
        return found

    def _trained(self) -> dict[str, tuple[tuple[int, ...], tuple[Piece, ...]]]:
        found, offset = {}, 0
        for shapes in self._state.get("param_shapes") or []:
            for name, shape in shapes.items():
                share = -(-math.prod(shape) // len(self._lines))
                parts = [_cut(line, offset, share, name, self._where) for line in self._lines]
                found[name] = (tuple(shape), _without_padding(parts, math.prod(shape)))
                offset += share
        return found

    def _frozen(self) -> dict[str, tuple[tuple[int, ...], tuple[Piece, ...]]]:
        found = {}
        for name, shape in (self._state.get("frozen_param_shapes") or {}).items():
            parts: list[tuple[Piece, ...]] = []
            for state, mapped in self._states:
                fragment = (state.get("frozen_param_fragments") or {}).get(name)
                if fragment is None:
                    raise CheckpointError(f"{name}: a rank's part of this frozen weight is missing", where=self._where)
                parts.append((_piece(fragment, mapped),))
            found[name] = (tuple(shape), _without_padding(parts, math.prod(shape)))
        return found


def _flat_groups(rank: dict[str, Any]) -> list[Tensor]:
    groups: list[Tensor] | None = rank.get("fp32_flat_groups")
    if groups is None:
        raise CheckpointError("an optimizer file without 'fp32_flat_groups': not of stage 3")
    return groups


def _without_padding(parts: list[tuple[Piece, ...]], count: int) -> tuple[Piece, ...]:
    kept, left = [], count
    for piece in (piece for part in parts for piece in part):
        if left <= 0:
            break
        kept.append(piece.part(0, left))
        left -= kept[-1].flat.numel()
    return tuple(kept)
