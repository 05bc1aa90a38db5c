"""Work with DeepSpeed configurations: the JSON file that says how a run is split over devices.

ZeRO, DeepSpeed's main idea, divides what training keeps in memory over the devices of a run instead of keeping a full
copy on each: stage 1 divides the optimizer's states, stage 2 also the gradients, stage 3 also the parameters. The
file says which stage, in which number format, with which batch sizes. DeepSpeed ignores many misspelt keys in
silence; these commands do not.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from importlib import import_module
from typing import Any

from dstrain.core.facts import Mode

_EXAMPLES = """examples:
  dstrain config check ds_config.json
  dstrain config check --world-size 8 --for transformers configs/
  dstrain config fix ds_config.json --diff
  dstrain config explain zero_optimization.stage
  dstrain config diff old.json new.json
  dstrain config new --stage 2 --bf16 --world-size 8 --output ds_config.json"""

_CHECK = """Find what is wrong with configurations, with the line and the mend. FILE may be JSON, HJSON (comments
allowed), YAML, a folder (all its .json, .hjson, .yaml and .yml files), or - for standard input.

error: it cannot run, or trains on wrong numbers. warning: it runs, but not as it was meant. advice: faster or smaller.
Exit code: 0 no error, 1 errors, 2 a file could not be read."""

_FIX = """Apply the mends that are mechanical: misspelt keys renamed, keys moved to their section, literals corrected,
commas and quotes repaired. Comments, the order of keys and the indentation stay. What needs a decision is left, and
printed. Applying it twice changes nothing more.
Exit code: 0 no error is left, 1 errors are left, 2 the file cannot be read."""

_EXPLAIN = """Say what a key does, its default, its allowed values, and what reads it. Without KEY and with FILE: every
value that a run with this file would have, with its source. KEY may also be the id of a finding (DS003)."""

_DIFF = """Compare two files by what they do: defaults are filled in, the order of keys and the notation of numbers do
not count. Exit code: 0 no difference, 1 differences."""

_SCHEMA = """Print a JSON Schema of the configuration, with help texts. Editors use it to complete and to underline:
  dstrain config schema > ds_config.schema.json
and in the editor's settings (VS Code: json.schemas) tie it to ds_config*.json."""


_OFFLOAD = ("none", "cpu", "nvme")
_NEW = """Write the configuration that training flags (--bf16, --learning_rate 1e-4, --max_steps 1000, all that a
training script of dstrain takes) come to, every value written out, no 'auto' left. It assumes CUDA devices and a model
that is not known.
Exit code: 0 written, 1 the flags contradict each other, 2 they cannot be understood."""


def register(subparsers: Any) -> argparse.ArgumentParser:
    """Add `config` and its actions to `dstrain`'s parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "config",
        help="check, mend, explain and compare DeepSpeed configurations",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    checking = actions.add_parser("check", help="find what is wrong, with line and mend", description=_CHECK)
    checking.add_argument("files", nargs="+", metavar="FILE", help="a file, a folder, or -")
    checking.add_argument(
        "--format",
        choices=("text", "json", "github"),
        default="text",
        help="text for people, json for programs, github for annotations on a pull request (default text)",
    )
    checking.add_argument("--quiet", action="store_true", help="errors only, and no summary")
    mending = actions.add_parser("fix", help="apply the mechanical mends", description=_FIX)
    mending.add_argument("file", metavar="FILE", help="the file to mend")
    mending.add_argument("--diff", action="store_true", help="show the changes and write nothing")
    making = _new(actions)
    for action in (checking, mending):
        _mode(action)
    for action in (checking, mending, making):
        _world(action)
    explaining = actions.add_parser("explain", help="say what a key does", description=_EXPLAIN)
    explaining.add_argument("key", nargs="?", metavar="KEY", help="zero_optimization.stage, or DS003, or a FILE")
    explaining.add_argument("file", nargs="?", metavar="FILE", help="show the value in this file")
    comparing = actions.add_parser("diff", help="compare two files by effect", description=_DIFF)
    comparing.add_argument("left", metavar="A")
    comparing.add_argument("right", metavar="B")
    actions.add_parser("schema", help="print a JSON Schema for editors", description=_SCHEMA)
    return parser


def _new(actions: Any) -> argparse.ArgumentParser:
    """Add the action's parser; what it does not know are training flags."""
    parser: argparse.ArgumentParser = actions.add_parser(
        "new",
        help="write a configuration from training flags",
        description=_NEW,
    )
    parser.set_defaults(takes_rest=True)
    parser.add_argument(
        "--stage",
        type=int,
        choices=(0, 1, 2, 3),
        default=2,
        help="ZeRO divides 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters (default 2)",
    )
    parser.add_argument(
        "--offload-optimizer", choices=_OFFLOAD, default="none", help="keep optimizer states in memory or on a disk"
    )
    parser.add_argument(
        "--offload-param", choices=_OFFLOAD, default="none", help="stage 3: keep parameters in memory or on a disk"
    )
    parser.add_argument("--nvme-path", metavar="FOLDER", help="a folder on a fast local disk, for nvme")
    parser.add_argument("--output", "-o", metavar="FILE", help="where to write it (default: the terminal)")
    return parser


def _world(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--world-size",
        type=_count,
        metavar="N",
        help="processes of the whole run, one per device; some rules (batch sizes) need it",
    )
    parser.add_argument(
        "--devices", type=_count, metavar="N", help="devices of one machine (default: all N of --world-size)"
    )


def _mode(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="mode",
        choices=[mode.value for mode in Mode],
        default=Mode.DSTRAIN.value,
        help="who will read the file: dstrain and transformers fill in 'auto', DeepSpeed does not (default dstrain)",
    )


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes: a whole number from 1 was expected")
    return value


def run(args: argparse.Namespace) -> int:
    """Do it. Returns the exit code of the action.

    Raises:
        DstrainError: files or names that cannot be understood.
    """
    module, function = {
        "check": ("_config_check", "run"),
        "fix": ("_config_fix", "run"),
        "explain": ("_config_show", "explain"),
        "diff": ("_config_show", "diff"),
        "schema": ("_config_show", "schema"),
        "new": ("_config_new", "run"),
    }[args.action]
    # A check of one file is held to half a second, and a tenth of that would be the garbage collector walking over
    # the classes that were just imported.
    collecting = gc.isenabled()
    gc.disable()
    try:
        # Only the action that was typed is imported.
        action: Callable[[argparse.Namespace], int] = getattr(import_module(f"dstrain.cli.{module}"), function)
        return action(args)
    finally:
        if collecting:
            gc.enable()
