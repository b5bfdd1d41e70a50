"""What all simulated histories share."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Runs that lose log it, and millions of steps have many of them."""
    caplog.set_level(logging.ERROR, logger="stateflow")
