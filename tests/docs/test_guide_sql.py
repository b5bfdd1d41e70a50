"""The guide about SQL: its queries are run over rows, and compared with plain Python.

The one that looks rows up needs Spark: test_guides_of_look_ups.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from deltalake import DeltaTable

from stateflow import DeltaSink, StreamExecutionEnvironment
from stateflow.api.streams.data_stream import DataStream
from tests.docs.pages import blocks, load_module, read
from tests.support.local_jobs import LocalJobs

START = datetime.fromisoformat("2026-01-01")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    text = "\n".join(blocks(read("sql"), "python"))
    return load_module(tmp_path_factory.mktemp("guide") / "guide_sql.py", text)


def _rows(guide: ModuleType) -> tuple[list[Any], list[Any]]:
    times = [START + timedelta(seconds=n) for n in range(30)]
    bids = [guide.Bid(n % 4, n % 3, n * 37 % 200, time) for n, time in enumerate(times)]
    return bids, [guide.Auction(n, "books" if n % 2 else "cars", START) for n in range(4)]


def _run(folder: Path, guide: ModuleType, declare: Callable[[StreamExecutionEnvironment], DataStream | None]) -> Any:
    jobs = LocalJobs(folder, parallelism=2)

    def build(env: StreamExecutionEnvironment) -> None:
        bids, auctions = _rows(guide)
        of = (
            env.from_collection(bids, guide.Bid, uid="bids"),
            env.from_collection(auctions, guide.Auction, uid="auctions"),
        )
        guide.register(env, *of)
        of[1].print()
        stream = declare(env)
        if stream is not None:
            stream.sink_to(jobs.sink("out"), uid="out")

    jobs.run(build)
    return jobs


def test_bids_are_selected(tmp_path: Path, guide: ModuleType) -> None:
    jobs = LocalJobs(tmp_path / "sink")
    _run(tmp_path / "job", guide, lambda env: guide.high_bids(env, jobs.sink("out")))
    high = [bid for bid in _rows(guide)[0] if bid.price >= 100]
    assert Counter(jobs.rows()) == Counter((bid.auction, f"{bid.price * 0.908:.3f}", "2026-01-01") for bid in high)


def test_totals_and_windows_count_all_bids(tmp_path: Path, guide: ModuleType) -> None:
    bids, _ = _rows(guide)
    totals = {row[0]: row for row in _run(tmp_path / "totals", guide, guide.totals).rows()}
    assert {key: row[1] for key, row in totals.items()} == Counter(bid.auction for bid in bids)
    assert all(row[2] == max(bid.price for bid in bids if bid.auction == key) for key, row in totals.items())
    windows = _run(tmp_path / "windows", guide, guide.per_ten_seconds).rows()
    assert sum(count for _, _, count in windows) == len(bids)


def test_late_bids_correct_counts_by_key(tmp_path: Path, guide: ModuleType) -> None:
    bids, _ = _rows(guide)
    jobs = LocalJobs(tmp_path / "late")
    counts = DeltaSink(tmp_path / "counts", mode="upsert", keys=("auction", "window_start"))
    _run(tmp_path / "job", guide, lambda env: guide.corrected_counts(env, counts, jobs.sink("out")))
    found = DeltaTable(str(tmp_path / "counts")).to_pyarrow_table().to_pylist()
    assert sum(row["bids"] for row in found) + len(jobs.rows()) == len(bids)


def test_bids_are_joined_and_ranked(tmp_path: Path, guide: ModuleType) -> None:
    bids, _ = _rows(guide)
    joined = _run(tmp_path / "joined", guide, guide.bids_of_category).rows()
    assert Counter(joined) == Counter((bid.auction, bid.price, "books") for bid in bids if bid.auction % 2)
    in_windows = _run(tmp_path / "in_windows", guide, guide.new_and_bid).rows()
    assert Counter(row[:2] for row in in_windows) == Counter((bid.auction, bid.price) for bid in bids[:10])
    ranked = {
        (auction, place): price for auction, price, place in _run(tmp_path / "top", guide, guide.three_highest).rows()
    }
    for auction in range(4):
        highest = sorted((bid.price for bid in bids if bid.auction == auction), reverse=True)[:3]
        assert [ranked[auction, place] for place in (1, 2, 3)] == highest


def test_a_statement_is_tested_in_a_harness(guide: ModuleType) -> None:
    guide.test_totals_are_corrected()
