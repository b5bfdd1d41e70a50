"""Orders known names by their likeness to a name that is not known."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

_ALIKE = 0.6
"""difflib's own bound for close matches."""


def closest_first(wrong: str, known: Iterable[str]) -> list[str]:
    """The known names: first those like `wrong`, the closest first, then the others in their order."""
    names = list(known)
    likeness = {name: SequenceMatcher(None, wrong.lower(), name.lower()).ratio() for name in names}
    alike = sorted((n for n in names if likeness[n] >= _ALIKE), key=lambda name: -likeness[name])
    return alike + [name for name in names if name not in alike]


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """A hint with the closest name where there is one, and all names otherwise."""
    names = closest_first(wrong, known)
    is_alike = SequenceMatcher(None, wrong.lower(), names[0].lower()).ratio() >= _ALIKE
    return f"did you mean {names[0]!r}?" if is_alike else f"known are {', '.join(names)}"
