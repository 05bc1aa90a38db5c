"""The op cache as files: what fits this environment, what is whole, and what `clean` may remove."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dstrain.core.errors import OpError
from dstrain.ops import cache, catalogue
from dstrain.ops.build import Request, build
from dstrain.ops.catalogue import with_required
from dstrain.probe import op_cache
from dstrain.probe.op_cache import Environment, environment, find, misfit, read_entry, ready_ops

pytestmark = pytest.mark.cpu


def put(root: Path, env: Environment, op: str = "fused_adam", march: str = "native") -> op_cache.Entry:
    """A whole entry, made by the code that makes real ones."""
    where = cache.slot(op, env, march, root)
    where.folder.mkdir(parents=True)
    library = where.folder / "new.so"
    library.write_bytes(b"\x7fELF" + op.encode())
    (where.folder / op_cache.LOCK).touch()
    return cache.commit(where, library, seconds=12.3, jobs=2)


@pytest.fixture(scope="module")
def here() -> Environment:
    return environment("cpu")


def test_what_was_committed_is_found(tmp_path: Path, here: Environment) -> None:
    assert find("fused_adam", here, tmp_path) is None
    entry = put(tmp_path, here)
    found = find("fused_adam", here, tmp_path)
    assert found is not None
    assert found.library.read_bytes() == b"\x7fELFfused_adam"
    assert (found.record["seconds"], found.record["jobs"]) == (12.3, 2)
    assert entry.library == found.library
    assert find("cpu_adam", here, tmp_path) is None
    assert ready_ops("cpu", tmp_path) >= {"fused_adam"}


@pytest.mark.parametrize(
    "change",
    [
        {"deepspeed": "0.19.9"},
        {"sources": "0" * 16},
        {"torch": "2.14.1 deadbeef"},
        {"torch_cuda": "13.0"},
        {"python": "cpython-312-x86_64-linux-gnu"},
        {"accelerator": "cuda"},
        {"compiler": "13.1.0 x86_64-linux-gnu"},
        {"cpu": "another cpu"},
    ],
)
def test_another_environment_has_another_key_and_does_not_fit(
    tmp_path: Path, here: Environment, change: dict[str, str]
) -> None:
    other = dataclasses.replace(here, **change)
    entry = put(tmp_path, here)
    assert misfit(entry, here) is None
    assert misfit(entry, other) is not None
    assert find("fused_adam", other, tmp_path) is None
    theirs = put(tmp_path, other)  # beside it, not over it
    assert find("fused_adam", here, tmp_path) == entry
    assert find("fused_adam", other, tmp_path) == theirs


def test_an_image_without_a_compiler_runs_what_another_stage_built(tmp_path: Path, here: Environment) -> None:
    entry = put(tmp_path, here)
    assert misfit(entry, dataclasses.replace(here, compiler=None)) is None


@pytest.mark.parametrize("damage", ["no record", "half a record", "shorter library", "no library", "of another op"])
def test_what_is_not_whole_is_not_there(tmp_path: Path, here: Environment, damage: str) -> None:
    entry = put(tmp_path, here)
    record = entry.folder / op_cache.RECORD
    if damage == "no record":
        record.unlink()
    elif damage == "half a record":
        record.write_text(record.read_text()[:40])
    elif damage == "shorter library":
        entry.library.write_bytes(b"\x7fELF")
    elif damage == "no library":
        entry.library.unlink()
    else:
        record.write_text(json.dumps({**entry.record, "op": "cpu_adam"}))
    assert find("fused_adam", here, tmp_path) is None
    assert read_entry("fused_adam", entry.folder) is None


def test_portable_builds_run_where_the_cpu_has_what_they_use(tmp_path: Path, here: Environment) -> None:
    level = "x86-64-v3"
    entry = put(tmp_path, here, march=level)
    needs = op_cache.PORTABLE_NEEDS[level]
    good = dataclasses.replace(here, cpu="another", cpu_flags=needs | {"sse2"})
    poor = dataclasses.replace(here, cpu="another", cpu_flags=needs - {"avx2", "fma"})
    assert misfit(entry, good) is None
    assert misfit(entry, poor) == "compiled for x86-64-v3; this cpu lacks avx2, fma"
    native = put(tmp_path, good)
    assert find("fused_adam", good, tmp_path) == native  # the faster of two that fit


@pytest.mark.parametrize(
    ("built_for", "device", "fits"),
    [
        ("8.0", "8.0", True),
        ("8.0", "8.6", True),  # binary code runs on later minors of its major
        ("8.6", "8.0", False),
        ("8.0;9.0", "9.0", True),
        ("9.0", "8.0", False),
        ("8.0", "9.0", True),  # DeepSpeed adds PTX to the highest
        ("8.0+PTX;9.0", "12.0", True),
        ("9.0", "8.0;9.0", False),  # every visible device counts
        ("", "9.0", False),
    ],
)
def test_cuda_architectures(tmp_path: Path, here: Environment, built_for: str, device: str, fits: bool) -> None:
    cuda = dataclasses.replace(here, accelerator="cuda", cuda_archs=built_for)
    entry = put(tmp_path, cuda)
    assert (misfit(entry, dataclasses.replace(cuda, cuda_archs=device)) is None) is fits


def test_one_architecture_list_in_any_spelling() -> None:
    assert op_cache.normal_archs(" 9.0 8.0+PTX;9.0") == op_cache.normal_archs("8.0+PTX;9.0") == "8.0+PTX;9.0"


def test_clean_removes_only_what_is_ours_and_useless(tmp_path: Path, here: Environment) -> None:
    mine = put(tmp_path, here)
    other = put(tmp_path, dataclasses.replace(here, torch="2.9.0"))
    half = put(tmp_path, here, op="cpu_adam")
    (half.folder / op_cache.RECORD).unlink()
    stale = mine.folder / "staging-1-1"
    stale.mkdir()
    busy = put(tmp_path, dataclasses.replace(here, torch="2.8.0"))
    foreign = tmp_path / "projects" / "0123456789abcdef"
    foreign.mkdir(parents=True)
    (foreign / "thesis.tex").write_text("years of work")
    with open(busy.folder / op_cache.LOCK) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        removed, leftovers = cache.clean(here, root=tmp_path)
    assert [entry.folder for entry in removed] == [other.folder]
    assert set(leftovers) == {half.folder, stale}
    assert mine.library.is_file()
    assert busy.library.is_file()
    assert (foreign / "thesis.tex").read_text() == "years of work"
    assert not any(path.exists() for path in (other.folder, half.folder, stale))
    removed, _ = cache.clean(None, root=tmp_path)
    assert {entry.folder for entry in removed} == {mine.folder, busy.folder}


def test_looking_needs_neither_torch_nor_deepspeed(tmp_path: Path) -> None:
    code = (
        "import sys; from dstrain.probe.op_cache import ready_ops\n"
        "from dstrain.ops import catalogue, build, load, needs\n"
        "from dstrain.cli import ops; ready_ops()\n"
        "print(sorted({'torch', 'deepspeed', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)


def test_prebuilt_ops_are_those_that_deepspeed_itself_would_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_version = ".".join(environment("cpu").torch.split(".")[:2])
    lines = [
        "version='0.19.8'",
        "installed_ops={'cpu_adam': True, 'fused_adam': False}",
        "accelerator_name='cpu'",
        f"torch_info={{'version': '{torch_version}', 'cuda_version': '0.0'}}",
    ]
    (tmp_path / "git_version_info_installed.py").write_text("\n".join(lines))
    monkeypatch.setattr(op_cache, "package_folder", lambda _: tmp_path)
    assert op_cache.prebuilt_ops("cpu") == {"cpu_adam"}
    assert op_cache.prebuilt_ops("cuda") == frozenset()
    lines[3] = "torch_info={'version': '1.13', 'cuda_version': '0.0'}"  # DeepSpeed raises for these
    (tmp_path / "git_version_info_installed.py").write_text("\n".join(lines))
    assert op_cache.prebuilt_ops("cpu") == frozenset()


def test_unknown_ops_get_the_nearest_name() -> None:
    with pytest.raises(OpError, match="there is no DeepSpeed op 'cpu_adm'") as caught:
        catalogue.get("cpu_adm")
    assert caught.value.fix == "did you mean 'cpu_adam'?"
    assert with_required(["async_io", "pin_memory", "cpu_adam"]) == ["pin_memory", "async_io", "cpu_adam"]


def test_a_cache_that_cannot_be_written_says_what_to_set(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")

    def never(request: Request) -> None:
        raise AssertionError(f"compiled {request.op.name} without a lock")

    with pytest.raises(OpError, match="cannot write the op cache") as caught:
        build("fused_adam", root=blocker / "ops", accelerator="cpu", compile=never)
    assert "DSTRAIN_OPS_DIR" in str(caught.value)
