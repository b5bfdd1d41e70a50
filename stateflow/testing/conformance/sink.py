"""The conformance suite of sinks.

To test a sink, write a function at the top of a test module that returns the sink for an address, and subclass
`SinkConformance` with it, with a fixture for the address of a new table, and with a reader of the table that shares no
code with the sink::

    from stateflow.testing.conformance.sink import SinkConformance

    def my_sink(address):
        return MySink(address, ...)

    class TestMySink(SinkConformance):
        factory = staticmethod(my_sink)

        @pytest.fixture
        def address(self, tmp_path):
            return str(tmp_path / "table")       # no table yet, and not shared with other tests

        def read(self, sink):
            return [{"id": 1, "text": "row 1"}]  # of the table's newest version, as any of its readers sees it

The suite writes rows with the columns ``id`` (an int, unique) and ``text`` (a str or null). A table with a key has the
key ``id``. Other processes import the function from the file of its module. The attributes of `SinkConformance` state
what a sink does not offer; what they state is checked as well.

To see values in assertion failures, add this to a conftest, and the same with ``sink_table`` for ``sink``:
``pytest.register_assert_rewrite("stateflow.testing.conformance.sink")``.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import os
import random  # noqa: TID251 - seeded dice for tests; nothing is decided by it
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from stateflow import failpoints
from stateflow.api.schema import RowSchema
from stateflow.api.sink import Delivery, Sink, SinkContext, Successor
from stateflow.checkpoint.sink_commit import Decision, decide
from stateflow.errors import ConfigError, Fenced, SchemaMismatch, SinkDiverged, SinkRefused, StateflowError
from stateflow.state.handles import Committable
from stateflow.storage import PosixStorage
from stateflow.testing.conformance.sink_drivers import Report, Scenario
from stateflow.testing.conformance.sink_table import UID, PublishingJob, SinkRow, TableUnderTest, row_id, rows_of

JOB = "0123456789abcdef0123456789abcdef"
_DEADLINE = 120.0
_KILLED, _FENCED, _STORAGE = -9, 3, 5


class _OtherRow(msgspec.Struct):
    """A row whose `text` has another type."""

    id: int
    text: float


class SinkConformance:
    """Tests of the contract of `stateflow.api.sink.Sink`."""

    exactly_once: ClassVar[bool] = True
    """Whether the table stores the token. Otherwise output is published at least once."""
    checks_columns: ClassVar[bool] = True
    """Whether the table has columns, which the sink compares with those of the rows."""
    is_shared: ClassVar[bool] = True
    """Whether several sinks, of one or of several jobs, may write to the table."""
    sweeps: ClassVar[bool] = True
    """Whether the sink removes its leftovers. A `StagedSink` leaves them to the garbage collection of the job root."""
    rewinds: ClassVar[bool] = True
    """Whether the table can be rewound. Otherwise a plan is refused once there is output to undo."""
    rewinds_to_undone: ClassVar[bool] = True
    """Whether the table can also be rewound to a checkpoint that another rewind has undone."""
    actions: ClassVar[int] = 40
    """Number of commits and rewinds that are compared with a model."""
    steps: ClassVar[int] = 6
    """At how many lines of the sink's code a driver is killed, and stopped."""
    failpoints: ClassVar[tuple[str, ...]] = ("task.sink-closed", "commit.after", "publish.before", "publish.after")
    """The failpoints at which a driver is killed."""
    patience: ClassVar[float] = 1.0
    """Seconds that a driver waits for a stopped one that holds a lock of the table, before that is resumed."""

    @staticmethod
    def factory(address: str) -> Sink:
        """Returns the sink of the table with an address; assign a function of a module: ``staticmethod(my_sink)``."""
        raise NotImplementedError

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        """Returns the rows that any reader of the sink's table sees, in any order."""
        raise NotImplementedError

    def remove(self, table: TableUnderTest, committable: Committable, folder: Path) -> None:
        """Deletes a written file. This one finds it by its path below `folder`, which has all data of a test."""
        named = folder.rglob(Path(committable.path).name)
        [found] = [path for path in named if str(path).endswith(f"/{committable.path}")]
        found.unlink()

    def context(self, folder: Path) -> SinkContext:
        """Returns the context of the suite's sink, for tests without a job."""
        return SinkContext(JOB, UID, RowSchema.of(SinkRow), PosixStorage(folder / "root"))

    @pytest.fixture
    def new_table(self, address: str, tmp_path: Path) -> TableUnderTest:
        """A table that does not exist yet."""
        return TableUnderTest(type(self).factory, address, self.context(tmp_path), self.read)

    @pytest.fixture
    def table(self, new_table: TableUnderTest) -> TableUnderTest:
        """An existing table without rows."""
        new_table.sink.prepare(new_table.context)
        return new_table

    @pytest.fixture
    def published(self, table: TableUnderTest) -> TableUnderTest:
        """A table in which checkpoint n published row n, up to 4."""
        for token in range(1, 5):
            table.put(token, [token])
        return table

    # -- the table ----------------------------------------------------------------------------------------------

    def test_a_table_is_created_once(self, new_table: TableUnderTest) -> None:
        context = new_table.context
        without_job = replace(context, job_uuid="")
        first = new_table.sink.check(without_job)
        created = new_table.sink.prepare(context)
        assert first in (None, created)
        assert created and new_table.sink.prepare(context) == created
        assert new_table.sink.check(without_job) == created
        assert new_table.open().table_id == created
        assert new_table.sink.other_jobs(context) == frozenset()
        assert new_table.ids() == []

    def test_a_table_that_is_created_by_several_threads_is_one_table(self, new_table: TableUnderTest) -> None:
        with ThreadPoolExecutor(4) as pool:
            created = list(pool.map(lambda _: new_table.sink.prepare(new_table.context), range(4)))
        assert len({*created, new_table.open().table_id}) == 1

    def test_a_table_with_other_columns_is_refused(self, table: TableUnderTest) -> None:
        if not self.checks_columns:
            pytest.skip("the table has no columns")
        table.put(1, [1])
        other = replace(table.context, schema=RowSchema.of(_OtherRow))
        with pytest.raises((SchemaMismatch, SinkRefused)):
            table.sink.check(other)
        assert table.ids() == [1]

    def test_the_delivery_of_the_sink_is_that_of_the_suite(self, new_table: TableUnderTest) -> None:
        assert (new_table.sink.delivery is Delivery.EXACTLY_ONCE) == self.exactly_once

    def test_a_sink_is_sent_to_tasks(self, table: TableUnderTest) -> None:
        copied = copy.deepcopy(table.sink)
        sent = replace(table, factory=lambda _: copied)
        sent.put(1, [1])
        assert copy.deepcopy(copied).location == table.sink.location
        assert table.ids() == [1]

    def test_a_shadow_is_another_table(self, table: TableUnderTest) -> None:
        table.put(1, [1])
        shadow = replace(table, factory=lambda address: table.factory(address).shadow())
        if not table.sink.location:
            pytest.skip("the sink has no table")
        assert shadow.sink.location != table.sink.location
        shadow.sink.prepare(shadow.context)
        shadow.put(50, [50])
        assert (shadow.ids(), table.ids()) == ([50], [1])

    # -- publishing ---------------------------------------------------------------------------------------------

    def test_rows_are_visible_once_they_are_committed(self, table: TableUnderTest) -> None:
        files = [*table.write([1, 2]), *table.write([3])]
        lost = table.write([99])
        assert files and lost and all(file.rows > 0 for file in files)
        assert table.ids() == []
        handle = table.open()
        version = handle.commit(7, files)
        opened = table.open()
        assert version == opened.version
        assert opened.token == (7 if self.exactly_once else None)
        assert opened.table_id == handle.table_id
        assert table.ids() == [1, 2, 3]
        table.put(8, [4])
        assert table.ids() == [1, 2, 3, 4]

    def test_a_checkpoint_without_rows_sets_the_token(self, table: TableUnderTest) -> None:
        assert table.write([]) == []
        for token in (3, 4):
            assert table.open().commit(token, []) is not None
            assert table.open().token == (token if self.exactly_once else None)
        assert table.ids() == []

    def test_of_two_handles_one_commits(self, table: TableUnderTest) -> None:
        if not self.exactly_once:
            pytest.skip("output is published at least once")
        files = table.write([1])
        handles = [table.open(), table.open()]
        assert [handle.commit(1, files) is not None for handle in handles] == [True, False]
        assert table.ids() == [1]
        # Nor does a handle publish anything else once the table has changed.
        assert handles[1].commit(2, table.write([2], ordinal=2)) is None
        assert (table.open().token, table.ids()) == (1, [1])

    def test_each_sink_of_a_table_has_its_own_token(self, table: TableUnderTest) -> None:
        if not (self.is_shared and self.exactly_once):
            pytest.skip("the table has one sink, or no tokens")
        other = table.with_uid("other")
        table.put(5, [1])
        assert other.open().token == 0
        other.put(3, [2])
        table.put(6, [3])
        assert (table.open().token, other.open().token) == (6, 3)
        assert table.ids() == [1, 2, 3]

    # -- other job roots ------------------------------------------------------------------------------------------

    def _require_several_jobs(self) -> None:
        if not (self.is_shared and self.exactly_once):
            pytest.skip("the table has one sink, or no tokens")

    def _of_job(self, table: TableUnderTest, job_uuid: str) -> TableUnderTest:
        return replace(table, context=replace(table.context, job_uuid=job_uuid))

    def test_another_job_root_finds_who_writes_to_the_table(self, table: TableUnderTest) -> None:
        self._require_several_jobs()
        second, third = self._of_job(table, "1" * 32), self._of_job(table, "2" * 32)
        # Neither who has prepared the table, nor files that were never published.
        table.write([9])
        assert second.sink.other_jobs(second.context) == frozenset()
        table.put(1, [1])
        assert table.sink.other_jobs(table.context) == frozenset()
        assert second.sink.other_jobs(replace(second.context, uid="other")) == frozenset()
        # A job root that does not exist yet has no id.
        for uuid in ("", second.context.job_uuid):
            assert second.sink.other_jobs(replace(second.context, job_uuid=uuid)) == {JOB}
        second.put(1, [2])
        assert third.sink.other_jobs(third.context) == {JOB, second.context.job_uuid}
        assert table.sink.other_jobs(table.context) == {second.context.job_uuid}

    def test_a_table_is_taken_over_from_one_job_root_after_the_other(self, table: TableUnderTest) -> None:
        self._require_several_jobs()
        line = [table, self._of_job(table, "1" * 32), self._of_job(table, "2" * 32)]
        table.put(4, [1])
        for number, (former, now) in enumerate(itertools.pairwise(line), 2):
            other = self._of_job(table, str(number) * 31 + "f")
            by = Successor(now.context.application, f"file:///root {number}", 1)
            former_token = former.open().token or 0
            # A driver that sleeps between reading the table and writing to it.
            asleep, files = former.open(), former.write([number * 10], 9)
            assert now.open().take_over(1, {former.context.application: former_token}, by) is not None
            assert asleep.commit(9, files) is None
            assert (former.open().successor, former.open().token) == (by, former_token)
            assert (now.open().successor, now.open().token) == (None, 1)
            assert other.sink.other_jobs(other.context) == {now.context.job_uuid}
            now.put(2, [number])
        assert [each.open().successor is None for each in line] == [False, False, True]
        assert table.ids() == [1, 2, 3]
        if self.rewinds:
            line[-1].rewind(1, token=5)
            assert [each.open().successor is None for each in line] == [False, False, True]
            assert table.ids() == [1, 2]

    def test_of_a_take_over_and_a_publication_one_comes_first(self, table: TableUnderTest) -> None:
        self._require_several_jobs()
        table.put(4, [1])
        now = self._of_job(table, "1" * 32)
        by = Successor(now.context.application, "file:///root", 1)
        early = now.open()
        table.put(5, [2])
        assert early.take_over(1, {table.context.application: 4}, by) is None
        assert (table.open().successor, now.open().token or 0) == (None, 0)
        assert now.open().take_over(1, {table.context.application: 5}, by) is not None
        assert table.open().successor == by

    def test_a_job_whose_table_was_taken_over_publishes_nothing(
        self, new_table: TableUnderTest, tmp_path: Path
    ) -> None:
        self._require_several_jobs()
        job = PublishingJob(new_table.sink, tmp_path / "root")
        job.run(2)
        pending = job.commit(job.root.claim(), 3)
        former = replace(new_table, context=job.context)
        now = self._of_job(former, "1" * 32)
        by = Successor(now.context.application, "file:///new/root", 1)
        assert now.open().take_over(1, {job.context.application: former.open().token or 0}, by) is not None
        late = (job.publisher, PublishingJob(new_table.sink, tmp_path / "root").publisher)
        for publish in (late[0].publish_pending, late[1].publish_pending, late[1].check_tables):
            with pytest.raises(Fenced) as refused:
                publish(pending)
            assert refused.value.facts["by_root"] == "file:///new/root"
        self._check_rows(new_table, 2)

    def test_the_first_output_of_a_job_is_refused_if_another_one_writes_to_the_table(
        self, new_table: TableUnderTest, tmp_path: Path
    ) -> None:
        """Also if both have begun before either published."""
        self._require_several_jobs()
        second = PublishingJob(new_table.sink, tmp_path / "second")
        new_table.sink.prepare(second.context)
        pending = second.commit(second.root.claim(), 3)
        PublishingJob(new_table.sink, tmp_path / "first").run(2)
        with pytest.raises(ConfigError) as refused:
            second.publisher.publish_pending(pending)
        assert "--tables keep" in refused.value.hint
        self._check_rows(new_table, 2)

    def test_of_two_job_roots_whose_first_output_is_published_at_once_one_is_refused(
        self, new_table: TableUnderTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each has read the table, and found no other one, before one of them commits."""
        self._require_several_jobs()
        both, arrived = threading.Barrier(2), set[int]()

        def hit(name: str) -> None:
            if name == "publish.before" and threading.get_ident() not in arrived:
                arrived.add(threading.get_ident())
                both.wait(_DEADLINE)

        def end_of(job: PublishingJob) -> str:
            try:
                job.run(2)
            except StateflowError as e:
                return e.code
            return ""

        monkeypatch.setattr(failpoints, "hit", hit)
        jobs = [PublishingJob(new_table.sink, tmp_path / root) for root in ("first", "second")]
        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(end_of, jobs)) == ["", "config"]
        self._check_rows(new_table, 2)

    def test_a_table_is_taken_over_again_from_a_job_root_and_its_successor(self, table: TableUnderTest) -> None:
        self._require_several_jobs()
        second, third = self._of_job(table, "2" * 32), self._of_job(table, "1" * 32)
        table.put(4, [1])
        by = Successor(second.context.application, "file:///second", 3)
        former = {table.context.application: 4}
        assert second.open().take_over(3, former, by) is not None
        by, asleep, files = replace(by, application=third.context.application), second.open(), second.write([20], 9)
        former[second.context.application] = 3
        assert third.open().take_over(3, former, by) is not None
        assert asleep.commit(9, files) is None
        assert [each.open().successor for each in (table, second, third)] == [by, by, None]
        third.put(4, [3])
        assert table.ids() == [1, 3]

    def test_missing_files_are_named(self, table: TableUnderTest, tmp_path: Path) -> None:
        files = [*table.write([1]), *table.write([2])]
        assert table.open().missing(files) == []
        assert table.open().missing([msgspec.structs.replace(files[0], size=files[0].size + 1)]) == [files[0].path]
        self.remove(table, files[1], tmp_path)
        assert table.open().missing(files) == [files[1].path]

    def test_a_sweep_removes_only_leftovers(self, table: TableUnderTest) -> None:
        table.put(1, [1])
        leftover, pending = table.write([2], ordinal=2), table.write([3], ordinal=3)
        kept = table.with_uid("other").write([4]) if self.is_shared else []
        asked: list[str] = []

        def is_leftover(generation: int, ordinal: int, path: str) -> bool:
            assert generation == 1 and ordinal in (1, 2, 3)
            asked.append(path)
            return ordinal < 3

        removed = table.sink.sweep(table.context, is_leftover)
        swept = leftover if self.sweeps else []
        assert {Path(name).name for name in removed} == {Path(file.path).name for file in swept}
        assert {Path(file.path).name for file in swept} <= {Path(path).name for path in asked}
        assert table.open().missing([*leftover, *pending]) == [file.path for file in swept]
        assert not kept or table.with_uid("other").open().missing(kept) == []
        assert table.open().commit(3, pending) is not None
        assert table.ids() == [1, 3]
        assert table.sink.sweep(table.context, is_leftover) == []

    # -- rewinds ------------------------------------------------------------------------------------------------

    def _require_rewinds(self) -> None:
        if not (self.rewinds and self.exactly_once):
            pytest.skip("the table cannot be rewound")

    def test_a_rewind_restores_the_rows_of_a_checkpoint_and_sets_the_token(self, published: TableUnderTest) -> None:
        self._require_rewinds()
        plan = published.open().plan_rewind(2)
        assert plan.to_version is not None and plan.others == ()
        published.rewind(2, token=7)
        assert published.ids() == [1, 2]
        published.put(8, [8])
        assert published.ids() == [1, 2, 8]

    def test_a_rewind_that_is_not_possible_is_refused_in_the_plan(self, published: TableUnderTest) -> None:
        if self.rewinds or not self.exactly_once:
            pytest.skip("the table can be rewound, or has no tokens")
        handle = published.open()
        with pytest.raises(SinkRefused) as refused:
            handle.plan_rewind(2)
        assert refused.value.hint
        # Nothing was published after these.
        for checkpoint_id in (4, 6):
            assert handle.plan_rewind(checkpoint_id).to_version is None
        assert (published.open().token, published.ids()) == (4, [1, 2, 3, 4])

    def test_a_table_that_is_kept_gets_only_the_token(self, published: TableUnderTest) -> None:
        if not self.exactly_once:
            pytest.skip("the table has no tokens")
        handle = published.open()
        plan = handle.plan_rewind(6)
        assert (plan.to_version, plan.rows_removed, plan.rows_returned, plan.others) == (None, 0, 0, ())
        assert handle.rewind(None, token=7) is not None
        assert (published.open().token, published.ids()) == (7, [1, 2, 3, 4])

    def test_a_handle_of_an_older_version_rewinds_nothing(self, published: TableUnderTest) -> None:
        if not self.exactly_once:
            pytest.skip("the table has no tokens")
        stale = published.open()
        to_version = stale.plan_rewind(2).to_version if self.rewinds else None
        assert published.open().rewind(None, token=7) is not None
        assert stale.rewind(to_version, token=8) is None
        assert stale.rewind(None, token=8) is None
        assert (published.open().token, published.ids()) == (7, [1, 2, 3, 4])

    @pytest.mark.parametrize("keeps", [True, False], ids=["kept", "restored"])
    def test_a_driver_that_was_paused_during_a_rewind_publishes_nothing(
        self, published: TableUnderTest, keeps: bool
    ) -> None:
        """It is about to publish checkpoint 5 when entry 6 of the log rewinds the job."""
        if not self.exactly_once or not (keeps or self.rewinds):
            pytest.skip("the table cannot be rewound")
        files = published.write([5], ordinal=5)
        paused, handle = published.open(), published.open()
        assert handle.rewind(None if keeps else handle.plan_rewind(2).to_version, token=6) is not None
        assert paused.commit(5, files) is None
        token = published.open().token
        assert token is not None
        assert decide(token, published=4, checkpoint=5, head=5) is Decision.UNKNOWN_FUTURE
        assert published.ids() == ([1, 2, 3, 4] if keeps else [1, 2])

    def test_a_rewind_lists_what_another_sink_published(self, published: TableUnderTest) -> None:
        self._require_rewinds()
        if not self.is_shared:
            pytest.skip("the table has one sink")
        other = published.with_uid("other")
        seen = published.open().version
        other.put(50, [50, 51])
        [commit] = published.open().plan_rewind(3).others
        assert commit.applications == frozenset({other.context.application})
        changes = published.open().changes_since(seen)
        assert not changes.published
        assert [c.applications for c in changes.others] == [commit.applications]
        published.rewind(3, token=7)
        assert published.ids() == [1, 2, 3]
        assert published.open().changes_since(seen).published
        assert published.open().plan_rewind(2).others == ()
        assert other.open().token == 50

    def test_a_sweep_keeps_what_a_rewind_removed(self, published: TableUnderTest) -> None:
        self._require_rewinds()
        for checkpoint_id, token in ((3, 7), (1, 8)):
            published.rewind(checkpoint_id, token)
            lost = published.write([99], ordinal=99)
            removed = published.sink.sweep(published.context, lambda generation, ordinal, path: True)
            assert len(removed) == (len(lost) if self.sweeps else 0)
        if self.rewinds_to_undone:
            published.rewind(4, token=9)
        assert published.ids() == ([1, 2, 3, 4] if self.rewinds_to_undone else [1])

    def test_commits_and_rewinds_agree_with_a_model(self, table: TableUnderTest) -> None:
        """The model: the rows after each token, and the tokens that a job's chain of checkpoints has."""
        self._require_rewinds()
        dice, token, row = random.Random(11), 0, 0
        contents: dict[int, list[int]] = {0: []}
        chain = [0]
        for _ in range(self.actions):
            token += dice.choice([1, 1, 2, 5])
            if dice.random() < 0.7:
                new = list(range(row, row := row + dice.choice([0, 1, 3])))
                table.put(token, new)
                contents[token] = [*contents[chain[-1]], *new]
            else:
                target = dice.choice(list(contents) if self.rewinds_to_undone else chain)
                table.rewind(target, token)
                chain = [n for n in chain if n <= target] or [0]
                contents[token] = contents[target]
            chain.append(token)
            assert table.ids() == sorted(contents[token])
            assert table.open().token == token

    def test_a_target_that_no_longer_exists_is_refused_in_the_plan(self, published: TableUnderTest) -> None:
        if self.rewinds_to_undone or not (self.rewinds and self.exactly_once):
            pytest.skip("the table cannot be rewound, or it can to any checkpoint")
        published.rewind(1, token=7)
        with pytest.raises((SinkDiverged, SinkRefused)):
            published.open().plan_rewind(3)
        assert published.ids() == [1]

    # -- a job --------------------------------------------------------------------------------------------------

    def test_a_job_publishes_each_checkpoint_once(self, new_table: TableUnderTest, tmp_path: Path) -> None:
        for upto in (2, 2, 3):
            job = PublishingJob(new_table.sink, tmp_path / "root")
            job.run(upto)
            self._check_rows(new_table, upto)
        head = job.root.claim()
        pending = job.commit(head, 4)
        for _ in range(2):
            PublishingJob(new_table.sink, tmp_path / "root").publisher.publish_pending(pending)
        self._check_rows(new_table, 4)

    def test_a_driver_that_was_paused_during_a_newer_run_publishes_nothing(
        self, new_table: TableUnderTest, tmp_path: Path
    ) -> None:
        if not self.exactly_once:
            pytest.skip("output is published at least once")
        paused = PublishingJob(new_table.sink, tmp_path / "root")
        paused.run(1)
        pending = paused.commit(paused.root.claim(), 2)
        PublishingJob(new_table.sink, tmp_path / "root").run(3)
        with pytest.raises(Fenced):
            paused.publisher.publish_pending(pending)
        self._check_rows(new_table, 3)

    @pytest.mark.parametrize("kind", ["killed", "failpoint", "stopped", "raced"])
    def test_drivers_that_are_interrupted_neither_lose_nor_repeat_a_row(
        self, new_table: TableUnderTest, tmp_path: Path, kind: str
    ) -> None:
        """At lines of the sink's code, and at failpoints; or several drivers start at once."""
        if kind in ("stopped", "raced") and not self.exactly_once:
            pytest.skip("output is published at least once")
        report = self._play(new_table, tmp_path, kind)
        assert set(report.ends) <= {0, _KILLED, _FENCED, _STORAGE}
        if kind in ("killed", "failpoint"):
            assert set(report.ends) == {_KILLED}
        self._check_rows(new_table, report.checkpoints)

    def test_an_older_driver_that_publishes_late_does_not_harm_the_newest(
        self, new_table: TableUnderTest, tmp_path: Path
    ) -> None:
        if not self.exactly_once:
            pytest.skip("output is published at least once")
        report = self._play(new_table, tmp_path, "overtaken")
        assert set(report.newest) == {0}, report
        assert set(report.ends) <= {0, _FENCED}, report
        self._check_rows(new_table, report.checkpoints)

    def _play(self, table: TableUnderTest, folder: Path, kind: str) -> Report:
        factory = type(self).factory
        scenario = Scenario(
            kind=kind,
            module=inspect.getfile(factory),
            factory=factory.__qualname__,
            address=table.address,
            root=str(folder / "root"),
            steps=3 if kind == "raced" else self.steps,
            failpoints=list(self.failpoints),
            patience=self.patience,
        )
        ended = subprocess.run(
            [sys.executable, "-m", "stateflow.testing.conformance.sink_drivers"],
            input=msgspec.json.encode(scenario),
            capture_output=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=_DEADLINE,
        )
        assert ended.returncode == 0, ended.stderr.decode()
        report = msgspec.json.decode(ended.stdout, type=Report)
        assert set(report.ends) <= {0, _KILLED, _FENCED, _STORAGE}, ended.stderr.decode()
        return report

    def _check_rows(self, table: TableUnderTest, checkpoints: int) -> None:
        """Checks that the table has the rows of all checkpoints: once, or at least once."""
        expected = Counter(row.id for number in range(1, checkpoints + 1) for row in rows_of(number))
        found = Counter(row_id(row) for row in table.reader(table.sink))
        if self.exactly_once:
            assert found == expected
        else:
            assert found.keys() == expected.keys()
