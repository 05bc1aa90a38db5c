import torch

from dstrain import Trainer, TrainingArguments, parse_args, set_seed
from dstrain.testing.models import Mlp  # or any module that returns a loss when it is given labels

(args,) = parse_args(TrainingArguments)
set_seed(args.seed)
x = torch.randn(1024, 4)
rows = [{"x": row, "labels": row.sum()} for row in x]
trainer = Trainer(model=Mlp(), args=args, train_dataset=rows[:960], eval_dataset=rows[960:])
trainer.train()
print(trainer.evaluate())
trainer.save_model()
