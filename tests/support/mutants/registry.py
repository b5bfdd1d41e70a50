"""What a planted bug is, and the registry of those of one subject."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Place = tuple[Any, str]
"""A module, a class or an object, and the name of an attribute."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    Attributes:
        what: the bug in words.
        patches: places and their replacements.
        rules: of the simulator (`tests.model`); a history with this bug breaks one of them.
        plan: the simulator's directed search for this bug; by default each history draws its own plan.
    """

    name: str
    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    rules: tuple[str, ...] = ()
    plan: str = ""


class Mutants(dict[str, Mutant]):
    """Planted bugs by name."""

    def add(self, mutant: Mutant) -> None:
        """Adds a planted bug."""
        assert mutant.name not in self, mutant.name
        self[mutant.name] = mutant

    def plant(self, name: str, *places: Place, rules: str = "", plan: str = "") -> Callable[[F], F]:
        """Adds a planted bug: the decorated function, whose docstring states the bug, replaces all `places`."""

        def decorate(replacement: F) -> F:
            what = " ".join((replacement.__doc__ or "").split())
            patches = tuple((*place, replacement) for place in places)
            self.add(Mutant(name, what, patches, tuple(rules.split()), plan))
            return replacement

        return decorate
