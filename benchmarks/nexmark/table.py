"""The tables of results as Markdown: ``python -m benchmarks.nexmark.table``, for ``docs/nexmark.md``."""

from __future__ import annotations

import json
from collections.abc import Mapping

from benchmarks import results
from benchmarks.nexmark.flink import QUERIES
from benchmarks.nexmark.programs import PATTERNS

Figures = Mapping[str, Mapping[str, object]]
_SYSTEMS = ("ours", "flink", "spark")
_NONE = "\N{EN DASH}"


def tables(queries: Mapping[str, Figures]) -> tuple[str, str]:
    """Returns the table of all queries but those of patterns, which are measured over fewer events, and theirs."""
    patterns = {query: figures for query, figures in queries.items() if query in PATTERNS}
    return table({query: queries[query] for query in queries if query not in patterns}), table(patterns)


def table(queries: Mapping[str, Figures]) -> str:
    """Returns a line for each measured query: thousands of events per second, ratios, and CPU time per million."""
    lines = [
        "| query | stateflow | Flink | Spark | over Flink | over Spark | CPU s per million events | Flink | Spark |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_line(query, queries[query]) for query in QUERIES if "ours" in queries.get(query, {})]
    return "\n".join(lines)


def _line(query: str, figures: Figures) -> str:
    speeds = [figures.get(system, {}).get("events_per_s") for system in _SYSTEMS]
    cells = [query, *(f"{each / 1000:,.0f} k" if isinstance(each, int) else _NONE for each in speeds)]
    cells += [_ratio(speeds[0], other) for other in speeds[1:]]
    cells += [str(figures.get(system, {}).get("cpu_s_per_million", _NONE)) for system in _SYSTEMS]
    return f"| {' | '.join(cells)} |"


def _ratio(ours: object, other: object) -> str:
    return f"{ours / other:.2f}" if isinstance(ours, int) and isinstance(other, int) else _NONE


if __name__ == "__main__":
    print(*tables(json.loads((results.RESULTS / "nexmark.json").read_text())["queries"]), sep="\n\n")
