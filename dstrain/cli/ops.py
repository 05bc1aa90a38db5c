"""`dstrain ops`: what of DeepSpeed's compiled ops is ready; build it ahead; check it; clean up."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from dstrain.core.errors import OpError, PlanError, UsageError
from dstrain.core.finding import has_errors
from dstrain.core.units import bytes_text, duration_text
from dstrain.ops import cache
from dstrain.ops.build import build
from dstrain.ops.catalogue import TRAINING, Op, available, get, with_required
from dstrain.ops.needs import needed_ops
from dstrain.ops.verify import verify
from dstrain.probe.op_cache import Entry, Environment, cache_root, entries, environment, find, misfit, prebuilt_ops

HELP = "list, build, verify and clean DeepSpeed's compiled ops"


def register(subparsers: Any) -> argparse.ArgumentParser:
    """Add the `ops` command to `dstrain`'s parser."""
    parser: argparse.ArgumentParser = subparsers.add_parser("ops", help=HELP, description=__doc__)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    listing = actions.add_parser(
        "list", help="every op of this accelerator: ready or not, what needs it, what it needs"
    )
    building = actions.add_parser("build", help="compile ops ahead, once, under a lock")
    building.add_argument("names", nargs="*", metavar="NAME", help="ops to build")
    building.add_argument("--all", action="store_true", help="every op that training can need on this accelerator")
    building.add_argument(
        "--for", dest="config", metavar="FILE", help="the ops that this DeepSpeed configuration needs"
    )
    building.add_argument("--world-size", type=int, default=1, metavar="N", help="ranks, for --for (default 1)")
    building.add_argument("--jobs", type=int, metavar="N", help="compilers at a time (default: by cores and memory)")
    building.add_argument("--portable", action="store_true", help="for any cpu of a named level, as images need")
    building.add_argument("--force", action="store_true", help="compile again what is already there")
    building.add_argument("--timeout", type=float, metavar="S", help="seconds to wait for another process's build")
    checking = actions.add_parser("verify", help="run built ops against what torch computes")
    checking.add_argument("names", nargs="*", metavar="NAME", help="ops to verify (default: all that are ready)")
    cleaning = actions.add_parser("clean", help="remove builds for other environments, and what killed builds left")
    cleaning.add_argument("--all", action="store_true", help="remove every build")
    for action in (listing, building, checking, cleaning):
        action.add_argument("--accelerator", metavar="NAME", help="cpu or cuda (default: what DeepSpeed will choose)")
        action.add_argument("--json", action="store_true", help="machine-readable output")
    return parser


def run(args: argparse.Namespace) -> int:
    """Do it. Returns 0, or 1 when an op did not build or did not verify.

    Raises:
        DstrainError: names, files or flags that cannot be understood.
    """
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "build": _build,
        "verify": _verify,
        "clean": _clean,
    }
    return actions[args.action](args)


def _emit(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def _table(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _list(args: argparse.Namespace) -> int:
    env = environment(args.accelerator)
    described = [_describe(op, env) for op in available(env.accelerator)]
    if args.json:
        _emit(
            {"accelerator": env.accelerator, "cache": str(cache_root()), "here": env.fields("native"), "ops": described}
        )
        return 0
    print(f"DeepSpeed {env.deepspeed}, torch {env.torch}, accelerator {env.accelerator}; cache {cache_root()}")
    if env.compiler is None:
        print("there is no C++ compiler here: nothing can be built (apt install g++)")
    rows: list[tuple[str, ...]] = [("op", "state", "took", "size", "needed by", "without it")]
    for item in described:
        took = duration_text(item["seconds"]) if item["seconds"] else ""
        size = bytes_text(item["bytes"]) if item["bytes"] else ""
        state = item["state"] + (f" ({item['reason']})" if item["reason"] else "")
        rows.append((item["op"], state, took, size, item["needed_by"], item["substitute"] or "cannot run"))
    _table(rows)
    return 0


def _describe(op: Op, env: Environment) -> dict[str, Any]:
    entry, state, reason = find(op.name, env), "not built", ""
    if op.name in prebuilt_ops(env.accelerator):
        entry, state = None, "inside deepspeed"
    elif entry is not None:
        state = "ready"
    elif cache.is_locked(where := cache.slot(op.name, env)):
        state, reason = "building", cache.holder_text(where)
    elif others := entries(op=op.name):
        reason = f"there is one for another environment: {_closest(others, env)}"
    return {
        "op": op.name,
        "state": state,
        "reason": reason,
        "library": str(entry.library) if entry else None,
        "bytes": entry.bytes if entry else None,
        "seconds": entry.record.get("seconds") if entry else None,
        "built_at": entry.record.get("built_at") if entry else None,
        "march": entry.record.get("march") if entry else None,
        "needed_by": op.needed_by,
        "system": list(op.system),
        "substitute": op.substitute,
    }


def _closest(others: list[Entry], env: Environment) -> str:
    newest = max(others, key=lambda entry: str(entry.record.get("built_at", "")))
    return misfit(newest, env) or ""


def _build(args: argparse.Namespace) -> int:
    env = environment(args.accelerator)
    wanted = _wanted(args, env)
    results: list[dict[str, Any]] = []
    for name, why in wanted.items():
        if name in prebuilt_ops(env.accelerator):
            results.append(_result(name, None, "inside the installed deepspeed"))
            continue
        try:
            library = build(
                name,
                jobs=args.jobs,
                portable=args.portable,
                force=args.force,
                timeout_s=args.timeout,
                accelerator=env.accelerator,
                why=why,
            )
            results.append(_result(name, str(library), "ready"))
        except OpError as error:
            results.append({**_result(name, None, "failed"), "error": str(error)})
    failed = [result for result in results if result["error"]]
    if args.json:
        _emit({"accelerator": env.accelerator, "ops": results})
    else:
        for result in results:
            print(f"{result['op']}: {result['error'] or result['library'] or result['state']}")
    return 1 if failed else 0


def _result(name: str, library: str | None, state: str) -> dict[str, Any]:
    return {"op": name, "state": state, "library": library, "error": None}


def _wanted(args: argparse.Namespace, env: Environment) -> dict[str, str]:
    """Op -> why, from names, `--all` and `--for`; each once, in the order they are loaded."""
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: at least one is needed", fix="--jobs 1")
    if not (args.names or args.all or args.config):
        raise UsageError("nothing to build was named", fix="dstrain ops build NAME…, or --all, or --for ds_config.json")
    problems, causes = [], {}
    for name in args.names:
        try:
            get(name)
        except OpError as error:
            problems.append(f"{error.message} ({error.fix})")
    if problems:
        raise UsageError("; ".join(problems))
    if args.config:
        from dstrain.dsconfig.reader import read

        document = read(args.config)
        if has_errors(document.findings):
            raise PlanError(document.findings)
        causes = needed_ops(document, env.accelerator, args.world_size)
        if not causes:
            print(f"{args.config} needs no compiled op on {env.accelerator}", file=sys.stderr)
    every = [op.name for op in available(env.accelerator) if op.name in TRAINING] if args.all else []
    order = with_required([*args.names, *causes, *every])
    return {name: f"needed by {causes[name]}" if name in causes else "" for name in order}


def _verify(args: argparse.Namespace) -> int:
    env = environment(args.accelerator)
    ready = [op.name for op in available(env.accelerator) if find(op.name, env)]
    names = [get(name).name for name in args.names] or ready
    verdicts = verify(names, accelerator=args.accelerator)
    if args.json:
        shown = [{"op": v.op, "ok": v.ok, "detail": v.detail, "seconds": v.seconds} for v in verdicts]
        _emit({"accelerator": env.accelerator, "ops": shown})
    elif not verdicts:
        print("no op is built: there is nothing to verify (dstrain ops build --all)")
    for verdict in verdicts if not args.json else ():
        print(f"{verdict.op}: {'ok' if verdict.ok else 'FAILED'}: {verdict.detail}")
    return 0 if all(verdict.ok for verdict in verdicts) else 1


def _clean(args: argparse.Namespace) -> int:
    removed, leftovers = cache.clean(None if args.all else environment(args.accelerator))
    if args.json:
        _emit({"removed": [str(entry.folder) for entry in removed], "leftovers": [str(path) for path in leftovers]})
        return 0
    freed = sum(entry.bytes for entry in removed)
    print(
        f"removed {len(removed)} builds ({bytes_text(freed)}) and {len(leftovers)} leftovers of builds that did not end"
    )
    return 0
