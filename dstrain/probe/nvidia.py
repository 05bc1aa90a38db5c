"""NVIDIA cards and their driver, from nvidia-smi, /proc, /sys and /dev. No CUDA call."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

from dstrain.core.machine import Driver, Gpu, Unknown
from dstrain.probe.place import Answer, Place

_QUERY = (
    "--query-gpu=index,name,uuid,pci.bus_id,memory.total,memory.used,compute_cap",
    "--format=csv,noheader,nounits",
)
_LEAST_FIELDS = 6  # compute_cap may be missing
_MIB = 2**20


def nvidia(place: Place) -> tuple[Driver, tuple[Gpu, ...] | None, list[Unknown]]:
    """The driver and the cards; the cards are None where there are some and nothing says which."""
    pci = _pci_cards(place)
    files = any(re.fullmatch(r"nvidia\d+", name) for name in place.names("/dev")) or place.at("/dev/dxg").exists()
    kernel = _kernel(place)
    with ThreadPoolExecutor(3) as pool:
        banner, listed, names = pool.map(lambda words: place.ask("nvidia-smi", *words), ((), _QUERY, ("-L",)))
    if banner.missing or banner.trouble:
        if not (pci or files or kernel):  # the tool may be installed where no card is
            return Driver(), (), []
        driver = Driver(None, None, "" if banner.missing else banner.trouble, kernel, pci, files)
        return driver, *_from_proc(place, banner.trouble)
    version = re.search(r"(?:Driver|KMD) Version:\s*([\d.]+)", banner.text)
    newest = re.search(r"CUDA (?:UMD )?Version:\s*(\d{1,3}\.\d{1,3})", banner.text)
    unknown = [] if newest else [Unknown("the CUDA version of the driver", "nvidia-smi does not name it")]
    driver = Driver(
        version.group(1) if version else kernel, newest.group(1) if newest else None, "", kernel, pci, files
    )
    if "compute_cap" in listed.trouble:  # nvidia-smi before driver 510 does not have that field
        listed = place.ask("nvidia-smi", _QUERY[0].replace(",compute_cap", ""), _QUERY[1])
        unknown.append(Unknown("the compute capability of the GPUs", "this nvidia-smi does not name it"))
    migs = _migs(names)
    cards = tuple(card for card in (_card(line, migs) for line in listed.text.splitlines()) if card is not None)
    if listed.trouble or (listed.text and not cards):
        found, missing = _from_proc(place, listed.trouble or f"nvidia-smi says {listed.text.splitlines()[0]!r}")
        return driver, found, unknown + missing
    return driver, cards, unknown


def _from_proc(place: Place, why: str) -> tuple[tuple[Gpu, ...] | None, list[Unknown]]:
    """Name, UUID and address of the cards as the kernel module shows them; without memory and capability."""
    base = "/proc/driver/nvidia/gpus"
    cards = []
    for index, bus in enumerate(place.names(base)):  # named by address, so sorted in PCI order
        lines = (place.text(f"{base}/{bus}/information") or "").splitlines()
        fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        cards.append(Gpu(index, fields.get("Model", "GPU"), fields.get("GPU UUID", ""), bus))
    if cards:
        return tuple(cards), [Unknown("the GPUs' memory, use and compute capability", why)]
    return None, [Unknown("the GPUs", why)]


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
    if len(cells) < _LEAST_FIELDS or not re.fullmatch(r"[0-9]{1,4}", cells[0]):
        return None
    last = cells[6] if len(cells) > _LEAST_FIELDS else ""
    capability = last if re.fullmatch(r"[0-9]{1,3}\.[0-9]", last) else None
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
