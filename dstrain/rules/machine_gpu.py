"""HOST205 to HOST215: the cards, and which of them are visible."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Gpu, Mask, Software
from dstrain.core.units import bytes_text
from dstrain.rules.machine_view import GIB, machine, plural, seen, whole
from dstrain.rules.registry import rule

_MASK = "CUDA_VISIBLE_DEVICES"
_ORDERS = ("PCI_BUS_ID", "FASTEST_FIRST")
# The names that DeepSpeed 0.19.8 takes for DS_ACCELERATOR (`accelerator/real_accelerator.py`).
_ACCELERATORS = ("cuda", "cpu", "xpu", "npu", "mps", "hpu", "mlu", "sdaa", "supa", "klxpu")


@rule(
    "HOST205",
    Severity.ERROR,
    "The device mask names what is not there",
    fires=machine(
        environ={_MASK: "0,7"},
        mask={
            "source": f"{_MASK}=0,7",
            "problems": [[f"{_MASK}=0,7: '7' does not exist; CUDA hides it", f"export {_MASK}=0,1"]],
        },
    ),
    quiet=machine(environ={_MASK: "0,1"}, mask={"source": f"{_MASK}=0,1"}),
)
def bad_mask(mask: Mask) -> Iterator[Hit]:
    """CUDA stops reading CUDA_VISIBLE_DEVICES at the first id that does not exist, and says nothing.

    A repeated id hides every card. Indices and UUIDs (GPU-…, MIG-…) cannot be mixed.
    """
    for message, fix in mask.problems:
        yield seen(mask.source.partition("=")[0], message, fix, mask.source)


@rule(
    "HOST206",
    Severity.WARNING,
    "The device mask hides every GPU",
    fires=machine(environ={_MASK: ""}, mask={"source": f"{_MASK}=", "ids": [], "cards": []}),
    quiet=machine(environ={_MASK: "0"}, mask={"source": f"{_MASK}=0", "ids": ["0"], "cards": [{}]}),
)
def empty_mask(software: Software, gpus: tuple[Gpu, ...], mask: Mask) -> Iterator[Hit]:
    """An empty CUDA_VISIBLE_DEVICES, or -1, leaves no card; so do `none` and `void` of NVIDIA_VISIBLE_DEVICES."""
    if software.torch_cuda and gpus and mask.ids == () and not mask.problems and mask.source:
        name = mask.source.partition("=")[0]
        yield seen(
            name,
            f"{mask.source} hides {'the only card' if len(gpus) == 1 else f'all {len(gpus)} cards'} of this machine",
            f"unset {name}, or export {_MASK}=0",
            mask.source,
        )


@rule(
    "HOST207",
    Severity.WARNING,
    "The deepspeed launcher cannot read a mask of UUIDs",
    fires=machine(environ={_MASK: "GPU-0a"}, mask={"source": f"{_MASK}=GPU-0a", "ids": ["GPU-0a"], "cards": [{}]}),
    quiet=machine(environ={_MASK: "0"}, mask={"source": f"{_MASK}=0", "ids": ["0"], "cards": [{}]}),
)
def uuid_mask(mask: Mask) -> Iterator[Hit]:
    """CUDA takes UUIDs (GPU-…, MIG-…). The launcher of DeepSpeed 0.19.8 reads each entry with `int()` and stops."""
    words = [entry for entry in mask.ids or () if not entry.isdigit()]
    if not words or not mask.source.startswith(_MASK):
        return
    whole = all(entry.startswith("GPU-") for entry in words) and None not in mask.cards
    places = ",".join(str(card.index) for card in mask.known())
    yield seen(
        _MASK,
        f"{mask.source}: `deepspeed train.py` stops at {words[0]!r} (ValueError in its launcher)",
        f"export CUDA_DEVICE_ORDER=PCI_BUS_ID {_MASK}={places}"
        if whole
        else f"torchrun --nproc-per-node {len(words)} train.py",
        mask.source,
    )


@rule(
    "HOST208",
    Severity.ADVICE,
    "deepspeed --num_gpus ignores the device mask",
    fires=machine(environ={_MASK: "1"}, mask={"source": f"{_MASK}=1", "ids": ["1"], "cards": [{"index": 1}]}),
    quiet=machine(environ={_MASK: "0,1"}, mask={"source": f"{_MASK}=0,1"}),
)
def mask_is_dropped(mask: Mask) -> Iterator[Hit]:
    """The launcher of DeepSpeed 0.19.8 obeys CUDA_VISIBLE_DEVICES only when none of --num_gpus, --num_nodes, --include
    and --exclude is given, and there is no hostfile. With one of them it starts on the first cards of the machine."""
    ids = mask.ids or ()
    limits = mask.source.startswith(_MASK) and all(entry.isdigit() for entry in ids) and not mask.problems
    if limits and ids != tuple(str(place) for place in range(len(ids))):
        yield seen(
            _MASK,
            f"`deepspeed --num_gpus {len(ids)}` would use {', '.join(map(str, range(len(ids))))}, not {mask.source}",
            f"deepspeed --include localhost:{','.join(ids)} train.py (or no flag at all)",
            mask.source,
        )


@rule(
    "HOST209",
    Severity.WARNING,
    "A process sees one MIG device only",
    fires=machine(
        environ={_MASK: "MIG-1,MIG-2"},
        mask={"source": f"{_MASK}=MIG-1,MIG-2", "ids": ["MIG-1", "MIG-2"], "cards": [None, None]},
    ),
    quiet=machine(environ={_MASK: "MIG-1"}, mask={"source": f"{_MASK}=MIG-1", "ids": ["MIG-1"], "cards": [None]}),
)
def several_migs(mask: Mask) -> Iterator[Hit]:
    """CUDA enumerates a single MIG compute instance, whatever the mask names.

    A launcher gives every rank of a host the same mask, so that rank 1 finds no device 1.
    """
    migs = [entry for entry in mask.ids or () if entry.startswith("MIG-")]
    if len(migs) > 1:
        yield seen(
            _MASK,
            f"{mask.source} names {len(migs)} MIG devices, and CUDA shows a process the first one only",
            f"export {_MASK}={migs[0]}, and start one rank",
            mask.source,
        )


@rule(
    "HOST210",
    Severity.WARNING,
    "The cards differ, and CUDA numbers them in another way than nvidia-smi",
    fires=machine(gpus=[{"name": "NVIDIA T4", "capability": "7.5"}, {"index": 1}]),
    quiet=machine(
        gpus=[{"name": "NVIDIA T4", "capability": "7.5"}, {"index": 1}], environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    ),
)
def lopsided_order(gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> Iterator[Hit]:
    """By default (CUDA_DEVICE_ORDER=FASTEST_FIRST) CUDA puts the fastest card at index 0.

    nvidia-smi numbers by PCI address. On a machine with unlike cards an index of CUDA_VISIBLE_DEVICES then means
    another card than the one nvidia-smi shows under it.
    """
    if _unlike(gpus) and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield seen(
            "CUDA_DEVICE_ORDER",
            "the cards differ: CUDA's index 0 is the fastest, which need not be nvidia-smi's index 0",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            *(f"nvidia-smi {card}" for card in gpus),
        )


def _unlike(cards: tuple[Gpu, ...]) -> bool:
    return len({(card.name, card.capability, card.memory_bytes) for card in cards}) > 1


@rule(
    "HOST211",
    Severity.ADVICE,
    "The visible cards are not alike",
    fires=machine(mask={"cards": [{}, {"index": 1, "name": "NVIDIA A10", "memory_bytes": 24 * GIB}]}),
    quiet=machine(),
)
def unlike_cards(mask: Mask) -> Iterator[Hit]:
    """Ranks wait for each other at every step: the slowest card gives the pace, and the smallest the batch size."""
    cards = mask.known()
    if not _unlike(cards):
        return
    small = min(cards, key=lambda card: card.memory_bytes or 0)
    most = max((card.name for card in cards), key=lambda name: sum(card.name == name for card in cards))
    alike = [entry for entry, card in zip(mask.ids or (), mask.cards, strict=False) if card and card.name == most]
    yield seen(
        _MASK,
        f"the visible cards differ: {small} is the smallest and sets the batch size of all",
        f"export {_MASK}={','.join(alike)} (the {most} only), or leave it so",
        *(f"nvidia-smi {card}" for card in cards),
    )


@rule(
    "HOST212",
    Severity.WARNING,
    "CUDA_DEVICE_ORDER has a value that CUDA does not know",
    fires=machine(environ={"CUDA_DEVICE_ORDER": "PCI"}),
    quiet=machine(environ={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}),
)
def unknown_order(environ: Mapping[str, str]) -> Iterator[Hit]:
    """There are two values, PCI_BUS_ID and FASTEST_FIRST. Any other counts as FASTEST_FIRST, in silence."""
    value = environ.get("CUDA_DEVICE_ORDER", _ORDERS[0])
    if value not in _ORDERS:
        yield seen(
            "CUDA_DEVICE_ORDER",
            f"CUDA_DEVICE_ORDER={value} is neither PCI_BUS_ID nor FASTEST_FIRST",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
            f"CUDA_DEVICE_ORDER={value}",
        )


@rule(
    "HOST213",
    Severity.WARNING,
    "A visible card is in use",
    fires=machine(mask={"cards": [{"used_bytes": 60 * GIB}, {"index": 1}]}),
    quiet=machine(mask={"cards": [{"used_bytes": GIB // 2}, {"index": 1}]}),
)
def busy_card(mask: Mask) -> Iterator[Hit]:
    """Another process holds more than 1 GiB and 5 % of its memory: an earlier run that did not end, or a neighbour."""
    cards = list(zip(mask.ids or (), mask.cards, strict=False))
    busy = [card for _, card in cards if card is not None and _is_busy(card)]
    free = [entry for entry, card in cards if card is not None and not _is_busy(card)]
    for card in busy:
        yield seen(
            "gpu",
            f"{bytes_text(card.used_bytes or 0)} of {bytes_text(card.memory_bytes or 0)} are in use on {card}",
            "nvidia-smi shows by whom" + (f"; export {_MASK}={','.join(free)} leaves it out" if free else ""),
            f"nvidia-smi: memory.used of card {card.index}",
        )


def _is_busy(card: Gpu) -> bool:
    return (card.used_bytes or 0) > max(GIB, 0.05 * (card.memory_bytes or 0))


@rule(
    "HOST214",
    Severity.ERROR,
    "DS_ACCELERATOR does not fit",
    fires=machine(software={"torch": "2.13.0+cpu", "torch_cuda": ""}, environ={"DS_ACCELERATOR": "cuda"}),
    quiet=machine(environ={"DS_ACCELERATOR": "cuda"}),
)
def accelerator(software: Software, environ: Mapping[str, str]) -> Iterator[Hit]:
    """DS_ACCELERATOR overrides what DeepSpeed would find. An unknown name, or cuda with a torch for CPUs, stops it."""
    value = environ.get("DS_ACCELERATOR", "")
    if value and value not in _ACCELERATORS:
        message = f"DS_ACCELERATOR={value} is none of {', '.join(_ACCELERATORS)}"
    elif value == "cuda" and software.torch and not software.torch_cuda:
        message = f"DS_ACCELERATOR=cuda, and torch {software.torch} is built without CUDA"
    else:
        return
    yield seen("DS_ACCELERATOR", message, "unset DS_ACCELERATOR", f"DS_ACCELERATOR={value}")


@rule(
    "HOST215",
    Severity.WARNING,
    "The mask is wider than what the scheduler gave",
    fires=machine(environ={"SLURM_STEP_GPUS": "3", _MASK: "0,1"}, mask={"source": f"{_MASK}=0,1"}),
    quiet=machine(environ={"SLURM_STEP_GPUS": "2,3", _MASK: "0,1"}, mask={"source": f"{_MASK}=0,1"}),
)
def wider_than_given(environ: Mapping[str, str], mask: Mask) -> Iterator[Hit]:
    """Slurm sets CUDA_VISIBLE_DEVICES itself. One with more entries than SLURM_STEP_GPUS was set by hand, and uses
    cards of other jobs. (The numbers may differ: fenced-in cards are renumbered.)"""
    for name in ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        given = environ.get(name, "")
        if given and mask.source.startswith(_MASK):
            count = sum(_span(part) for part in given.split(","))
            if len(mask.ids or ()) > count:
                yield seen(
                    _MASK,
                    f"{mask.source} names {plural(len(mask.ids or ()), 'card')}, and {name}={given} gives {count}",
                    f"unset {_MASK} in your scripts: Slurm sets it; or ask for more: --gpus-per-node",
                    mask.source,
                    f"{name}={given}",
                )
            return


def _span(part: str) -> int:
    first, dash, last = part.partition("-")
    ends = whole(first), whole(last)
    return ends[1] - ends[0] + 1 if dash and ends[0] is not None and ends[1] is not None else 1
