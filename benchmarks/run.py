"""Runs benchmarks and writes their figures to ``benchmarks/results/``: ``python benchmarks/run.py [NAME…]``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(1, str(Path(__file__).parent.parent / "scripts"))

from benchmarks import (
    asynchronous,
    browser,
    buckets,
    cells,
    cluster,
    connectors,
    garbage,
    increments,
    kafka_sink,
    latency,
    memory,
    micro_batch,
    pages,
    query,
    restore,
    retained,
    savepoints,
    soak,
    start,
    state,
    throughput,
)

NAMES = (
    "micro-batch",
    "memory",
    "throughput",
    "savepoints",
    "increments",
    "async",
    "restore",
    "gc",
    "retained",
    "soak",
    "start",
    "state",
    "connectors",
    "buckets",
    "cluster",
    "latency",
    "kafka-sink",
    "query",
    "pages",
    "browser",
)


def main(arguments: list[str]) -> int:
    """Runs the named benchmarks, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"all without one: {', '.join(NAMES)}")
    parser.add_argument("--cells", default="", help="of throughput: names with commas between; all without it")
    parser.add_argument("--events", type=int, default=cells.EVENTS, help="of throughput: how many in each cell")
    size = soak.Size()
    parser.add_argument("--batches", type=int, default=size.batches, help="of soak: without Spark; 0 for none")
    parser.add_argument("--spark-batches", type=int, default=size.spark_batches, help="of soak: with Spark; 0 for none")
    rounds = cluster.Size().rounds
    parser.add_argument("--rounds", type=int, default=rounds, help="of cluster: how often each program is submitted")
    given = parser.parse_args(arguments)
    size = replace(size, batches=given.batches, spark_batches=given.spark_batches)
    try:
        chosen = cells.selected([name for name in given.cells.split(",") if name], given.events)
    except ValueError as e:
        parser.error(str(e))
    benchmarks: dict[str, Callable[[Path], Path]] = {
        "micro-batch": micro_batch.run,
        "memory": memory.run,
        "throughput": partial(throughput.run, cells=chosen),
        "savepoints": savepoints.run,
        "increments": increments.run,
        "async": asynchronous.run,
        "restore": restore.run,
        "gc": garbage.run,
        "retained": retained.run,
        "soak": partial(soak.run, size=size),
        "start": start.run,
        "state": state.run,
        "connectors": connectors.run,
        "buckets": buckets.run,
        "cluster": partial(cluster.run, size=cluster.Size(given.rounds)),
        "latency": latency.run,
        "kafka-sink": kafka_sink.run,
        "query": query.run,
        "pages": pages.run,
        "browser": browser.run,
    }
    unknown = [name for name in given.names if name not in benchmarks]
    if unknown:
        parser.error(f"no such benchmark: {', '.join(unknown)}; known: {', '.join(benchmarks)}")
    for name in given.names or NAMES:
        with tempfile.TemporaryDirectory(prefix=f"stateflow-{name}-") as folder:
            path = benchmarks[name](Path(folder))
        print(f"{name}:\n{path.read_text()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
