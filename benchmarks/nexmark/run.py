"""Nexmark by stateflow, Flink and Spark: ``python -m benchmarks.nexmark.run [--queries q0,q1] [--events N] [--check]``.

Measures what each query takes, or with ``--check`` compares its final rows with Flink's, with ``--check --plain`` with
those of plain Python, or with ``--memory`` measures the memory of workers with small limits, and merges that into
``results/nexmark.json``. Queries that are not named keep their figures.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyspark
from pyarrow import parquet

from benchmarks import results
from benchmarks.flink_environment import VERSION as FLINK_VERSION
from benchmarks.nexmark import flink
from benchmarks.nexmark.changelog import Rows
from benchmarks.nexmark.correctness import VARIANTS, result
from benchmarks.nexmark.flink import QUERIES, UNSUPPORTED, WARM_UPS, FlinkInputs
from benchmarks.nexmark.flink import FlinkTime as Taken
from benchmarks.nexmark.generate import Slices, write
from benchmarks.nexmark.memory import STATEFUL, bounded
from benchmarks.nexmark.plain import RESULTS, Events
from benchmarks.nexmark.programs import OURS, PATTERNS, SPARK, Load, measure_ours, measure_spark
from benchmarks.nexmark.rules import Stream
from benchmarks.processes import ProgramFailed
from benchmarks.results import merge_result, stamp

EVENTS = 10_000_000
CHECKED_EVENTS = 1_000_000
SYSTEMS = ("ours", "flink", "spark")

_DEFAULT = tuple(query for query in OURS if query not in PATTERNS)


class Measured(TypedDict, total=False):
    """A measurement of a query by a system; `failed` instead of figures when it could not run."""

    events: int
    events_per_s: int
    seconds: float
    cpu_s: float
    cpu_s_per_million: float
    load_1m: float
    commit: str
    at: str
    failed: str


class _Document(TypedDict):
    queries_equal: str | list[str]
    geomean_vs_flink: float | None
    geomean_vs_spark: float | None
    queries: dict[str, dict[str, dict[str, object]]]


@dataclass(frozen=True)
class _Inputs:
    """What systems read."""

    load: Load
    flink: FlinkInputs


def main(arguments: Sequence[str]) -> int:
    """Measures or checks the named queries, or all that are written as jobs, without those of patterns."""
    given = _parsed(arguments)
    queries = given.queries.split(",") if given.queries else [*(STATEFUL if given.memory else _DEFAULT)]
    unknown = sorted({*queries} - {*QUERIES})
    if unknown:
        print(f"no such query: {', '.join(unknown)}; known: {', '.join(QUERIES)}", file=sys.stderr)
        return 2
    count = given.events or (CHECKED_EVENTS if given.check else EVENTS)
    with tempfile.TemporaryDirectory(prefix="nexmark-") as name:
        folder = Path(name)
        events = given.input or folder / "events"
        slices = Slices(Stream(), count, given.events_per_file)
        write(slices, events)
        warm_up = None if given.check or given.memory else folder / "few"
        if warm_up is not None:
            few = min(count, given.warm_up_events)
            # As many files, and so as many batches, as in the measured run: the code of a batch is compiled as well.
            write(replace(slices, events=few, events_per_file=-(-few // slices.files)), warm_up)
        inputs = FlinkInputs.write(events, folder, warm_up)
        found = _Inputs(Load(events, inputs.side_input, given.files_per_batch, warm_up), inputs)
        for query in queries:
            figures: dict[str, Mapping[str, object]]
            if given.check:
                figures = {"check_by_plain" if given.plain else "check": check(query, found, slices, plain=given.plain)}
            elif given.memory:
                figures = {"memory": {**bounded(query, found.load), "events": count, "commit": stamp()["commit"]}}
                print(f"{query}: {figures}", flush=True)
            else:
                figures = dict(measure(query, found, count, given.systems.split(",")))
            # At once: an interrupted call keeps what it has.
            document = merged(query, figures)
    print(json.dumps({key: figure for key, figure in document.items() if key.startswith(("queries_equal", "geomean"))}))
    checks = [of.get(key, {}) for of in document["queries"].values() for key in ("check", "check_by_plain")]
    return int(any(not each.get("equal", True) for each in checks))


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", default="", help=f"with commas between; by default: {', '.join(_DEFAULT)}")
    parser.add_argument("--events", type=int, help=f"{EVENTS:,} by default, and {CHECKED_EVENTS:,} with --check")
    parser.add_argument("--check", action="store_true", help="compare final rows instead of measuring")
    plain = "with --check: compare with plain Python only, for more events than Flink runs in the time there is"
    parser.add_argument("--plain", action="store_true", help=plain)
    parser.add_argument("--memory", action="store_true", help="measure the memory of workers instead of speed")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="which to measure")
    parser.add_argument("--input", type=Path, help="a folder for the events, kept for further calls")
    parser.add_argument("--events-per-file", type=int, default=100_000)
    parser.add_argument("--files-per-batch", type=int, default=20, help="of measured runs of stateflow and Spark")
    few = f"of the {WARM_UPS} runs before the measured one"
    parser.add_argument("--warm-up-events", type=int, default=1_000_000, help=few)
    found = parser.parse_args(arguments)
    if found.plain and not found.check:
        parser.error("--plain compares rows: add --check")
    return found


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(query: str, inputs: _Inputs, events: int, systems: Sequence[str]) -> dict[str, Measured]:
    """Returns the figures of a query by system; without systems that do not have the query."""
    measured: dict[str, Callable[[], Taken]] = {}
    if query in OURS:
        measured["ours"] = partial(measure_ours, query, inputs.load)
    if query not in UNSUPPORTED:
        measured["flink"] = partial(flink.measure, query, inputs.flink)
    if query in SPARK:
        measured["spark"] = partial(measure_spark, query, inputs.load)
    figures = {}
    for system in systems:
        if system in measured:
            figures[system] = _figures(measured[system], events)
            print(f"{query} {system}: {figures[system]}", flush=True)
    return figures


def _figures(run: Callable[[], Taken], events: int) -> Measured:
    load = round(os.getloadavg()[0], 1)
    try:
        taken = run()
    except ProgramFailed as e:
        # The figures of the other systems are not lost; the results say that this one has none.
        print(e, file=sys.stderr)
        return Measured(failed=e.reason, load_1m=load, commit=stamp()["commit"])
    return Measured(
        events=events,
        events_per_s=round(events / taken.seconds),
        seconds=taken.seconds,
        cpu_s=taken.cpu_seconds,
        cpu_s_per_million=round(taken.cpu_seconds / events * 1e6, 2),
        load_1m=load,
        at=stamp()["at"],
        commit=stamp()["commit"],
    )


# -- checking ---------------------------------------------------------------------------------------------------------


def check(query: str, inputs: _Inputs, slices: Slices, *, plain: bool) -> dict[str, object]:
    """Compares the rows of a job, run in several ways, with the expected ones."""
    expected, reference = _expected(query, inputs, plain=plain)
    differences = []
    for variant in VARIANTS:
        rows = result(query, inputs.load, variant)
        if query == "q12":
            rows = _bids_of_bidders(rows)
        missing, unexpected = expected - rows, rows - expected
        if missing or unexpected:
            counts = {"missing": missing.total(), "unexpected": unexpected.total()}
            samples = {"such_as": [repr(row)[:300] for some in (missing, unexpected) for row in list(some)[:1]]}
            differences.append({"variant": str(variant), **counts, **samples})
    found = {
        "equal": not differences,
        "reference": reference,
        "events": slices.events,
        "rows": expected.total(),
        "variants": [str(variant) for variant in VARIANTS],
        "differences": differences,
        "commit": stamp()["commit"],
    }
    print(f"{query}: {found}", flush=True)
    return found


def _expected(query: str, inputs: _Inputs, *, plain: bool) -> tuple[Rows, str]:
    if query == "q12":
        # The windows depend on the clock; the bids of a bidder in all of them do not.
        return _bids_of_bidders(RESULTS["q11"](_events(inputs))), "plain Python: the sum of all windows"
    if plain or query in UNSUPPORTED:
        return RESULTS[query](_events(inputs)), "plain Python"
    return flink.result(query, inputs.flink), f"Flink {FLINK_VERSION}"


def _events(inputs: _Inputs) -> Events:
    return Events(pa.concat_tables(parquet.read_table(path) for path in sorted(inputs.load.events.glob("*.parquet"))))


def _bids_of_bidders(windows: Rows) -> Rows:
    """Returns a row for each bid, with its bidder only."""
    bids: Rows = Rows()
    for (bidder, count, _, _), times in windows.items():
        assert isinstance(count, int)
        bids[(bidder,)] += count * times
    return bids


# -- results ----------------------------------------------------------------------------------------------------------


def merged(query: str, figures: Mapping[str, Mapping[str, object]]) -> _Document:
    """Writes figures of a query into the results and returns all of them; what is not measured now stays as it was."""
    path = results.RESULTS / "nexmark.json"
    before = json.loads(path.read_text()).get("queries", {}) if path.exists() else {}
    queries = {**before, query: {**before.get(query, {}), **figures}}
    versions = {"flink": FLINK_VERSION, "spark": pyspark.__version__}
    written = merge_result("nexmark", {**summarized(queries), "versions": versions, **stamp()}, {"queries": queries})
    document: _Document = json.loads(written.read_text())
    return document


def summarized(queries: Mapping[str, Mapping[str, Mapping[str, object]]]) -> dict[str, object]:
    """Returns how many queries are equal, and the geometric means of ratios of events per second."""
    equal = sorted((q for q, of in queries.items() if of.get("check", {}).get("equal")), key=QUERIES.index)
    flink_ratios, spark_ratios = (_ratios(queries, system) for system in ("flink", "spark"))
    return {
        "queries_equal": "all" if [*QUERIES] == equal else equal,
        "geomean_vs_flink": _geometric_mean(flink_ratios),
        "geomean_vs_spark": _geometric_mean(spark_ratios),
        "vs_flink": flink_ratios,
        "vs_spark": spark_ratios,
        "memory_bounded": [query for query in QUERIES if queries.get(query, {}).get("memory", {}).get("bounded")],
    }


def _ratios(queries: Mapping[str, Mapping[str, Mapping[str, object]]], system: str) -> dict[str, float]:
    ratios = {}
    # Queries of patterns are measured over few events.
    for query in sorted({*queries} - {*PATTERNS}, key=QUERIES.index):
        ours, other = (queries[query].get(name, {}).get("events_per_s") for name in ("ours", system))
        if isinstance(ours, int) and isinstance(other, int):
            ratios[query] = round(ours / other, 2)
    return ratios


def _geometric_mean(ratios: Mapping[str, float]) -> float | None:
    if not ratios:
        return None
    return round(math.exp(sum(map(math.log, ratios.values())) / len(ratios)), 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
