"""DS2xx: batch sizes, accumulation and the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.facts import DataFacts, Mode, WorldFacts
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import drop, flag, hit, integer, is_auto, number, put, stage, unread, zero_flag

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_SP, _DP = "sequence_parallel_size", "data_parallel_size"


def data_parallel(doc: Document, world: WorldFacts) -> int | None:
    """The ranks that see different rows, as `DeepSpeedConfig.__init__` counts them; None when they do not divide."""
    sequence = integer(doc.get(_SP, 1))
    if sequence is None or sequence < 1 or world.world_size % sequence:
        return None
    data = integer(doc.get(_DP))
    return data if data and doc.has(_SP) else world.world_size // sequence


def _positive(doc: Document, key: str) -> int | None:
    value = integer(doc.get(key))
    return value if value is not None and value > 0 else None


@rule(
    "DS201",
    Severity.ERROR,
    "The batch numbers do not multiply out",
    fires={TRAIN: 10, MICRO: 4},
    quiet={TRAIN: 12, MICRO: 4},
)
def batch_equation(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """DeepSpeed requires `train_batch_size = micro-batch x accumulation steps x data-parallel ranks`.

    Where one of the three is missing it is derived with integer division (`runtime/config.py:607`), so a remainder
    shows up as a failed assertion of the equation (`runtime/config.py:602`), with numbers that nobody wrote. Change
    one of the numbers, or leave one out (or write "auto" for a trainer that fills it).
    """
    ranks = data_parallel(doc, world)
    train, micro, steps = _positive(doc, TRAIN), _positive(doc, MICRO), _positive(doc, STEPS)
    if ranks is None or train is None or (micro is None and steps is None):
        if ranks and train and not is_auto(doc.get(MICRO)) and doc.get(MICRO) is None and train % ranks:
            yield _remainder(train, {"ranks": ranks})
        return
    if micro is not None and steps is not None:
        if train != micro * steps * ranks:
            product = micro * steps * ranks
            yield hit(
                TRAIN,
                f"{TRAIN} is {train}, but micro-batch {micro} x accumulation steps {steps} x {ranks} data-parallel "
                f"rank(s) = {product} (remainder {train % product})",
                f'"{TRAIN}": {product}, or leave it out and it is derived',
                put(doc, TRAIN, product),
            )
        return
    factors = {"micro-batch": micro} if micro is not None else {"accumulation steps": steps or 1}
    if train % (ranks * next(iter(factors.values()))):
        yield _remainder(train, {**factors, "data-parallel ranks": ranks})


def _remainder(train: int, factors: dict[str, int]) -> Hit:
    product = 1
    for factor in factors.values():
        product *= factor
    text = " x ".join(f"{name} {value}" for name, value in factors.items())
    down, up = train // product * product, -(-train // product) * product
    choices = f"{down} or {up}" if down else f"{up}"
    message = f"{TRAIN} {train} is not a multiple of {text} = {product}: the remainder is {train % product}"
    return hit(TRAIN, message, f'"{TRAIN}": {choices}')


@rule(
    "DS202",
    Severity.ERROR,
    "No batch size",
    fires={STEPS: 4},
    quiet={MICRO: 1, STEPS: 4},
)
def batch_missing(doc: Document, mode: Mode) -> Iterator[Hit]:
    """Neither `train_batch_size` nor `train_micro_batch_size_per_gpu` is given, and DeepSpeed needs one of them.

    It asserts so in `runtime/config.py:649`; accumulation steps alone are not enough. transformers fills these keys
    only where they are written as "auto", so a key that is left out stays out. dstrain fills them either way.
    """
    if mode is Mode.DSTRAIN or unread(doc):
        return
    if doc.get(TRAIN) is None and doc.get(MICRO) is None:
        value = '"auto"' if mode is Mode.TRANSFORMERS else "1"
        patch = "auto" if mode is Mode.TRANSFORMERS else 1
        yield hit(
            MICRO,
            f"neither {TRAIN} nor {MICRO} is given; DeepSpeed needs at least one",
            f'"{MICRO}": {value}',
            put(doc, MICRO, patch),
        )


@rule(
    "DS203",
    Severity.ERROR,
    "A batch number that is not positive",
    fires={MICRO: 0},
    quiet={MICRO: 1},
)
def batch_positive(doc: Document) -> Iterator[Hit]:
    """Batch sizes and accumulation steps count rows and micro-batches: whole numbers, one at least.

    DeepSpeed asserts that each is positive (`runtime/config.py:596`), but takes a fraction in silence: with 1.5 it
    trains on and counts `global_samples` in halves.
    """
    for key in (TRAIN, MICRO, STEPS):
        value = number(doc.get(key))
        if value is not None and (value <= 0 or value != int(value)):
            yield hit(key, f"{key} is {value}; expected a whole number from 1", f'"{key}": {max(1, int(value))}')


@rule(
    "DS204",
    Severity.ERROR,
    "The ranks do not divide by the parallel size",
    fires={MICRO: 1, _SP: 3, "$facts": {"world_size": 8}},
    quiet={MICRO: 1, _SP: 4, "$facts": {"world_size": 8}},
)
def parallel_divides(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """Sequence, tensor and expert parallel sizes must divide the number of ranks.

    For sequence parallelism DeepSpeed divides with `/` and does not check (`runtime/config.py:469`): 8 ranks by 3
    gives 2.67 data-parallel ranks and a fractional batch. Tensor and expert parallel groups fail when they are built.
    """
    for key in (_SP, "tensor_parallel.autotp_size", "expert_parallel.autoep_size"):
        size = integer(doc.get(key))
        if size is None or (key.startswith("expert") and flag(doc.get("expert_parallel.enabled")) is not True):
            continue
        if size < 0 or (size == 0 and key == _SP):
            yield hit(key, f"{key} is {size}; expected a whole number from 1", f'"{key.split(".")[-1]}": 1')
        elif size > 1 and world.world_size % size:
            yield hit(
                key,
                f"{key} is {size}, which does not divide the {world.world_size} rank(s) of this run "
                f"(remainder {world.world_size % size})",
                f"a size that divides {world.world_size}, or another number of ranks",
            )


@rule(
    "DS205",
    Severity.ERROR,
    "data_parallel_size x sequence_parallel_size is not the number of ranks",
    fires={MICRO: 1, _SP: 2, _DP: 2, "$facts": {"world_size": 8}},
    quiet={MICRO: 1, _SP: 2, _DP: 4, "$facts": {"world_size": 8}},
)
def mesh_size(doc: Document, world: WorldFacts) -> Iterator[Hit]:
    """With both sizes given, `deepspeed.initialize` builds a two-dimensional mesh of ranks (`__init__.py:543`).

    The mesh has to hold every rank exactly once. With `data_parallel_size` alone the key is not read at all.
    """
    data, sequence = integer(doc.get(_DP)), integer(doc.get(_SP))
    if data is None:
        return
    if sequence is None:
        if not doc.has(_SP):
            yield Hit(
                _DP,
                f"{_DP} {data} has no effect without {_SP}",
                f"leave {_DP} out",
                (drop(_DP),),
                severity=Severity.WARNING,
            )
    elif data * sequence != world.world_size:
        yield hit(
            _DP,
            f"{_DP} {data} x {_SP} {sequence} = {data * sequence}, but there are {world.world_size} rank(s)",
            f'"{_DP}": {max(1, world.world_size // max(1, sequence))}, or leave {_DP} out',
        )


@rule(
    "DS206",
    Severity.WARNING,
    "managed_gradient_accumulation off still divides the loss",
    fires={MICRO: 1, STEPS: 4, "managed_gradient_accumulation": False},
    quiet={MICRO: 1, STEPS: 1, "managed_gradient_accumulation": False},
)
def unmanaged_accumulation(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With `managed_gradient_accumulation: false` the loop owns the boundary, but `engine.backward` still divides.

    The loss is divided by the accumulation steps (`runtime/engine.py:2895`), so a loop that also divides trains on
    gradients that are too small by that factor. Pass `engine.backward(loss, scale_wrt_gas=False)`, or set the steps
    to 1. dstrain passes it.
    """
    steps = integer(doc.get(STEPS))
    if mode is Mode.DEEPSPEED and flag(doc.get("managed_gradient_accumulation")) is False and steps and steps > 1:
        yield hit(
            "managed_gradient_accumulation",
            f"managed_gradient_accumulation is false, yet engine.backward still divides the loss by {STEPS} = {steps}",
            f'"{STEPS}": 1, or engine.backward(loss, scale_wrt_gas=False)',
        )


@rule(
    "DS207",
    Severity.ERROR,
    "managed_gradient_accumulation off does not go with this",
    fires={
        MICRO: 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": {"stage": 1, "overlap_comm": True},
    },
    quiet={
        MICRO: 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    },
)
def unmanaged_overlap(doc: Document) -> Iterator[Hit]:
    """`managed_gradient_accumulation: false` takes `overlap_comm` from stage 2 on only, and no DeepCompile.

    DeepSpeed asserts this when the engine starts (`runtime/engine.py:2030`), long after the model has been built.
    """
    if flag(doc.get("managed_gradient_accumulation")) is not False:
        return
    at = stage(doc)
    # zero_optimization_partition_gradients() is true from stage 2 on, so the assertion only bites at stage 0 and 1.
    if at in (0, 1) and zero_flag(doc, "overlap_comm", False):
        yield hit(
            "zero_optimization.overlap_comm",
            f"overlap_comm with managed_gradient_accumulation false is refused at ZeRO stage {at}",
            '"overlap_comm": false',
            put(doc, "zero_optimization.overlap_comm", False),
        )
    if flag(doc.get("compile.deepcompile")) is True:
        yield hit(
            "compile.deepcompile",
            "managed_gradient_accumulation false is not supported with DeepCompile",
            '"managed_gradient_accumulation": true',
            put(doc, "managed_gradient_accumulation", True),
        )


@rule(
    "DS208",
    Severity.WARNING,
    "Accumulation steps left out mean 1 to accelerate",
    fires={TRAIN: 32, MICRO: 4, "$facts": {"mode": "transformers", "world_size": 2}},
    quiet={TRAIN: 32, MICRO: 4, STEPS: "auto", "$facts": {"mode": "transformers", "world_size": 2}},
)
def accumulation_left_out(doc: Document, mode: Mode, world: WorldFacts) -> Iterator[Hit]:
    """Plain DeepSpeed derives missing accumulation steps; accelerate writes 1 into the configuration first.

    So `{train_batch_size: 32, micro-batch 4}` on 2 ranks is 4 steps in DeepSpeed, and a failed batch equation under
    transformers (accelerate 1.15, `DeepSpeedPlugin.__post_init__`). Write the steps, or "auto".
    """
    train, micro, ranks = _positive(doc, TRAIN), _positive(doc, MICRO), data_parallel(doc, world)
    if mode is not Mode.TRANSFORMERS or doc.has(STEPS) or not (train and micro and ranks):
        return
    if train != micro * ranks and train % (micro * ranks) == 0:
        steps = train // (micro * ranks)
        yield hit(
            STEPS,
            f"{STEPS} is left out; accelerate writes 1, and {train} is not micro-batch {micro} x 1 x {ranks} rank(s)",
            f'"{STEPS}": {steps}',
            put(doc, STEPS, steps),
        )


@rule(
    "DS209",
    Severity.WARNING,
    "Fewer rows than one optimizer step needs",
    fires={TRAIN: 64, "$facts": {"train_rows": 10}},
    quiet={TRAIN: 8, "$facts": {"train_rows": 10}},
)
def rows_per_step(doc: Document, data: DataFacts, mode: Mode) -> Iterator[Hit]:
    """DeepSpeed steps the optimizer after a full set of micro-batches only, across epochs (`runtime/engine.py:3611`).

    With fewer rows than `train_batch_size`, the first step waits for the second epoch, and a run of one epoch never
    steps. The micro-batches left at the end of any epoch leak into the next one. dstrain closes the window at the
    end of an epoch.
    """
    train = _positive(doc, TRAIN)
    rows = data.train_rows
    if mode is Mode.DEEPSPEED and train and rows is not None and rows < train:
        yield hit(
            TRAIN,
            f"{TRAIN} is {train}, but there are only {rows} training rows: an epoch holds no whole optimizer step",
            f'"{TRAIN}": {max(1, rows)} or less',
        )
