"""DS101 to DS115: single keys and their values, as `dsconfig/check.py` finds them in one walk."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.check import Kind, hits
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule

_B = {"train_micro_batch_size_per_gpu": 1}


@rule(
    "DS101",
    Severity.ERROR,
    "DeepSpeed does not know this key",
    fires={**_B, "zero_optimisation": {"stage": 2}},
    quiet={**_B, "zero_optimization": {"stage": 2}},
)
def unknown_key(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key that DeepSpeed 0.19.8 does not read.

    Inside `zero_optimization`, `bf16`, `fp16` and the other sections that DeepSpeed declares as pydantic models, such a
    key stops the run. Everywhere else, at the top level too, it is ignored in silence: a misspelt section is a feature
    that is off. That is an error when the name is near a known one, and a warning otherwise.
    """
    return hits(doc, mode, Kind.UNKNOWN)


@rule(
    "DS102",
    Severity.ERROR,
    "The key belongs in another section",
    fires={**_B, "offload_optimizer": {"device": "cpu"}, "zero_optimization": {"stage": 2}},
    quiet={**_B, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
)
def misplaced_key(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key with a meaning, but not where it stands.

    DeepSpeed 0.19.8 looks for each key in one section only. Elsewhere it is unknown: ignored in silence, or rejected
    where the section is a pydantic model.
    """
    return hits(doc, mode, Kind.MISPLACED)


@rule(
    "DS103",
    Severity.ERROR,
    "The feature was removed from DeepSpeed",
    fires={**_B, "amp": {"enabled": False}},
    quiet={**_B, "bf16": {"enabled": True}},
)
def removed_key(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key of a feature that DeepSpeed 0.19 removed.

    The file is rejected with a DeepSpeedConfigError even where the section says `"enabled": false`, which many old
    files carry along.
    """
    return hits(doc, mode, Kind.REMOVED)


@rule(
    "DS104",
    Severity.WARNING,
    "The key is deprecated",
    fires={**_B, "zero_optimization": {"stage": 2, "cpu_offload": True}},
    quiet={**_B, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
)
def deprecated_key(doc: Document, mode: Mode) -> Iterator[Hit]:
    """An old name or form that DeepSpeed 0.19.8 still reads, with a warning in the log.

    The patch writes the form of today with the same effect.
    """
    return hits(doc, mode, Kind.DEPRECATED)


@rule(
    "DS105",
    Severity.ERROR,
    "The value has the wrong type",
    fires={**_B, "zero_optimization": {"stage": 2, "reduce_bucket_size": 0.5}},
    quiet={**_B, "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8}},
)
def wrong_type(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A value that cannot be read as what the key holds.

    pydantic sections of DeepSpeed 0.19.8 reject it; elsewhere it is carried along unchecked and fails later, often as a
    bare TypeError in the middle of the engine. `true` is no number here, although DeepSpeed reads it as 1.
    """
    return hits(doc, mode, Kind.TYPE)


@rule(
    "DS106",
    Severity.ERROR,
    "The value is written in another form than DeepSpeed reads",
    fires={**_B, "zero_optimization": {"stage": 2, "reduce_bucket_size": "5e8"}},
    quiet={**_B, "zero_optimization": {"stage": 2, "reduce_bucket_size": "500000000"}},
)
def other_form(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A number or a truth value as text, a word in another case, an integer as a float.

    What is meant is clear, but DeepSpeed 0.19.8 fails on it or takes it for something else in this place: `"5e8"` is
    rejected where an integer is due, `"4"` is a TypeError at the top level, `"false"` counts as true in plain sections.
    For dstrain a number in another form is advice only: it writes the file that DeepSpeed gets, and writes the number.
    """
    return hits(doc, mode, Kind.TEXT)


@rule(
    "DS107",
    Severity.ERROR,
    "The value is not allowed",
    fires={**_B, "zero_optimization": {"stage": 4}},
    quiet={**_B, "zero_optimization": {"stage": 3}},
)
def not_allowed(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A number out of its range, or a word that is none of the allowed ones.

    A warning only where the section is switched off, since DeepSpeed 0.19.8 then does not use the value.
    """
    return hits(doc, mode, Kind.RANGE)


@rule(
    "DS108",
    Severity.ERROR,
    "The value is null",
    fires={**_B, "zero_optimization": None},
    quiet={**_B, "zero_optimization": {"stage": 0}},
)
def null_value(doc: Document, mode: Mode) -> Iterator[Hit]:
    """`null` where DeepSpeed 0.19.8 cannot take it.

    A key that is left out has its default. A key that is null has the value None, and most sections and numbers fail on
    that with a TypeError or an AttributeError. A switch that is null counts as false.
    """
    return hits(doc, mode, Kind.NULL)


@rule(
    "DS109",
    Severity.ERROR,
    "A section is no mapping",
    fires={**_B, "bf16": True},
    quiet={**_B, "bf16": {"enabled": True}},
)
def no_section(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A bare value in the place of a section.

    DeepSpeed 0.19.8 fails with `argument after ** must be a mapping`, or with an AttributeError on `.get` or `.keys`.
    """
    return hits(doc, mode, Kind.SECTION)


@rule(
    "DS110",
    Severity.ERROR,
    '"auto" that nobody fills',
    fires={**_B, "steps_per_print": "auto", "$facts": {"mode": "transformers"}},
    quiet={"train_micro_batch_size_per_gpu": "auto", "$facts": {"mode": "transformers"}},
)
def left_over_auto(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A value "auto" that reaches DeepSpeed.

    transformers and dstrain fill "auto" for a fixed set of keys. In pydantic sections DeepSpeed 0.19.8 drops any other
    "auto", which means the default: `bf16.enabled` "auto" trains in fp32, `stage` "auto" is stage 0. Elsewhere the text
    itself is the value, and fails or misleads later.
    """
    return hits(doc, mode, Kind.AUTO)


@rule(
    "DS111",
    Severity.ADVICE,
    "The key has no effect at this ZeRO stage",
    fires={**_B, "zero_optimization": {"stage": 2, "sub_group_size": 1e9}},
    quiet={**_B, "zero_optimization": {"stage": 3, "sub_group_size": 1e9}},
)
def idle_at_stage(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key that DeepSpeed knows, reads, and does not use at this stage.

    `stage3_*` keys act at stage 3, `round_robin_gradients` and `allgather_bucket_size` at stages 1 and 2. A warning
    where the key asks for a feature (less memory, less traffic) that then is missing.
    """
    return hits(doc, mode, Kind.STAGE)


@rule(
    "DS112",
    Severity.ADVICE,
    "The key has no effect beside this setting",
    fires={**_B, "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "buffer_count": 8}}},
    quiet={**_B, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "buffer_count": 8}}},
)
def idle_beside(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key that acts only while its neighbour has a certain value, such as the buffers of NVMe offloading."""
    return hits(doc, mode, Kind.CONDITION)


@rule(
    "DS113",
    Severity.ADVICE,
    "The key is dead",
    fires={**_B, "disable_allgather": True},
    quiet={**_B, "dump_state": True},
)
def dead_key(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key that DeepSpeed 0.19.8 reads from the file and never looks at again."""
    return hits(doc, mode, Kind.DEAD)


@rule(
    "DS114",
    Severity.WARNING,
    "A comment written as a key",
    fires={**_B, "_comment": "two GPUs"},
    quiet=_B,
)
def comment_key(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A key such as `_comment` or `//`.

    DeepSpeed 0.19.8 ignores it at the top level and rejects it in pydantic sections. It reads HJSON, which has
    comments.
    """
    return hits(doc, mode, Kind.COMMENT)


@rule(
    "DS115",
    Severity.ERROR,
    "Two names of one key are both there",
    fires={**_B, "zero_optimization": {"cpu_offload": False, "offload_optimizer": {"device": "cpu"}}},
    quiet={**_B, "zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
)
def two_names(doc: Document, mode: Mode) -> Iterator[Hit]:
    """A deprecated key beside its successor, or both spellings of one field.

    DeepSpeed 0.19.8 stops with an AssertionError (whatever the old key says), rejects the second spelling, or, for
    `bfloat16` beside `bf16`, ignores the old one.
    """
    return hits(doc, mode, Kind.CLASH)
