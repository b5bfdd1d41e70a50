"""Nexmark's events follow Nexmark's rules, and any slice of them is equal wherever it is generated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import parquet

from benchmarks.nexmark import generate as command
from benchmarks.nexmark.generate import Slices
from benchmarks.nexmark.generator import SCHEMA, generate
from benchmarks.nexmark.kafka import records
from benchmarks.nexmark.rules import Stream

GOLDEN = "d83d7cbd1e7d358a85511de18ef0a41a5e434c331d247fd12a7485d36b96474d"


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


@pytest.mark.long(reason="writes thousands of events")
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


def test_records_have_the_form_of_nexmarks_topic() -> None:
    person, auction, *_, bid = (msgspec.json.decode(value) for value in records(generate(Stream(), 0, 50)))
    assert [set(event) for event in (person, auction, bid)] == [
        {"event_type", kind} for kind in ("person", "auction", "bid")
    ]
    assert set(bid["bid"]) == {"auction", "bidder", "price", "channel", "url", "dateTime", "extra"}
    assert auction["auction"]["dateTime"] == "2015-07-15 00:00:00.000"
    assert person["person"]["id"] == 1000
