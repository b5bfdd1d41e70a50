"""A job's folder for each test; nothing that a test started outlives it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.harness import AccountsBox


@pytest.fixture
def box(tmp_path: Path) -> Iterator[AccountsBox]:
    box = AccountsBox(tmp_path / "job")
    yield box
    box.end_all()
