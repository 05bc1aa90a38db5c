"""A small language model on bytes, trained on source text that every machine has. See `--help` for its flags.

    deepspeed --num_gpus 2 docs/examples/byte_lm.py --deepspeed ds_configs/zero2.json --output_dir run

The text is the Python standard library itself (or `--data PATH`). The model is plain torch and returns
`{"loss", "logits"}` when labels are given, which is all that a `Trainer` asks of a model.

Shapes: B batch, T bytes of a row, D width, H heads, K width of a head, V = 256 byte values.
"""

from __future__ import annotations

import hashlib
import math
import os
import sysconfig
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from dstrain import Trainer, TrainerCallback, TrainingArguments, parse_args, set_seed
from dstrain.core.errors import DataError, ModelError

BYTE_VALUES = 256
_LEFT_OUT_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_ROPE_BASE = 10_000.0


@dataclass
class ByteArguments:
    """The flags of this example; those of the training are `TrainingArguments`."""

    data: str | None = None
    """A text file, or a folder of them, to train on (default: the sources of Python's standard library)."""
    length: PositiveInt = 128
    """Bytes in one row."""
    width: PositiveInt = 128
    """Width of the model; a multiple of twice the heads."""
    depth: PositiveInt = 4
    """Number of blocks."""
    heads: PositiveInt = 4
    """Attention heads of a block."""
    held_out_rows: NonNegativeInt = 256
    """Rows of held-out text to evaluate on, spread over all of it; 0: every row."""
    prompt: str = "def "
    """The text that the sample at the end goes on from."""
    sample_bytes: NonNegativeInt = 240
    """Length of the sample at the end; 0: no sample."""
    temperature: NonNegativeFloat = 0.6
    """Temperature of the sample; 0 takes the likeliest byte each time."""


# --- the text ---------------------------------------------------------------------------------------------------------


def _source_files(data: str | None) -> tuple[Path, list[Path]]:
    """The root and its text files in a stable order; nothing hidden, and of the library no tests."""
    root = Path(data) if data else Path(sysconfig.get_paths()["stdlib"])
    if root.is_file():
        return root.parent, [root]
    if not root.is_dir():
        raise DataError("there is no such file or folder", where=f"--data {data}" if data else str(root))
    left_out, suffix = (set(), "") if data else (_LEFT_OUT_FOLDERS, ".py")
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in left_out and not name.startswith(".")]
        found += [Path(folder, name) for name in names if name.endswith(suffix) and not name.startswith(".")]
    if not found:
        raise DataError("no files to train on in this folder", where=str(root), fix="--data FILE_OR_FOLDER")
    return root, sorted(found)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from None


def _is_held_out(name: str) -> bool:
    """One file in ten, by a hash of its name: the same split on every machine and for every order of files."""
    return hashlib.sha256(name.encode()).digest()[0] % 10 == 0


def read_corpus(data: str | None = None) -> tuple[bytes, bytes]:
    """Training text and held-out text, split by file; too few files for that: the last tenth is held out.

    Raises:
        DataError: nothing to read at `data`.
    """
    root, paths = _source_files(data)
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in paths:
        parts[_is_held_out(path.relative_to(root).as_posix())].append(_read(path))
    train, held_out = (b"\n".join(part) for part in parts)
    if train and held_out:
        return train, held_out
    text = train or held_out
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


class Windows(Dataset[dict[str, Tensor]]):
    """Rows of `length` bytes, one after the other; the labels are the inputs (the model shifts them).

    With `rows`, that many windows spread evenly over the text, so that a short evaluation sees all of its files.

    Raises:
        DataError: the text is shorter than one row.
    """

    def __init__(self, text: bytes, length: int, rows: int = 0) -> None:
        whole = len(text) // length
        if whole == 0:
            raise DataError(
                f"a split of {len(text)} bytes has no row of {length} bytes", fix="a smaller --length, or more text"
            )
        self._bytes = torch.frombuffer(bytearray(text[: whole * length]), dtype=torch.uint8).view(whole, length)
        self._rows = range(whole) if not 0 < rows < whole else range(0, whole - whole % rows, whole // rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self._bytes[self._rows[index]].long()
        return {"input_ids": ids, "labels": ids.clone()}


# --- the model --------------------------------------------------------------------------------------------------------


def _rotate(x_BHTK: Tensor, angle_TK: Tensor) -> Tensor:
    """Rotary positions: each pair of a head's halves turned by its angle."""
    first, second = x_BHTK.chunk(2, dim=-1)
    cos, sin = angle_TK.cos().to(x_BHTK.dtype), angle_TK.sin().to(x_BHTK.dtype)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Block(nn.Module):
    """Pre-norm attention and a feed-forward layer of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x_BTD: Tensor, angle_TK: Tensor) -> Tensor:
        B, T, D = x_BTD.shape
        heads = self.qkv(self.norm1(x_BTD)).view(B, T, 3, self.heads, D // self.heads)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(_rotate(q, angle_TK), _rotate(k, angle_TK), v, is_causal=True)
        x_BTD = x_BTD + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        out_BTD: Tensor = x_BTD + self.down(F.gelu(self.up(self.norm2(x_BTD))))
        return out_BTD


class ByteLM(nn.Module):
    """A causal transformer on bytes. The head is the embedding; a short convolution shows it the bytes before."""

    def __init__(self, width: int = 128, depth: int = 4, heads: int = 4, reach: int = 4) -> None:
        super().__init__()
        if width % (2 * heads):
            fits = max(1, round(width / (2 * heads))) * 2 * heads
            raise ModelError(f"--width {width} is no multiple of twice --heads = {2 * heads}", fix=f"--width {fits}")
        self.config = {"width": width, "depth": depth, "heads": heads, "reach": reach}
        self.embed = nn.Embedding(BYTE_VALUES, width)
        self.near = nn.Conv1d(width, width, reach, bias=False)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, BYTE_VALUES, bias=False)
        self.head.weight = self.embed.weight
        self._initialise(depth)

    def _initialise(self, depth: int) -> None:
        for name, weight in self.named_parameters():
            if weight.dim() < 2:
                continue
            if name == "embed.weight":
                nn.init.normal_(weight, std=0.05)
            else:
                fan_in = weight[0].numel()
                last = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=fan_in**-0.5 / (math.sqrt(2 * depth) if last else 1.0))

    def _angles(self, length: int, device: torch.device) -> Tensor:
        half = self.config["width"] // self.config["heads"] // 2
        rates = _ROPE_BASE ** (-torch.arange(half, device=device, dtype=torch.float32) / half)
        return torch.outer(torch.arange(length, device=device, dtype=torch.float32), rates)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """`logits`, and with labels the mean `loss` in nats over the bytes after the first."""
        # Tied weights are small for the sake of the logits; scaled up, a byte is not drowned by what the blocks add.
        x_BTD = self.embed(input_ids) * math.sqrt(self.config["width"])
        before = F.pad(x_BTD.transpose(1, 2), (self.config["reach"] - 1, 0))
        x_BTD = x_BTD + self.near(before).transpose(1, 2)
        angle_TK = self._angles(input_ids.shape[1], input_ids.device)
        for block in self.blocks:
            x_BTD = block(x_BTD, angle_TK)
        logits_BTV = self.head(self.norm(x_BTD))
        if labels is None:
            return {"logits": logits_BTV}
        predicted = logits_BTV[:, :-1].reshape(-1, BYTE_VALUES).float()
        loss = F.cross_entropy(predicted, labels[:, 1:].reshape(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits_BTV}


# --- the sample -------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def sample(model: ByteLM, prompt: bytes, count: int, *, length: int, temperature: float, seed: int = 0) -> bytes:
    """`count` bytes after `prompt`, each drawn given at most the `length` bytes before it."""
    generator = torch.Generator().manual_seed(seed)
    written = list(prompt or b"\n")
    model.eval()
    for _ in range(count):
        scores_V = model(torch.tensor([written[-length:]]))["logits"][0, -1].float()
        if temperature == 0:
            written.append(int(scores_V.argmax()))
        else:
            chances_V = (scores_V / temperature).softmax(-1)
            written.append(int(torch.multinomial(chances_V, 1, generator=generator)))
    return bytes(written)


def as_text(drawn: bytes) -> str:
    """Bytes of a model for a terminal: what is no text, or would steer the terminal, becomes a replacement sign."""
    text = drawn.decode(errors="replace")
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "\ufffd" for sign in text)


def load_saved(folder: Path, own: ByteArguments) -> ByteLM:
    """The model as it was saved, whole on the CPU: also after ZeRO-3, where a rank's own copy is in pieces."""
    model = ByteLM(own.width, own.depth, own.heads)
    missing, unexpected = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    if unexpected or set(missing) - {"head.weight"}:  # the head is the embedding, and may be stored once
        raise ModelError(f"the saved model lacks {missing} and has {unexpected}", where=str(folder))
    return model


# --- the run ----------------------------------------------------------------------------------------------------------


class Clock(TrainerCallback):
    """Notes when each step ends, in seconds since this process began."""

    def __init__(self) -> None:
        self.began = psutil.Process().create_time()
        self.ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self.ends.append(time.time() - self.began)


def bits_per_byte(history: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    """(step, held-out bits per byte) of each evaluation in a trainer's log."""
    found = {int(entry["step"]): entry["eval_loss"] / math.log(2) for entry in history if "eval_loss" in entry}
    return sorted(found.items())


def summary(evaluations: list[tuple[int, float]], ends: list[float], bytes_of_step: int, steps: int) -> Table:
    """The table at the end."""
    table = Table("", "", title="byte_lm", show_header=False, title_justify="left")
    between = [pair for pair in evaluations if 0 < pair[0] < steps]
    shown = {"before": evaluations[0]} if evaluations[0][0] == 0 else {}
    if between:
        shown["middle"] = min(between, key=lambda pair: abs(pair[0] - steps / 2))
    shown["after"] = evaluations[-1]
    for name, (step, bits) in shown.items():
        table.add_row(f"held-out bits/byte, {name}", f"{bits:.3f}  (step {step})")
    table.add_row("optimizer steps", f"{steps}  ({len(ends)} in this process)")
    if ends:
        table.add_row("seconds to first step", f"{ends[0]:.1f}")
    if len(ends) > 1:
        rate = (len(ends) - 1) * bytes_of_step / (ends[-1] - ends[0])
        table.add_row("tokens/s, evaluations and saves included", f"{rate:,.0f}")
    return table


def show_results(folder: Path, own: ByteArguments, table: Table, seed: int) -> None:
    """Sample from the saved model, then the table."""
    console = Console(highlight=False)
    if own.sample_bytes:
        model, prompt = load_saved(folder, own), own.prompt.encode()
        drawn = sample(model, prompt, own.sample_bytes, length=own.length, temperature=own.temperature, seed=seed)
        console.print(f"sample at temperature {own.temperature:g}:", style="bold")
        console.print(as_text(drawn), markup=False)
    console.print(table)


def main() -> None:
    """Flags to table."""
    args, own = parse_args(TrainingArguments, ByteArguments)
    set_seed(args.seed)
    text, held_out = read_corpus(own.data)
    clock = Clock()
    trainer = Trainer(
        model=ByteLM(own.width, own.depth, own.heads),
        args=args,
        train_dataset=Windows(text, own.length),
        eval_dataset=Windows(held_out, own.length, own.held_out_rows),
        callbacks=[clock],
    )
    trainer.train()
    steps = trainer.state.global_step
    if not any(step == steps for step, _ in bits_per_byte(trainer.state.log_history)):
        trainer.evaluate()
    trainer.save_model()
    if trainer.is_world_process_zero():
        bytes_of_step = trainer.plan.batch.global_rows * own.length
        table = summary(bits_per_byte(trainer.state.log_history), clock.ends, bytes_of_step, steps)
        table.add_row("folder of the run", args.output_dir)
        show_results(Path(args.output_dir), own, table, args.seed)


if __name__ == "__main__":
    main()
