"""The results of the runner: which queries are equal, and ratios of events per second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.nexmark import run
from benchmarks.nexmark.flink import QUERIES
from benchmarks.nexmark.table import Figures, table, tables
from tests.docs.pages import read


def figures(ours: int, flink: int, spark: int | None = None) -> dict[str, dict[str, object]]:
    of = {"ours": ours, "flink": flink} | ({} if spark is None else {"spark": spark})
    return {system: {"events_per_s": events} for system, events in of.items()}


def test_means_are_geometric_and_of_queries_that_both_systems_have() -> None:
    found = run.summarized({"q1": figures(200, 100, 50), "q0": figures(100, 200), "q2": {"ours": {"events_per_s": 7}}})
    assert (found["geomean_vs_flink"], found["geomean_vs_spark"]) == (1.0, 4.0)
    assert found["vs_flink"] == {"q0": 0.5, "q1": 2.0}


def test_queries_of_patterns_are_not_in_the_means() -> None:
    found = run.summarized({"cep0": figures(200, 100), "q0": figures(100, 200)})
    assert (found["geomean_vs_flink"], found["vs_flink"]) == (0.5, {"q0": 0.5})


def test_a_failed_system_has_no_ratio() -> None:
    found = run.summarized({"q1": {"ours": {"events_per_s": 7}, "flink": {"failed": "no memory"}}})
    assert found["geomean_vs_flink"] is None


@pytest.mark.parametrize("equal", [True, False])
def test_all_queries_are_equal_only_if_each_one_was_compared(equal: bool) -> None:
    compared = {query: {"check": {"equal": True}} for query in QUERIES}
    compared["q7"] = {"check": {"equal": equal}}
    assert run.summarized(compared)["queries_equal"] == (
        "all" if equal else [query for query in QUERIES if query != "q7"]
    )


def test_results_of_a_query_keep_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    run.merged("q1", {"check": {"equal": True}})
    run.merged("q2", figures(3, 2))
    run.merged("q1", figures(1, 2))
    document = json.loads((tmp_path / "nexmark.json").read_text())
    assert document["queries_equal"] == ["q1"]
    assert document["vs_flink"] == {"q1": 0.5, "q2": 1.5}
    assert {"commit", "machine", "versions"} <= document.keys()


def test_an_unknown_query_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--queries", "q0,q99"]) == 2
    assert "q99" in capsys.readouterr().err


def test_the_document_has_the_tables_of_the_results() -> None:
    queries = json.loads((results.RESULTS / "nexmark.json").read_text())["queries"]
    document = read("docs/nexmark.md")
    assert all(each in document for each in tables(queries))


def test_a_line_of_the_table_has_no_ratio_to_a_system_that_lacks_the_query() -> None:
    ours: dict[str, object] = {"events_per_s": 200_000, "cpu_s_per_million": 1.5}
    made: dict[str, Figures] = {"q1": {**figures(200_000, 100_000), "ours": ours}, "q0": {"check": {"equal": True}}}
    *_, line = table(made).splitlines()
    none = "\N{EN DASH}"
    assert line == f"| q1 | 200 k | 100 k | {none} | 2.00 | {none} | 1.5 | {none} | {none} |"
