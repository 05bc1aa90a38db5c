"""Real compilation with torch's extension builder and DeepSpeed's own sources: minutes, so not part of `make test`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dstrain.ops import cache
from dstrain.ops.build import Request, build
from dstrain.ops.verify import verify
from dstrain.probe.op_cache import LOG, environment, find

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

_TINY = """
import os, sys
os.environ.update(TORCH_EXTENSIONS_DIR=sys.argv[1], MAX_JOBS="1")
from deepspeed.ops.op_builder.builder import OpBuilder
class TinyBuilder(OpBuilder):
    def absolute_name(self): return "tiny.fused_adam_op"
    def sources(self): return [sys.argv[2]]
    def cxx_args(self): return ["-O0"]
TinyBuilder("fused_adam").jit_load(verbose=True)
"""
_SOURCE = """#include <torch/extension.h>
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("half", [](const torch::Tensor& t) { return t / 2; }); }
"""


def test_what_deepspeeds_builder_makes_is_what_we_load(tmp_path: Path) -> None:
    source = tmp_path / "tiny.cpp"
    source.write_text(_SOURCE)

    def compile_tiny(request: Request) -> None:
        command = [sys.executable, "-c", _TINY, str(request.staging), str(source)]
        with open(request.log, "wb") as log:
            subprocess.run(command, stdout=log, stderr=log, check=True)

    build("fused_adam", root=tmp_path / "ops", accelerator="cpu", compile=compile_tiny)
    use = (
        "import sys, torch; from pathlib import Path; from dstrain.ops.load import activate\n"
        "activate(['fused_adam'], root=Path(sys.argv[1]))\n"
        "from deepspeed.ops.op_builder.cpu import FusedAdamBuilder\n"
        "print(FusedAdamBuilder().load().half(torch.tensor(3.0)).item())"
    )
    environ = {**os.environ, "DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(tmp_path / "never")}
    done = subprocess.run(
        [sys.executable, "-c", use, str(tmp_path / "ops")], capture_output=True, text=True, env=environ, check=True
    )
    assert done.stdout.splitlines()[-1] == "1.5"
    assert not (tmp_path / "never").exists()


def _compilers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline", "cwd"]):
        if str(folder) in " ".join(process.info["cmdline"] or []) + str(process.info["cwd"]):
            found.append(process)
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_compilation_leaves_no_compiler_and_no_lock(tmp_path: Path, how: signal.Signals) -> None:
    where = cache.slot("cpu_adam", environment("cpu"), root=tmp_path)
    code = (
        "import sys; from pathlib import Path; from dstrain.ops.build import build\n"
        "build('cpu_adam', jobs=1, root=Path(sys.argv[1]))"
    )
    environ = {**os.environ, "DS_ACCELERATOR": "cpu"}
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=environ)
    try:
        until = time.monotonic() + 120
        while not any("cc1plus" in p.name() for p in _compilers(where.folder)):
            assert time.monotonic() < until, (where.folder / LOG).read_text()
            time.sleep(0.2)
        process.send_signal(how)
        process.wait()
        until = time.monotonic() + 5
        while _compilers(where.folder):
            assert time.monotonic() < until, "compilers live on"
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert not cache.is_locked(where)
    assert find("cpu_adam", environment("cpu"), tmp_path) is None


@pytest.mark.parametrize("name", ["deepspeed_shm_comm", "fused_adam", "cpu_adam"])
def test_an_op_of_deepspeed_builds_and_agrees_with_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("DSTRAIN_OPS_DIR", str(tmp_path))
    build(name, accelerator="cpu")
    (verdict,) = verify([name], accelerator="cpu")
    assert verdict.ok, verdict.detail
