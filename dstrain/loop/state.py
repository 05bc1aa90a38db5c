"""What a run knows of itself, with the names that tools of transformers read in `trainer_state.json`."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dstrain.core import atomic

NAME = "trainer_state.json"


@dataclass
class TrainerState:
    """Progress of a run; saved with every checkpoint. Steps are optimizer steps."""

    epoch: float | None = None
    global_step: int = 0
    max_steps: int = 0
    logging_steps: int | None = None
    eval_steps: int | None = None
    save_steps: int | None = None
    train_batch_size: int | None = None
    num_train_epochs: float = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, Any]] = field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    stateful_callbacks: dict[str, Any] = field(default_factory=dict)
    skipped_steps: int = 0
    epoch_index: int = 0
    step_in_epoch: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainerState:
        """The reverse; keys of other versions are left out."""
        known = {item.name for item in dataclasses.fields(cls)}
        return cls(**{key: value for key, value in values.items() if key in known})

    def save_to_json(self, json_path: str | Path) -> None:
        """Write `trainer_state.json`."""
        atomic.write_json(Path(json_path), self.to_dict())

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        """Read `trainer_state.json`."""
        return cls.from_dict(json.loads(Path(json_path).read_text()))


@dataclass
class TrainerControl:
    """What callbacks ask of the loop; each wish is reset once it has been met."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False
