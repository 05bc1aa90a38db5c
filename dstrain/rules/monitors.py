"""DS75x: printing, monitors, profilers and the autotuner."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import flag, hit, integer, number, put

_B = {"train_micro_batch_size_per_gpu": 1}
_MONITORS = ("tensorboard", "wandb", "csv_monitor", "comet")


@rule(
    "DS750",
    Severity.ERROR,
    "steps_per_print is not a positive number",
    fires={**_B, "steps_per_print": 0},
    quiet={**_B, "steps_per_print": 10},
)
def steps_per_print(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`steps_per_print` is a divisor (`runtime/engine.py:3554`): 0 is a ZeroDivisionError after the first step.

    Text is a TypeError there. Leave it out to print nothing. accelerate and dstrain overwrite it.
    """
    value = doc.get("steps_per_print")
    if value is None or mode is not Mode.DEEPSPEED or isinstance(value, bool):
        return
    if isinstance(value, str) or (number(value) is not None and number(value) == 0):
        key = "steps_per_print"
        yield hit(
            key, f"steps_per_print is {value!r}; expected a number of steps from 1", "leave it out", put(doc, key, None)
        )


@rule(
    "DS751",
    Severity.ADVICE,
    "Measuring slows the run",
    fires={**_B, "wall_clock_breakdown": True},
    quiet={**_B, "wall_clock_breakdown": False},
)
def breakdown(doc: Document) -> Iterator[Hit]:
    """`wall_clock_breakdown`, `memory_breakdown` and the flops profiler wait for the device at every step.

    The profiler switches `wall_clock_breakdown` on for the whole run, not only at `profile_step`
    (`runtime/config.py:533`).
    """
    for key in ("wall_clock_breakdown", "memory_breakdown", "flops_profiler.enabled"):
        if flag(doc.get(key)) is True:
            last = key.rpartition(".")[2]
            yield hit(key, f"{key} is on: each step waits for the device", f'"{last}": false once you have measured')


@rule(
    "DS752",
    Severity.ADVICE,
    "DeepSpeed's monitors do not log the loss",
    fires={**_B, "tensorboard": {"enabled": True}},
    quiet={**_B, "tensorboard": {"enabled": False}},
)
def monitors(doc: Document) -> Iterator[Hit]:
    """The engine writes lr and loss scale per step, and no loss any more (`runtime/engine.py:3630`).

    Use the trainer's own reporting for the loss.
    """
    for name in _MONITORS:
        if flag(doc.section(name).get("enabled")) is True:
            yield hit(f"{name}.enabled", f"{name} of DeepSpeed logs lr and loss scale only", "report_to of the trainer")


@rule(
    "DS753",
    Severity.ADVICE,
    "autotuning acts only under `deepspeed --autotuning`",
    fires={**_B, "autotuning": {"enabled": True}},
    quiet={**_B, "autotuning": {"enabled": False}},
)
def autotuning(doc: Document) -> Iterator[Hit]:
    """The launcher reads the section, and only when started with `--autotuning tune` or `--autotuning run`."""
    if flag(doc.section("autotuning").get("enabled")) is True:
        yield hit(
            "autotuning.enabled", "autotuning has no effect in a normal start", "deepspeed --autotuning run train.py"
        )


@rule(
    "DS754",
    Severity.ADVICE,
    "vocabulary_size is not a multiple of 8",
    fires={**_B, "vocabulary_size": 50257},
    quiet={**_B, "vocabulary_size": 50264},
)
def vocabulary(doc: Document) -> Iterator[Hit]:
    """Matrix units want sizes that are multiples of 8; DeepSpeed logs a warning (`runtime/config.py:719`).

    The key changes nothing in the model: pad the embedding there.
    """
    size = integer(doc.get("vocabulary_size"))
    if size is not None and size > 0 and size % 8:
        yield hit(
            "vocabulary_size", f"vocabulary_size {size} is not a multiple of 8", f"pad the model to {-(-size // 8) * 8}"
        )


@rule(
    "DS755",
    Severity.WARNING,
    "comms_logger.prof_all hides prof_ops",
    fires={**_B, "comms_logger": {"enabled": True, "prof_ops": ["all_reduce"]}},
    quiet={**_B, "comms_logger": {"enabled": True, "prof_all": False, "prof_ops": ["all_reduce"]}},
)
def comms(doc: Document) -> Iterator[Hit]:
    """`prof_ops` selects operations only when `prof_all`, on by default, is off."""
    section = doc.section("comms_logger")
    if flag(section.get("enabled")) is True and section.get("prof_ops") and flag(section.get("prof_all", True)):
        key = "comms_logger.prof_all"
        yield hit(
            key, "comms_logger.prof_all is on, so prof_ops has no effect", '"prof_all": false', put(doc, key, False)
        )


@rule(
    "DS756",
    Severity.WARNING,
    "Different checkpoint tags across ranks go unseen",
    fires={**_B, "checkpoint": {"tag_validation": "Ignore"}},
    quiet={**_B, "checkpoint": {"tag_validation": "Warn"}},
)
def tag_validation(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With "Ignore", ranks that save under different tags write a checkpoint that no load can put together.

    "Warn", the default, compares the tags and says so; "Fail" stops.
    """
    value = doc.get("checkpoint.tag_validation")
    if mode is not Mode.DSTRAIN and isinstance(value, str) and value.upper() == "IGNORE":
        key = "checkpoint.tag_validation"
        yield hit(
            key, 'tag_validation is "Ignore": different tags across ranks go unseen', '"Warn"', put(doc, key, "Warn")
        )
