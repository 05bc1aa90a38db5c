"""Which compiled ops DeepSpeed gets in this process: those of our cache, and it compiles none by itself.

DeepSpeed 0.19.8 compiles on first use: `deepspeed_shm_comm` inside `init_distributed` on CPU, `fused_adam` when AdamW
is made, `cpu_adam` when an optimizer is offloaded: minutes that look like a hang, once on every rank that gets there
first.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from dstrain.core.errors import OpError
from dstrain.core.facts import WorldFacts
from dstrain.ops import cache
from dstrain.ops.build import build
from dstrain.ops.catalogue import available, get, with_required
from dstrain.probe.op_cache import environment, find, prebuilt_ops

_SHM = "deepspeed_shm_comm"
_LEADER_S = 20.0

_lock = threading.RLock()
_imported: dict[Path, ModuleType] = {}
_current: Activation | None = None


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def import_library(name: str, path: Path) -> ModuleType:
    """Import a built op from its file: once per process and file, since some register torch operators when loaded.

    Every CPU and CUDA op of 0.19.8 has a Python module entry point of the op's own name (TORCH_EXTENSION_NAME).

    Raises:
        OpError: the loader refuses it.
    """
    with _lock:
        if path in _imported:
            return _imported[path]
        import torch  # noqa: F401  (its libraries resolve the op's symbols)

        try:
            loader = importlib.machinery.ExtensionFileLoader(name, str(path))
            spec = importlib.util.spec_from_file_location(name, path, loader=loader)
            if spec is None:
                raise ImportError(f"no import spec for {path}")
            module = importlib.util.module_from_spec(spec)
            loader.exec_module(module)
            if name == "pin_memory":  # async_io's library resolves symbols of this one (0.19.8 pin_memory_load.py)
                ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except (ImportError, OSError) as error:
            raise OpError(
                f"{name} is built but does not load: {error}", where=str(path), fix=f"dstrain ops build --force {name}"
            ) from error
        _imported[path] = module
        return module


class Activation:
    """Which ops this process has. Ends with `deactivate()`, or as a context manager.

    Args:
        accelerator: DeepSpeed's name of the accelerator.
        loaded: the ops that were asked for and are there, with their libraries ("" for those inside DeepSpeed itself).
        missing: the ops that were asked for and are not there, with the reason of each.
    """

    def __init__(self, accelerator: str, root: Path | None) -> None:
        self.accelerator = accelerator
        self.loaded: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self._root = root
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Activation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deactivate()

    def deactivate(self) -> None:
        """Give DeepSpeed back as it was: its builders compile again, and know none of our libraries."""
        global _current
        with _lock:
            while self._undo:
                self._undo.pop()()
            if _current is self:
                _current = None

    def _register(self, name: str, module: ModuleType, path: Path) -> None:
        from deepspeed.ops.op_builder.builder import OpBuilder

        before = OpBuilder._loaded_ops.get(name)
        OpBuilder._loaded_ops[name] = module
        self.loaded[name] = str(path)
        self._undo.append(lambda: _restore(OpBuilder._loaded_ops, name, before))

    def _guard(self, builder_class: Any) -> None:
        original = builder_class.__dict__["jit_load"]

        def jit_load(builder: Any, verbose: bool = True) -> Any:  # noqa: ARG001
            return self._instead_of_compiling(str(builder.name))

        builder_class.jit_load = jit_load
        self._undo.append(lambda: setattr(builder_class, "jit_load", original))

    def _instead_of_compiling(self, name: str) -> ModuleType:
        entry = find(name, environment(self.accelerator), self._root)
        if entry is None:
            raise OpError(
                f"DeepSpeed asks for its compiled op '{name}', which is not built"
                " (it would compile it now, on every rank, and seem to hang)",
                fix=f"dstrain ops build {name}",
            )
        module = import_library(name, entry.library)
        self._register(name, module, entry.library)
        return module


def _restore(table: dict[str, Any], name: str, before: Any) -> None:
    if before is None:
        table.pop(name, None)
    else:
        table[name] = before


def cause_of(error: BaseException) -> OpError | None:
    """The refusal of ours inside an error of DeepSpeed, whose optimizers wrap what their op's load raises (0.19.8)."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OpError):
        seen = seen.__cause__ or seen.__context__
    return seen


def active() -> Activation | None:
    """The activation of this process, if there is one."""
    return _current


def activate(
    names: Iterable[str],
    *,
    build_missing: bool = False,
    needed_by: Mapping[str, str] | None = None,
    world: WorldFacts | None = None,
    root: Path | None = None,
    say: cache.Say = _print,
) -> Activation:
    """Give DeepSpeed the ops `names` from our cache, and forbid it to compile any other in this process.

    Call it before `deepspeed.init_distributed`. A second call replaces the first. An op that is not ready is listed in
    `missing` with its reason and said in one line; nothing is raised for it until DeepSpeed asks for it.

    Args:
        names: ops that the plan needs or can use.
        build_missing: build what is not there, except ops that DeepSpeed goes on without (`Op.optional`). The first
            rank of each host builds; the others wait on its lock.
        needed_by: the setting that needs an op, for the printed line.
        world: the ranks, to know who builds and who prints; one rank by default.

    Raises:
        OpError: unknown op; with `build_missing`, an op that does not build.
    """
    global _current
    from deepspeed.accelerator import get_accelerator

    ranks, why = world or WorldFacts(), needed_by or {}
    wanted = with_required(names)
    with _lock:
        if _current is not None:
            _current.deactivate()
        activation = Activation(get_accelerator()._name, root)
        try:
            if build_missing:
                _build_needed(wanted, activation, ranks, why, say)
            for name in wanted:
                _load(name, activation)
            _forbid(activation)
        except BaseException:
            activation.deactivate()
            raise
        _current = activation
    if ranks.rank == 0:
        for name, reason in activation.missing.items():
            say(_missing_line(name, reason))
    return activation


def _missing_line(name: str, reason: str) -> str:
    op = get(name)
    instead = f"; {op.substitute} takes its place" if op.optional else ""
    return f"{name}: {reason}{instead}. To have it: dstrain ops build {name}"


def _build_needed(
    wanted: list[str], activation: Activation, ranks: WorldFacts, why: Mapping[str, str], say: cache.Say
) -> None:
    env = environment(activation.accelerator)
    for name in wanted:
        if get(name).optional or name in prebuilt_ops(env.accelerator) or find(name, env, activation._root):
            continue
        if env.accelerator not in get(name).accelerators:
            continue  # `_load` says so
        if ranks.local_rank != 0:
            _let_first_rank_start(name, activation)
        reason = f"needed by {why[name]}" if name in why else ""
        build(name, accelerator=env.accelerator, root=activation._root, why=reason, say=say)


def _let_first_rank_start(name: str, activation: Activation) -> None:
    """Wait, a while at most, until the first rank of this host holds the lock or has finished."""
    env = environment(activation.accelerator)
    where = cache.slot(name, env, root=activation._root)
    asked_at, until = time.time(), time.monotonic() + _LEADER_S
    while time.monotonic() < until:
        if cache.is_locked(where) or find(name, env, activation._root) or cache.failure_since(where, asked_at):
            return
        time.sleep(0.05)


def _load(name: str, activation: Activation) -> None:
    env = environment(activation.accelerator)
    if env.accelerator not in get(name).accelerators:
        activation.missing[name] = f"DeepSpeed has no such op for the {env.accelerator} accelerator"
    elif name in prebuilt_ops(env.accelerator):
        activation.loaded[name] = ""
    elif (entry := find(name, env, activation._root)) is None:
        activation.missing[name] = "not built"
    else:
        try:
            activation._register(name, import_library(name, entry.library), entry.library)
        except OpError as error:
            activation.missing[name] = error.message


def _forbid(activation: Activation) -> None:
    import deepspeed.ops
    from deepspeed.ops.op_builder.builder import OpBuilder

    for builder_class in (OpBuilder, *_subclasses(OpBuilder)):
        if "jit_load" in builder_class.__dict__:
            activation._guard(builder_class)
    # 0.19.8 fills this table on first look by running the compiler for every op, only for `build_shm_op` to
    # read one entry: it builds the op whenever it could be built. What is not loaded here counts as not
    # compatible.
    table = "__compatible_ops__"
    before = vars(deepspeed.ops).get(table)
    known = {op.name: op.name in activation.loaded for op in available(activation.accelerator)}
    vars(deepspeed.ops)[table] = {**(before or {}), **known, "deepspeed_not_implemented": False}
    activation._undo.append(lambda: _restore(vars(deepspeed.ops), table, before))


def _subclasses(parent: Any) -> list[Any]:
    found = []
    for child in parent.__subclasses__():
        found += [child, *_subclasses(child)]
    return found
