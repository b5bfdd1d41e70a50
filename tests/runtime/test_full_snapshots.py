"""What has expired is not in a full snapshot; an incremental one leaves it to the clean-up in the background."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow import Context, KeyedProcessFunction, RuntimeContext, StateTtlConfig, Time, ValueStateDescriptor
from stateflow.query.state import read_state
from tests.runtime.test_timers import Event, Note, TimerJobs

FULL: list[dict[str, Any]] = [
    {"state__backend": "memory"},
    {"state__backend": "filesystem"},
    {"state__backend": "filesystem", "state__inline_below_bytes": 1},
    {"state__backend": "rocksdb", "state__incremental": False},
]
SECOND = StateTtlConfig.new_builder(Time.seconds(1)).use_event_time().disable_cleanup_in_background().build()


class Remembers(KeyedProcessFunction[Event, Note]):
    """Keeps each key's last time, for a while."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, ctx: RuntimeContext) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last", int, ttl=self.ttl))

    def process_element(self, row: Event, ctx: Context) -> None:
        self.last.update(row.at)


def _kept(folder: Path, settings: dict[str, Any], ttl: StateTtlConfig | None = SECOND) -> list[Any]:
    box = TimerJobs(folder)
    # Two rows are a batch, and its watermark comes from the batches before: nearly 0 in the second, 5 s in the third.
    rows = [Event(key, at) for key, at in zip("abcdef", (0, 1, 5000, 5001, 5002, 5003), strict=True)]
    box.events(Remembers(ttl), rows, parallelism=1, **settings)
    return sorted(entry.key[0] for entry in read_state(str(folder / "root"), "op"))


@pytest.mark.parametrize("settings", FULL)
def test_a_full_snapshot_has_nothing_that_has_expired(tmp_path: Path, settings: dict[str, Any]) -> None:
    # By then event time is 5 s. A life begins at the time of the row that wrote it.
    assert _kept(tmp_path, settings) == ["c", "d", "e", "f"]


@pytest.mark.parametrize("settings", FULL)
def test_a_full_snapshot_keeps_what_has_no_time_to_live(tmp_path: Path, settings: dict[str, Any]) -> None:
    assert _kept(tmp_path, settings, ttl=None) == list("abcdef")


def test_an_incremental_snapshot_keeps_what_nobody_removes(tmp_path: Path) -> None:
    assert _kept(tmp_path, {"state__backend": "rocksdb"}) == list("abcdef")
