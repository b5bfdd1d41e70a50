"""Fewer examples of Hypothesis for tests whose examples are whole histories with restores."""

from __future__ import annotations

from hypothesis import settings


def one_in(number: int) -> settings:
    """Returns settings with a part of the profile's examples."""
    return settings(max_examples=max(5, settings().max_examples // number))
