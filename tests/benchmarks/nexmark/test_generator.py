"""Nexmark's events follow Nexmark's rules, and any slice of them is equal wherever it is generated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import parquet

from benchmarks.nexmark import generate as command
from benchmarks.nexmark.generate import Slices
from benchmarks.nexmark.generator import SCHEMA, generate
from benchmarks.nexmark.kafka import records
from benchmarks.nexmark.rules import AUCTION, BASE_TIME_MS, BID, PERSON, Stream

EVENTS = 50_000
GOLDEN = "d83d7cbd1e7d358a85511de18ef0a41a5e434c331d247fd12a7485d36b96474d"


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return generate(Stream(), 0, EVENTS)


def of_type(events: pa.Table, event_type: int) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """The number columns of the events of one type, and the positions of these events."""
    mask = pc.equal(events["event_type"], event_type)
    some = events.filter(mask)
    prefix = ("person_", "auction_", "bid_")[event_type]
    columns = {
        name.removeprefix(prefix): some[name].to_numpy()
        for name in some.column_names
        if name.startswith(prefix) and not pa.types.is_string(some[name].type)
    }
    return columns, np.flatnonzero(mask.to_numpy())


@pytest.mark.parametrize("stream", [Stream(), Stream(seed=7, events_per_second=333, out_of_order_group=64)])
def test_slices_are_equal_to_the_same_part_of_the_whole(stream: Stream) -> None:
    whole = generate(stream, 0, 3_000)
    for first, count in ((0, 1), (1, 49), (50, 1), (977, 1_234), (2_999, 1)):
        assert generate(stream, first, count).equals(whole.slice(first, count))
    assert generate(stream, 0, 0).schema == SCHEMA
    assert not generate(Stream(seed=stream.seed + 1), 0, 100).equals(whole.slice(0, 100))


def test_the_first_thousand_events_do_not_change() -> None:
    rows = json.dumps(generate(Stream(), 0, 1_000).to_pylist(), default=str)
    assert hashlib.sha256(rows.encode()).hexdigest() == GOLDEN


def test_each_fifty_events_are_a_person_three_auctions_and_forty_six_bids(events: pa.Table) -> None:
    pattern = [PERSON, *[AUCTION] * 3, *[BID] * 46]
    assert events["event_type"].to_pylist() == pattern * (EVENTS // 50)


def test_a_column_of_a_type_is_null_exactly_in_the_events_of_other_types(events: pa.Table) -> None:
    for event_type, prefix in enumerate(("person_", "auction_", "bid_")):
        other = pc.not_equal(events["event_type"], event_type)
        for name in (name for name in SCHEMA.names if name.startswith(prefix)):
            assert pc.is_null(events[name]).equals(other), name


def test_ids_count_persons_and_auctions(events: pa.Table) -> None:
    for event_type in (PERSON, AUCTION):
        ids = of_type(events, event_type)[0]["id"]
        assert (ids == 1000 + np.arange(len(ids))).all()


def test_bids_are_for_the_hot_auction_or_one_of_the_last_and_next_few(events: pa.Table) -> None:
    bids, at = of_type(events, BID)
    # Of positions before that of the bid: three in each fifty, from the second on.
    last = at // 50 * 3 + 2
    auction = bids["auction"] - 1000
    is_hot = auction == last // 100 * 100
    assert ((auction >= np.maximum(last - 100, 0)) & (auction <= last + 10) | is_hot).all()
    # Half of the bids, and one in about 111 of the others.
    assert 0.49 < is_hot.mean() < 0.52
    assert (auction[~is_hot] > last[~is_hot]).mean() == pytest.approx(10 / 111, abs=0.02)


@pytest.mark.parametrize(
    ("event_type", "column", "first", "hot"), [(AUCTION, "seller", 1000, 0), (BID, "bidder", 2000, 1)]
)
def test_three_of_four_sellers_and_bidders_are_hot_and_the_others_active(
    events: pa.Table, event_type: int, column: str, first: int, hot: int
) -> None:
    columns, at = of_type(events, event_type)
    last = at // 50
    person = columns[column] - first
    is_hot = person == last // 100 * 100 + hot
    assert ((person >= np.maximum(last + 1 - 1000, 0)) & (person <= last + 10) | is_hot).all()
    assert 0.73 < is_hot.mean() < 0.78


def test_times_follow_the_rate_and_auctions_end_after_them(events: pa.Table) -> None:
    times = events["dateTime"].cast(pa.int64()).to_numpy()
    assert (times == BASE_TIME_MS + np.arange(EVENTS) // 10).all()
    auctions, at = of_type(events, AUCTION)
    length = auctions["expires"].astype(np.int64) - times[at]
    assert length.min() >= 1
    assert length.max() <= 2 * 167
    assert length.mean() == pytest.approx(166, abs=6)


def test_events_out_of_order_are_the_same_events_in_groups() -> None:
    ordered = generate(Stream(), 0, 4_000)
    shuffled = generate(Stream(out_of_order_group=1_000), 0, 4_000)
    assert shuffled["dateTime"].to_pylist() != ordered["dateTime"].to_pylist()
    for first in range(0, 4_000, 1_000):
        rows = [{tuple(row.items()) for row in table.slice(first, 1_000).to_pylist()} for table in (ordered, shuffled)]
        assert rows[0] == rows[1]


def test_prices_are_log_uniform_from_one_to_a_million_with_two_decimals(events: pa.Table) -> None:
    prices = of_type(events, BID)[0]["price"]
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    shares = np.histogram(np.log10(prices), bins=6, range=(2, 8))[0] / len(prices)
    assert shares == pytest.approx(np.full(6, 1 / 6), abs=0.02)


def test_half_of_the_bids_come_from_four_channels_and_most_others_have_a_channel_id(events: pa.Table) -> None:
    bids = events.filter(pc.equal(events["event_type"], BID))
    hot = pc.is_in(bids["bid_channel"], pa.array(["Google", "Facebook", "Baidu", "Apple"])).to_numpy()
    assert hot.mean() == pytest.approx(0.5, abs=0.02)
    with_id = pc.match_substring(bids["bid_url"], "&channel_id=").to_numpy()
    assert not with_id[hot].any()
    assert with_id[~hot].mean() == pytest.approx(0.9, abs=0.02)
    pairs = set(zip(bids["bid_channel"].to_pylist(), bids["bid_url"].to_pylist(), strict=True))
    assert len(pairs) == len({channel for channel, _ in pairs})
    url = r"^https://www\.nexmark\.com/[a-z_]{3,4}/[a-z_]{3,4}/[a-z_]{3,4}/item\.htm\?query=1(&channel_id=-?\d+)?$"
    assert pc.all(pc.match_substring_regex(bids["bid_url"], url)).as_py()


def test_events_have_the_average_sizes(events: pa.Table) -> None:
    extra = pc.utf8_length(events["extra"]).to_numpy()
    assert extra[of_type(events, BID)[1]].mean() + 32 == pytest.approx(100, abs=1)
    auctions = events.filter(pc.equal(events["event_type"], AUCTION))
    texts = ("extra", "auction_itemName", "auction_description")
    assert sum(pc.mean(pc.utf8_length(auctions[name])).as_py() for name in texts) + 48 == pytest.approx(500, abs=5)


def test_written_files_have_the_events_in_order_and_are_written_once(tmp_path: Path) -> None:
    arguments = ["--events", "2500", "--events-per-file", "1000", "--processes", "1", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    files = sorted(tmp_path.glob("*.parquet"))
    assert [parquet.read_metadata(file).num_rows for file in files] == [1_000, 1_000, 500]
    assert pa.concat_tables(map(parquet.read_table, files)).cast(SCHEMA).equals(generate(Stream(), 0, 2_500))
    times = [file.stat().st_mtime_ns for file in files]
    assert times == sorted(set(times))
    files[0].unlink()
    assert command.main(arguments) == 0
    assert not files[0].exists()
    with pytest.raises(ValueError, match="other events"):
        command.write(Slices(Stream(seed=2), 2_500, 1_000), tmp_path)


def test_records_have_the_form_of_nexmarks_topic(events: pa.Table) -> None:
    person, auction, *_, bid = (msgspec.json.decode(value) for value in records(events.slice(0, 50)))
    assert [set(event) for event in (person, auction, bid)] == [
        {"event_type", kind} for kind in ("person", "auction", "bid")
    ]
    assert set(bid["bid"]) == {"auction", "bidder", "price", "channel", "url", "dateTime", "extra"}
    assert auction["auction"]["dateTime"] == "2015-07-15 00:00:00.000"
    assert person["person"]["id"] == 1000
