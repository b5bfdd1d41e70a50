"""Publishing to PostgreSQL: once, by one driver, all or nothing, whatever happens to the connection or the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import psutil
import psycopg
import pytest

from stateflow import failpoints
from stateflow.api.sink import SinkTable
from stateflow.checkpoint.sink_commit import Decision, decide
from stateflow.connectors.postgres import transactions
from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.errors import SinkDiverged, SinkRefused, StorageError
from tests.servers.postgres import Postgres
from tests.support.delta_tables import Pair, pairs
from tests.support.errors import raises
from tests.support.job_fixture import KILLED
from tests.support.postgres_tables import PostgresTable
from tests.support.processes import wait_for
from tests.support.table_jobs import PostgresJob

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stateflow' AND wait_event_type = 'Lock'"


@pytest.fixture
def table(postgres: Postgres, tmp_path: Path) -> PostgresTable:
    return PostgresTable.create(postgres, tmp_path, Pair).prepare()


@pytest.mark.long(reason="starts a PostgreSQL server")
def test_rows_are_published_once(table: PostgresTable) -> None:
    files = table.stage(1, pairs(0, 3), pairs(3, 2))
    handle, late = table.sink.open_table(table.about), table.sink.open_table(table.about)
    assert handle.missing(files) == [] and handle.token == 0
    assert handle.commit(1, files) == 1
    assert (handle.commit(1, files), late.commit(1, files), late.commit(2, files)) == (None, None, None)
    assert (table.ids(), table.token) == ([0, 1, 2, 3, 4], 1)
    table.put(2)
    assert (table.ids(), table.token) == ([0, 1, 2, 3, 4], 2)


@pytest.mark.parametrize("before", [0, 1])
def test_a_driver_that_waits_for_another_ones_transaction_publishes_nothing(table: PostgresTable, before: int) -> None:
    for token in range(before):
        table.put(token + 1)
    files = table.stage(before + 1, pairs(0, 2))
    handle, found = table.sink.open_table(table.about), []
    with psycopg.connect(table.server.conninfo, password=table.server.password) as newer:
        newer.execute("SELECT token FROM stateflow_tokens FOR UPDATE")
        late = threading.Thread(target=lambda: found.append(handle.commit(before + 1, files)))
        late.start()
        wait_for(lambda: table.server.execute(_WAITING)[0][0] == 1, lambda: "the late driver")
        newer.execute("UPDATE stateflow_tokens SET token = 9, version = version + 1 WHERE application <> ''")
    late.join(30)
    assert (found, table.ids(), table.token) == ([None], [], 9)
    assert decide(9, published=0, checkpoint=1, head=1) is Decision.UNKNOWN_FUTURE


def test_a_connection_that_is_cut_before_the_commit_leaves_nothing(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = table.stage(1, pairs(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", _at_commit(table.server.cut_connections))
        # Whether the transaction was committed is unknown to the client.
        assert table.sink.open_table(table.about).commit(1, files) is None
    assert (table.ids(), table.token) == ([], 0)
    assert table.sink.open_table(table.about).commit(1, files) == 1
    assert table.ids() == [0, 1]


def test_a_lost_answer_to_the_commit_is_resolved_by_the_token(
    table: PostgresTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = table.stage(1, pairs(0, 2))
    commit = psycopg.Connection.commit

    def lose_answer(self: psycopg.Connection[object]) -> None:
        commit(self)
        if self.read_only is False:
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    with monkeypatch.context() as patch:
        patch.setattr(psycopg.Connection, "commit", lose_answer)
        assert table.sink.open_table(table.about).commit(1, files) is None
    assert (table.ids(), table.token) == ([0, 1], 1)


def test_a_connection_that_is_cut_during_a_statement_is_worth_a_retry(table: PostgresTable) -> None:
    table.server.execute(
        "CREATE OR REPLACE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$"
    )
    table.server.execute(f"CREATE TRIGGER cut BEFORE INSERT ON {table.name} FOR EACH ROW EXECUTE FUNCTION cut()")
    files = table.stage(1, pairs(0, 2))
    with pytest.raises(StorageError):
        table.sink.open_table(table.about).commit(1, files)
    assert (table.ids(), table.token) == ([], 0)
    table.server.execute(f"DROP TRIGGER cut ON {table.name}")
    table.put(2, pairs(0, 2))
    assert table.ids() == [0, 1]


def _with_timeout(table: PostgresTable, seconds: float) -> SinkTable:
    """A handle whose transactions last so long at most."""
    timeout, server = timedelta(seconds=seconds), table.server
    sink = PostgresSink(server.conninfo, table.name, password=server.password, timeout=timeout)
    return sink.open_table(table.about)


def test_a_table_that_is_locked_for_too_long_is_worth_a_retry(table: PostgresTable) -> None:
    files, handle = table.stage(1, pairs(0, 1)), _with_timeout(table, 0.4)
    with psycopg.connect(table.server.conninfo, password=table.server.password) as other:
        other.execute(f"LOCK TABLE {table.name} IN ACCESS EXCLUSIVE MODE".encode())
        with raises(StorageError, sqlstate="55P03", table=table.sink.location):
            handle.commit(1, files)


def test_a_connection_to_a_server_that_hangs_is_cut(table: PostgresTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_SECONDS_BEYOND_STATEMENT", 0.1)
    files, handle = table.stage(1, pairs(0, 1)), _with_timeout(table, 0.3)
    suspended: list[psutil.Process] = []

    def suspend() -> None:
        suspended.extend(map(psutil.Process, table.server.sessions()))
        for process in suspended:
            process.suspend()

    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "hit", _at_commit(suspend))
        assert handle.commit(1, files) is None
    for process in suspended:
        process.resume()
    # The server has received the COMMIT, or it has lost the client before.
    published = table.token == 1
    assert len(suspended) == 1 and table.ids() == ([0] if published else [])


def test_a_row_that_violates_a_constraint_is_named_and_published_after_a_correction(table: PostgresTable) -> None:
    table.server.execute(f"ALTER TABLE {table.name} ADD CONSTRAINT small CHECK (id < 2)")
    files = table.stage(1, pairs(0, 3))
    with raises(SinkRefused, constraint="small", sqlstate="23514"):
        table.sink.open_table(table.about).commit(1, files)
    assert (table.ids(), table.token) == ([], 0)
    table.server.execute(f"ALTER TABLE {table.name} DROP CONSTRAINT small")
    assert table.sink.open_table(table.about).commit(1, files) == 1
    assert table.ids() == [0, 1, 2]


@pytest.mark.parametrize(
    "change", ["DROP TABLE {table}", "DROP TABLE {table}; CREATE TABLE {table} (id bigint, text text)"]
)
def test_a_table_that_is_replaced_is_not_written_to(table: PostgresTable, change: str) -> None:
    table.put(1, pairs(0, 1))
    handle = table.sink.open_table(table.about)
    for statement in change.format(table=table.name).split(";"):
        table.server.execute(statement)
    files = table.stage(2, pairs(1, 1))
    with pytest.raises((SinkRefused, SinkDiverged)):
        assert handle.commit(2, files) is None
        table.sink.open_table(table.about)
    before = handle.table_id
    assert table.sink.prepare(table.about) != before
    assert table.ids() == []


def test_a_commit_survives_the_death_of_the_server(table: PostgresTable) -> None:
    """The server's settings permit it to forget the newest commits."""
    table.put(1, pairs(0, 2))
    table.server.kill()
    with raises(StorageError, table=table.sink.location):
        table.sink.open_table(table.about)
    table.server.start()
    assert (table.ids(), table.token) == ([0, 1], 1)


@pytest.mark.parametrize("point", ["publish.before:3", "postgres.before-commit:7", "publish.after:3"])
@pytest.mark.slow(reason="starts a process for each kill")
def test_a_run_that_is_killed_during_a_publication_is_continued(postgres: Postgres, tmp_path: Path, point: str) -> None:
    schema = f"killed_{point.partition('.')[2].partition(':')[0].replace('-', '_')}"
    job = PostgresJob.create(postgres, schema, folder=tmp_path / "job")
    try:
        job.deliver(40)
        assert job.run(point).code == KILLED
        job.finish()
        job.check()
        assert len(set(job.tokens().values())) == 1
    finally:
        job.end_all()


def _at_commit(act: Callable[[], object]) -> Callable[[str], None]:
    """Returns a replacement of `failpoints.hit` that calls `act` before a transaction is committed."""

    def hit(name: str) -> None:
        if name == "postgres.before-commit":
            act()

    return hit
