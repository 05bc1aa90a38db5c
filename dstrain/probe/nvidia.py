"""NVIDIA cards and their driver, from nvidia-smi, /proc, /sys and /dev. No CUDA call."""

from __future__ import annotations

import re

from dstrain.core.machine import Driver, Gpu, Unknown
from dstrain.probe.place import Answer, Place

_FIELDS = "index,name,uuid,pci.bus_id,memory.total,memory.used,compute_cap"
_CARD_FIELDS = len(_FIELDS.split(","))
_MIB = 2**20


def nvidia(place: Place) -> tuple[Driver, tuple[Gpu, ...] | None, list[Unknown]]:
    """The driver and the cards; the cards are None where there are some and they could not be asked."""
    pci = _pci_cards(place)
    files = any(re.fullmatch(r"nvidia\d+", name) for name in place.names("/dev")) or place.at("/dev/dxg").exists()
    kernel = _kernel(place)
    banner = place.ask("nvidia-smi")
    if banner.missing or banner.trouble:
        trouble = "" if banner.missing else banner.trouble
        driver = Driver(None, None, trouble, kernel, pci, files)
        if not (pci or files or kernel or trouble):
            return driver, (), []
        return driver, None, [Unknown("the GPUs", banner.trouble)]
    version = re.search(r"Driver Version:\s*([\d.]+)", banner.text)
    newest = re.search(r"CUDA Version:\s*(\d+\.\d+)", banner.text)
    unknown = [] if newest else [Unknown("the CUDA version of the driver", "nvidia-smi does not name it")]
    driver = Driver(
        version.group(1) if version else kernel, newest.group(1) if newest else None, "", kernel, pci, files
    )
    listed = place.ask("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
    if listed.trouble:
        return driver, None, [*unknown, Unknown("the GPUs", listed.trouble)]
    migs = _migs(place.ask("nvidia-smi", "-L")) if "MIG" in banner.text else {}
    cards = tuple(card for card in (_card(line, migs) for line in listed.text.splitlines()) if card is not None)
    return driver, cards, unknown


def _kernel(place: Place) -> str | None:
    match = re.search(
        r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", (place.text("/proc/driver/nvidia/version") or "") + " "
    )
    return match.group(1) if match else None


def _pci_cards(place: Place) -> int:
    """NVIDIA (vendor 0x10de) devices of the display classes 0x0300 and 0x0302."""
    base = "/sys/bus/pci/devices"
    return sum(
        place.text(f"{base}/{name}/vendor") == "0x10de"
        and (place.text(f"{base}/{name}/class") or "").startswith(("0x0300", "0x0302"))
        for name in place.names(base)
    )


def _card(line: str, migs: dict[str, tuple[str, ...]]) -> Gpu | None:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) < _CARD_FIELDS or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
        return None
    capability = cells[6] if re.fullmatch(r"[0-9]{1,3}\.[0-9]", cells[6]) else None
    return Gpu(
        index=int(cells[0]),
        name=cells[1],
        uuid=cells[2],
        bus=cells[3],
        memory_bytes=_mebibytes(cells[4]),
        used_bytes=_mebibytes(cells[5]),
        capability=capability,
        mig=migs.get(cells[2], ()),
    )


def _mebibytes(text: str) -> int | None:
    return (
        int(text) * _MIB if re.fullmatch(r"[0-9]{1,9}", text) else None
    )  # "[N/A]" and the like on some integrated cards


def _migs(answer: Answer) -> dict[str, tuple[str, ...]]:
    """UUID of a card -> UUIDs of its MIG devices, from `nvidia-smi -L`."""
    found: dict[str, tuple[str, ...]] = {}
    owner = ""
    for line in answer.text.splitlines():
        match = re.search(r"UUID: ((?:GPU|MIG)-[^)\s]+)", line)
        if match is None:
            continue
        if match.group(1).startswith("GPU-"):
            owner = match.group(1)
        elif owner:
            found[owner] = (*found.get(owner, ()), match.group(1))
    return found
