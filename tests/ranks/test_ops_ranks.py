"""Two ranks of a host activate an op that is not built: it is compiled once, and both get it."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from dstrain.probe.op_cache import prebuilt_ops
from dstrain.testing import run_ranks

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here"),
    pytest.mark.skipif(bool(prebuilt_ops("cpu")), reason="this DeepSpeed was installed with its ops inside"),
]

_SOURCE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *unused) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "cpu_adam", NULL, -1, methods};
PyMODINIT_FUNC PyInit_cpu_adam(void) { return PyModule_Create(&module); }
"""


def compile_slowly(request: Any) -> None:
    import time

    with open(request.log.parents[2] / "compiled", "a") as stream:
        stream.write(request.op.name + "\n")
    time.sleep(2)
    folder = request.staging / request.op.name
    folder.mkdir()
    (folder / "module.c").write_text(_SOURCE)
    library = folder / f"{request.op.name}.so"
    include = sysconfig.get_paths()["include"]
    subprocess.run(["cc", "-shared", "-fPIC", f"-I{include}", str(folder / "module.c"), "-o", str(library)], check=True)


def start(root: str) -> tuple[int, list[str]]:
    from deepspeed.ops.op_builder.cpu import CPUAdamBuilder

    import dstrain.ops.build
    from dstrain.ops.load import activate
    from dstrain.probe import world_facts

    dstrain.ops.build.compile_in_child = compile_slowly
    lines: list[str] = []
    why = {"cpu_adam": "zero_optimization.offload_optimizer"}
    activate(["cpu_adam"], build_missing=True, needed_by=why, world=world_facts(), root=Path(root), say=lines.append)
    return CPUAdamBuilder().load().answer(), lines


def test_two_ranks_compile_once(tmp_path: Path) -> None:
    zero, one = run_ranks(start, 2, str(tmp_path), env={"DS_ACCELERATOR": "cpu"})
    assert zero[0] == one[0] == 42
    assert (tmp_path / "compiled").read_text() == "cpu_adam\n"
    assert zero[1][0].startswith("building cpu_adam, needed by zero_optimization.offload_optimizer")
    assert len(one[1]) <= 1
    assert all("is being built by" in line for line in one[1])
