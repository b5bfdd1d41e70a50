"""The results of the runner: which queries are equal, and ratios of events per second."""

from __future__ import annotations

import json

from benchmarks import results
from benchmarks.nexmark import run
from benchmarks.nexmark.table import tables
from tests.docs.pages import read


def figures(ours: int, flink: int, spark: int | None = None) -> dict[str, dict[str, object]]:
    of = {"ours": ours, "flink": flink} | ({} if spark is None else {"spark": spark})
    return {system: {"events_per_s": events} for system, events in of.items()}


def test_means_are_geometric_and_of_queries_that_both_systems_have() -> None:
    found = run.summarized({"q1": figures(200, 100, 50), "q0": figures(100, 200), "q2": {"ours": {"events_per_s": 7}}})
    assert (found["geomean_vs_flink"], found["geomean_vs_spark"]) == (1.0, 4.0)
    assert found["vs_flink"] == {"q0": 0.5, "q1": 2.0}


def test_the_document_has_the_tables_of_the_results() -> None:
    queries = json.loads((results.RESULTS / "nexmark.json").read_text())["queries"]
    document = read("docs/nexmark.md")
    assert all(each in document for each in tables(queries))
