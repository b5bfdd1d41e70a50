"""The recipes: their functions against plain Python, with batches cut at any place; their job, run without Spark."""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from stateflow.testing import KeyedHarness, KeyedInput
from tests.docs.pages import blocks, load_module, read
from tests.support.cli_fixture import invoke

CODE = "\n\n".join(blocks(read("recipes"), "python"))
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BOUND, WEEK, HOUR = timedelta(minutes=30), timedelta(days=7), timedelta(hours=1)
TICK = timedelta(milliseconds=1)

Row = Any
Batches = list[list[Row]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    yield load_module(tmp_path_factory.mktemp("recipes") / "recipes_page.py", CODE)
    sys.modules.pop("recipes_page")


# -- rows, and where they are cut into batches ------------------------------------------------------------------------

# Differences of exactly a week and exactly an hour are common, and those next to them.
_DAYS = st.sampled_from([0, 1, 6, 7, 8, 13, 14, 15, 28, 29])
_MINUTES = st.sampled_from([0, 1, 29, 30, 59, 60, 61, 90, 120])
_TIMES = st.builds(lambda day, minute: BEGIN + timedelta(days=day, minutes=minute), _DAYS, _MINUTES)
_TIMES_OF_A_DAY = _MINUTES.map(lambda minute: BEGIN + timedelta(minutes=minute))
_DELAYS = st.integers(0, 30).map(lambda minutes: timedelta(minutes=minutes))
_CUTS = st.lists(st.integers(0, 20), max_size=5)
_ARRIVALS = st.lists(st.tuples(st.sampled_from("ab"), _TIMES, _DELAYS), max_size=20)
_ARRIVALS_OF_A_DAY = st.lists(st.tuples(st.sampled_from("ab"), _TIMES_OF_A_DAY, _DELAYS), max_size=12)


def _cut(rows: Sequence[Row], cuts: Sequence[int]) -> Batches:
    places = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    return [list(rows[start:end]) for start, end in pairwise(places)]


def _arrival(each: tuple[str, datetime, timedelta]) -> datetime:
    return each[1] + each[2]


def _order(job: ModuleType, order_id: str, time: datetime, customer_id: str = "c") -> Row:
    return job.Order(order_id, customer_id, time, [job.Item("s", 2, 125)])


def _multiset(rows: Sequence[Row]) -> Counter[bytes]:
    return Counter(map(msgspec.json.encode, rows))


# -- deduplicate ------------------------------------------------------------------------------------------------------


def _expected_once(batches: Batches) -> tuple[list[Row], list[Row]]:
    """The rows that pass and those that are late, by a memory from which nothing is removed."""
    passed: dict[str, list[datetime]] = defaultdict(list)
    once, late, latest = [], [], datetime.min.replace(tzinfo=UTC) + WEEK
    for batch in batches:
        for row in sorted(batch, key=lambda row: row.time):
            if row.time <= latest - BOUND - TICK:
                late.append(row)
            elif all(abs(row.time - other) >= WEEK for other in passed[row.order_id]):
                passed[row.order_id].append(row.time)
                once.append(row)
        latest = max([latest, *(row.time for row in batch)])
    return once, late


def _deduplicate(job: ModuleType, batches: Batches) -> tuple[list[Row], list[Row]]:
    orders = KeyedInput(job.Order, "order_id", ("time",), event_time="time", out_of_orderness=BOUND)
    with KeyedHarness(job.Deduplicate(), orders, output=job.Order, side_outputs=[job.LATE]) as h:
        for batch in batches:
            h.push(*batch)
        h.drain()
        assert h.state_entries() == [] and h.timers() == []
        return h.output, h.side_output(job.LATE)


@pytest.mark.slow(reason="compares sixty histories with plain Python")
def test_orders_pass_once_a_week_however_they_are_cut_into_batches(job: ModuleType) -> None:
    @given(_ARRIVALS, _CUTS, st.sampled_from(["in order", "within the bound", "late"]))
    def check(arrivals: list[tuple[str, datetime, timedelta]], cuts: list[int], order: str) -> None:
        if order != "late":
            arrivals = sorted(arrivals, key=_arrival if order == "within the bound" else lambda each: each[1])
        rows = [_order(job, name, time) for name, time, _ in arrivals]
        found, expected = _deduplicate(job, _cut(rows, cuts)), _expected_once(_cut(rows, cuts))
        assert list(map(_multiset, found)) == list(map(_multiset, expected))
        if order == "in order":
            assert (_multiset(found[0]), found[1]) == (_multiset(_expected_once([rows])[0]), [])

    check()


# -- enrich -----------------------------------------------------------------------------------------------------------


def _expected_versions(orders: Sequence[Row], versions: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Each order with its version, and the orders without one, by a search of all rows."""
    found, unknown = [], []
    for order in orders:
        own = sorted((v for v in versions if v.customer_id == order.customer_id), key=lambda v: v.since)
        valid = [v for v in own if v.since <= order.time][-1:]
        valid = valid or [v for v in own if order.time < v.since <= order.time + HOUR][:1]
        found += [(order.order_id, order.time, 250, version.name) for version in valid]
        unknown += [] if valid else [order]
    return found, unknown


def _enriching(job: ModuleType) -> KeyedHarness:
    inputs = (
        KeyedInput(job.Order, "customer_id", ("time",), event_time="time", out_of_orderness=BOUND),
        KeyedInput(job.Customer, "customer_id", ("since",), event_time="since", out_of_orderness=BOUND),
    )
    return KeyedHarness(job.Enrich(), *inputs, output=job.EnrichedOrder, side_outputs=[job.UNKNOWN, job.LATE])


def _enrich(job: ModuleType, batches: Batches) -> tuple[list[Row], list[Row]]:
    with _enriching(job) as h:
        for batch in batches:
            orders = [row for row in batch if isinstance(row, job.Order)]
            h.push_both(orders, [row for row in batch if not isinstance(row, job.Order)])
        h.drain()
        assert h.side_output(job.LATE) == [] and h.timers() == []
        for customer in "ab":
            assert h.state("waiting", key=customer) == []
            assert len(h.state("versions", key=customer)) <= 1
        return [(row.order_id, row.time, row.cents, row.name) for row in h.output], h.side_output(job.UNKNOWN)


def _row(job: ModuleType, number: int, is_order: bool, name: str, time: datetime) -> Row:
    # No two versions have the same time: either of them could be the newer one.
    since = time + number * TICK
    return _order(job, f"o{number}", time, name) if is_order else job.Customer(name, since, f"n{number}", "DE")


@pytest.mark.slow(reason="compares sixty histories with plain Python")
def test_orders_get_the_version_of_their_time_however_they_are_cut_into_batches(job: ModuleType) -> None:
    @given(_ARRIVALS_OF_A_DAY | _ARRIVALS, st.randoms(use_true_random=False), _CUTS)
    def check(arrivals: list[tuple[str, datetime, timedelta]], random: Any, cuts: list[int]) -> None:
        ordered = sorted(arrivals, key=_arrival)
        rows = [_row(job, n, random.random() < 0.6, name, time) for n, (name, time, _) in enumerate(ordered)]
        orders = [row for row in rows if isinstance(row, job.Order)]
        found, unknown = _enrich(job, _cut(rows, cuts))
        expected, expected_unknown = _expected_versions(orders, [row for row in rows if not isinstance(row, job.Order)])
        assert Counter(found) == Counter(expected)
        assert _multiset(unknown) == _multiset(expected_unknown)

    check()


@pytest.mark.parametrize(("minutes", "is_known"), [(60, True), (61, False)])
def test_an_order_waits_an_hour_for_its_customer(job: ModuleType, minutes: int, is_known: bool) -> None:
    order = _order(job, "o", BEGIN, "a")
    version = job.Customer("a", BEGIN + timedelta(minutes=minutes), "n", "DE")
    for batches in ([[order, version]], [[order], [], [version]]):
        found, unknown = _enrich(job, batches)
        assert (len(found), len(unknown)) == ((1, 0) if is_known else (0, 1))


def test_a_late_version_counts_for_later_orders_and_a_late_order_goes_to_the_side_output(job: ModuleType) -> None:
    with _enriching(job) as h:
        h.push_both([_order(job, "o1", BEGIN, "a")], [job.Customer("a", BEGIN - HOUR, "old", "DE")])
        h.push_both([_order(job, "other", BEGIN + 3 * HOUR, "b")], [job.Customer("c", BEGIN + 3 * HOUR, "c", "DE")])
        h.push_both([_order(job, "late", BEGIN, "a")], [job.Customer("a", BEGIN - TICK, "late", "DE")])
        h.push_both([_order(job, "o2", BEGIN + 3 * HOUR, "a")], [])
        h.drain()
        assert [(row.order_id, row.name) for row in h.output] == [("o1", "old"), ("o2", "late")]
        assert [row.order_id for row in h.side_output(job.LATE)] == ["late"]
        (version,) = h.state("versions", key="a").values()
        assert version.name == "late"


# -- the whole job ----------------------------------------------------------------------------------------------------

_READ_WITHOUT_SPARK = '''

def FileSource(path, *, schema, format):
    """The same rows from a list, which needs no Spark."""
    from pathlib import Path

    from stateflow.api.source import CollectionSource

    assert format == "json"
    lines = [line for file in sorted(Path(path).glob("*.json")) for line in file.read_text().splitlines()]
    return CollectionSource([msgspec.json.decode(line, type=schema) for line in lines], schema)
'''


def _typed(folder: Path, code: str, word: str, *more: str) -> str:
    path = folder / "orders_job.py"
    path.write_text(code)
    given = [f"job.{name}={folder / name}" for name in ("orders", "customers", "tables")]
    shown = invoke(word, str(path), *more, *(option for each in given for option in ("--set", each)))
    assert shown.exit_code == 0, shown.output
    return shown.output


def _write(folder: Path, rows: Sequence[Row]) -> None:
    folder.mkdir()
    (folder / "1.json").write_text("".join(msgspec.json.encode(row).decode() + "\n" for row in rows))


@pytest.mark.slow(reason="runs sixteen batches of a job with two operators and three tables")
def test_the_job_runs_over_a_month_in_small_batches(job: ModuleType, tmp_path: Path) -> None:
    customers = "abcdefgh"
    orders = [_order(job, f"o{n % 30}", BEGIN + timedelta(hours=5 * n), customers[n % 7]) for n in range(140)]
    orders.sort(key=lambda row: row.time + timedelta(minutes=row.time.hour * 7 % 30))
    since = [BEGIN + timedelta(hours=26 * n, minutes=30) for n in range(27)]
    versions = [job.Customer(customers[n % 6], time, f"n{n}", "DE") for n, time in enumerate(since)]
    _write(tmp_path / "orders", orders)
    _write(tmp_path / "customers", versions)
    more = ["--set", f"local_dir={tmp_path}/local", "--set", "source.max_rows_per_batch=9"]
    _typed(tmp_path, CODE + _READ_WITHOUT_SPARK, "run", "--job-root", str(tmp_path / "root"), *more)
    once, late = _expected_once([orders])
    expected, unknown = _expected_versions(once, versions)
    assert late == [] and 0 < len(unknown) < len(expected) and len(once) < len(orders)
    known, without = (DeltaTable(tmp_path / "tables" / n).to_pyarrow_table().to_pylist() for n in ("orders", "unknown"))
    assert Counter((row["order_id"], row["time"], row["cents"], row["name"]) for row in known) == Counter(expected)
    assert Counter((row["order_id"], row["time"]) for row in without) == Counter((r.order_id, r.time) for r in unknown)


def test_the_plan_of_the_job_finds_nothing_to_refuse_and_has_the_terms_that_a_guide_explains(tmp_path: Path) -> None:
    for name in ("orders", "customers"):
        (tmp_path / name).mkdir()
    drawn = _typed(tmp_path, CODE, "explain", "--no-spark")
    found = re.search(r"^```text\n(?P<plan>.*?)^```$.*?^(?P<table>\|.*?)\n\n", read("write-a-job"), re.M | re.S)
    assert found
    explained = re.findall(r"`([^`]+)`", "".join(line.split("|")[1] for line in found["table"].splitlines()))
    own, drawn, *terms = (re.sub(r"\d+", "N", text) for text in (found["plan"], drawn, *explained))
    where = {term: (term in own, term in drawn) for term in terms}
    assert len(where) > 4 and all(map(any, where.values())), where
    assert (False, True) in where.values(), "one that only a larger plan has"
