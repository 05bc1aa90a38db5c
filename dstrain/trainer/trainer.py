"""The facade: wires a plan to an engine, a loop, callbacks and checkpoints, under the names that users know."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dstrain import dist
from dstrain.args.training import TrainingArguments
from dstrain.backends.base import Backend, Batch, Output
from dstrain.checkpoint import CheckpointStore, export, rng
from dstrain.checkpoint.store import read_document
from dstrain.core import atomic
from dstrain.core.errors import DataError
from dstrain.data.columns import accepted_columns, without_unused
from dstrain.data.loader import Collate, RowLoader, StreamWindows, TrainWindows, default_collate
from dstrain.data.order import Split, eval_shares
from dstrain.loop import evaluate as evaluation
from dstrain.loop import loss as losses
from dstrain.loop import preempt
from dstrain.loop.events import CallbackHandler, FlowCallback
from dstrain.loop.shift import ShiftProbe
from dstrain.loop.state import NAME as STATE_NAME
from dstrain.loop.state import TrainerControl, TrainerState
from dstrain.loop.train import Meter, TrainRun, emit, train
from dstrain.report import Console, MetricsFile
from dstrain.trainer import errors, folder, lock, orphans, process, stateful, wiring
from dstrain.trainer.callbacks import ReportCallback
from dstrain.trainer.facts import rows_of
from dstrain.trainer.outputs import EvalPrediction, PredictionOutput, TrainOutput
from dstrain.trainer.seeding import seed_rank


class Trainer:
    """Trains, evaluates and exports a model.

    Args:
        model: any module that returns a loss (in a mapping, an object or a tuple) when labels are among its inputs.
        args: the arguments of the run; defaults when not given.
        data_collator: makes a batch of a list of rows; by default equal shapes are stacked.
        train_dataset: rows by index, or a stream without length (then `max_steps` is needed).
        eval_dataset: rows by index.
        compute_metrics: from an `EvalPrediction` of all rows to metrics by name.
        callbacks: objects with methods named as `dstrain.loop.events.EVENTS`.

    Raises:
        PlanError: the run cannot start; every reason, with its place and its mend.
    """

    def __init__(
        self,
        model: nn.Module,
        args: TrainingArguments | None = None,
        data_collator: Collate | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: list[Any] | None = None,
    ) -> None:
        errors.install()
        self.args = args if args is not None else TrainingArguments()
        self.model, self.train_dataset, self.eval_dataset = model, train_dataset, eval_dataset
        self.compute_metrics = compute_metrics
        self._planned = wiring.plan_run(self.args, model, train_dataset, eval_dataset)
        self.plan = self._planned.plan
        accepted = accepted_columns(model.forward) if self.args.remove_unused_columns else None
        self.data_collator = without_unused(data_collator or default_collate, accepted)
        self._label_names = tuple(self.args.label_names or ("labels", "label", "label_ids"))
        self._main = self.plan.world.rank == 0
        orphans.watch(self.plan.world)
        process.set_log_levels(self.args)
        process.check_model(self.plan.process, model)
        shown, total = self.args.should_log, self.plan.length.max_steps
        self._console = Console(enabled=shown, bar=_bar(self.args.disable_tqdm), total=total)
        self._store = CheckpointStore(Path(self.plan.output_dir))
        self._backend: Backend | None = None
        self._shift: ShiftProbe | None = None
        self.state = self._fresh_state()
        self.control = TrainerControl()
        self._meter = Meter(skip_nonfinite=self.plan.report.skip_nonfinite)
        own = [FlowCallback(self.plan.report), self._report_callback(), *process.callbacks(self.plan)]
        self.callback_handler = CallbackHandler([*own, *(callbacks or [])], self.args, self.state, self.control)
        self.callback_handler.extras = {"model": model}
        self.callback_handler.fire("on_init_end")

    # --- what users call ---------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: bool | str | None = None) -> TrainOutput:
        """Train to the plan's last step, from the beginning or from a checkpoint.

        Args:
            resume_from_checkpoint: wins over the argument of the same name; see there.

        Raises:
            CheckpointError: what to go on from is not there, not whole, or of another run.
            SystemExit: 143, after SIGTERM or SIGUSR1 to any rank: all have saved at the same step.
        """
        if self.train_dataset is None:
            raise DataError("there is no training dataset", fix="Trainer(…, train_dataset=…)")
        backend = self._prepared()
        with lock.held(self._store.folder), process.held(self.plan.process):
            return self._train(backend, resume_from_checkpoint)

    def _train(self, backend: Backend, resume_from_checkpoint: bool | str | None) -> TrainOutput:
        asked = self.args.resume_from_checkpoint if resume_from_checkpoint is None else resume_from_checkpoint
        checkpoint, notes = folder.choose(self._store, self.args, asked, self.plan)
        for note in notes:
            self._console.note(note)
        self._store.sweep()
        if checkpoint is None:
            seed_rank(self.plan.loader.seed, dist.rank())
        else:
            self._resume(backend, checkpoint)
        self._write_plan()
        first_step, begin = self.state.global_step, time.perf_counter()
        first_token = self.state.num_input_tokens_seen
        run = self._run(backend)
        try:
            with preempt.listening():
                self.control = train(run)
        finally:
            self._console.end()
        self._finish()
        if run.preempted:
            self._console.note(f"ended at step {self.state.global_step} because a rank was asked to; the run can go on")
            raise SystemExit(preempt.EXIT_CODE)
        seconds = time.perf_counter() - begin
        steps = self.state.global_step - first_step
        meter = self._meter
        loss = meter.total_loss / meter.total_steps if meter.total_steps else 0.0
        metrics = {
            "train_runtime": seconds,
            "train_steps_per_second": steps / seconds,
            "train_samples_per_second": steps * self.plan.batch.global_rows / seconds,
            "train_loss": loss,
            "epoch": self.state.epoch or 0.0,
        }
        if self.plan.report.count_tokens != "no":
            metrics["train_tokens_per_second"] = (self.state.num_input_tokens_seen - first_token) / seconds
        return TrainOutput(self.state.global_step, loss, metrics)

    def evaluate(self, eval_dataset: Any = None, *, metric_key_prefix: str = "eval") -> dict[str, float]:
        """Run the evaluation rows once, log and return the metrics.

        `eval_loss` is the mean over all label tokens (or rows) of the dataset, whatever the batch size and the number
        of ranks. Neither the random state nor the training mode is disturbed.
        """
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        result = self._evaluation(dataset, keep=self.compute_metrics is not None)
        metrics = self._metrics(result, metric_key_prefix)
        emit(self.callback_handler, self.state, metrics)
        self.callback_handler.fire("on_evaluate", metrics=metrics)
        return metrics

    def predict(self, test_dataset: Any, *, metric_key_prefix: str = "test") -> PredictionOutput:
        """Outputs and labels of every row, in order, on every rank; rows of different lengths are padded with -100."""
        result = self._evaluation(test_dataset, keep=True)
        metrics = self._metrics(result, metric_key_prefix)
        self.callback_handler.fire("on_predict", metrics=metrics)
        return PredictionOutput(result.predictions, result.label_ids, metrics)

    def save_model(self, output_dir: str | None = None) -> Path:
        """Write `model.safetensors` and `config.json`: the whole model, from every ZeRO stage. Collective."""
        backend = self._prepared()
        return export.save_model(backend.weights(), self.model, Path(output_dir or self.plan.output_dir))

    def save_state(self) -> None:
        """Write `trainer_state.json` into the output folder."""
        if self._main:
            self.state.save_to_json(self._store.folder / STATE_NAME)

    def log(self, logs: dict[str, Any]) -> None:
        """Add a record to the history and to all sinks."""
        emit(self.callback_handler, self.state, logs)

    def add_callback(self, callback: Any) -> None:
        """Add a callback (an object or a class)."""
        self.callback_handler.callbacks.append(callback() if isinstance(callback, type) else callback)

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0."""
        return self._main

    # --- wiring ------------------------------------------------------------------------------------------------------

    def _prepared(self) -> Backend:
        if self._backend is None:
            if self._main:
                for notice in self.plan.notices:
                    self._console.note(notice)
            process.recompute(self.plan.process, self.model)
            self._backend, self.model = wiring.start_backend(self._planned, self.model, self.args.ddp_timeout)
            self._shift = ShiftProbe(self._backend, self._label_names)
        return self._backend

    def _run(self, backend: Backend) -> TrainRun:
        return TrainRun(
            backend=backend,
            plan=self.plan,
            windows=self._windows(),
            events=self.callback_handler,
            state=self.state,
            compute_loss=self._compute_loss,
            weigh=self._weigh,
            look=self._look,
            evaluate=self.evaluate,
            save=self._save,
            meter=self._meter,
        )

    def _windows(self) -> TrainWindows | StreamWindows:
        b = self.plan.batch
        split = Split(b.micro_rows, b.accumulation, self.plan.world.world_size)
        kind = StreamWindows if rows_of(self.train_dataset) is None else TrainWindows
        return kind(self.train_dataset, split, self.plan.world.rank, self.plan.loader, self.data_collator)

    def _compute_loss(self, batch: Batch) -> tuple[Tensor, Output]:
        output = self._prepared().forward(batch)
        return losses.loss_of(output), output

    def _weigh(self, batch: Batch) -> int:
        return losses.weight_of(batch, self._label_names, shifted=bool(self._shift and self._shift.shifted))

    def _look(self, batch: Batch) -> None:
        if self._shift is not None:
            self._shift.look(batch)

    def _evaluation(self, dataset: Any, *, keep: bool) -> evaluation.EvalResult:
        rows = rows_of(dataset)
        if rows is None:
            what = "there is no evaluation dataset" if dataset is None else "the evaluation dataset has no length"
            raise DataError(what, fix="pass a dataset with __len__ and __getitem__")
        backend = self._prepared()
        world = self.plan.world
        with rng.kept(), process.held(self.plan.process):
            shares = eval_shares(rows, self.plan.batch.eval_rows, world.world_size, world.rank)
            micros = RowLoader(dataset, self.plan.loader, self.data_collator).batches(shares)
            keep = keep and not self.args.prediction_loss_only
            run = evaluation.EvalRun(
                backend, micros, self.callback_handler, self._label_names, self._weigh, self._look, keep
            )
            return evaluation.evaluate(run)

    def _metrics(self, result: evaluation.EvalResult, prefix: str) -> dict[str, float]:
        metrics: dict[str, float] = {}
        if result.loss is not None:
            metrics[f"{prefix}_loss"] = result.loss
        if self.compute_metrics is not None and result.predictions is not None and result.rows:
            own = self.compute_metrics(EvalPrediction(result.predictions, result.label_ids))
            metrics |= {key if key.startswith(f"{prefix}_") else f"{prefix}_{key}": own[key] for key in own}
        metrics[f"{prefix}_samples"] = result.rows
        metrics[f"{prefix}_runtime"] = round(result.seconds, 4)
        metrics[f"{prefix}_samples_per_second"] = round(result.rows / max(result.seconds, 1e-9), 3)
        return metrics

    # --- state and checkpoints ---------------------------------------------------------------------------------------

    def _fresh_state(self) -> TrainerState:
        report = self.plan.report
        return TrainerState(
            max_steps=self.plan.length.max_steps,
            num_train_epochs=self.plan.length.epochs,
            train_batch_size=self.plan.batch.micro_rows,
            logging_steps=report.logging.steps,
            eval_steps=report.evaluation.steps,
            save_steps=report.saving.steps,
            is_local_process_zero=self.plan.world.local_rank == 0,
            is_world_process_zero=self.plan.world.rank == 0,
        )

    def _save(self) -> None:
        self.state.stateful_callbacks = stateful.collect(self.callback_handler.callbacks)
        documents = {
            STATE_NAME: self.state.to_dict(),
            "plan.json": self.plan.as_json(),
            "config.json": export.config_of(self.model),
        }
        alone = self.plan.report.save_only_model
        facts = {"identity": self.plan.identity(), "world_size": dist.world_size(), "only_model": alone}
        write = self._write_model if alone else self._prepared().save
        self._store.save(self.state.global_step, write, documents, facts)
        self._store.prune(self.plan.report.save_total_limit)

    def _write_model(self, target: Path) -> None:
        export.save_model(self._prepared().weights(), self.model, target)

    def _resume(self, backend: Backend, checkpoint: Path) -> None:
        backend.load(checkpoint)
        saved = TrainerState.from_dict(read_document(checkpoint, STATE_NAME))
        fresh = self._fresh_state()
        names = ("epoch", "global_step", "log_history", "skipped_steps", "epoch_index", "step_in_epoch")
        for name in (*names, "num_input_tokens_seen"):
            setattr(fresh, name, getattr(saved, name))
        self._adopt(fresh)
        if self.args.restore_callback_states_from_checkpoint:
            for note in stateful.restore(self.callback_handler.callbacks, saved.stateful_callbacks):
                self._console.note(note)
        rng.load(checkpoint, dist.rank())
        self._console.note(f"resuming from {checkpoint} at step {fresh.global_step} of {fresh.max_steps}")

    def _adopt(self, state: TrainerState) -> None:
        self.state = self.callback_handler.state = state

    def _write_plan(self) -> None:
        if self._main:
            atomic.write_json(self._store.folder / "plan.json", self.plan.as_json())

    def _finish(self) -> None:
        self._meter.take()  # steps after the last log count in the mean of the run
        self.save_state()

    def _report_callback(self) -> ReportCallback:
        metrics = MetricsFile(Path(self.plan.output_dir)) if self._main else None
        return ReportCallback(self._console, metrics, self._meter)


def _bar(disable: bool | None) -> bool | None:
    return None if disable is None else not disable
