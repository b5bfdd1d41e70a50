"""Checkpoints of Structured Streaming, imported with state and positions: the job continues exactly, on Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import GroupedData

from stateflow.testing.sinks import FolderSink
from tests.spark.jobs.imported import GAP
from tests.support.processes import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.slow(reason="each run is a driver with Spark, which takes seconds")]
READ, ALL = 2, 4
"""Number of files that the queries read, and of all files."""
SHOPS = ["a", "b", "c"]
Order = dict[str, Any]


def _orders(file: int) -> list[Order]:
    """One order of each shop, but of the first shop only in the first file: then the order of all is known."""
    shops = SHOPS if file in (0, ALL - 1) else SHOPS[1:]
    return [
        {"shop": s, "product": f"p{(file + n) % 2}", "amount": 10 * file + n + 1, "at": 1_000_000 + 1000 * file + n}
        for n, s in enumerate(shops)
    ]


def _expected() -> tuple[Counter[Any], Counter[Any]]:
    """What the job emits after the files that the queries read, and all reminders, from the orders one by one."""
    counts: Counter[Any] = Counter()
    seen: Counter[Any] = Counter()
    known: dict[str, list[Order]] = {}
    for file in range(ALL):
        for order in _orders(file):
            before = known.setdefault(order["shop"], [])
            after = [*before, order]
            products: Counter[str] = Counter()
            for each in after:
                products[each["product"]] += each["amount"]
            last = [before[-1]["at"] if before else 0, sum(each["amount"] for each in before)]
            text = json.dumps([*last, [each["amount"] for each in after], products], sort_keys=True)
            if file >= READ:
                counts[order["shop"], len(after), sum(each["amount"] for each in after)] += 1
                seen[order["shop"], order["at"], text] += 1
            seen[order["shop"], order["at"] + GAP, "reminder"] += 1
            before.append(order)
    return counts, seen


def _first_orders() -> Counter[Any]:
    """The first order of each shop and product, but not those that the query has read."""
    known: set[tuple[str, str]] = set()
    found: Counter[Any] = Counter()
    for file in range(ALL):
        for order in _orders(file):
            if (order["shop"], order["product"]) not in known and file >= READ:
                found[tuple(order.values())] += 1
            known.add((order["shop"], order["product"]))
    assert found
    return found


def _windows() -> Counter[Any]:
    """Windows of 4 s every 2 s: one is complete when the query has ended, one gets orders of both, one is new."""
    orders: Counter[tuple[str, int]] = Counter()
    totals: Counter[tuple[str, int]] = Counter()
    for order in (order for file in range(ALL) for order in _orders(file)):
        for start in (order["at"] // 2000 * 2000, order["at"] // 2000 * 2000 - 2000):
            orders[order["shop"], start] += 1
            totals[order["shop"], start] += order["amount"]
    assert len({start for _, start in orders}) == 3
    return Counter((*key, count, totals[key]) for key, count in orders.items())


def _rows(table: Path) -> Counter[Any]:
    return Counter(tuple(row.values()) for row in FolderSink(table).rows())


@pytest.mark.matrix
@pytest.mark.skipif(not hasattr(GroupedData, "transformWithState"), reason="Spark 4.0 has it for pandas only")
def test_a_job_continues_exactly_from_imported_queries(tmp_path: Path) -> None:
    for file in range(ALL):
        path = tmp_path / ("orders" if file < READ else "later") / f"{file}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(order) + "\n" for order in _orders(file)))
        # Spark reads the oldest file first.
        os.utime(path, (1_767_225_600 + file,) * 2)
    command = [sys.executable, "-m", "tests.spark.structured_streaming", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["watermark"] == max(order["at"] for file in range(READ) for order in _orders(file))
    assert found["recent"] == {
        shop: sum(shop in (o["shop"] for o in _orders(file)) for file in range(READ)) for shop in SHOPS
    }
    # The entry of the first shop had expired in the last batch.
    assert found["brief"] == SHOPS[1:]
    assert set(found["differences"].values()) == {0} and found["differences"].keys() == {"counts", "visits"}
    counts, seen = _expected()
    assert _rows(tmp_path / "counts") == counts
    assert _rows(tmp_path / "seen") == seen
    assert _rows(tmp_path / "distinct") == _first_orders()
    assert _rows(tmp_path / "windows") == _windows()
