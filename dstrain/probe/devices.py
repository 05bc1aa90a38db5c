"""Which cards a run may use, and which it will: one rule for masks, launcher flags and schedulers. Pure functions.

The mask is always a limit, and a flag chooses inside it. An id in a flag means what it means in the mask: a card of
this machine, never a place in the mask. So `--num_gpus 2` under `CUDA_VISIBLE_DEVICES=1,3` is cards 1 and 3, and
`--include localhost:0` there is a contradiction. (DeepSpeed 0.19.8's launcher drops the mask as soon as any flag is
given, and stops at `int()` when the mask holds a UUID.)

Which limit counts: `CUDA_VISIBLE_DEVICES` where it is set (Slurm sets it too). Where it is not, the list of a scheduler
or container runtime (`SLURM_STEP_GPUS`, `SLURM_JOB_GPUS`, `NVIDIA_VISIBLE_DEVICES`), if the machine shows more cards
than it names: a scheduler that fences cards in renumbers them, so that its list then says nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dstrain.core.errors import UsageError
from dstrain.core.machine import Gpu, Mask

PCI_ORDER, FASTEST_ORDER = "PCI_BUS_ID", "FASTEST_FIRST"
_MASK = "CUDA_VISIBLE_DEVICES"
_LISTS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "NVIDIA_VISIBLE_DEVICES")
_NOTHING = ("", "-1", "none", "void", "nodevfiles")
_UUID = re.compile(r"(GPU|MIG)-[0-9A-Za-z/-]+")

Problems = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The cards of a start.

    Args:
        ids: what to write into CUDA_VISIBLE_DEVICES; rank k of this host uses the k-th. None: every card, and it is
            not known which there are.
        cards: the card of each id, None where it is not known.
        why: one line for the person who started it.
    """

    ids: tuple[str, ...] | None
    cards: tuple[Gpu | None, ...]
    why: str

    def value(self) -> str | None:
        """The value for CUDA_VISIBLE_DEVICES; None: leave it unset."""
        return None if self.ids is None else ",".join(self.ids)


def cuda_order(cards: Sequence[Gpu], environ: Mapping[str, str]) -> tuple[tuple[Gpu, ...], bool]:
    """The cards as CUDA numbers them, and whether that is certain.

    `CUDA_DEVICE_ORDER=PCI_BUS_ID` is the order of nvidia-smi. The default, FASTEST_FIRST, puts the fastest card at 0 by
    a guess of the driver and leaves the rest open; between equal cards it is PCI order. For unlike cards the order here
    is a guess: newer architecture, then more memory.
    """
    in_pci_order = tuple(sorted(cards, key=lambda card: card.index))
    if environ.get("CUDA_DEVICE_ORDER") == PCI_ORDER or not is_lopsided(cards):
        return in_pci_order, True
    return tuple(sorted(in_pci_order, key=_speed, reverse=True)), False


def is_lopsided(cards: Sequence[Gpu]) -> bool:
    """Whether the cards are of different kinds."""
    return len({(card.name, card.capability, card.memory_bytes) for card in cards}) > 1


def _speed(card: Gpu) -> tuple[int, int, int]:
    major, _, minor = (card.capability or "0.0").partition(".")
    return int(major), int(minor or 0), card.memory_bytes or 0


def read_mask(environ: Mapping[str, str], cards: Sequence[Gpu] | None) -> Mask:
    """What the environment leaves visible. `cards` is what the machine has; None when it is not known.

    Faults are in `problems`; what CUDA makes of them is in `ids`: a repeated id hides every card, and an id that does
    not exist hides itself and all that follow it (torch 2.13 `_parse_visible_devices` reads it the same way).
    """
    source, entries = _limit(environ, cards)
    if entries is None:
        if cards is None:
            return Mask()
        ordered, _ = cuda_order(cards, environ)
        return Mask("", tuple(str(place) for place in range(len(ordered))), ordered)
    problems: Problems = []
    ids, found = _entries(source, entries, cards, environ, problems)
    return Mask(source, tuple(ids), tuple(found), tuple(problems))


def _limit(environ: Mapping[str, str], cards: Sequence[Gpu] | None) -> tuple[str, list[str] | None]:
    """(`VARIABLE=value`, its entries), or ("", None) when nothing limits."""
    if _MASK in environ:
        text = environ[_MASK].strip()
        return f"{_MASK}={text}", [] if text.lower() in _NOTHING else [part.strip() for part in text.split(",")]
    for name in _LISTS:
        text = environ.get(name, "all").strip()
        if text.lower() == "all" or (text == "" and name != "NVIDIA_VISIBLE_DEVICES"):
            continue
        entries = [] if text.lower() in _NOTHING else _expanded(text)
        if cards is not None and len(entries) < len(cards):
            return f"{name}={text}", entries
    return "", None


def _expanded(text: str) -> list[str]:
    """Slurm writes ranges: `0,2-3` is 0, 2 and 3."""
    entries: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if found := re.fullmatch(r"([0-9]{1,3})-([0-9]{1,3})", part):
            entries += [str(number) for number in range(int(found[1]), int(found[2]) + 1)]
        else:
            entries.append(part)
    return entries


def _entries(
    source: str, entries: Sequence[str], cards: Sequence[Gpu] | None, environ: Mapping[str, str], problems: Problems
) -> tuple[list[str], list[Gpu | None]]:
    ordered = None if cards is None else cuda_order(cards, environ)[0]
    kinds = {_kind(entry) for entry in entries}
    if len(kinds - {"?"}) > 1:
        problems.append((f"{source} mixes indices and UUIDs", f"export {_MASK} with one kind of id only"))
    ids: list[str] = []
    found: list[Gpu | None] = []
    for place, entry in enumerate(entries):
        card, trouble = _look_up(entry, ordered)
        if not trouble and kinds - {"?"} and _kind(entry) != _kind(entries[0]):
            trouble = "is of another kind than the first"
        if trouble:
            hidden = len(entries) - place
            also = f" and the {hidden - 1} after it" if hidden > 1 else ""
            effect = (
                "CUDA may read it as another card" if _kind(entry) == "?" and entry[:1].isdigit() else "CUDA hides it"
            )
            problems.append((f"{source}: {entry!r} {trouble}; {effect}{also}", _those_there(ordered)))
            break
        ids.append(entry)
        found.append(card)
    if repeated := sorted({entry for entry in ids if ids.count(entry) > 1}):
        problems.append(
            (f"{source}: {', '.join(repeated)} is there twice; CUDA then shows no card at all", "name each card once")
        )
        return [], []
    if twice := _same_card(ids, found):
        problems.append((f"{source}: {twice} are one card", "name each card once"))
        return [], []
    return ids, found


def _kind(entry: str) -> str:
    if re.fullmatch(r"[0-9]{1,6}", entry):
        return "index"
    return entry[:3] if _UUID.fullmatch(entry) else "?"


def _look_up(entry: str, ordered: Sequence[Gpu] | None) -> tuple[Gpu | None, str]:
    """(card, "") or (None, what is wrong). Without known cards only the form is judged."""
    kind = _kind(entry)
    if kind == "?":
        return None, "is neither an index from 0 nor a UUID (GPU-…, MIG-…)"
    if ordered is None:
        return None, ""
    if kind == "index":
        number = int(entry)
        return (ordered[number], "") if number < len(ordered) else (None, _no_such(len(ordered)))
    if kind == "MIG":
        # MIG-<uuid>, and before driver 470 MIG-GPU-<uuid of the card>/<instance>/<compute instance>.
        owner = entry[4:].split("/")[0]
        return next(
            ((card, "") for card in ordered if entry in card.mig or (owner.startswith("GPU-") and card.uuid == owner)),
            (None, "is no MIG device of this machine"),
        )
    matching = [card for card in ordered if card.uuid.startswith(entry)]
    if len(matching) > 1:
        return None, f"fits {len(matching)} cards"
    return (matching[0], "") if matching else (None, "is no card of this machine")


def _no_such(count: int) -> str:
    return f"does not exist: this machine has {count} card{'' if count == 1 else 's'}" + (
        f", 0 to {count - 1}" if count > 1 else ""
    )


def _those_there(ordered: Sequence[Gpu] | None) -> str:
    if not ordered:
        return f"unset {_MASK}"
    return f"export {_MASK}={','.join(str(place) for place in range(len(ordered)))}"


def _same_card(ids: Sequence[str], found: Sequence[Gpu | None]) -> str:
    whole = [(entry, card) for entry, card in zip(ids, found, strict=True) if card and not entry.startswith("MIG-")]
    for place, (entry, card) in enumerate(whole):
        for other, same in whole[:place]:
            if same == card:
                return f"{other} and {entry}"
    return ""


def choose(
    environ: Mapping[str, str],
    cards: Sequence[Gpu] | None,
    *,
    include: str = "",
    exclude: str = "",
    count: int | None = None,
    host: str = "localhost",
) -> Choice:
    """The cards of a start on this host.

    Args:
        environ: the environment with its masks.
        cards: what the machine has; None when it is not known.
        include: as `deepspeed --include` (`localhost:0,2@other:1`); a host without ids means all that the mask leaves.
        exclude: as `deepspeed --exclude`.
        count: `deepspeed --num_gpus`, `torchrun --nproc-per-node`, tasks of Slurm on this node.
        host: names in `include` and `exclude` that mean this machine: this and `localhost`.

    Raises:
        UsageError: a mask that CUDA would not take as it stands, or a flag and a mask that contradict each other; both
            sides are named.
    """
    mask = read_mask(environ, cards)
    if mask.problems:
        raise UsageError("; ".join(text for text, _ in mask.problems), where="environment", fix=mask.problems[0][1])
    if include and exclude:
        raise UsageError(f"--include {include} and --exclude {exclude} are both given", fix="give one of them")
    if count is not None and (include or exclude):
        flag = f"--include {include}" if include else f"--exclude {exclude}"
        raise UsageError(f"{flag} and a number of devices ({count}) are both given", fix="give one of them")
    if include or exclude:
        return _filtered(mask, include, exclude, (host, "localhost"))
    if count is None:
        return Choice(mask.ids, mask.cards, mask.source or "no mask is set: every card")
    return _first(mask, count)


def _first(mask: Mask, count: int) -> Choice:
    if count < 1:
        raise UsageError(f"{count} devices were asked for; at least one is needed", fix="--num_gpus 1")
    if mask.ids is None:
        return Choice(
            tuple(map(str, range(count))), (None,) * count, f"the first {count}; how many there are is unknown"
        )
    if count > len(mask.ids):
        left = mask.source or f"this machine has {len(mask.ids)}"
        says = f"{left} leaves {len(mask.ids)}" if mask.source else left
        raise UsageError(
            f"{count} devices were asked for, and {says}",
            fix=f"--num_gpus {len(mask.ids)}" if mask.ids else f"unset {_MASK}" if mask.source else "train on the CPU",
        )
    return Choice(mask.ids[:count], mask.cards[:count], f"the first {count} of {mask.source or 'all cards'}")


def _filtered(mask: Mask, include: str, exclude: str, here: tuple[str, ...]) -> Choice:
    flag = f"--include {include}" if include else f"--exclude {exclude}"
    wanted = _slots(include or exclude, here, flag)
    if wanted is None:
        if include:
            raise UsageError(f"{flag} does not name this host ({here[0]})", fix=f"--include {here[-1]}:0")
        return Choice(mask.ids, mask.cards, mask.source or "no mask is set: every card")
    if mask.ids is None:
        if exclude:
            raise UsageError(f"{flag}: the cards of this machine are not known", fix="--include localhost:0")
        return Choice(tuple(wanted), (None,) * len(wanted), flag)
    names = _names(mask)
    outside = [slot for slot in wanted if slot not in names]
    if outside and (include or not mask.source):
        limit = mask.source or f"this machine, which has {len(mask.ids)} cards"
        raise UsageError(
            f"{flag} names {', '.join(outside)}, which {'is' if len(outside) == 1 else 'are'} outside {limit}",
            fix=f"name cards of {', '.join(mask.ids) or 'another machine'}, or change {_MASK}",
        )
    places = {names[slot] for slot in wanted if slot in names}
    if include:
        order = [names[slot] for slot in wanted] or list(range(len(mask.ids)))
    else:
        order = [place for place in range(len(mask.ids)) if wanted and place not in places]
    if not order:
        limit = f" of {mask.source}" if mask.source else ""
        raise UsageError(f"{flag} leaves no card{limit}", fix="leave one card, or train on the CPU")
    why = f"{flag}, inside {mask.source}" if mask.source else flag
    return Choice(tuple(mask.ids[place] for place in order), tuple(mask.cards[place] for place in order), why)


def _names(mask: Mask) -> dict[str, int]:
    """Every way to name a visible card -> its place in the mask: as the mask writes it, and by its UUID."""
    names = {entry: place for place, entry in enumerate(mask.ids or ())}
    for place, card in enumerate(mask.cards):
        if card is not None and card.uuid and not (mask.ids or ())[place].startswith("MIG-"):
            names.setdefault(card.uuid, place)
    return names


def _slots(text: str, here: tuple[str, ...], flag: str) -> list[str] | None:
    """The ids that a filter gives for this host; [] for all of it, None when it is not named."""
    found: list[str] | None = None
    for part in text.split("@"):
        name, colon, slots = part.strip().partition(":")
        ids = [slot.strip() for slot in slots.split(",")] if colon else []
        if not name or (colon and not all(_kind(slot) != "?" for slot in ids)):
            raise UsageError(f"{flag}: {part.strip()!r} is not HOST or HOST:ID,ID", fix="--include localhost:0,1")
        if len(set(ids)) < len(ids):
            raise UsageError(f"{flag}: {part.strip()!r} names a card twice", fix="name each card once")
        if name in here:
            if found is not None:
                raise UsageError(f"{flag} names this host twice", fix=f"--include {name}:0,1")
            found = ids
    return found


def rank_device(environ: Mapping[str, str], cards: Sequence[Gpu] | None, local_rank: int) -> str | None:
    """The id of the card that a rank uses, or None when nothing is known of the cards.

    Raises:
        UsageError: the rank finds itself outside the mask.
    """
    mask = read_mask(environ, cards)
    if mask.ids is None:
        return None
    if local_rank >= len(mask.ids):
        limit = mask.source or f"this machine has {len(mask.ids)} cards"
        raise UsageError(
            f"LOCAL_RANK={local_rank} has no card: {limit}" + (f" leaves {len(mask.ids)}" if mask.source else ""),
            where="environment",
            fix=f"start {len(mask.ids)} ranks on this host (--num_gpus {len(mask.ids)})"
            if mask.ids
            else f"unset {_MASK}",
        )
    return mask.ids[local_rank]


def table(environ: Mapping[str, str], cards: Sequence[Gpu]) -> list[str]:
    """Which index is which card, one line per card that CUDA numbers."""
    ordered, certain = cuda_order(cards, environ)
    sure = "" if certain else " (a guess: CUDA_DEVICE_ORDER is FASTEST_FIRST, and the cards differ)"
    return [f"cuda index {place} = nvidia-smi {card}{sure}" for place, card in enumerate(ordered)]
