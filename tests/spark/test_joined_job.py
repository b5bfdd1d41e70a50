"""Streams that come together and part, on Spark and without it, against plain Python."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import SystemClock
from stateflow.storage import open_storage
from stateflow.testing.sinks import FolderSink
from tests.spark.jobs import joined
from tests.spark.jobs.joined import (
    ORDER_SLICE,
    ORDERS,
    PAYMENT_SLICE,
    PAYMENTS,
    RATE_SLICE,
    RATES,
    orders,
    payments,
    rates,
)
from tests.spark.processes import ended, observed_runs

JOB = Path(joined.__file__)
PARALLELISM = 3


@dataclass(frozen=True)
class Ran:
    """The job's folder after two runs, the first of one batch only; and what the second said of Spark's actions."""

    home: Path
    observed: dict[str, Any] | None

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in FolderSink(self.home / name).rows()]


@pytest.fixture(scope="module", params=["local", pytest.param("spark", marks=pytest.mark.spark)])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    home = tmp_path_factory.mktemp(f"joined-{request.param}")
    on_spark = request.param == "spark"
    settings = {
        "job.home": str(home),
        "job.spark": "yes" if on_spark else "no",
        "local_dir": str(home / "local"),
        "parallelism": str(PARALLELISM),
    }
    runs = [{**settings, "run.max_batches": "1"}, settings]
    if on_spark:
        return Ran(home, observed_runs(JOB, home / "root", *runs))
    for each in runs:
        assignments = [word for key, value in each.items() for word in ("--set", f"{key}={value}")]
        ended([sys.executable, "-m", "stateflow", "run", str(JOB), "--job-root", str(home / "root"), *assignments])
    return Ran(home, None)


Batch = tuple[list[Any], list[Any], list[Any]]


def _batches() -> Iterator[Batch]:
    """The orders, payments and rates of each batch."""
    for n in range(max(-(-ORDERS // ORDER_SLICE), -(-PAYMENTS // PAYMENT_SLICE), -(-RATES // RATE_SLICE))):
        yield tuple(  # type: ignore[misc]
            given[n * size : (n + 1) * size]
            for given, size in ((orders(), ORDER_SLICE), (payments(), PAYMENT_SLICE), (rates(), RATE_SLICE))
        )


def _together() -> list[list[tuple[str, str, int, int]]]:
    """Per batch: what the connected streams' function emits, shop by shop in the declared order."""
    counts: Counter[str] = Counter()
    result = []
    for ordered, paid, _ in _batches():
        calls = [(o.shop, o.number, 1, "order", o.number) for o in ordered]
        calls += [(p.shop_name, p.at, 2, "payment", p.paid) for p in paid]
        emitted = []
        for shop, _, _, side, number in sorted(calls):
            counts[shop] += 1
            emitted.append((shop, side, number, counts[shop]))
        result.append(emitted)
    return result


def _events() -> list[tuple[str, str, int, int]]:
    return [event for batch in _together() for event in batch]


def test_two_connected_streams_share_state_and_a_key_s_rows_come_in_the_declared_order(ran: Ran) -> None:
    assert Counter(ran.rows("events")) == Counter(_events())


def test_a_side_output_goes_to_a_sink_of_its_own(ran: Ran) -> None:
    assert Counter(ran.rows("thirds")) == Counter((e[0], e[3]) for e in _events() if e[3] % 3 == 0)


def test_an_operator_works_on_a_side_output(ran: Ran) -> None:
    thirds = Counter(e[0] for e in _events() if e[3] % 3 == 0)
    assert Counter(ran.rows("counted")) == Counter((s, n) for s, last in thirds.items() for n in range(1, last + 1))


def test_row_functions_behind_an_operator_know_its_subtask(ran: Ran) -> None:
    mark = "!" * PARALLELISM
    assert Counter(ran.rows("shouted")) == Counter((s + mark, k, n, c) for s, k, n, c in _events() if n % 2 == 0)


def test_broadcast_rows_reach_every_subtask_before_the_keyed_rows_of_their_batch(ran: Ran) -> None:
    expected: Counter[tuple[Any, ...]] = Counter()
    for ordered, _, rated in _batches():
        expected.update((str(subtask), "rate", r.number, 0) for r in rated for subtask in range(PARALLELISM))
        expected.update((o.shop, "order", o.number, sum(r.factor for r in rated)) for o in ordered)
    assert Counter(ran.rows("rated")) == expected


def test_a_union_has_the_rows_of_all_its_streams_once(ran: Ran) -> None:
    expected = Counter((n, o.shop) for o in orders() for n in (o.number, -o.number) if n % 2 == 0)
    expected.update((1000 + p.paid, p.shop_name) for p in payments())
    assert Counter(ran.rows("union")) == expected


def test_streams_of_different_levels_can_be_connected(ran: Ran) -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    expected: Counter[tuple[Any, ...]] = Counter()
    for (ordered, _, _), emitted in zip(_batches(), _together(), strict=True):
        # Of equal numbers, first those of the first stream; then in the order in which they were emitted.
        calls = [(o.shop, o.number, 1, 0, "order") for o in ordered]
        calls += [(s, n, 2, at, f"seen {side}") for at, (s, side, n, _) in enumerate(emitted)]
        for shop, number, _, _, side in sorted(calls):
            counts[shop] += 1
            expected[shop, side, number, counts[shop]] += 1
    assert Counter(ran.rows("late")) == expected


def test_each_source_has_a_position_of_its_own(ran: Ran) -> None:
    head = JobRoot.open(open_storage(str(ran.home / "root")), SystemClock()).head()
    found = {p.uid: json.loads(p.offset) for p in head.entry.sources}
    rows = {"orders": ORDERS, "payments": PAYMENTS, "rates": RATES}
    assert list(found) == sorted(rows)
    assert {uid: _row(offset) for uid, offset in found.items()} == rows


def _row(offset: dict[str, Any]) -> int:
    return int((json.loads(offset["position"]) if "position" in offset else offset)["row"])


def test_no_source_is_asked_again_for_what_a_checkpoint_has(ran: Ran) -> None:
    for uid, size, total in (("orders", ORDER_SLICE, ORDERS), ("payments", PAYMENT_SLICE, PAYMENTS)):
        asked = [tuple(json.loads(line)) for line in (ran.home / f"{uid}.ledger").read_text().splitlines()]
        assert asked == [(at, min(at + size, total)) for at in range(0, total, size)], uid


@pytest.mark.parametrize("ran", [pytest.param("spark", marks=pytest.mark.spark)], indirect=True)
def test_a_batch_is_one_action_for_the_whole_graph(ran: Ran) -> None:
    assert ran.observed is not None
    assert len(ran.observed["batches"]) == 2
    for batch in ran.observed["batches"]:
        outer, ours = batch["executions"]
        assert outer["root"] == outer["id"] == ours["root"]
        assert (outer["jobs"], ours["jobs"]) == (0, batch["all_jobs"])
        assert ours["jobs"] > 0
