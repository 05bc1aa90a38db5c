"""`dstrain plan train.py …`: what would run, and why, without running it."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from dstrain.core.errors import UsageError

_HELP = """Run a training script as far as its Trainer, then print the plan instead of training:
every value with where it came from, the exact JSON that DeepSpeed gets, and all findings.
No GPU is needed. Exit code 0: it can run. 1: it cannot. 2: a file or flag cannot be understood."""


def register(subparsers: Any) -> None:
    """Add the command to `dstrain`."""
    parser = subparsers.add_parser("plan", help="show what a training script would run", description=_HELP)
    parser.add_argument("--format", choices=("text", "json"), default="text", help="json: plan, deepspeed, findings")
    parser.add_argument("--world-size", type=int, default=None, metavar="N", help="plan for N ranks (default 1)")
    parser.add_argument("script", help="the training script, and after it its own flags")
    # Python 3.11 calls what is left over required; without it the message would ask for "flags" too.
    parser.add_argument("flags", nargs=argparse.REMAINDER, help=argparse.SUPPRESS).required = False


def run(args: argparse.Namespace) -> int:
    """Print the plan of a script."""
    script = Path(args.script)
    if not script.is_file():
        raise UsageError("there is no such script", where=args.script)
    if args.world_size is not None and args.world_size < 1:
        raise UsageError(f"--world-size: {args.world_size} is no number of ranks; expected 1 or more")
    # What `dstrain.trainer.wiring` looks for; the script itself runs as it always does.
    os.environ["DSTRAIN_PLAN"] = args.format
    os.environ["DSTRAIN_PLAN_WORLD_SIZE"] = str(args.world_size or 1)
    sys.argv = [str(script), *args.flags]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    raise UsageError("the script ended without making a Trainer, so there is no plan", where=args.script)
