"""Export of a model from a ZeRO checkpoint: `dstrain ckpt export` against DeepSpeed's own zero_to_fp32.

    python tests/benchmarks/export.py [--millions 50 200] [--stages 2 3] [--shard 5GB] [--repeats 3] [--json OUT]

Two ranks make a checkpoint of a bf16 model; then both tools write it as fp32 safetensors, each in a fresh process, in
turns, with the files in the page cache, and into the same disk. Seconds are of the process, start and imports included
(what a person waits for), and of the call alone; dstrain's include verifying its files' checksums. Memory is the peak
of the process (VmHWM, mapped files counted) above what it had after its imports. All output tensors are compared.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from dstrain.testing import RankPool

_WIDTH = 2048
_CHILD = """
import json, re, sys, time
from pathlib import Path
source, out, shard, tool = sys.argv[1:]
def memory(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
if tool == "deepspeed":
    from deepspeed.utils.zero_to_fp32 import convert_zero_checkpoint_to_state_dict as convert
    import safetensors.torch, huggingface_hub
    call = lambda: convert(source, out, max_shard_size=shard, safe_serialization=True)
else:
    from dstrain.checkpoint.from_disk import export_checkpoint
    from dstrain.cli.ckpt import size_bytes
    call = lambda: export_checkpoint(Path(source), Path(out), dtype="fp32", max_shard_bytes=size_bytes(shard),
                                     verify=tool == "dstrain")
floor, begin = memory("VmRSS"), time.perf_counter()
call()
print("RESULT", json.dumps({"call_s": time.perf_counter() - begin, "peak_bytes": memory("VmHWM") - floor}))
"""


def make(folder: str, stage: int, layers: int) -> int:
    """Save a bf16 model of `layers` square layers with DeepSpeed itself; gives its parameters."""
    import deepspeed
    import torch

    from dstrain import dist

    if not torch.distributed.is_initialized():
        deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)))
    # Plain SGD keeps no states: what is read is the same, and the checkpoint of a large model fits the disk.
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 10_000_000},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    engine.save_checkpoint(folder, tag="global_step1")
    engine.destroy()
    dist.barrier()
    return layers * (_WIDTH * _WIDTH + _WIDTH)


def measure(source: Path, out: Path, shard: str, tool: str) -> dict[str, float]:
    """One export in a fresh process."""
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(source), str(out), shard, tool], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{tool} failed:\n{done.stderr[-3000:]}")
    result: dict[str, float] = json.loads(done.stdout.rpartition("RESULT ")[2])
    return result | {"process_s": seconds}


def same(one: Path, other: Path) -> bool:
    """Whether two exports hold the same tensors."""
    from safetensors import safe_open
    from torch import equal

    def places(folder: Path) -> dict[str, Path]:
        found = {}
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                found |= dict.fromkeys(file.keys(), path)
        return found

    here, there = places(one), places(other)
    if here.keys() != there.keys():
        return False
    for name in here:
        with safe_open(here[name], "pt") as a, safe_open(there[name], "pt") as b:
            if not equal(a.get_tensor(name), b.get_tensor(name)):
                return False
    return True


def compare(root: Path, pool: RankPool, stage: int, millions: int, shard: str, repeats: int) -> dict[str, Any]:
    """Both tools on one checkpoint."""
    source, layers = root / "checkpoint", max(1, round(millions * 1e6 / _WIDTH**2))
    parameters = pool.run(make, str(source), stage, layers, timeout_s=900)[0]
    for path in source.rglob("*.pt"):  # into the page cache
        with path.open("rb") as stream:
            while stream.read(1 << 24):
                pass
    tools = ("deepspeed", "dstrain", "dstrain, unverified")
    runs: dict[str, list[dict[str, float]]] = {tool: [] for tool in tools}
    for _ in range(repeats):
        for index, tool in enumerate(tools):
            runs[tool].append(measure(source, root / f"out{index}", shard, tool))
    if not all(same(root / "out0", root / f"out{index}") for index in (1, 2)):
        raise RuntimeError(f"stage {stage}, {parameters:,} parameters: the exports differ")
    shutil.rmtree(root)
    keys = ("process_s", "call_s", "peak_bytes")
    medians = {tool: {key: statistics.median(run[key] for run in runs[tool]) for key in keys} for tool in tools}
    return {"stage": stage, "parameters": parameters, "model_bytes": parameters * 4, "tools": medians}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[50, 200])
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--shard", default="5GB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", default=None, help="where the files go (default: a temporary folder)")
    parser.add_argument("--json", default=None, metavar="OUT")
    args = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for millions in args.millions:
            for stage in args.stages:
                with RankPool(2) as pool:
                    case = Path(folder) / f"{stage}-{millions}"
                    found.append(compare(case, pool, stage, millions, args.shard, args.repeats))
    table = Table("stage", "model", "tool", "process", "call", "peak memory", "x faster", "x memory")
    for case in found:
        base = case["tools"]["deepspeed"]
        for tool, median in case["tools"].items():
            table.add_row(
                str(case["stage"]),
                f"{case['model_bytes'] / 1e6:.0f} MB",
                tool,
                f"{median['process_s']:.1f} s",
                f"{median['call_s']:.2f} s",
                f"{median['peak_bytes'] / 1e6:.0f} MB",
                f"{base['process_s'] / median['process_s']:.1f} ({base['call_s'] / median['call_s']:.1f})",
                f"{median['peak_bytes'] / base['peak_bytes']:.2f}",
            )
    Console(width=110).print(table)
    if args.json:
        Path(args.json).write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
