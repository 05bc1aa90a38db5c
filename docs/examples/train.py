"""The Python API in a dozen lines. One file, started in any of these ways:

python docs/examples/train.py --output_dir run
deepspeed --num_gpus 2 docs/examples/train.py --deepspeed ds_configs/zero3.json --output_dir run
torchrun --nproc_per_node 2 docs/examples/train.py --deepspeed ds_configs/zero2.json --output_dir run
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dstrain import Trainer, TrainingArguments, parse_args


class Sum(nn.Module):
    """Learns to add four numbers. Any module will do that returns a loss when it is given labels."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        y = self.layers(x).squeeze(-1)
        return {"logits": y} if labels is None else {"loss": nn.functional.mse_loss(y, labels), "logits": y}


def main() -> None:
    (args,) = parse_args(TrainingArguments)
    numbers = torch.randn(1024, 4, generator=torch.Generator().manual_seed(0))
    rows = [{"x": x, "labels": x.sum()} for x in numbers]
    trainer = Trainer(model=Sum(), args=args, train_dataset=rows[:960], eval_dataset=rows[960:])
    trainer.train()
    trainer.evaluate()
    trainer.save_model()


if __name__ == "__main__":
    main()
