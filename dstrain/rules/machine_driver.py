"""HOST201 to HOST204: the NVIDIA driver."""

from __future__ import annotations

from collections.abc import Iterator

from dstrain.core.finding import Hit, Severity
from dstrain.core.machine import Driver, Gpu, Software
from dstrain.rules.machine_view import machine, pair, plural, seen
from dstrain.rules.registry import rule


@rule(
    "HOST201",
    Severity.ERROR,
    "The driver is too old for torch's CUDA",
    fires=machine(driver={"version": "550.90.07", "cuda": "12.4"}),
    quiet=machine(driver={"version": "550.90.07", "cuda": "12.4"}, software={"torch_cuda": "12.8"}),
)
def old_driver(software: Software, driver: Driver) -> Iterator[Hit]:
    """A driver runs every CUDA of its own major version and older ones. torch finds no GPU on an older driver."""
    if not software.torch_cuda or driver.cuda is None:
        return
    major = pair(software.torch_cuda)[0]
    if pair(driver.cuda)[0] < major:
        yield seen(
            "driver",
            f"driver {driver.version} runs CUDA {driver.cuda} at most, and torch {software.torch} is built for CUDA"
            f" {software.torch_cuda}",
            f"install a driver for CUDA {major}, or a torch that is built for CUDA {driver.cuda} or older",
            f"nvidia-smi: Driver Version: {driver.version}, CUDA Version: {driver.cuda}",
        )


@rule(
    "HOST202",
    Severity.ERROR,
    "The driver does not answer",
    fires=machine(
        driver={"version": None, "cuda": None, "trouble": "Failed to initialize NVML: Driver/library version mismatch"},
        gpus=None,
    ),
    quiet=machine(),
)
def silent_driver(driver: Driver) -> Iterator[Hit]:
    """nvidia-smi fails: the driver was updated and its kernel module was not reloaded, or a card fell off the bus."""
    slow = "did not answer" in driver.trouble
    if driver.trouble and not slow:
        mismatch = "mismatch" in driver.trouble
        yield seen(
            "driver",
            "nvidia-smi fails" + (": the kernel module is of another driver version" if mismatch else ""),
            "reboot (or: rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && modprobe nvidia)"
            if mismatch
            else "nvidia-smi, and `dmesg | grep -i nvrm`, say more",
            driver.trouble,
            f"/proc/driver/nvidia/version: {driver.kernel}" if driver.kernel else "",
        )


@rule(
    "HOST203",
    Severity.ERROR,
    "There are NVIDIA cards, and no driver or no access to them",
    fires=machine(driver={"version": None, "cuda": None, "kernel": None, "device_files": False}, gpus=None),
    quiet=machine(driver={"version": None, "cuda": None, "kernel": None, "device_files": False, "pci_cards": 0}),
)
def no_driver(software: Software, driver: Driver) -> Iterator[Hit]:
    """The cards are on the PCI bus, and there is no /dev/nvidia0: no driver, or a container that was started without.

    Where the kernel module is loaded (/proc/driver/nvidia) it is the container.
    """
    if software.torch_cuda and driver.pci_cards and not driver.device_files and not driver.version:
        yield seen(
            "driver",
            f"{plural(driver.pci_cards, 'NVIDIA card')} on the bus, and no device file for any",
            "start the container with its GPUs: docker run --gpus all …"
            if driver.kernel
            else "install the NVIDIA driver; in a container: docker run --gpus all …",
            f"/sys/bus/pci/devices: {plural(driver.pci_cards, 'display device')} of vendor 0x10de",
            "there is no /dev/nvidia0",
        )


@rule(
    "HOST204",
    Severity.ADVICE,
    "torch is built for CUDA, and there is no GPU",
    fires=machine(gpus=[], driver={"version": None, "cuda": None, "pci_cards": 0, "device_files": False}),
    quiet=machine(),
)
def no_gpu(software: Software, driver: Driver, gpus: tuple[Gpu, ...]) -> Iterator[Hit]:
    """Training will run on the CPU. That is right where an image is built, and a surprise elsewhere."""
    if software.torch_cuda and not gpus and not driver.pci_cards:
        yield seen(
            "gpu",
            f"torch {software.torch} is built for CUDA {software.torch_cuda}, and this machine has no NVIDIA card",
            "train on the CPU (export DS_ACCELERATOR=cpu), or start where there is a GPU",
            "no nvidia-smi, no /dev/nvidia0, no NVIDIA display device on the bus",
        )
