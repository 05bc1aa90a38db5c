"""Real transformers models, randomly initialised: they train, evaluate, and load again with `from_pretrained`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from dstrain import Trainer, TrainingArguments, set_seed
from dstrain.data import pad_collate

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.cpu


def _llama() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    return transformers.LlamaForCausalLM(config)


def _gpt2() -> Any:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64)
    )


def _bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_labels=3
    )
    return transformers.BertForSequenceClassification(config)


def _t5() -> Any:
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def _rows(kind: str, n: int = 12) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    rows: list[dict[str, Any]] = []
    for index in range(n):
        length = 4 + index % 5
        ids = torch.randint(1, 64, (length,), generator=generator)
        labels: Any = index % 3 if kind == "class" else ids.clone()
        rows.append({"input_ids": ids, "labels": labels, "a_column_of_no_use": "text"})
    return rows


CASES = [(_llama, "tokens", True), (_gpt2, "tokens", True), (_bert, "class", None), (_t5, "tokens", False)]


@pytest.mark.parametrize(("make", "kind", "shifted"), CASES)
def test_trains_evaluates_and_loads_again(make: Any, kind: str, shifted: bool | None, tmp_path: Path) -> None:
    set_seed(0)
    model, rows = make(), _rows(kind)
    args = TrainingArguments(
        str(tmp_path),
        max_steps=8,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = Trainer(model, args, pad_collate(), rows, rows)
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    assert after < before
    assert trainer._shift is not None
    assert trainer._shift.shifted is shifted
    trainer.save_model()
    again = type(model).from_pretrained(tmp_path)
    for (name, ours), (_, theirs) in zip(model.state_dict().items(), again.state_dict().items(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize(("make", "kind", "shifted"), CASES)
def test_the_loss_does_not_depend_on_the_split(make: Any, kind: str, shifted: bool | None, tmp_path: Path) -> None:
    """Micro-batches of one row and of six give the same losses and norms, ragged rows and all."""
    seen = []
    for micro, accumulation in ((6, 1), (1, 6)):
        set_seed(0)
        model, rows = make(), _rows(kind)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        args = TrainingArguments(
            str(tmp_path / str(micro)),
            max_steps=2,
            per_device_train_batch_size=micro,
            per_device_eval_batch_size=micro,
            gradient_accumulation_steps=accumulation,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
        )
        trainer = Trainer(model, args, pad_collate(), rows, rows)
        trainer.train()
        trainer.evaluate()
        logs = trainer.state.log_history
        compared = ("loss", "grad_norm", "eval_loss")
        seen.append([value for entry in logs for key, value in entry.items() if key in compared])
    assert seen[0] == pytest.approx(seen[1], rel=2e-5)
