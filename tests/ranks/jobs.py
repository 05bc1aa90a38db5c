"""What ranks run for the spine tests: a Trainer over tiny models, with what it did as plain values."""

from __future__ import annotations

import hashlib
import os
import signal
from typing import Any

import numpy as np

ZERO: dict[str, Any] = {"zero_optimization": {"stage": 0, "reduce_bucket_size": 50_000}}


def zero(stage: int | None, **more: Any) -> dict[str, Any] | None:
    """A DeepSpeed configuration for one stage; None trains on the single-device engine."""
    if stage is None:
        return None
    return {"zero_optimization": {"stage": stage, "reduce_bucket_size": 50_000}, **more}


def _model_and_rows(kind: str, dropout: float) -> tuple[Any, Any, Any]:
    from dstrain.data import pad_collate
    from dstrain.testing import data, models

    if kind == "ragged":
        return models.TinyLM(dropout=dropout), data.ragged_rows(40), pad_collate()
    if kind == "stream":
        return models.TinyLM(dropout=dropout), data.Stream(rows=data.ragged_rows(20)), pad_collate()
    if kind == "poisoned":
        rows = data.xy_rows(40)
        rows[17]["x"] = rows[17]["x"] * float("nan")
        return models.Mlp(dropout=dropout), rows, None
    if kind == "augmenting":
        return models.Mlp(dropout=dropout), data.Augmenting(40), None
    return models.Mlp(dropout=dropout), data.xy_rows(40), None


class Recorder:
    """Losses, lr and norms of each step, unrounded; kills its rank when told to."""

    def __init__(self, die_at: int | None = None) -> None:
        self.rows: list[tuple[float, float, float]] = []
        self._die_at = die_at

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
        if "loss" in logs:
            self.rows.append((logs["loss"], logs["learning_rate"], logs["grad_norm"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._die_at is not None and state.global_step == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)


def weights_digest(trainer: Any) -> str:
    """A hash over all full tensors, in order."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in trainer._prepared().weights():
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


KILL_POINTS = ("between_shards", "after_shards", "before_manifest", "before_rename", "before_latest")


def die_while_saving(point: str, step: int, rank: int) -> None:
    """From now on, rank `rank` is killed at `point` of the save of `step`: a fault in the middle of the real thing."""
    from dstrain import dist
    from dstrain.checkpoint import manifest, rng
    from dstrain.core import atomic

    staging = f".staging-{step}"
    module, name, when = {
        "between_shards": (rng, "save", lambda folder, _: folder.name == staging),
        "after_shards": (manifest, "files_of", lambda folder: folder.name == staging),
        "before_manifest": (manifest, "write", lambda folder, *_: folder.name == staging),
        "before_rename": (
            atomic,
            "fsync_folder",
            lambda folder: folder.name == staging and (folder / "manifest.json").is_file(),
        ),
        "before_latest": (atomic, "write_text", lambda _, text: text == f"checkpoint-{step}\n"),
    }[point]
    original = getattr(module, name)

    def fatal(*args: Any, **kwargs: Any) -> Any:
        if dist.rank() == rank and when(*args):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)

    setattr(module, name, fatal)


def train(
    folder: str,
    *,
    stage: int | None,
    kind: str = "ragged",
    micro: int = 4,
    accumulation: int = 1,
    steps: int = 6,
    dropout: float = 0.0,
    rows: int | None = None,
    resume: bool | str | None = None,
    save_steps: int | None = None,
    save_strategy: str | None = None,
    die_at: int | None = None,
    die_saving: tuple[str, int, int] | None = None,
    config: dict[str, Any] | None = None,
    **arguments: Any,
) -> dict[str, Any]:
    """Train, and give losses, lr, norms, the digest of the weights and the final state."""
    from dstrain import Trainer, TrainingArguments, set_seed

    if die_saving is not None:
        die_while_saving(*die_saving)
    set_seed(7)
    model, dataset, collate = _model_and_rows(kind, dropout)
    given: dict[str, Any] = {"optim": "adamw_torch", "learning_rate": 1e-2, "weight_decay": 0.1} | arguments
    recorder = Recorder(die_at)
    args = TrainingArguments(
        folder,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        logging_steps=1,
        disable_tqdm=True,
        deepspeed=config if config is not None else zero(stage),
        save_strategy=save_strategy or ("no" if save_steps is None else "steps"),
        save_steps=save_steps or 500,
        resume_from_checkpoint=resume,
        **given,
    )
    trainer = Trainer(
        model,
        args,
        collate,
        dataset if rows is None else [dataset[index] for index in range(rows)],
        eval_dataset=dataset if "eval_strategy" in given else None,
        callbacks=[recorder],
    )
    out = trainer.train()
    result = {
        "rows": recorder.rows,
        "weights": weights_digest(trainer),
        "step": out.global_step,
        "epoch": trainer.state.epoch,
        "evaluated": [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry],
        "finite": all(bool(tensor.isfinite().all()) for _, tensor in trainer._prepared().weights()),
        "skipped": trainer.state.skipped_steps,
    }
    trainer._prepared().close()
    return result


def predict(folder: str, stage: int | None, n: int, kind: str = "xy", batch: int = 2) -> dict[str, Any]:
    """Evaluate and predict n rows."""
    from dstrain import Trainer, TrainingArguments, set_seed
    from dstrain.data import pad_collate
    from dstrain.testing import data, models

    set_seed(7)
    model: Any = models.Mlp() if kind == "xy" else models.TinyLM()
    rows = data.xy_rows(max(n, 1))[:n] if kind == "xy" else data.ragged_rows(max(n, 1))[:n]
    args = TrainingArguments(folder, per_device_eval_batch_size=batch, deepspeed=zero(stage), disable_tqdm=True)
    trainer = Trainer(model, args, None if kind == "xy" else pad_collate(), eval_dataset=rows)
    metrics = trainer.evaluate()
    predicted = trainer.predict(rows)
    trainer._prepared().close()
    return {
        "loss": metrics.get("eval_loss"),
        "samples": metrics["eval_samples"],
        "predictions": np.asarray(predicted.predictions),
        "labels": None if predicted.label_ids is None else np.asarray(predicted.label_ids),
    }


def engine_config(folder: str, config: str, **arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the engine says that it was given, and what the plan says."""
    from dstrain import Trainer, TrainingArguments
    from dstrain.testing import data, models

    args = TrainingArguments(folder, deepspeed=config, disable_tqdm=True, **arguments)
    trainer: Any = Trainer(models.Mlp(), args, train_dataset=data.xy_rows(16))
    given = dict(trainer._prepared()._engine.config)
    trainer._prepared().close()
    return given, trainer.plan.as_json()["deepspeed"]
