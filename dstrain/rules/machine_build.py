"""HOST10x and HOST13x: the Python environment, and the architectures that ops are built for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Cuda, Driver, Gpu, Mask, Software
from dstrain.rules.machine_view import dotted, machine, numbers, pair, plural, seen, targets
from dstrain.rules.registry import rule

_TORCH, _DEEPSPEED = (2, 6), (0, 19, 8)
_ARCHS = "TORCH_CUDA_ARCH_LIST"


@rule(
    "HOST101",
    Severity.ERROR,
    "torch or deepspeed is missing or too old",
    fires=machine(software={"deepspeed": None}),
    quiet=machine(software={"deepspeed": "0.19.8"}),
)
def packages(software: Software) -> Iterator[Hit]:
    """dstrain needs torch 2.6 and deepspeed 0.19.8, or later, in the Python environment that it runs in."""
    for name, version, least in (("torch", software.torch, _TORCH), ("deepspeed", software.deepspeed, _DEEPSPEED)):
        wanted = f"pip install '{name}>={dotted(least)}'"
        if version is None:
            yield seen(name, f"{name} is not installed in this Python environment", wanted, f"no package {name}")
        elif (found := numbers(version)) and found < least:
            yield seen(name, f"{name} is {version}; {dotted(least)} or later is needed", wanted, f"{name} {version}")


@rule(
    "HOST102",
    Severity.ERROR,
    "There are GPUs, and torch is built without CUDA",
    fires=machine(software={"torch": "2.13.0+cpu", "torch_cuda": ""}),
    quiet=machine(software={"torch": "2.13.0+cpu", "torch_cuda": ""}, driver={"pci_cards": 0, "device_files": False}),
)
def cpu_torch(software: Software, driver: Driver, environ: Mapping[str, str]) -> Iterator[Hit]:
    """A torch for CPUs does not see NVIDIA cards: training runs, and is slow. `DS_ACCELERATOR=cpu` says it is meant."""
    there = driver.pci_cards or driver.device_files
    if software.torch and not software.torch_cuda and there and environ.get("DS_ACCELERATOR") != "cpu":
        newest = f"CUDA {driver.cuda} or older" if driver.cuda else "CUDA"
        cards = plural(driver.pci_cards, "NVIDIA card") if driver.pci_cards else "an NVIDIA card"
        yield seen(
            "torch",
            f"this machine has {cards}, and torch {software.torch} is built without CUDA",
            f"install a torch that is built for {newest}, or export DS_ACCELERATOR=cpu",
            "torch/version.py: cuda = None",
            f"driver {driver.version}" if driver.version else "",
        )


@rule(
    "HOST103",
    Severity.ERROR,
    "DeepSpeed's own ops were compiled for another torch",
    fires=machine(software={"prebuilt_for": ["2.9", "13.0"]}),
    quiet=machine(software={"prebuilt_for": ["2.13", "13.0"]}),
)
def stale_prebuilt(software: Software) -> Iterator[Hit]:
    """Ops compiled into DeepSpeed at its installation fit one torch (major.minor) and one CUDA (major.minor).

    DeepSpeed 0.19.8 raises RuntimeError ("PyTorch version mismatch!") when such an op is first used.
    """
    if software.prebuilt_for is None or software.torch is None:
        return
    torch, cuda = software.prebuilt_for
    here = dotted(numbers(software.torch)[:2])
    wrong = torch != here or (software.torch_cuda and cuda not in ("0.0", "", dotted(pair(software.torch_cuda))))
    if wrong:
        yield seen(
            "deepspeed",
            f"DeepSpeed's ops were compiled for torch {torch} with CUDA {cuda}; here are torch {here} and CUDA"
            f" {software.torch_cuda or 'none'}",
            "DS_BUILD_OPS=0 pip install --force-reinstall --no-deps deepspeed",
            "deepspeed/git_version_info_installed.py: torch_info",
        )


@rule(
    "HOST104",
    Severity.WARNING,
    "ninja is missing",
    fires=machine(software={"ninja": None}),
    quiet=machine(software={"ninja": "/usr/bin/ninja"}),
)
def no_ninja(software: Software) -> Iterator[Hit]:
    """torch compiles extensions with ninja, which must be on PATH: installed into an environment that is not
    activated, it is not found."""
    if software.ninja is None:
        hidden = software.hidden_ninja
        yield seen(
            "PATH",
            "ninja is not on PATH: no op can be compiled" if hidden else "there is no ninja: no op can be compiled",
            f"export PATH={hidden.removesuffix('/ninja')}:$PATH" if hidden else "pip install ninja",
            "no ninja on PATH",
            f"there is {hidden}" if hidden else "",
        )


@rule(
    "HOST105",
    Severity.WARNING,
    "Python's headers are missing",
    fires=machine(software={"has_python_header": False}),
    quiet=machine(software={"has_python_header": True}),
)
def no_python_headers(software: Software) -> Iterator[Hit]:
    """Every op includes Python.h. Distributions put it into a package of its own."""
    if not software.has_python_header:
        yield seen(
            "python",
            f"Python {software.python} has no headers: no op can be compiled",
            f"apt install python{software.python}-dev",
            f"there is no {software.python_header}",
        )


@rule(
    "HOST106",
    Severity.ADVICE,
    "libaio is missing",
    fires=machine(software={"libaio_header": None}),
    quiet=machine(software={"libaio_header": "/usr/include/libaio.h"}),
)
def no_libaio(software: Software) -> Iterator[Hit]:
    """Only offloading to NVMe needs it (the op async_io), to compile and to run."""
    if software.libaio_header is None:
        yield seen(
            "libaio",
            "libaio is not installed: offloading to NVMe cannot be used",
            "apt install libaio-dev",
            "there is no /usr/include/libaio.h",
        )


def arch_list(environ: Mapping[str, str]) -> list[str]:
    """The entries of TORCH_CUDA_ARCH_LIST as DeepSpeed splits it."""
    return [part for part in environ.get(_ARCHS, "").replace(" ", ";").split(";") if part]


def _target(entry: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"([0-9]{1,3})\.([0-9])[af]?(\+PTX)?", entry)
    return (int(match.group(1)), int(match.group(2))) if match else None


@rule(
    "HOST131",
    Severity.ERROR,
    "TORCH_CUDA_ARCH_LIST cannot be read",
    fires=machine(environ={_ARCHS: "Hopper"}),
    quiet=machine(environ={_ARCHS: "8.0;9.0+PTX"}),
)
def arch_words(software: Software, environ: Mapping[str, str]) -> Iterator[Hit]:
    """DeepSpeed 0.19.8 takes numbers (`9.0`, `9.0+PTX`), separated by `;` or spaces.

    Names (`Hopper`), `native`, `sm_90` and commas end in an IndexError or ValueError in its builder.
    """
    wrong = [entry for entry in arch_list(environ) if _target(entry) is None]
    if software.torch_cuda and wrong:
        value = environ[_ARCHS]
        yield seen(
            _ARCHS,
            f"{_ARCHS}={value}: {', '.join(wrong)} is not a number such as 9.0",
            f"export {_ARCHS}='{value.replace(',', ';')}'" if "," in value else f"export {_ARCHS}='8.0;9.0'",
            f"{_ARCHS}={value}",
        )


@rule(
    "HOST132",
    Severity.ERROR,
    "This nvcc does not target an architecture that is asked for",
    fires=machine(environ={_ARCHS: "7.0;9.0"}),
    quiet=machine(environ={_ARCHS: "7.5;9.0"}),
)
def arch_targets(software: Software, cuda: Cuda, environ: Mapping[str, str]) -> Iterator[Hit]:
    """CUDA 13 dropped everything below 7.5 (Pascal, Volta); 10.0 and 12.0 (Blackwell) came with 12.8, 9.0 with 11.8."""
    kit = cuda.chosen()
    span = targets(kit.version) if kit is not None and kit.version else None
    if not software.torch_cuda or kit is None or span is None:
        return
    entries = arch_list(environ)
    wrong = [entry for entry in entries if (arch := _target(entry)) and not span[0] <= arch <= span[1]]
    if wrong:
        left = ";".join(entry for entry in entries if entry not in wrong)
        yield seen(
            _ARCHS,
            f"{_ARCHS} asks for {', '.join(wrong)}, and nvcc {kit.version} targets {dotted(span[0])} to"
            f" {dotted(span[1])}",
            f"export {_ARCHS}='{left or dotted(span[1])}'",
            f"{_ARCHS}={environ[_ARCHS]}",
            f"{kit.root}/bin/nvcc -V: {kit.said}",
        )


@rule(
    "HOST133",
    Severity.ERROR,
    "TORCH_CUDA_ARCH_LIST leaves out a visible GPU",
    fires=machine(environ={_ARCHS: "8.0"}, mask={"cards": [{"capability": "7.5"}]}),
    quiet=machine(environ={_ARCHS: "8.0"}),
)
def arch_covers(software: Software, mask: Mask, environ: Mapping[str, str]) -> Iterator[Hit]:
    """Code for one architecture runs on the later minors of its major. Another major needs an older entry's PTX.

    DeepSpeed adds PTX to the highest entry when it compiles at first use. What is left out ends in "no kernel image is
    available for execution on the device".
    """
    found = [target for entry in arch_list(environ) if (target := _target(entry))]
    if not software.torch_cuda or not found:
        return
    ptx = [target for entry in arch_list(environ) if "+PTX" in entry and (target := _target(entry))] or [max(found)]
    for card in _kinds(mask):
        arch = pair(card.capability or "")
        runs = any(target[0] == arch[0] and target[1] <= arch[1] for target in found)
        if not runs and not any(target <= arch for target in ptx):
            yield seen(
                _ARCHS,
                f"{_ARCHS}={environ[_ARCHS]} makes no code for {card.name} ({card.capability})",
                f"export {_ARCHS}='{environ[_ARCHS]};{card.capability}'",
                f"nvidia-smi: {card}",
            )


def _kinds(mask: Mask) -> list[Gpu]:
    """One visible card of each architecture that is known."""
    return list({card.capability: card for card in mask.known() if card.capability}.values())


@rule(
    "HOST134",
    Severity.WARNING,
    "No GPU is visible, and DeepSpeed's default architectures are gone from this nvcc",
    fires=machine(gpus=[], mask={"ids": [], "cards": []}),
    quiet=machine(gpus=[], mask={"ids": [], "cards": []}, environ={_ARCHS: "9.0"}),
)
def no_default_archs(software: Software, cuda: Cuda, mask: Mask, environ: Mapping[str, str]) -> Iterator[Hit]:
    """Without a GPU to ask and without TORCH_CUDA_ARCH_LIST, DeepSpeed 0.19.8 builds ahead for "6.0;6.1;7.0".

    It adds more for CUDA 11 and 12 only; CUDA 13 targets none of the three. Builds of images meet this.
    """
    kit = cuda.chosen()
    if not software.torch_cuda or kit is None or kit.version is None or mask.ids is None or mask.ids or mask.problems:
        return
    if pair(kit.version) >= (13, 0) and not arch_list(environ):
        yield seen(
            _ARCHS,
            f"no GPU is visible and {_ARCHS} is not set: nvcc {kit.version} targets none of DeepSpeed's default"
            " 6.0, 6.1 and 7.0",
            f"export {_ARCHS}='8.0;9.0'",
            f"{kit.root}/bin/nvcc -V: {kit.said}",
        )


@rule(
    "HOST135",
    Severity.ERROR,
    "This nvcc does not know a visible GPU",
    fires=machine(mask={"cards": [{"name": "Tesla V100", "capability": "7.0"}]}),
    quiet=machine(mask={"cards": [{"name": "Tesla T4", "capability": "7.5"}]}),
)
def card_targets(software: Software, cuda: Cuda, mask: Mask) -> Iterator[Hit]:
    """A card is older than everything this nvcc targets (V100 with CUDA 13), or newer (B200 with CUDA 12.6)."""
    kit = cuda.chosen()
    span = targets(kit.version) if kit is not None and kit.version else None
    if not software.torch_cuda or kit is None or span is None:
        return
    for card in _kinds(mask):
        arch = pair(card.capability or "")
        if not span[0] <= arch <= span[1]:
            age, way = ("older", "an older") if arch < span[0] else ("newer", "a newer")
            yield seen(
                "CUDA_HOME",
                f"{card.name} ({card.capability}) is {age} than what nvcc {kit.version} targets ({dotted(span[0])} to"
                f" {dotted(span[1])})",
                f"use {way} CUDA, in torch and toolkit, or leave the card out with CUDA_VISIBLE_DEVICES",
                f"nvidia-smi: {card}",
                f"{kit.root}/bin/nvcc -V: {kit.said}",
            )


@rule(
    "HOST136",
    Severity.ERROR,
    "torch's CUDA does not know a visible GPU",
    fires=machine(mask={"cards": [{"name": "Tesla V100", "capability": "7.0"}]}),
    quiet=machine(mask={"cards": [{"name": "Tesla T4", "capability": "7.5"}]}),
)
def torch_targets(software: Software, mask: Mask) -> Iterator[Hit]:
    """torch carries code for the cards that its CUDA version targets. On others it stops at the first kernel.

    CUDA 13 dropped what is older than Turing (7.5). A card that is newer than torch's CUDA may run on PTX that torch
    carries, or not.
    """
    span = targets(software.torch_cuda) if software.torch_cuda else None
    if span is None:
        return
    for card in _kinds(mask):
        arch = pair(card.capability or "")
        if not span[0] <= arch <= span[1]:
            old = arch < span[0]
            yield seen(
                "torch",
                f"{card.name} ({card.capability}) is {'older' if old else 'newer'} than what CUDA {software.torch_cuda}"
                f" targets ({dotted(span[0])} to {dotted(span[1])}), and torch {software.torch} is built for that",
                f"install a torch that is built for {'an older' if old else 'a newer'} CUDA",
                f"nvidia-smi: {card}",
                f"torch/version.py: cuda = {software.torch_cuda}",
                severity=None if old else Severity.WARNING,
            )
