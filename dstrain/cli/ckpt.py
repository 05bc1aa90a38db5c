"""`dstrain ckpt`: what checkpoints there are, whether they are whole, and the model out of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dstrain.checkpoint.inspect import Info, checkpoints_in, info
from dstrain.checkpoint.pruning import plan_pruning, prune
from dstrain.cli import _ckpt_show
from dstrain.core.errors import CheckpointError, UsageError
from dstrain.core.units import bytes_text, duration_text

HELP = "list, verify, prune and export checkpoints"
_DESCRIPTION = """Look at the checkpoints of a run, and take the model out of one.

A checkpoint is what a run needs to go on: weights, optimizer states (about twice as large again), random states and
the position in the data. `export` makes of it a model that anybody can load: model.safetensors and config.json.

  dstrain ckpt list run                      what is there, and how it is
  dstrain ckpt verify run                    read every byte: is it what was written?
  dstrain ckpt export run model --dtype bf16 the newest one, as a model
  dstrain ckpt prune run --keep 2 --dry-run  what would go

Folders of plain DeepSpeed (global_stepN and `latest`) work too. No file is ever run: shards are opened with an allow
list, so a checkpoint from a stranger can be looked at and exported. Exit code 0: done. 1: damaged, or nothing there.
2: what was typed cannot be understood."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def register(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `ckpt` command to `dstrain`'s parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser("ckpt", help=HELP, description=_DESCRIPTION)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    listing = actions.add_parser("list", help="the checkpoints of a folder: step, size, age, stage, health")
    listing.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="a run's output folder (default: .)")
    showing = actions.add_parser("show", help="one checkpoint: what wrote it, with what, its files")
    showing.add_argument("folder", metavar="CHECKPOINT", help="a checkpoint, or a folder whose newest is meant")
    checking = actions.add_parser("verify", help="read every byte and compare it with what was written")
    checking.add_argument("folders", nargs="+", metavar="FOLDER", help="checkpoints, or folders that hold some")
    pruning = actions.add_parser(
        "prune", help="remove old checkpoints; the newest, the best and what dstrain did not write stay"
    )
    pruning.add_argument("folder", metavar="FOLDER", help="a run's output folder")
    pruning.add_argument(
        "--keep", type=int, required=True, metavar="N", help="how many of the newest stay, beside the best"
    )
    pruning.add_argument("--dry-run", action="store_true", help="say what would go, and remove nothing")
    export = actions.add_parser("export", help="write the model of a checkpoint: model.safetensors and config.json")
    export.add_argument("checkpoint", metavar="CHECKPOINT", help="a checkpoint, or a folder whose newest is meant")
    export.add_argument("out", metavar="OUT", help="the folder to write into")
    export.add_argument(
        "--dtype",
        choices=("fp32", "bf16", "fp16"),
        help="of the weights; fp32 takes the optimizer's master weights (default: as the run had them)",
    )
    export.add_argument("--max-shard-size", default="5GB", metavar="SIZE", help="split into files (default 5GB)")
    export.add_argument("--force", action="store_true", help="replace a model that OUT holds")
    export.add_argument("--no-verify", action="store_true", help="do not compare hashes before reading (faster)")
    for action in (listing, showing, checking, pruning, export):
        action.add_argument("--json", action="store_true", help="machine-readable output")
    return parser


def run(args: argparse.Namespace) -> int:
    """Do it. Returns 0, or 1 when something is damaged or there is nothing.

    Raises:
        UsageError: names or flags that cannot be understood.
    """
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "show": _show,
        "verify": _verify,
        "prune": _prune,
        "export": _export,
    }
    try:
        return actions[args.action](args)
    except CheckpointError as error:  # what was typed is clear; what it names is not as it should be
        print(f"dstrain: {error}", file=sys.stderr)
        return 1


def _emit(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _existing(text: str) -> Path:
    path = Path(text)
    if not path.is_dir():
        what = "this is a file, not a folder" if path.exists() else "there is no such folder"
        raise UsageError(what, where=text, fix="dstrain ckpt list FOLDER, with the --output_dir of a run")
    return path


def _list(args: argparse.Namespace) -> int:
    folder = _existing(args.folder)
    found = checkpoints_in(folder)
    if args.json:
        _emit(
            {
                "folder": str(folder),
                "checkpoints": [item.as_json() for item in found],
            }
        )
    elif not found:
        print(f"no checkpoint in {folder}: a run writes them as checkpoint-N into its --output_dir", file=sys.stderr)
    else:
        rows = [("checkpoint", "step", "size", "age", "ranks", "stage", "precision", "written by", "health", "")]
        _table(rows + [_row(item) for item in found])
        print(f"{len(found)} in {folder}, {bytes_text(sum(item.size_bytes for item in found))}; sizes were compared,"
              " `dstrain ckpt verify` reads every byte")  # fmt: skip
        _faults(found)
    return 0 if found else 1


def _row(item: Info) -> tuple[str, ...]:
    marks = [word for word, on in (("newest", item.is_latest), ("best", item.is_best)) if on]
    known = (item.world_size, item.zero_stage, item.precision)
    return (
        item.path.resolve().name,
        "?" if item.step is None else str(item.step),
        bytes_text(item.size_bytes),
        _age(item.age_s),
        *("?" if value is None else str(value) for value in known),
        item.kind,
        item.health,
        ", ".join(marks),
    )


def _age(seconds: float) -> str:
    return duration_text(seconds) if seconds < 86_400 else f"{seconds / 86_400:.0f} d"


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _faults(items: list[Info]) -> None:
    for item in items:
        for fault in item.faults[:5]:
            print(f"{item.path}: {fault}")


def _show(args: argparse.Namespace) -> int:
    shown = _ckpt_show.facts(_existing(args.folder))
    if args.json:
        _emit(shown)
    else:
        print(_ckpt_show.text(shown))
    return 1 if shown["health"] == "damaged" else 0


def _verify(args: argparse.Namespace) -> int:
    found: list[Info] = []
    for text in args.folders:
        folder = _existing(text)
        found += checkpoints_in(folder, deep=True) or [info(folder, deep=True)]
    if args.json:
        _emit({"checkpoints": [item.as_json() for item in found]})
    else:
        for item in found:
            how = {"dstrain": "hashes of its manifest", "deepspeed": "checksums of its files", "unfinished": ""}[
                item.kind
            ]
            print(f"{item.path}: {item.health}" + (f" ({how})" if how and not item.faults else ""))
            for fault in item.faults:
                print(f"  {fault}")
    return 1 if any(item.health == "damaged" for item in found) else 0


def _prune(args: argparse.Namespace) -> int:
    plan = plan_pruning(_existing(args.folder), args.keep)
    gone = [item.path for item in plan.remove] if args.dry_run else prune(plan)
    if args.json:
        _emit(
            {
                "dry_run": args.dry_run,
                "removed": [str(path) for path in gone],
                "freed_bytes": plan.freed_bytes,
                "kept": [{"path": str(item.path), "why": why} for item, why in plan.keep],
                "left_alone": [{"path": str(item.path), "why": why} for item, why in plan.left_alone],
            }
        )
        return 0
    verb = "would be removed" if args.dry_run else "removed"
    for path in gone:
        print(f"{path}: {verb}")
    for item, why in plan.keep:
        print(f"{item.path}: stays ({why})")
    for item, why in plan.left_alone:
        print(f"{item.path}: left alone ({why})")
    print(f"{len(gone)} {verb}, {bytes_text(plan.freed_bytes)}")
    return 0


def size_bytes(text: str) -> int:
    """`5GB` -> 5_000_000_000, `2GiB` -> 2 * 2**30, `500` -> 500.

    Raises:
        UsageError: no number with a unit.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    unit = found[2].upper() if found else ""
    if found is None or unit not in _UNITS or not (size := int(float(found[1]) * _UNITS[unit])):
        raise UsageError(f"{text!r} is no size", where="--max-shard-size", fix="a number and a unit: 5GB, 500MB, 2GiB")
    return size


def _export(args: argparse.Namespace) -> int:
    size = size_bytes(args.max_shard_size)
    source, out = _existing(args.checkpoint), Path(args.out)
    if out.exists() and not out.is_dir():
        raise UsageError("this is a file, not a folder", where=args.out)
    from dstrain.checkpoint.from_disk import export_checkpoint  # torch comes with it

    show = sys.stderr.isatty() and not args.json
    done = export_checkpoint(
        source,
        out,
        dtype=args.dtype,
        max_shard_bytes=size,
        overwrite=args.force,
        verify=not args.no_verify,
        progress=_progress if show else None,
    )
    if args.json:
        shown = {"checkpoint": str(done.checkpoint), "folder": str(done.folder), "tensors": done.tensors}
        files = [str(path) for path in done.files]
        _emit(shown | {"files": files, "size_bytes": done.size_bytes, "notes": done.notes})
        return 0
    for note in done.notes:
        print(f"note: {note}")
    count = "1 file" if len(done.files) == 1 else f"{len(done.files)} files"
    print(f"{done.folder}: {done.tensors} tensors, {bytes_text(done.size_bytes)} in {count}, from {done.checkpoint}")
    return 0


def _progress(done: int, total: int) -> None:
    end = "\n" if done >= total else ""
    print(f"\r{bytes_text(done)} of {bytes_text(total)}", end=end, file=sys.stderr, flush=True)
