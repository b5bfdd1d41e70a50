"""What a follower serves, and when: compared with plain dictionaries for each checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stateflow
from stateflow import ListStateDescriptor, ReducingStateDescriptor, StateTtlConfig, Time, ValueStateDescriptor
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import ManualClock, SystemClock
from stateflow.environment import StreamExecutionEnvironment
from stateflow.errors import (
    CheckpointNotServed,
    JobDefinitionError,
    MissingFile,
    NotYetAvailable,
    StateError,
    UnknownState,
    WrongKeyType,
)
from stateflow.serving.follower import Follower, FollowSettings, ServedCheckpoint
from stateflow.serving.lookups import GetRequest, KeysRequest, Lookups, ScanRequest
from stateflow.storage import PosixStorage
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import ValueSerializer, decode_untyped
from tests.serving.shops_job import ITEMS, SHOPS, Expected, Sale, ShopsJob, Totals, sales
from tests.support.errors import raises
from tests.support.local_jobs import LocalJobs
from tests.support.stores import RecordedFetches

KEYS = [(shop, day) for shop in SHOPS for day in range(-3, 4)]


@pytest.fixture(params=["memory", "filesystem", "rocksdb"])
def jobs(tmp_path: Path, request: pytest.FixtureRequest) -> ShopsJob:
    return ShopsJob(tmp_path, state__backend=request.param)


@pytest.fixture
def follower(jobs: ShopsJob) -> Iterator[Follower]:
    found = Follower(jobs.storage, jobs.folder / "server", SystemClock(), FollowSettings(keep=2))
    yield found
    found.close()


def served(checkpoint: ServedCheckpoint, limit: int = 3) -> Expected:
    found = Expected()
    by_name: dict[str, dict[Any, Any]] = {"totals": found.totals, "largest": found.largest}
    for name, values in by_name.items():
        request = GetRequest(state=name, keys=[list(key) for key in KEYS])
        for key, data in zip(KEYS, Lookups(checkpoint, request).get(request), strict=True):
            if data is not None:
                values[key] = decode_untyped(data)
    for key in _keys(checkpoint, limit):
        found.items[key] = dict(_entries(checkpoint, key, None, limit))
    return found


def _keys(checkpoint: ServedCheckpoint, limit: int) -> Iterator[Any]:
    after = "first"
    while after:
        request = KeysRequest(state="totals", after="" if after == "first" else after, limit=limit)
        page = Lookups(checkpoint, request).keys(request)
        yield from (tuple(key) for key in page.keys if isinstance(key, list))
        after = page.next


def _entries(
    checkpoint: ServedCheckpoint, key: tuple[str, int], prefix: str | None, limit: int
) -> Iterator[tuple[Any, Any]]:
    after = "first"
    while after:
        request = ScanRequest(
            state="sold-items", key=list(key), prefix=prefix, after="" if after == "first" else after, limit=limit
        )
        page = Lookups(checkpoint, request).scan(request)
        yield from zip(page.keys, map(decode_untyped, page.values), strict=True)
        after = page.next


def plain(values: Expected) -> Expected:
    """What a reader without the types sees; a key without items is one with none."""
    totals = {key: {"count": t.count, "amount": t.amount} for key, t in values.totals.items()}
    return Expected(totals, {key: values.items.get(key, {}) for key in totals}, values.largest)  # type: ignore[arg-type]


def _problem(follower: Follower) -> str:
    return follower.problem.code if follower.problem else ""


def test_a_checkpoint_is_served_as_committed(jobs: ShopsJob, follower: Follower) -> None:
    assert not follower.poll()
    with raises(NotYetAvailable, newest_checkpoint_id=0), follower.checkpoint():
        pass
    ids = []
    for number in (5, 1, 30, 4):
        ids.append(jobs.sell(number))
        assert follower.poll() and not follower.poll()
        with follower.checkpoint() as newest:
            assert newest.checkpoint_id == ids[-1]
            assert served(newest) == plain(jobs.expected[ids[-1]])
    with follower.checkpoint(exactly=ids[-2]) as before, follower.checkpoint(at_least=ids[-2]) as newest:
        assert served(before) == plain(jobs.expected[ids[-2]])
        assert newest.checkpoint_id == ids[-1]
    with (
        raises(CheckpointNotServed, wanted_checkpoint_id=ids[0], open_checkpoint_ids=ids[-2:]),
        follower.checkpoint(exactly=ids[0]),
    ):
        pass
    for options in ({"at_least": ids[-1] + 1}, {"exactly": ids[-1] + 1}):
        with raises(NotYetAvailable, newest_checkpoint_id=ids[-1]), follower.checkpoint(**options):
            pass
    assert _problem(follower) == ""


def test_key_groups_that_a_follower_gets_later_are_not_served_from_checkpoints_before(
    jobs: ShopsJob, follower: Follower
) -> None:
    """The error is final: the server that had the key group drops it, so a retry would not help."""
    follower.assign([KeyGroupRange(0, 7)])
    before = jobs.sell(30)
    follower.poll()
    newest = jobs.sell(30)
    follower.poll()
    follower.assign([KeyGroupRange(4, 15)])
    assert follower.poll()
    for exactly, refused in ((before, {12: CheckpointNotServed}), (newest, {2: NotYetAvailable})):
        with follower.checkpoint(exactly=exactly) as checkpoint:
            for group in (2, 5, 12):
                if group in refused:
                    with raises(refused[group], group=group):
                        checkpoint.store_of("totals", group, exactly=True)
                    with raises(NotYetAvailable, group=group):
                        checkpoint.store_of("totals", group, exactly=False)
                else:
                    assert checkpoint.store_of("totals", group, exactly=True) is not None


@pytest.mark.parametrize("limit", [1, 100])
def test_all_keys_are_listed_if_the_bytes_of_one_begin_those_of_another(
    jobs: ShopsJob, follower: Follower, limit: int
) -> None:
    shops = ["a", "a\0", "a\0b", "b"]
    rows = [Sale(shop, 1, "tea", 1) for shop in shops]

    def build(env: StreamExecutionEnvironment) -> None:
        sold = env.from_collection(rows, Sale, uid="sales").key_by("shop")
        sold.process(Totals(), output=Sale, uid="totals").sink_to(jobs.sink("out"), uid="out")

    jobs.run(build, parallelism=1, max_parallelism=1)
    assert follower.poll()
    with follower.checkpoint() as newest:
        assert list(_keys(newest, limit)) == [(shop,) for shop in shops]


def test_a_checkpoint_in_use_stays_open_and_is_closed_after_its_last_user(jobs: ShopsJob, follower: Follower) -> None:
    first = jobs.sell()
    follower.poll()
    with follower.checkpoint() as held:
        for _ in range(3):
            jobs.sell(9)
            follower.poll()
        shutil.rmtree(jobs.folder / "root" / "data", ignore_errors=True)
        assert served(held) == plain(jobs.expected[first])
    assert not held.acquire()


def test_a_prefix_selects_the_entries_of_a_map(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path)
    newest = jobs.expected[jobs.sell(60)]
    follower = Follower(jobs.storage, jobs.folder / "server", SystemClock(), FollowSettings())
    follower.poll()
    with follower.checkpoint() as checkpoint:
        for prefix in ("", "te", "tea", "teapot", "x", "t\0"):
            for key, items in newest.items.items():
                wanted = sorted((item, amount) for item, amount in items.items() if item.startswith(prefix))
                assert list(_entries(checkpoint, key, prefix, 2)) == wanted
        asked = [(key, item) for key in newest.items for item in ITEMS]
        request = GetRequest(state="sold-items", keys=[list(k) for k, _ in asked], map_keys=[i for _, i in asked])
        found = [None if d is None else decode_untyped(d) for d in Lookups(checkpoint, request).get(request)]
        assert found == [newest.items[key].get(item) for key, item in asked]
        wrong_keys: list[list[Any]] = [[1, 2], ["north"], ["north", "1"], ["north", 1 << 63], ["north", True]]
        for wrong in wrong_keys:
            request = GetRequest(state="totals", keys=[wrong])
            with raises(WrongKeyType):
                Lookups(checkpoint, request).get(request)
        with raises(UnknownState, name="secret", found=["largest", "sold-items", "totals"]):
            Lookups(checkpoint, GetRequest(state="secret", keys=[]))
    follower.close()


class CollectedMeanwhile(PosixStorage):
    """A job root in which files disappear while a server fetches them: a run has committed, and collected garbage.

    Attributes:
        meanwhile: called before each of the next fetches, which then fails.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.meanwhile: list[Callable[[], object]] = []

    def fetch(self, key: str, target: Path, limit: int | None = None) -> None:
        if self.meanwhile:
            self.meanwhile.pop()()
            raise MissingFile("collected", key=key)
        super().fetch(key, target, limit)

    def fetch_part(self, key: str, offset: int, size: int, target: Path) -> None:
        if self.meanwhile:
            self.meanwhile.pop()()
            raise MissingFile("collected", key=key)
        super().fetch_part(key, offset, size, target)


def test_files_that_are_collected_while_they_are_fetched_belong_to_an_older_checkpoint(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path, state__backend="filesystem", state__inline_below_bytes=1)
    storage = CollectedMeanwhile(tmp_path / "root")
    follower = Follower(storage, tmp_path / "server", SystemClock(), FollowSettings())
    first = jobs.sell(20)
    assert follower.poll()
    jobs.sell(5)
    storage.meanwhile = [lambda: jobs.sell(5), lambda: jobs.sell(5)]
    assert follower.poll() and _problem(follower) == ""
    newest = max(jobs.expected)
    with follower.checkpoint() as checkpoint:
        assert checkpoint.checkpoint_id == newest
        assert served(checkpoint) == plain(jobs.expected[newest])
    # Without a newer checkpoint a missing file is damage: what is open is still served, and nothing else.
    jobs.sell(5)
    storage.meanwhile = [lambda: None]
    assert not follower.poll() and _problem(follower) == "missing-file"
    with follower.checkpoint() as checkpoint, follower.checkpoint(exactly=first) as before:
        assert (checkpoint.checkpoint_id, before.checkpoint_id) == (newest, first)
    assert follower.poll() and _problem(follower) == ""
    follower.close()


def _files(jobs: ShopsJob) -> set[tuple[str, int]]:
    """The files of the newest checkpoint, each with its offset in the stored object."""
    rows = stateflow.read_metadata(jobs.root, "files").to_pylist()
    return {(row["file"], row["offset_bytes"]) for row in rows}


def test_only_new_files_of_a_checkpoint_are_fetched(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path, state__backend="rocksdb", state__inline_below_bytes=1)
    storage = RecordedFetches(tmp_path / "root")
    follower = Follower(storage, tmp_path / "server", SystemClock(), FollowSettings())
    known: set[tuple[str, int]] = set()
    has_shared = False
    for number in (60, 2, 1, 2):
        newest = jobs.sell(number)
        storage.fetched.clear()
        assert follower.poll()
        files = _files(jobs)
        has_shared = has_shared or bool(files & known)
        assert sorted(storage.fetched) == sorted(files - known)
        known |= files
        with follower.checkpoint() as checkpoint:
            assert served(checkpoint) == plain(jobs.expected[newest])
    assert has_shared
    follower.close()


def test_a_restored_checkpoint_is_the_newest_one_again(tmp_path: Path) -> None:
    jobs = ShopsJob(tmp_path)
    first, second = jobs.sell(20), jobs.sell(5)
    follower = Follower(jobs.storage, tmp_path / "server", SystemClock(), FollowSettings())
    follower.poll()
    root = JobRoot.open(jobs.storage, jobs.clock)
    head = root.head()
    (ref,) = (ref for ref in root.checkpoints.restorable(head) if ref.id == first)
    root.adopt(root.claim(), root.adoption(root.head(), ref))
    assert follower.poll()
    with follower.checkpoint() as checkpoint:
        assert checkpoint.checkpoint_id == first
        assert served(checkpoint) == plain(jobs.expected[first])
    with (
        raises(NotYetAvailable, wanted_checkpoint_id=second, newest_checkpoint_id=first),
        follower.checkpoint(at_least=second),
    ):
        pass
    follower.close()


# -- streams as queryable state ---------------------------------------------------------------------------------------


class Sold(msgspec.Struct, frozen=True):
    shop: str | None
    day: int
    amount: int


SOLD = [Sold(None if row.shop == "west" else row.shop, row.day, row.amount) for row in sales(40)]
SOLD_KEYS = sorted({(row.shop, row.day) for row in SOLD}, key=repr)


def _larger(one: Sold, other: Sold) -> Sold:
    return max(one, other, key=lambda sale: sale.amount)


def _queried(jobs: LocalJobs, name: str) -> list[Any]:
    follower = Follower(jobs.storage, jobs.folder / "server", SystemClock(), FollowSettings())
    assert follower.poll()
    with follower.checkpoint() as checkpoint:
        request = GetRequest(state=name, keys=[list(key) for key in SOLD_KEYS])
        found = Lookups(checkpoint, request).get(request)
    follower.close()
    return [None if data is None else ValueSerializer(Sold).decode(data) for data in found]


def test_a_stream_keeps_the_newest_row_of_each_key_or_reduces_its_rows(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path, state__backend="memory", max_parallelism=16)

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = env.from_collection(SOLD, Sold, uid="sales").key_by("shop", "day")
        keyed.as_queryable_state("newest", uid="newest")
        keyed.as_queryable_state("largest", ReducingStateDescriptor("sale", _larger, Sold), uid="largest")
        for wrong in (ListStateDescriptor("rows", Sold), ValueStateDescriptor("row", Sold, queryable="other")):
            with raises(JobDefinitionError):
                keyed.as_queryable_state("rows", wrong, uid="rows")

    jobs.run(build)
    newest = {(row.shop, row.day): row for row in SOLD}
    assert _queried(jobs, "newest") == [newest[key] for key in SOLD_KEYS]
    largest = {key: max((r for r in SOLD if (r.shop, r.day) == key), key=lambda r: r.amount) for key in SOLD_KEYS}
    assert [row.amount for row in _queried(jobs, "largest")] == [largest[key].amount for key in SOLD_KEYS]


def test_expired_values_are_hidden_from_the_checkpoint_on_at_which_they_had_expired(tmp_path: Path) -> None:
    clock = ManualClock()
    jobs = LocalJobs(tmp_path, clock, state__backend="memory", max_parallelism=16)
    config = StateTtlConfig.new_builder(Time.seconds(10)).disable_cleanup_in_background().build()

    def build(env: StreamExecutionEnvironment, rows: list[Sold]) -> None:
        keyed = env.from_collection(rows, Sold, uid="sales").key_by("shop", "day")
        keyed.as_queryable_state("newest", ValueStateDescriptor("row", Sold, ttl=config), uid="newest")

    jobs.run(lambda env: build(env, SOLD[:20]))
    first = {(row.shop, row.day): row for row in SOLD[:20]}
    assert _queried(jobs, "newest") == [first.get(key) for key in SOLD_KEYS]
    clock.sleep(Time.seconds(10))
    jobs.run(lambda env: build(env, SOLD))
    later = {(row.shop, row.day): row for row in SOLD[20:]}
    assert _queried(jobs, "newest") == [later.get(key) for key in SOLD_KEYS]


def test_two_operators_with_one_queryable_name_are_refused_before_the_first_batch(tmp_path: Path) -> None:
    jobs = LocalJobs(tmp_path)

    def build(env: StreamExecutionEnvironment) -> None:
        keyed = env.from_collection(SOLD, Sold, uid="sales").key_by("shop", "day")
        keyed.as_queryable_state("rows", uid="one")
        keyed.as_queryable_state("rows", uid="two")

    with raises(StateError, queryable="rows", first="one.row", second="two.row"):
        jobs.run(build)
    assert not jobs.storage.list("data/")
