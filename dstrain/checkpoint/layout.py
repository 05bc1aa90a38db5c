"""What a folder is: a checkpoint of dstrain, one of plain DeepSpeed, or a run that holds some. Reads no weights."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dstrain.checkpoint import manifest
from dstrain.core.errors import CheckpointError

ENGINE_FOLDER = "engine"
SINGLE_FILE = "single_state.pt"
LATEST = "latest"
_ZERO3 = re.compile(r"^zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt$")
_MODEL = re.compile(r"^mp_rank_(\d+)_model_states\.pt$")
_OPTIM = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt$")
_MAX_LINKS = 3  # run/latest -> checkpoint-N/latest -> engine


@dataclass(frozen=True, slots=True)
class Layout:
    """The files of one checkpoint.

    Args:
        kind: who wrote it. Only "dstrain" has a manifest.
        folder: what a user names; documents such as `config.json` are here or one above.
        shards: where the weights are.
        engine: "single" is one file of plain torch.
        model_states: in the order of ranks; one per rank at stage 3, else one.
        optim_states: in the order of ranks; none at stage 0.
        odd: files of model, pipeline or expert parallelism, which cannot be put together here.
    """

    kind: Literal["dstrain", "deepspeed"]
    folder: Path
    shards: Path
    engine: Literal["deepspeed", "single"]
    model_states: tuple[Path, ...]
    optim_states: tuple[Path, ...]
    odd: tuple[str, ...]

    @property
    def sharded_weights(self) -> bool:
        """Whether the weights themselves are in parts (stage 3)."""
        return any(_ZERO3.match(path.name) for path in self.model_states)


def checked_tag(text: str, where: Path) -> str:
    """The tag that a `latest` file holds, when it is the name of a folder beside it.

    Raises:
        CheckpointError: it is a path, which could lead anywhere.
    """
    tag = text.strip()
    if not tag or tag in (".", "..") or re.search(r"[/\\\0\n]", tag):
        raise CheckpointError(
            f"{tag[:80]!r} is no name of a checkpoint beside this file, and is not followed",
            where=str(where),
            fix="write the name of a folder in it, such as global_step100",
        )
    return tag


def find(path: Path) -> Layout:
    """The checkpoint at a path: its own folder, or a folder whose `latest` names it.

    Raises:
        CheckpointError: there is none, or `latest` leads out of the folder.
    """
    if not path.is_dir():
        raise CheckpointError("there is no such folder", where=str(path), fix="dstrain ckpt list FOLDER shows some")
    here = path
    for _ in range(_MAX_LINKS):
        if (layout := at(here)) is not None:
            return layout
        latest = here / LATEST
        if not latest.is_file():
            break
        here = here / checked_tag(latest.read_text(errors="replace")[:300], latest)
        if not here.is_dir():
            raise CheckpointError(f"names {here.name!r}, and there is no such folder", where=str(latest))
    if (path / "zero").is_dir() and (path / "mp_rank_00_model_states.pt").exists():
        raise CheckpointError("a universal checkpoint; only ordinary ones are read here", where=str(path))
    raise CheckpointError(
        "no checkpoint of dstrain or DeepSpeed in this folder",
        where=str(path),
        fix="name a checkpoint-N, a global_stepN, or the folder whose `latest` names one",
    )


def at(folder: Path) -> Layout | None:
    """The checkpoint whose files lie in this folder itself; no `latest` is followed."""
    ours = manifest.read(folder) is not None
    kind: Literal["dstrain", "deepspeed"] = "dstrain" if ours else "deepspeed"
    if (folder / SINGLE_FILE).is_file():
        return Layout("dstrain", folder, folder, "single", (folder / SINGLE_FILE,), (), ())
    shards = folder / ENGINE_FOLDER if (folder / ENGINE_FOLDER).is_dir() and _is_tag(folder / ENGINE_FOLDER) else folder
    if not _is_tag(shards):
        return None
    names = sorted(path.name for path in shards.iterdir() if path.is_file())
    zero3, model = _ordered(names, _ZERO3), _ordered(names, _MODEL)
    optim = _ordered(names, _OPTIM)
    odd = [name for name in names if name.startswith(("layer_", "expert_")) or _later_part(name)]
    states = tuple(shards / name for name in zero3 or model)
    return Layout(kind, folder, shards, "deepspeed", states, tuple(shards / name for name in optim), tuple(odd))


def _is_tag(folder: Path) -> bool:
    if (folder / "zero").is_dir():
        return False
    return any(_ZERO3.match(path.name) or _MODEL.match(path.name) for path in folder.iterdir())


def _ordered(names: list[str], pattern: re.Pattern[str]) -> list[str]:
    """By rank as a number: rank 10 comes after rank 9. Of model-parallel parts the first only; `odd` names the rest."""
    found = [(tuple(int(part) for part in match.groups()), name) for name in names if (match := pattern.match(name))]
    return [name for numbers, name in sorted(found) if numbers[-1] == 0]


def _later_part(name: str) -> bool:
    found = _ZERO3.match(name) or _MODEL.match(name) or _OPTIM.match(name)
    return found is not None and int(found.groups()[-1]) > 0
