"""The ranks of this run, from the environment that the launcher made. No torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from dstrain.core.errors import UsageError
from dstrain.core.facts import WorldFacts

_CORE = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_LOCAL_SIZES = ("LOCAL_SIZE", "LOCAL_WORLD_SIZE")  # deepspeed's name, torchrun's name
_OPEN_MPI = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
_LOOPBACK = ("", "localhost", "127.0.0.1", "::1")
_FIX = "start with `deepspeed train.py` or `torchrun train.py`, or unset {} to train with one process"


def world_facts(environ: Mapping[str, str] = os.environ) -> WorldFacts:
    """World size, ranks and launcher, as the environment says; one rank when no launcher left a word.

    Raises:
        UsageError: variables that contradict each other, are not numbers, or are set by half. All that is wrong is
            named.
    """
    values = _values(environ)
    given = [name for name in _CORE if values.get(name)]
    if not given:
        _refuse_lone_tasks(environ)
        return WorldFacts()
    if missing := [name for name in _CORE if name not in given]:
        raise UsageError(
            f"{_shown(given, values)} {'is' if len(given) == 1 else 'are'} set, but {' and '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not",
            where="environment",
            fix=_FIX.format(", ".join(given)),
        )
    problems: list[str] = []
    rank, size, local_rank = (_number(name, values, problems) for name in _CORE)
    local_size = _local_size(values, size, problems)
    if not problems:
        problems = _contradictions(values, rank, size, local_rank, local_size)
    if problems:
        raise UsageError("; ".join(problems), where="environment", fix=_FIX.format(", ".join(given)))
    return WorldFacts(size, rank, local_rank, local_size, _launcher(values, size))


def _values(environ: Mapping[str, str]) -> dict[str, str]:
    values = {name: value.strip() for name, value in environ.items() if value.strip()}
    if not any(name in values for name in _CORE) and values.get(_OPEN_MPI["WORLD_SIZE"]):
        values |= {ours: values[theirs] for ours, theirs in _OPEN_MPI.items() if theirs in values}
    return values


def _refuse_lone_tasks(environ: Mapping[str, str]) -> None:
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks.isdigit() and int(tasks) > 1:
        raise UsageError(
            f"srun started {tasks} tasks (SLURM_STEP_NUM_TASKS), but RANK, WORLD_SIZE and LOCAL_RANK are not set:"
            " each task would train alone",
            where="environment",
            fix="srun one task per node that runs torchrun, or export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS"
            " LOCAL_RANK=$SLURM_LOCALID and LOCAL_WORLD_SIZE in each task",
        )


def _shown(names: list[str], values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={values[name]}" for name in names)


def _number(name: str, values: Mapping[str, str], problems: list[str]) -> int:
    text = values[name]
    if text.isascii() and text.isdigit():
        return int(text)
    problems.append(f"{name}={text!r} is not a whole number from 0")
    return 0


def _local_size(values: Mapping[str, str], size: int, problems: list[str]) -> int:
    torchrun, deepspeed = _is_torchrun(values), _is_deepspeed(values)
    own = _LOCAL_SIZES if torchrun == deepspeed else ("LOCAL_WORLD_SIZE",) if torchrun else ("LOCAL_SIZE",)
    # The other name may be left over from the process that called the launcher; what a launcher itself sets is right.
    given = [name for name in own if name in values]
    sizes = {name: _number(name, values, problems) for name in given}
    if len(set(sizes.values())) > 1:
        problems.append(f"{_shown(given, values)} disagree")
    if sizes:
        return next(iter(sizes.values()))
    if size > 1 and values.get("MASTER_ADDR", "") not in _LOOPBACK:
        address = values["MASTER_ADDR"]
        problems.append(
            f"LOCAL_WORLD_SIZE is not set, and with MASTER_ADDR={address} the ranks need not be on one host"
        )
    return size  # one host


def _contradictions(values: Mapping[str, str], rank: int, size: int, local_rank: int, local_size: int) -> list[str]:
    problems = []
    if size < 1:
        problems.append(f"WORLD_SIZE={size}: at least one rank is needed")
    elif rank >= size:
        problems.append(f"RANK={rank} is not below WORLD_SIZE={size}")
    if local_size > size:
        problems.append(f"{local_size} ranks on this host, but WORLD_SIZE={size}")
    if local_rank >= local_size:
        problems.append(f"LOCAL_RANK={local_rank} is not below the {local_size} ranks of this host")
    if local_rank > rank:
        problems.append(f"LOCAL_RANK={local_rank} is above RANK={rank}")
    if not _is_torchrun(values):
        problems += _host_contradictions(values, size, local_size)
    return problems


def _host_contradictions(values: Mapping[str, str], size: int, local_size: int) -> list[str]:
    cross = (values.get("CROSS_RANK", ""), values.get("CROSS_SIZE", ""))
    if not (cross[0].isdigit() and cross[1].isdigit()):
        return []
    problems, host, hosts = [], int(cross[0]), int(cross[1])
    if host >= hosts:
        problems.append(f"CROSS_RANK={host} is not below CROSS_SIZE={hosts}")
    if hosts > size >= 1:
        problems.append(f"CROSS_SIZE={hosts} hosts, but WORLD_SIZE={size}")
    if hosts == 1 and local_size < size:
        problems.append(f"one host (CROSS_SIZE=1) with {local_size} ranks, but WORLD_SIZE={size}")
    return problems


def _is_torchrun(values: Mapping[str, str]) -> bool:
    return "TORCHELASTIC_RUN_ID" in values


def _is_deepspeed(values: Mapping[str, str]) -> bool:
    # deepspeed/launcher/launch.py of 0.19.8 sets these two for every rank; no other launcher does.
    return "LOCAL_SIZE" in values and "CROSS_SIZE" in values


def _launcher(values: Mapping[str, str], size: int) -> Literal["deepspeed", "torchrun", "other"] | None:
    if _is_torchrun(values):
        return "torchrun"
    if _is_deepspeed(values):
        return "deepspeed"
    # A world of one that no launcher made: also what `dist.ensure_initialized` leaves in a plain process for DeepSpeed.
    return "other" if size > 1 else None
