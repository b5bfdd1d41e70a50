"""Streams that are joined and divided, on Spark and without it, rescaled on the way, against plain Python."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import pytest

from stateflow.config.spark_versions import running_version
from stateflow.query import state_entries
from tests.spark.jobs import joined
from tests.spark.jobs.joined import ORDER_SLICE, ORDERS, PAYMENT_SLICE, PAYMENTS, RATE_SLICE, RATES
from tests.spark.processes import ModuleJob, observed_runs
from tests.support import root_files

PARALLELISM = (2, 3, 3)
"""Of each batch: a first run has one batch, a second run the others."""


@dataclass(frozen=True)
class Ran:
    """The job after two runs, and the actions of Spark in the second."""

    job: ModuleJob
    observed: dict[str, Any] | None

    def rows(self, table: str) -> Counter[tuple[Any, ...]]:
        return self.job.rows(table)


SPARK = pytest.param(True, id="spark", marks=[pytest.mark.spark, pytest.mark.slow(reason="starts Spark for each run")])


@pytest.fixture(scope="module", params=[pytest.param(False, id="local"), SPARK])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    on_spark = request.param
    job = ModuleJob(tmp_path_factory.mktemp("joined"), joined, spark=on_spark)
    runs: list[dict[str, Any]] = [
        {"parallelism": PARALLELISM[0], "state__backend": "memory", "run__max_batches": 1},
        # Rows that do not fit into a byte are sorted in files.
        {"parallelism": PARALLELISM[1], "shuffle__sort_memory_bytes": 1},
    ]
    if on_spark:
        return Ran(job, observed_runs(job, *runs))
    for settings in runs:
        job.finish(**settings)
    return Ran(job, None)


def _batches() -> list[tuple[list[Any], ...]]:
    inputs = (joined.orders(), ORDER_SLICE), (joined.payments(), PAYMENT_SLICE), (joined.rates(), RATE_SLICE)
    slices = ([rows[at : at + size] for at in range(0, len(rows), size)] for rows, size in inputs)
    return list(zip_longest(*slices, fillvalue=[]))


def _together() -> list[list[tuple[str, str, int, int]]]:
    """Per batch: the rows of the connected streams' function, shop by shop in the declared order."""
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


@pytest.mark.matrix
@pytest.mark.long(reason="runs a job on Spark")
def test_two_connected_streams_share_state_and_a_key_s_rows_come_in_the_declared_order(ran: Ran) -> None:
    assert ran.rows("events") == Counter(_events())
    counts = Counter(shop for shop, *_ in _events())
    assert {entry.key[0]: entry.value for entry in state_entries(str(ran.job.root), "together")} == counts


def test_a_side_output_goes_to_a_sink_and_to_an_operator(ran: Ran) -> None:
    assert ran.rows("thirds") == Counter((shop, count) for shop, _, _, count in _events() if count % 3 == 0)
    thirds = Counter(shop for shop, _, _, count in _events() if count % 3 == 0)
    assert ran.rows("counted") == Counter((s, n) for s, last in thirds.items() for n in range(1, last + 1))


def test_broadcast_rows_reach_every_subtask_before_the_keyed_rows_of_their_batch(ran: Ran) -> None:
    expected: Counter[tuple[Any, ...]] = Counter()
    for parallelism, (ordered, _, rated) in zip(PARALLELISM, _batches(), strict=True):
        expected.update((str(subtask), "rate", r.number, 0) for r in rated for subtask in range(parallelism))
        total = sum(r.factor for r in rated)
        expected.update((o.shop, "order", o.number, total) for o in ordered if o.number % 3)
    assert ran.rows("rated") == expected


def test_a_union_has_the_rows_of_all_its_streams_once(ran: Ran) -> None:
    expected = Counter((n, o.shop) for o in joined.orders() for n in (o.number, -o.number) if n % 2 == 0)
    expected.update((1000 + p.paid, p.shop_name) for p in joined.payments())
    assert ran.rows("union") == expected


def test_streams_of_different_levels_can_be_connected(ran: Ran) -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    expected: Counter[tuple[Any, ...]] = Counter()
    for (ordered, _, _), emitted in zip(_batches(), _together(), strict=True):
        # Of equal numbers, first those of the first stream; then in the order in which they were emitted.
        calls = [(o.shop, o.number, 1, 0, "order") for o in ordered]
        calls += [(s, n, 2, at, f"seen {side}") for at, (s, side, n, _) in enumerate(emitted) if n % 2 == 0]
        for shop, number, _, _, side in sorted(calls):
            counts[shop] += 1
            expected[shop, side, number, counts[shop]] += 1
    assert ran.rows("late") == expected


def test_each_source_has_its_own_position_and_no_checkpointed_row_is_read_again(ran: Ran) -> None:
    found = {source["uid"]: json.loads(source["offset"]) for source in root_files.head(ran.job.root).doc["sources"]}
    rows = {"orders": ORDERS, "payments": PAYMENTS, "rates": RATES}
    assert list(found) == sorted(rows)
    assert {uid: _row(offset) for uid, offset in found.items()} == rows
    for uid, size in (("orders", ORDER_SLICE), ("payments", PAYMENT_SLICE)):
        asked = [tuple(json.loads(line)) for line in (ran.job.folder / f"{uid}.ledger").read_text().splitlines()]
        assert asked == [(at, min(at + size, rows[uid])) for at in range(0, rows[uid], size)], uid


def _row(offset: dict[str, Any]) -> int:
    return int((json.loads(offset["position"]) if "position" in offset else offset)["row"])


def test_every_operator_has_the_parallelism_and_backend_of_the_last_run(ran: Ran) -> None:
    manifest = root_files.read_manifest(ran.job.root, root_files.head(ran.job.root).doc["manifest"])
    assert {o["parallelism"] for o in manifest["operators"]} == {PARALLELISM[-1]}
    assert {s["backend"] for o in manifest["operators"] for s in o["subtasks"]} == {"rocksdb"}
    root_files.check_hashes(ran.job.root)


@pytest.mark.matrix
@pytest.mark.parametrize("ran", [SPARK], indirect=True)
def test_a_batch_is_one_action_for_the_whole_graph(ran: Ran) -> None:
    """A second action would run tasks again, and their reports would be of other attempts."""
    assert ran.observed is not None
    assert ran.observed["settings"] == dict(running_version().required)
    assert len(ran.observed["batches"]) == 2
    for batch in ran.observed["batches"]:
        # Spark has an execution around each micro-batch, in which nothing runs; stateflow's may be several jobs.
        outer, ours = batch["executions"]
        assert outer["root"] == outer["id"] == ours["root"]
        assert (outer["jobs"], ours["jobs"]) == (0, batch["all_jobs"])
        assert ours["jobs"] > 0
