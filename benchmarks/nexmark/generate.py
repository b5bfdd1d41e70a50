"""Writes Nexmark's events: ``python -m benchmarks.nexmark.generate --events N --out FOLDER``.

The folder gets one Parquet file for each slice of events, named by its position, with modification times in the same
order. A second call with the same arguments finds the events and returns. With ``--kafka`` and ``--topic``, the events
go to an existing topic instead, as JSON of the form that Nexmark's own topic has.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import parquet

from benchmarks.nexmark.generator import generate
from benchmarks.nexmark.rules import Stream
from benchmarks.results import merge_result, stamp

SLICE = 100_000
_DONE = "_nexmark.json"
_FIRST_FILE_TIME = 1_700_000_000
# Random texts do not get smaller by compression, and each other column has few values or is made of numbers.
_DICTIONARIES = [
    *("event_type", "person_name", "person_city", "person_state", "auction_category", "auction_seller"),
    *("bid_auction", "bid_bidder", "bid_channel", "bid_url"),
]
PARQUET_OPTIONS: dict[str, Any] = {"compression": "none", "use_dictionary": _DICTIONARIES, "store_schema": False}


@dataclass(frozen=True)
class Slices:
    """The events of a stream from its first one on, and how they are divided into files."""

    stream: Stream
    events: int
    events_per_file: int = SLICE

    @property
    def files(self) -> int:
        """How many files there are; the last one may be shorter."""
        return -(-self.events // self.events_per_file)


def write(slices: Slices, folder: Path, processes: int = 2) -> None:
    """Writes the files, unless an earlier call has written all of them.

    Raises:
        ValueError: the folder has other events.
    """
    description = json.dumps(asdict(slices), indent=2)
    done = folder / _DONE
    if done.exists():
        if done.read_text() != description:
            raise ValueError(f"{folder} has other events; take another folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Not by fork: the caller may have threads, those of Arrow or of a JVM.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for _ in pool.map(partial(write_slice, slices, folder), range(slices.files)):
            pass
    done.write_text(description)


def write_slice(slices: Slices, folder: Path, number: int) -> None:
    """Writes one file. An interrupted call leaves only a hidden file, which the next one replaces."""
    first = number * slices.events_per_file
    table = generate(slices.stream, first, min(slices.events_per_file, slices.events - first))
    path, partial_path = folder / f"{number:05d}.parquet", folder / f".{number:05d}.part"
    parquet.write_table(table, partial_path, **PARQUET_OPTIONS)
    # Sources that order files by time read them in order of their events.
    os.utime(partial_path, (_FIRST_FILE_TIME + number,) * 2)
    partial_path.rename(path)


def main(arguments: Sequence[str]) -> int:
    """Writes what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Stream()
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--out", type=Path, help="a folder for Parquet files")
    parser.add_argument("--events-per-file", type=int, default=SLICE)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=default.seed)
    parser.add_argument("--rate", type=int, default=default.events_per_second, help="events per second of event time")
    parser.add_argument("--out-of-order-group", type=int, default=default.out_of_order_group)
    parser.add_argument("--kafka", metavar="SERVERS", help="bootstrap servers")
    parser.add_argument("--topic", default="nexmark")
    parser.add_argument("--record", action="store_true", help="write the time of new files into results/nexmark.json")
    given = parser.parse_args(arguments)
    if (given.out is None) == (given.kafka is None):
        parser.error("give either --out or --kafka")
    stream = Stream(given.seed, given.rate, given.out_of_order_group)
    slices = Slices(stream, given.events, given.events_per_file)
    if given.kafka is not None:
        # The benchmarks' broker has its commands from a script. Imported here: files need no client of Kafka.
        sys.path.append(str(Path(__file__).parents[2] / "scripts"))
        from benchmarks.nexmark.kafka import produce

        produce(slices, given.kafka, given.topic)
    else:
        began = time.monotonic()
        write(slices, given.out, given.processes)
        if given.record:
            _record(slices, given.processes, time.monotonic() - began)
    return 0


def _record(slices: Slices, processes: int, seconds: float) -> None:
    taken = {"events": slices.events, "processes": processes, "seconds": round(seconds, 1)}
    merge_result("nexmark", {"generator": {**taken, **stamp()}}, {})
    print(f"{slices.events:,} events in {seconds:.1f} s by {processes} processes")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
