"""The nearest known spelling of a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_CUTOFF = 0.6


def _canonical(word: str) -> str:
    return word.lower().replace("-", "_").replace(" ", "_")


def nearest(word: str, known: Iterable[str], *, cutoff: float = _CUTOFF) -> str | None:
    """The known word most like `word`, or None if none is near (ratio of `difflib`, case and dashes ignored)."""
    best, best_ratio = None, cutoff
    matcher = SequenceMatcher(autojunk=False)
    matcher.set_seq2(_canonical(word))
    for candidate in known:
        matcher.set_seq1(_canonical(candidate))
        if matcher.real_quick_ratio() < best_ratio or matcher.quick_ratio() < best_ratio:
            continue
        ratio = matcher.ratio()
        if ratio > best_ratio or (best is None and ratio >= best_ratio):
            best, best_ratio = candidate, ratio
    return best


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'stage'?`, or an empty text."""
    match = nearest(word, known)
    return f"did you mean '{match}'?" if match else ""
