"""Falls of a sensor's values, runs of low values, and readings that no other one follows in time.

``job.folder`` has ``readings.jsonl`` and gets ``tables/``. With ``job.spark=yes`` Spark reads the files of ``in/``.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import msgspec

from stateflow import AfterMatchSkipStrategy, MatchedRows, OutputTag, Pattern, StreamExecutionEnvironment
from stateflow.testing.sinks import FolderSink
from tests.support.jobs.sources import timed


class Reading(msgspec.Struct):
    """A value of a sensor, at a time in milliseconds since 1970."""

    sensor: str
    at: int
    value: int


class Match(msgspec.Struct):
    sensor: str
    times: list[int]


TIMED_OUT = OutputTag("timed-out", Match)


def falls(row: Reading, matched: MatchedRows[Reading]) -> bool:
    before = matched.last("down") or matched.last("first")
    return before is not None and row.value < before.value


FALLS = Pattern.begin("first").next("down", falls).one_or_more().consecutive().within(timedelta(milliseconds=60))
LOWS = (
    Pattern.begin("low", lambda row: row.value < 5, skip=AfterMatchSkipStrategy.skip_past_last_row())
    .times_or_more(2)
    .consecutive()
    .greedy()
    .next("high", lambda row: row.value >= 5)
)
PAIRS = Pattern.begin("one", lambda row: row.value == 1).followed_by("two", lambda row: row.value == 2)


def match(rows: Mapping[str, list[Reading]]) -> Match:
    every = [row for some in rows.values() for row in some]
    return Match(every[0].sensor, sorted(row.at for row in every))


def build(env: StreamExecutionEnvironment) -> None:
    folder = Path(env.parameter("folder"))
    sensors = timed(env, Reading, "readings", timedelta(milliseconds=20)).key_by("sensor")
    pairs = sensors.match_pattern(PAIRS.within(timedelta(milliseconds=100))).side_output_timed_out(TIMED_OUT, match)
    matched = {
        "falls": sensors.match_pattern(FALLS).select(match, output=Match, uid="falls"),
        "lows": sensors.match_pattern(LOWS).select(match, output=Match, uid="lows"),
        "pairs": pairs.select(match, output=Match, uid="pairs"),
    }
    matched["timed-out"] = matched["pairs"].get_side_output(TIMED_OUT)
    for name, stream in matched.items():
        stream.sink_to(FolderSink(folder / f"tables/{name}"), uid=f"{name}-table")
