"""DS30x: offloading to host memory and NVMe, SuperOffload."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dstrain.core.facts import HostFacts, Mode
from dstrain.core.finding import Hit, Severity
from dstrain.dsconfig.document import Document
from dstrain.rules.registry import rule
from dstrain.rules.view import ZERO, drop, flag, hit, number, offload_key, offload_param, put, stage
from dstrain.rules.view import offload_optimizer as optimizer_device

_B = {"train_micro_batch_size_per_gpu": 1}
_OPT, _PARAM = f"{ZERO}.offload_optimizer", f"{ZERO}.offload_param"
_NVME = {"device": "nvme", "nvme_path": "/local_nvme"}


@rule(
    "DS301",
    Severity.ERROR,
    "offload_param requires stage 3",
    fires={**_B, ZERO: {"stage": 2, "offload_param": {"device": "cpu"}}},
    quiet={**_B, ZERO: {"stage": 3, "offload_param": {"device": "cpu"}}},
)
def param_stage(doc: Document) -> Iterator[Hit]:
    """Parameters can only leave the device when they are partitioned, and only stage 3 partitions them.

    Below stage 3 DeepSpeed accepts `offload_param` and never reads it (`runtime/engine.py:2672` passes nothing on):
    the memory that the run counts on is not saved. Set stage 3, or take the section out.
    """
    at, device = stage(doc), offload_param(doc)
    if at in (0, 1, 2) and device in ("cpu", "nvme"):
        section = offload_key(doc, "param").removesuffix(".device")
        yield hit(
            section,
            f'offload_param to "{device}" is ignored at ZeRO stage {at}; offload_param requires stage 3',
            '"stage": 3 to offload parameters, or leave offload_param out',
        )


@rule(
    "DS302",
    Severity.WARNING,
    "offload_optimizer requires ZeRO",
    fires={**_B, ZERO: {"stage": 0, "offload_optimizer": {"device": "cpu"}}},
    quiet={**_B, ZERO: {"stage": 1, "offload_optimizer": {"device": "cpu"}}},
)
def optimizer_stage(doc: Document) -> Iterator[Hit]:
    """At stage 0 nothing is offloaded, yet DeepSpeed builds its CPU optimizer (`runtime/engine.py:1562`).

    On a GPU that optimizer refuses parameters that live there; on a CPU it only costs the compilation. Set stage 1
    or higher.
    """
    device = optimizer_device(doc)
    if stage(doc) == 0 and device in ("cpu", "nvme"):
        section = offload_key(doc, "optimizer").removesuffix(".device")
        yield hit(
            section,
            f'offload_optimizer to "{device}" at ZeRO stage 0 offloads nothing; it requires stage 1, 2 or 3',
            '"stage": 1, or leave offload_optimizer out',
        )


@rule(
    "DS303",
    Severity.ERROR,
    "NVMe offload without nvme_path",
    fires={**_B, ZERO: {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
    quiet={**_B, ZERO: {"stage": 3, "offload_optimizer": _NVME}},
)
def nvme_path(doc: Document) -> Iterator[Hit]:
    """NVMe offload needs the folder to swap to.

    DeepSpeed accepts the section without it. Stage 3 then fails with a bare TypeError from `os.path.join(None, ...)`
    (`zero/stage3.py:840`); stage 1 and 2 never swap at all.
    """
    for section, device in ((_OPT, optimizer_device(doc)), (_PARAM, offload_param(doc))):
        path = doc.get(f"{section}.nvme_path")
        if device == "nvme" and (not isinstance(path, str) or not path.strip() or path == "auto"):
            name = section.split(".")[-1]
            yield hit(
                f"{section}.nvme_path",
                f'{name} goes to "nvme", but nvme_path is {"missing" if path is None else repr(path)}',
                f'"{name}": {{"device": "nvme", "nvme_path": "<a folder on the NVMe disk>"}}',
            )


@rule(
    "DS304",
    Severity.WARNING,
    "NVMe optimizer offload below stage 3 is CPU offload",
    fires={**_B, ZERO: {"stage": 2, "offload_optimizer": _NVME}},
    quiet={**_B, ZERO: {"stage": 3, "offload_optimizer": _NVME}},
)
def nvme_stage(doc: Document) -> Iterator[Hit]:
    """Stage 1 and 2 treat any device other than "none" as the CPU (`zero/stage_1_and_2.py:220`).

    Nothing is written to the disk, the path is not even looked at, and the optimizer states fill host memory.
    """
    at = stage(doc)
    if at in (1, 2) and optimizer_device(doc) == "nvme":
        yield hit(
            f"{_OPT}.device",
            f'offload_optimizer to "nvme" at ZeRO stage {at} is plain CPU offload; NVMe requires stage 3',
            '"stage": 3, or "device": "cpu"',
            put(doc, f"{_OPT}.device", "cpu"),
        )


@rule(
    "DS305",
    Severity.ERROR,
    "nvme_path cannot be used",
    fires={**_B, ZERO: {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/no/such/folder"}}},
    quiet={**_B, ZERO: {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}}},
)
def nvme_folder(doc: Document, host: HostFacts) -> Iterator[Hit]:  # noqa: ARG001  (known = this machine trains)
    """The folder of `nvme_path` is looked up on this machine (only when the facts of this machine are given).

    DeepSpeed makes missing folders (`zero/stage3.py:841`) on whatever disk holds their parent: with a misspelt mount
    point it fills the system disk. A folder that cannot be written fails at the first swap. A missing folder below
    an existing one is no fault.
    """
    for section, device in ((_OPT, optimizer_device(doc)), (_PARAM, offload_param(doc))):
        path = doc.get(f"{section}.nvme_path")
        if stage(doc) != 3 or device != "nvme" or not isinstance(path, str) or not path or "\0" in path:
            continue
        fault, severity = _folder_fault(path)
        if fault:
            fix = "the path of a folder that exists and can be written, on the NVMe disk"
            yield Hit(f"{section}.nvme_path", f"nvme_path {path} {fault}", fix, severity=severity)


def _folder_fault(path: str) -> tuple[str, Severity]:
    folder = Path(path)
    try:
        if folder.is_dir():
            usable = os.access(folder, os.W_OK | os.X_OK)
            return ("" if usable else "cannot be written by this user"), Severity.ERROR
        if folder.exists():
            return "is not a folder", Severity.ERROR
    except OSError as error:
        return f"cannot be looked at ({error.strerror})", Severity.ERROR
    if not folder.is_absolute():
        return "is relative: each rank resolves it against its own working folder", Severity.WARNING
    parent = next((p for p in folder.parents if p.is_dir()), Path(os.sep))
    if parent.parent == parent:
        return (
            f"does not exist; DeepSpeed would make it on the disk of {parent}, which is no NVMe mount",
            Severity.ERROR,
        )
    if not os.access(parent, os.W_OK):
        return f"does not exist, and cannot be made in {parent}", Severity.ERROR
    return "", Severity.WARNING


@rule(
    "DS306",
    Severity.ERROR,
    "Partial optimizer offload requires stage 3",
    fires={**_B, ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
    quiet={**_B, ZERO: {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
)
def ratio_stage(doc: Document) -> Iterator[Hit]:
    """`offload_optimizer.ratio` below 1 keeps a part of the states on the device: stage 3 only.

    The parser asserts it (`zero/config.py:398`).
    """
    ratio, at = number(doc.get(f"{_OPT}.ratio")), stage(doc)
    if ratio is not None and ratio < 1 and at in (0, 1, 2):
        key = f"{_OPT}.ratio"
        yield hit(
            key,
            f"offload_optimizer.ratio {ratio} requires stage 3, and the stage is {at}",
            '"stage": 3, or "ratio": 1.0',
        )


@rule(
    "DS307",
    Severity.WARNING,
    "super_offload has no effect here",
    fires={**_B, ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
    quiet={**_B, ZERO: {"stage": 3, "offload_optimizer": {"device": "cpu", "super_offload": True}}},
)
def super_offload(doc: Document) -> Iterator[Hit]:
    """SuperOffload is an optimizer of stage 3 with CPU offload (`runtime/engine.py:2748`).

    Below stage 3 the flag is accepted and ignored; without `device: "cpu"` there is nothing to offload.
    """
    if flag(doc.get(f"{_OPT}.super_offload")) is not True:
        return
    at, device = stage(doc), optimizer_device(doc)
    reason = f"at ZeRO stage {at}; it requires stage 3" if at in (0, 1, 2) else ""
    if not reason and device == "none":
        reason = 'with device "none"; it requires "cpu"'
    if reason:
        key = f"{_OPT}.super_offload"
        fix = '"stage": 3 with "device": "cpu", or leave super_offload out'
        yield hit(key, f"super_offload has no effect {reason}", fix)


@rule(
    "DS308",
    Severity.WARNING,
    "torch_adam on offloaded states",
    fires={
        **_B,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
        ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    },
    quiet={
        **_B,
        "optimizer": {"type": "AdamW", "params": {}},
        ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}},
    },
)
def torch_adam_offload(doc: Document) -> Iterator[Hit]:
    """With `torch_adam: true` the offloaded states are stepped by torch's AdamW, not by the vectorised CPU Adam.

    DeepSpeed refuses a client optimizer in that place, but does not check the one of the file
    (`runtime/engine.py:2376`). The step can be several times slower. Do without only where the op cannot be built.
    """
    if flag(doc.get("optimizer.params.torch_adam")) is True and optimizer_device(doc) in ("cpu", "nvme"):
        key = "optimizer.params.torch_adam"
        yield hit(
            key,
            "torch_adam is true with offload_optimizer: torch steps the states on the CPU",
            "leave torch_adam out",
            drop(key),
        )


@rule(
    "DS309",
    Severity.ADVICE,
    "Offload without an optimizer section changes the optimizer",
    fires={**_B, ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "$facts": {"mode": "transformers"}},
    quiet={
        **_B,
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        ZERO: {"stage": 2, "offload_optimizer": {"device": "cpu"}},
        "$facts": {"mode": "transformers"},
    },
)
def client_optimizer(doc: Document, mode: Mode) -> Iterator[Hit]:
    """With offload and no `optimizer` section, accelerate 1.15 replaces the trainer's optimizer.

    AdamW becomes DeepSpeed's CPU Adam; anything but AdamW, Adagrad and Lion, even SGD, becomes CPU Adam with L2
    decay, with only the lr and the weight decay kept (`accelerate/utils/deepspeed.py:28`).
    """
    if mode is Mode.TRANSFORMERS and not doc.has("optimizer") and optimizer_device(doc) in ("cpu", "nvme"):
        yield hit(
            offload_key(doc, "optimizer"),
            "offload_optimizer without an optimizer section: accelerate swaps the trainer's optimizer for CPU Adam",
            "an optimizer section, or --optim adamw_torch",
        )
