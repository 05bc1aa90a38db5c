"""One rank of a `RankPool`: `python -m dstrain.testing._worker REQUEST_FD REPLY_FD`, until EOF."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from dstrain.testing._frames import read_frame, write_frame

_MAIN = "__mp_main__"


def _leave_with_parent() -> None:
    """End this process and its children once the parent is gone, even out of a collective that never returns."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def _load_script(path: str) -> Any:
    """The caller's `__main__` script as a module, under the name multiprocessing uses, so that its guard holds."""
    if _MAIN in sys.modules:
        return sys.modules[_MAIN]
    spec = importlib.util.spec_from_file_location(_MAIN, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MAIN] = sys.modules["__main__"] = module
    spec.loader.exec_module(module)
    return module


def _resolve(reference: str, search_path: list[str]) -> Callable[..., Any]:
    """The function of `module:qualname` or `/script.py:qualname`."""
    sys.path[:] = list(dict.fromkeys([*search_path, *sys.path]))
    place, _, qualname = reference.rpartition(":")
    found: Any = _load_script(place) if place.endswith(".py") else importlib.import_module(place)
    for name in qualname.split("."):
        found = getattr(found, name)
    if not callable(found):
        raise TypeError(f"{reference} is not a function")
    return found  # type: ignore[no-any-return]


def _answer(request: bytes) -> bytes:
    """Run one request. The arguments are unpickled last: they may need the module of the function."""
    try:
        reference, search_path, folder, pickled = pickle.loads(request)
        os.chdir(folder)
        sys.argv = [reference]
        function = _resolve(reference, search_path)
        result = function(*pickle.loads(pickled))
        return pickle.dumps(("result", result))
    except BaseException:  # SystemExit too: a rank that leaves in the middle of a call has failed
        return pickle.dumps(("error", traceback.format_exc()))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _main(request_fd: int, reply_fd: int) -> None:
    os.set_inheritable(request_fd, False)
    os.set_inheritable(reply_fd, False)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the parent asks for the stacks of a call that hangs
    _leave_with_parent()
    while (request := read_frame(request_fd)) is not None:
        write_frame(reply_fd, _answer(request))
    # No interpreter shutdown: a process group that is still up would wait for ranks that have left already.
    os._exit(0)


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]))
