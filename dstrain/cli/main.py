"""The `dstrain` command. Each command is a module that is imported only when it is typed."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from dstrain import __version__
from dstrain.core.errors import DstrainError, UsageError
from dstrain.core.nearest import did_you_mean

COMMANDS: dict[str, tuple[str, str]] = {
    "config": ("dstrain.cli.config", "check, mend, explain and compare DeepSpeed configurations"),
    "plan": ("dstrain.cli.plan", "show what a training script would run, without running it"),
    "ops": ("dstrain.cli.ops", "list, build, verify and clean DeepSpeed's compiled ops"),
    "launch": ("dstrain.cli.launch", "start a training script on the devices of one or more machines"),
    "train": ("dstrain.cli.train", "train a model on a file of texts"),
    "ckpt": ("dstrain.cli.ckpt", "list, verify, convert and export checkpoints"),
    "report": ("dstrain.cli.report", "make a page from a run's events"),
    "doctor": ("dstrain.cli.doctor", "say what of this machine stands in the way of training"),
}
"""Name, module (with `register(subparsers)` and `run(args) -> int`) and help. One without a module is not offered."""

_DESCRIPTION = "Train PyTorch models with DeepSpeed: every setting checked before a process starts."
_EPILOG = "`dstrain COMMAND --help` says more. Start with: dstrain config check ds_config.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns the exit code: 0, the command's own, 2 for what cannot be understood, 130 for Ctrl-C."""
    _print_anything()
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except DstrainError as error:
        with contextlib.suppress(BrokenPipeError):
            print(f"dstrain: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader (head, a pager) went away. Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _print_anything() -> None:
    """A key that a terminal cannot show must not end a report in a UnicodeEncodeError."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _run(argv: list[str]) -> int:
    offered = {name: entry for name, entry in COMMANDS.items() if importlib.util.find_spec(entry[0])}
    parser, name = _Parser(prog="dstrain", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False), _first(argv)
    parser.add_argument("--version", action="version", version=f"dstrain {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", parser_class=_Parser)
    module = None
    for command, (path, text) in offered.items():
        if command == name:
            module = importlib.import_module(path)
            module.register(subparsers)
        else:
            subparsers.add_parser(command, help=text)
    try:
        args, unknown = parser.parse_known_args(argv)
    except SystemExit as stop:  # --help and --version
        return stop.code if isinstance(stop.code, int) else 0
    if module is None:
        parser.print_help()
        return 2
    args.rest = unknown
    if unknown and not getattr(args, "takes_rest", False):
        raise UsageError(f"unknown argument {unknown[0]!r}", fix=_nearest_option(parser, unknown[0], argv))
    return int(module.run(args))


def _first(argv: list[str]) -> str | None:
    return next((word for word in argv if not word.startswith("-")), None)


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours: one message, the nearest word, exit code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs["allow_abbrev"] = False
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        found = re.match(
            r"argument (?P<name>.+?): invalid choice: '(?P<word>.*)' \(choose from (?P<known>.+)\)", message
        )
        if found is None:
            raise UsageError(message, where=self.prog, fix=f"{self.prog} --help")
        known = re.findall(r"[\w.-]+", found["known"])
        near = did_you_mean(found["word"], known) or f"one of {', '.join(known)}"
        name = "command" if found["name"] in ("COMMAND", "ACTION", "command", "action") else found["name"]
        raise UsageError(
            f"unknown {name} {found['word']!r}", where=None if self.prog == "dstrain" else self.prog, fix=near
        )


def _nearest_option(parser: argparse.ArgumentParser, word: str, argv: list[str]) -> str:
    options: list[str] = []
    here: argparse.ArgumentParser | None = parser
    words = iter([part for part in argv if not part.startswith("-")])
    while here is not None:
        options += [option for action in here._actions for option in action.option_strings]
        choices = next((a.choices for a in here._actions if isinstance(a, argparse._SubParsersAction)), {})
        deeper = next(words, None) if choices else None
        here = choices.get(deeper) if choices and deeper is not None else None
    return did_you_mean(word.partition("=")[0], options) or "--help lists what there is"


if __name__ == "__main__":
    sys.exit(main())
