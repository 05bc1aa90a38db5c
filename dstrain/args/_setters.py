"""Setters that scripts chain: `TrainingArguments("run").set_training(…).set_evaluate(…)`. Names are transformers'."""

from __future__ import annotations

from typing import Any, Self

from dstrain.core.errors import UsageError


class Setters:
    """Each sets several fields at once, checks all of them, and returns the object.

    Raises:
        UsageError: every value that is wrong; then nothing was set.
    """

    def _set(self, values: dict[str, Any]) -> Self:
        raise NotImplementedError

    def set_training(
        self,
        learning_rate: float = 5e-5,
        batch_size: int = 8,
        weight_decay: float = 0,
        num_epochs: float = 3,
        max_steps: int = -1,
        gradient_accumulation_steps: int = 1,
        seed: int = 42,
        activation_checkpointing: bool | None = None,
        gradient_checkpointing: bool | None = None,
    ) -> Self:
        """What training needs; turns `do_train` on."""
        checkpointing = gradient_checkpointing if activation_checkpointing is None else activation_checkpointing
        return self._set(
            {
                "do_train": True,
                "learning_rate": learning_rate,
                "per_device_train_batch_size": batch_size,
                "weight_decay": weight_decay,
                "num_train_epochs": num_epochs,
                "max_steps": max_steps,
                "gradient_accumulation_steps": gradient_accumulation_steps,
                "seed": seed,
                "gradient_checkpointing": checkpointing,
            }
        )

    def set_evaluate(
        self,
        strategy: str = "no",
        steps: float = 500,
        batch_size: int = 8,
        accumulation_steps: int | None = None,
        delay: float | None = None,
        loss_only: bool = False,
    ) -> Self:
        """When to evaluate; `do_eval` follows."""
        return self._set(
            {
                "eval_strategy": strategy,
                "do_eval": getattr(strategy, "value", strategy) != "no",
                "eval_steps": steps,
                "per_device_eval_batch_size": batch_size,
                "eval_accumulation_steps": accumulation_steps,
                "eval_delay": delay or 0,
                "prediction_loss_only": loss_only,
            }
        )

    def set_testing(self, batch_size: int = 8, loss_only: bool = False) -> Self:
        """Prediction; turns `do_predict` on."""
        return self._set(
            {"do_predict": True, "per_device_eval_batch_size": batch_size, "prediction_loss_only": loss_only}
        )

    def set_save(
        self, strategy: str = "steps", steps: float = 500, total_limit: int | None = None, on_each_node: bool = False
    ) -> Self:
        """Checkpoints."""
        values = {"save_strategy": strategy, "save_steps": steps, "save_total_limit": total_limit}
        return self._set(values | {"save_on_each_node": on_each_node})

    def set_logging(
        self,
        strategy: str = "steps",
        steps: float = 500,
        report_to: str | list[str] = "none",
        level: str = "passive",
        first_step: bool = False,
        nan_inf_filter: bool = False,
        on_each_node: bool = False,
        replica_level: str = "passive",
    ) -> Self:
        """Records and log levels."""
        return self._set(
            {
                "logging_strategy": strategy,
                "logging_steps": steps,
                "report_to": report_to,
                "log_level": level,
                "logging_first_step": first_step,
                "logging_nan_inf_filter": nan_inf_filter,
                "log_on_each_node": on_each_node,
                "log_level_replica": replica_level,
            }
        )

    def set_push_to_hub(self, model_id: str, *_: Any, **__: Any) -> Self:  # noqa: ARG002
        """Not yet there: it says so."""
        raise UsageError(
            "set_push_to_hub is not yet supported: nothing is pushed",
            fix="upload the output folder: hf upload NAME DIR",
        )

    def set_optimizer(
        self,
        name: str = "adamw_torch",
        learning_rate: float = 5e-5,
        weight_decay: float = 0,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        args: str | None = None,
    ) -> Self:
        """The optimizer and its numbers."""
        return self._set(
            {
                "optim": name,
                "learning_rate": learning_rate,
                "weight_decay": weight_decay,
                "adam_beta1": beta1,
                "adam_beta2": beta2,
                "adam_epsilon": epsilon,
                "optim_args": args,
            }
        )

    def set_lr_scheduler(
        self,
        name: str = "linear",
        num_epochs: float = 3.0,
        max_steps: int = -1,
        warmup_steps: float = 0,
        *,
        warmup_ratio: float | None = None,
    ) -> Self:
        """The schedule and its length; `warmup_ratio` is the older spelling of a `warmup_steps` below 1."""
        values = {"lr_scheduler_type": name, "num_train_epochs": num_epochs, "max_steps": max_steps}
        warmup = {"warmup_steps": warmup_steps} if warmup_ratio is None else {"warmup_ratio": warmup_ratio}
        return self._set({**values, **warmup})

    def set_dataloader(
        self,
        train_batch_size: int = 8,
        eval_batch_size: int = 8,
        drop_last: bool = False,
        num_workers: int = 0,
        pin_memory: bool = True,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        multiprocessing_context: str | None = None,
        in_order: bool = True,
        auto_find_batch_size: bool = False,
        ignore_data_skip: bool = False,
        sampler_seed: int | None = None,
    ) -> Self:
        """Batches and loader processes."""
        return self._set(
            {
                "per_device_train_batch_size": train_batch_size,
                "per_device_eval_batch_size": eval_batch_size,
                "dataloader_drop_last": drop_last,
                "dataloader_num_workers": num_workers,
                "dataloader_pin_memory": pin_memory,
                "dataloader_persistent_workers": persistent_workers,
                "dataloader_prefetch_factor": prefetch_factor,
                "dataloader_multiprocessing_context": multiprocessing_context,
                "dataloader_in_order": in_order,
                "auto_find_batch_size": auto_find_batch_size,
                "ignore_data_skip": ignore_data_skip,
                "data_seed": sampler_seed,
            }
        )
