"""Steps per second of dstrain's Trainer against a bare `deepspeed.initialize` loop: same model, data, optimizer, stage.

    python tests/benchmarks/step_rate.py [--world_sizes 1 2] [--stages 0 2 3] [--blocks 12] [--steps 8] [--json OUT]

Both engines live in the same processes. While the Trainer trains, every `--steps` optimizer steps its `on_step_end`
stops its clock, runs as many steps of the bare loop, and starts the clock again; so a noisy neighbour hits both alike.
Each pair of blocks gives one ratio, bare time over dstrain time (1: as fast; above: faster); the median is reported,
with the quartiles. The bare loop is the best that can be done by hand: a plain DataLoader, forward, `engine.backward`,
`engine.step`, no logging.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

from dstrain.testing import RankPool

_DEMO = Path(__file__).parents[2] / "docs" / "examples" / "byte_lm.py"
_WARM_UP_BLOCKS = 2


def _demo() -> ModuleType:
    if "byte_lm" not in sys.modules:
        spec = importlib.util.spec_from_file_location("byte_lm", _DEMO)
        if spec is None or spec.loader is None:
            raise ImportError(f"{_DEMO} cannot be imported")
        sys.modules["byte_lm"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["byte_lm"])
    return sys.modules["byte_lm"]


def _config(stage: int, rows: int, fused: bool) -> dict[str, Any]:
    """What both engines are given; only the bare one takes its optimizer from the file when it is not fused."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "steps_per_print": 1_000_000_000,
        "zero_optimization": {"stage": stage},
    }
    if not fused:
        # "torch_adam": DeepSpeed 0.19.8 otherwise compiles its CPU FusedAdam at the first step.
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "torch_adam": True}}
    return config


class _Bare:
    """The loop written by hand."""

    def __init__(self, stage: int, rows: int, fused: bool, text: bytes) -> None:
        import deepspeed
        import torch
        from torch.utils.data import DataLoader, DistributedSampler

        # DeepSpeed 0.19.8 compiles this op inside init_distributed on the CPU, for minutes.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        deepspeed.init_distributed()
        torch.manual_seed(0)
        demo = _demo()
        model = demo.ByteLM()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True) if fused else None
        self.engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=model.parameters(),
            optimizer=optimizer,
            config=_config(stage, rows, fused),
        )
        windows = demo.Windows(text, demo.ByteArguments().length)
        self._loader = DataLoader(windows, batch_size=rows, sampler=DistributedSampler(windows), drop_last=True)
        self._batches = self._forever()

    def _forever(self) -> Iterator[dict[str, Any]]:
        while True:
            for batch in self._loader:
                yield {name: value.to(self.engine.device) for name, value in batch.items()}

    def run(self, steps: int) -> float:
        """Seconds of `steps` optimizer steps."""
        synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            loss = self.engine(**next(self._batches))["loss"]
            self.engine.backward(loss)
            self.engine.step()
        synchronize()
        return time.perf_counter() - began


def synchronize() -> None:
    """Wait for the accelerator; nothing to wait for on the CPU."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_bare(stage: int, rows: int, fused: bool, blocks: int, steps: int) -> list[tuple[float, None]]:
    """In a rank: (bare seconds, None) of each block."""
    text, _ = _demo().read_corpus()
    bare = _Bare(stage, rows, fused, text)
    seconds = [bare.run(steps) for _ in range(blocks + _WARM_UP_BLOCKS)]
    return [(taken, None) for taken in seconds[_WARM_UP_BLOCKS:]]


def measure_both(stage: int, rows: int, fused: bool, blocks: int, steps: int) -> list[tuple[float, float]]:
    """In a rank: (bare seconds, dstrain seconds) of each pair of blocks."""
    from dstrain import Trainer, TrainerCallback, TrainingArguments

    demo = _demo()
    text, _ = demo.read_corpus()
    bare = _Bare(stage, rows, fused, text)
    pairs: list[tuple[float, float]] = []

    class Alternate(TrainerCallback):
        """Gives the bare loop its turn after each block of the Trainer's steps."""

        began = 0.0

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step % steps:
                return
            synchronize()
            taken = time.perf_counter() - self.began
            pairs.append((bare.run(steps), taken))
            self.began = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            per_device_train_batch_size=rows,
            max_steps=steps * (blocks + _WARM_UP_BLOCKS),
            learning_rate=1e-3,
            weight_decay=0.1,
            optim="adamw_torch_fused" if fused else "adamw_torch",
            max_grad_norm=1.0,
            logging_steps=10,
            save_strategy="no",
            disable_tqdm=True,
            deepspeed={"zero_optimization": {"stage": stage}},
        )
        windows = demo.Windows(text, demo.ByteArguments().length)
        Trainer(model=demo.ByteLM(), args=args, train_dataset=windows, callbacks=[Alternate()]).train()
    return pairs[_WARM_UP_BLOCKS:]


def _summary(pairs: list[tuple[float, float | None]], steps: int) -> dict[str, float]:
    """Medians over the blocks; without times of dstrain only the bare rate."""
    found = {"bare_steps_per_s": steps / statistics.median(bare for bare, _ in pairs)}
    both = [(bare, ours) for bare, ours in pairs if ours is not None]
    if both:
        low, middle, high = statistics.quantiles([bare / ours for bare, ours in both], n=4)
        found["dstrain_steps_per_s"] = steps / statistics.median(ours for _, ours in both)
        found |= {"ratio": middle, "ratio_low": low, "ratio_high": high}
    return found


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(title="steps/s, dstrain over a bare deepspeed.initialize loop", title_justify="left")
    for name in ("ranks", "ZeRO", "bare steps/s", "dstrain steps/s", "ratio", "quartiles"):
        table.add_column(name, justify="right")
    for found in results:
        row = [str(found["world_size"]), str(found["stage"]), f"{found['bare_steps_per_s']:.2f}"]
        if "ratio" in found:
            row += [f"{found['dstrain_steps_per_s']:.2f}", f"{found['ratio']:.3f}"]
            row += [f"{found['ratio_low']:.3f} – {found['ratio_high']:.3f}"]
        table.add_row(*row)
    return table


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--world_sizes", type=int, nargs="+", default=[1, 2], help="numbers of ranks")
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 2, 3], help="ZeRO stages")
    parser.add_argument("--blocks", type=int, default=12, help="pairs of blocks that count (2 or more)")
    parser.add_argument("--steps", type=int, default=8, help="optimizer steps of a block")
    parser.add_argument("--rows", type=int, default=8, help="rows of a rank in one step")
    parser.add_argument("--plain_adam", action="store_true", help="torch AdamW from the configuration, not fused")
    parser.add_argument("--bare_only", action="store_true", help="time the bare loop alone")
    parser.add_argument("--json", type=Path, help="write the results to this file too")
    flags = parser.parse_args()
    if flags.blocks < 2 or flags.steps < 1:
        parser.error(f"--blocks {flags.blocks} --steps {flags.steps}: at least 2 blocks of 1 step are needed")
    return flags


def main() -> None:
    """Each world size and stage in fresh processes: DeepSpeed keeps state per process."""
    flags = _flags()
    measure: Callable[..., Any] = measure_bare if flags.bare_only else measure_both
    results = []
    for world_size in flags.world_sizes:
        for stage in flags.stages:
            with RankPool(world_size) as pool:
                pairs = pool.run(
                    measure, stage, flags.rows, not flags.plain_adam, flags.blocks, flags.steps, timeout_s=1800
                )[0]
            results.append({"world_size": world_size, "stage": stage, **_summary(pairs, flags.steps)})
            print(json.dumps(results[-1]), flush=True)
    Console().print(_table(results))
    if flags.json:
        flags.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
