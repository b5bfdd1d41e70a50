"""Suggests known names that are similar to an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_CUTOFF = 0.6
"""Smallest similarity ratio of a suggestion; the default of `difflib.get_close_matches`."""


def closest_first(unknown: str, known: Iterable[str]) -> list[str]:
    """Returns the known names: first the similar ones, most similar first, then the others in their order."""
    names = list(known)
    ratios = {name: SequenceMatcher(None, unknown.lower(), name.lower()).ratio() for name in names}
    similar = sorted((n for n in names if ratios[n] >= _CUTOFF), key=lambda name: -ratios[name])
    return similar + [name for name in names if name not in similar]


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """Returns a hint with the most similar name, or with all known names if none is similar."""
    names = closest_first(unknown, known)
    if not names:
        return "there are none"
    is_similar = SequenceMatcher(None, unknown.lower(), names[0].lower()).ratio() >= _CUTOFF
    return f"did you mean {names[0]!r}?" if is_similar else f"known are {', '.join(names)}"
