"""Compile functions for the tests of builds: a real extension module by the system's C compiler, in half a second."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
import time
from pathlib import Path

import pytest

from dstrain.core.errors import OpError
from dstrain.ops.build import Request

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")

_SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(%(answer)d); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "%(name)s", NULL, -1, methods};
PyMODINIT_FUNC PyInit_%(name)s(void) { return PyModule_Create(&module); }
"""


def compile_c(request: Request, answer: int = 42) -> None:
    """A module of the op's name with one function, where DeepSpeed's builder would leave it."""
    folder = request.staging / request.op.name
    folder.mkdir()
    source = folder / "module.c"
    source.write_text(_SOURCE % {"name": request.op.name, "answer": answer})
    command = ["cc", "-shared", "-fPIC", f"-I{sysconfig.get_paths()['include']}", str(source)]
    with open(request.log, "wb") as log:
        subprocess.run([*command, "-o", str(folder / f"{request.op.name}.so")], check=True, stdout=log, stderr=log)


def leave_file(request: Request) -> None:
    """No compiler at all: something where the library belongs."""
    folder = request.staging / request.op.name
    folder.mkdir()
    (folder / f"{request.op.name}.so").write_bytes(b"library")


class Counting:
    """Counts, in a file that all processes share, how often it was asked to compile; takes `seconds`; may fail."""

    def __init__(self, folder: Path, seconds: float = 0.0, fail: bool = False) -> None:
        self.folder, self.seconds, self.fail = folder, seconds, fail

    def __call__(self, request: Request) -> None:
        with open(self.folder / "compiled", "a") as stream:
            stream.write(f"{request.op.name} {request.staging.name}\n")
        (request.staging / "half").write_bytes(b"x")
        time.sleep(self.seconds)
        if self.fail:
            raise OpError(f"{request.op.name} did not build: no luck", where=str(request.log), fix="try again")
        leave_file(request)

    def times(self) -> int:
        file = self.folder / "compiled"
        return len(file.read_text().splitlines()) if file.exists() else 0
