"""What the output folder holds, and whether this run may write there: resume, begin anew, or refuse."""

from __future__ import annotations

import time
from pathlib import Path

from dstrain import dist
from dstrain.args.training import TrainingArguments
from dstrain.checkpoint import CheckpointStore, manifest
from dstrain.core.errors import CheckpointError, UsageError
from dstrain.loop.state import NAME as STATE_NAME
from dstrain.resolve.plan import RunPlan
from dstrain.trainer import lock

_MARKS = (STATE_NAME, "metrics.jsonl", "model.safetensors")


def choose(
    store: CheckpointStore, args: TrainingArguments, asked: bool | str | None, plan: RunPlan
) -> tuple[Path | None, list[str]]:
    """The checkpoint to go on from (None: begin), and lines to print. Collective.

    Raises:
        UsageError: the folder holds another run and nothing says what to do with it.
        CheckpointError: what was asked for is not there, not whole, or of a run that this one cannot go on from.
    """
    found, notes = _found(store, args, asked)
    if found is not None:
        _check_same_run(found, plan)
    return found, notes


def _found(store: CheckpointStore, args: TrainingArguments, asked: bool | str | None) -> tuple[Path | None, list[str]]:
    if isinstance(asked, str) and asked.lower() in ("true", "false"):
        asked = asked.lower() == "true"
    if args.overwrite_output_dir and not asked:
        return None, _move_aside(store.folder)
    if asked is None or asked is False:
        _refuse_other_run(store)
        return None, []
    if asked is True or asked == "auto":
        found, notes = store.newest()
        if found is None and asked is True:
            raise CheckpointError(
                "No valid checkpoint found in output directory" + "".join(f"\n  {note}" for note in notes),
                where=str(store.folder),
                fix="--resume_from_checkpoint auto begins anew where there is none",
            )
        if found is None and notes:
            raise CheckpointError(
                "every checkpoint is damaged:" + "".join(f"\n  {note}" for note in notes),
                fix="--overwrite_output_dir true moves them aside and begins anew",
            )
        return found, notes
    folder = Path(asked)
    if not dist.broadcast_object(folder.is_dir()):
        raise CheckpointError("Can't find a valid checkpoint at this path: there is no such folder", where=asked)
    return store.verified(folder), []


def _refuse_other_run(store: CheckpointStore) -> None:
    held = dist.broadcast_object(
        [f"checkpoint-{step}" for step in store.steps()[:3]]
        + [name for name in _MARKS if (store.folder / name).exists()]
    )
    if held:
        raise UsageError(
            f"the output folder holds another run already ({', '.join(held)})",
            where=f"--output_dir {store.folder}",
            fix="--resume_from_checkpoint auto to go on with it, --overwrite_output_dir true to move it aside, "
            "or another --output_dir",
        )


def _move_aside(folder: Path) -> list[str]:
    notes: list[str] = []
    there = [path for path in folder.iterdir() if path.name != lock.NAME] if dist.is_main() else []
    if there:
        aside = folder.with_name(f"{folder.name}.{time.strftime('%Y%m%d-%H%M%S')}")
        aside.mkdir()
        for path in there:
            path.rename(aside / path.name)
        notes.append(f"the run that {folder} held is now in {aside}")
    dist.barrier()
    return notes


def _check_same_run(checkpoint: Path, plan: RunPlan) -> None:
    """Refuse what would change the meaning of the run, all differences at once."""
    facts = dist.broadcast_object(manifest.read(checkpoint)) or {}
    if facts.get("only_model"):
        raise CheckpointError(
            "this checkpoint holds the model alone (save_only_model), and a run cannot go on from it",
            where=str(checkpoint),
            fix="begin anew in another --output_dir, from the model in this folder",
        )
    written = facts.get("identity", {})
    here = plan.identity()
    differ = [
        f"{key}: {written[key]!r} then, {here[key]!r} now"
        for key in here
        if key in written and written[key] != here[key]
    ]
    if differ:
        raise CheckpointError(
            "this checkpoint is of a run that differs:" + "".join(f"\n  {line}" for line in differ),
            where=str(checkpoint),
            fix="use the settings of then, or begin anew in another --output_dir",
        )
