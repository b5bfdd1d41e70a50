"""Publishing to PostgreSQL: once, by one driver, all or nothing, whatever happens to the connection or the process."""

from __future__ import annotations

import itertools
import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import psutil
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.rows import dict_row

from stateflow import RowKind, failpoints
from stateflow.api.changelog import Changelog
from stateflow.api.sink import Sink, SinkTable
from stateflow.connectors.postgres import transactions
from stateflow.connectors.postgres.sink import PostgresSink
from stateflow.errors import JobDefinitionError, SinkDiverged, SinkRefused, StorageError
from stateflow.testing.conformance.sink import SinkConformance
from stateflow.testing.conformance.sink_table import TableUnderTest
from tests.changelogs.seats import Move, SeatChange, Seats, as_texts, histories
from tests.servers.postgres import Postgres
from tests.servers.running import CANARY
from tests.support.delta_tables import Pair, context, pairs
from tests.support.errors import raises
from tests.support.examples import one_in
from tests.support.processes import wait_for
from tests.support.staged_tables import PostgresTable

_WAITING = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'stateflow' AND wait_event_type = 'Lock'"


@pytest.fixture
def table(postgres: Postgres, tmp_path: Path) -> PostgresTable:
    return PostgresTable.create(postgres, tmp_path, Pair).prepare()


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


def _at_commit(act: Callable[[], object]) -> Callable[[str], None]:
    """Returns a replacement of `failpoints.hit` that calls `act` before a transaction is committed."""

    def hit(name: str) -> None:
        if name == "postgres.before-commit":
            act()

    return hit


# -- the contract of sinks --------------------------------------------------------------------------------------------

_numbers = itertools.count(1)


def postgres_append(address: str) -> Sink:
    conninfo, table = address.split("#")
    return PostgresSink(conninfo, table)


def postgres_upsert(address: str) -> Sink:
    conninfo, table = address.split("#")
    return PostgresSink(conninfo, table, mode="upsert", keys="id", undo=timedelta(days=1))


@pytest.mark.long(reason="draws many histories of a table")
class InPostgres(SinkConformance):
    has_slow_drivers = True
    sweeps = False
    steps = 1
    actions = 15
    failpoints: ClassVar[tuple[str, ...]] = (*SinkConformance.failpoints, "postgres.before-commit")

    @pytest.fixture
    def address(self, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> str:
        for name, value in postgres.variables.items():
            monkeypatch.setenv(name, value)
        return f"{postgres.conninfo}#public.conforming{next(_numbers)}"

    def read(self, sink: Sink) -> Iterable[Mapping[str, Any]]:
        assert isinstance(sink, PostgresSink)
        settings = sink._settings
        with psycopg.connect(settings.conninfo, row_factory=dict_row) as connection:
            return connection.execute(f"SELECT * FROM {settings.name}".encode()).fetchall()


@pytest.mark.slow(reason="runs the suite of sinks against a PostgreSQL server")
class TestPostgresAppends(InPostgres):
    factory = staticmethod(postgres_append)
    rewinds = False


class TestPostgresUpserts(InPostgres):
    factory = staticmethod(postgres_upsert)

    def test_a_rewind_lists_what_another_sink_published(self, published: TableUnderTest) -> None:
        """It need not: a rewind keeps rows of other keys."""
        other = published.with_uid("other")
        other.put(50, [50, 51])
        assert published.open().plan_rewind(3).others == ()
        published.rewind(3, token=7)
        assert (published.ids(), other.open().token) == ([1, 2, 3, 50, 51], 50)


# -- upserts and rewinds of them, against plain dictionaries ----------------------------------------------------------


class Position(msgspec.Struct, kw_only=True):
    carrier: str
    number: int
    at: int | None = None
    place: str | None = None
    gone: bool | None = None


Contents = dict[tuple[str, int], Position]
_ROWS = st.builds(
    Position,
    carrier=st.sampled_from(["A", "B", 'Ä",\n' * 9]),
    number=st.integers(-1, 1),
    at=st.none() | st.integers(0, 3),
    place=st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=2),
    gone=st.none() | st.booleans(),
)
_CHECKPOINTS = st.lists(st.lists(_ROWS, max_size=5), max_size=2)
_STEPS = st.lists(st.tuples(st.none() | st.integers(0, 5), _CHECKPOINTS), min_size=1, max_size=6)
_DAY = timedelta(days=1)
_MODE: dict[str, Any] = {"mode": "upsert", "keys": ("carrier", "number"), "deletes": "gone", "undo": _DAY}


def _table(postgres: Postgres, folder: Path, **more: Any) -> PostgresTable:
    return PostgresTable.create(postgres, folder, Position, **{**_MODE, **more}).prepare()


def _visible(table: PostgresTable) -> list[dict[str, Any]]:
    return table.rows("carrier", "number")


def _wanted(contents: Contents) -> list[dict[str, Any]]:
    rows = [msgspec.to_builtins(contents[key]) for key in sorted(contents)]
    return [{name: value for name, value in row.items() if name != "gone"} for row in rows]


def _apply(contents: Contents, parts: list[list[Position]], ordered: bool) -> Contents:
    rows = [row for part in parts for row in part]
    if ordered:
        rows.sort(key=lambda row: -1 if row.at is None else row.at)
    changed = contents | {(row.carrier, row.number): row for row in rows}
    return {key: row for key, row in changed.items() if not row.gone}


@given(_STEPS, st.booleans())
@one_in(10)
@pytest.mark.slow(reason="restores a table after each of many random commits")
def test_a_table_has_the_last_row_of_each_key_and_every_version_can_be_restored(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, steps: Any, ordered: bool
) -> None:
    """Each step publishes a checkpoint, or first rewinds to one of the checkpoints before, also to undone ones."""
    table = _table(postgres, tmp_path_factory.mktemp("job"), order_by="at" if ordered else ())
    token, contents = 0, Contents()
    # Contents by checkpoint.
    history: dict[int, Contents] = {0: contents}
    for back, parts in steps:
        if back is not None:
            checkpoint = sorted(history)[back % len(history)]
            token += 1
            contents = _rewind(table, checkpoint, token, contents, history[checkpoint])
        token += 1
        table.put(token, *parts)
        contents = history[token] = _apply(contents, parts, ordered)
        assert _visible(table) == _wanted(contents)
        assert table.token == token


def _rewind(table: PostgresTable, checkpoint: int, token: int, now: Contents, then: Contents) -> Contents:
    handle = table.sink.open_table(table.about)
    plan = handle.plan_rewind(checkpoint)
    before, after = (dict(zip(sorted(c), _wanted(c), strict=True)) for c in (now, then))
    removed = sum(after.get(key) != row for key, row in before.items())
    returned = sum(before.get(key) != row for key, row in after.items())
    assert (plan.rows_removed, plan.rows_returned, plan.others) == (removed, returned, ())
    assert handle.rewind(plan.to_version, token) == plan.from_version + 1
    assert _visible(table) == _wanted(then)
    # A driver that had the handle before changes nothing.
    assert handle.rewind(plan.to_version, token) is None
    return then


def _published(postgres: Postgres, folder: Path, checkpoints: int, **more: Any) -> PostgresTable:
    """A table to which each checkpoint wrote row 1, and a row of its own."""
    table = _table(postgres, folder, **more)
    for token in range(1, checkpoints + 1):
        rows = [Position(carrier="A", number=1, at=token), Position(carrier="A", number=10 + token)]
        table.put(token, rows)
    return table


def test_a_rewind_without_former_rows_is_refused_in_the_plan(postgres: Postgres, tmp_path: Path) -> None:
    appended = PostgresTable.create(postgres, tmp_path, Pair).prepare()
    appended.put(1, pairs(0, 1))
    for table in (appended, _published(postgres, tmp_path, 2, undo=None)):
        handle = table.sink.open_table(table.about)
        with raises(SinkRefused, table=table.sink.location):
            handle.plan_rewind(0)
        with raises(SinkRefused, table=table.sink.location):
            handle.rewind(0, 9)
        assert handle.token is not None and handle.plan_rewind(handle.token).to_version is None
        assert handle.rewind(None, 9) is not None


def test_former_rows_of_an_older_time_are_deleted_and_no_longer_restored(postgres: Postgres, tmp_path: Path) -> None:
    table = _published(postgres, tmp_path, 3)
    mine = f"table_oid = '{table.name}'::regclass"
    postgres.execute(f"UPDATE stateflow_undo SET at = at - interval '2 days' WHERE {mine} AND version < 3")
    # Its own time, which is older than that of the version after it.
    postgres.execute(f"UPDATE stateflow_undo SET at = at - interval '9 days' WHERE {mine} AND version = 2")
    table.put(4, [Position(carrier="A", number=1, at=4)])
    assert {v for (v,) in postgres.execute(f"SELECT version FROM stateflow_undo WHERE {mine}")} == {3, 4}
    handle = table.sink.open_table(table.about)
    for checkpoint in (0, 1, 2):
        with raises(SinkDiverged, table=table.sink.location, checkpoint_id=checkpoint):
            handle.plan_rewind(checkpoint)
    with raises(SinkDiverged, version=1):
        handle.rewind(1, 9)
    assert handle.plan_rewind(3).to_version == 3
    assert handle.rewind(3, 9) == 5
    assert next(row["at"] for row in _visible(table) if row["number"] == 1) == 3


def test_undo_that_begins_later_restores_nothing_older(postgres: Postgres, tmp_path: Path) -> None:
    table = _published(postgres, tmp_path, 2, undo=None)
    later = replace(table, sink=_table_sink(postgres, table.name)).prepare()
    later.put(3, [Position(carrier="A", number=1, at=3)])
    handle = later.sink.open_table(later.about)
    with raises(SinkDiverged, checkpoint_id=1):
        handle.plan_rewind(1)
    # It is not known whether a version before the first stored one had a later token.
    with raises(SinkDiverged, checkpoint_id=2):
        handle.plan_rewind(2)
    later.put(4, [Position(carrier="A", number=1, at=4)])
    assert later.sink.open_table(later.about).plan_rewind(3).to_version == 3


def _table_sink(postgres: Postgres, name: str) -> Any:
    return PostgresSink(postgres.conninfo, name, password=postgres.password, **_MODE)


def test_other_columns_and_other_rows_are_kept_and_deleted_rows_return_whole(
    postgres: Postgres, tmp_path: Path
) -> None:
    ddl = (
        "CREATE TABLE {table} (n bigint GENERATED ALWAYS AS IDENTITY, carrier text, number bigint, at bigint, "
        "place text, twice bigint GENERATED ALWAYS AS (number * 2) STORED, note text DEFAULT 'none', "
        "PRIMARY KEY (number, carrier))"
    )
    table = PostgresTable.create(postgres, tmp_path, Position, ddl, **_MODE).prepare()
    table.put(1, [Position(carrier="A", number=n) for n in (1, 2)])
    postgres.execute(f"UPDATE {table.name} SET note = 'seen'")
    postgres.execute(f"INSERT INTO {table.name} (carrier, number, note) VALUES ('X', 7, 'of others')")
    before = _visible(table)
    changed, deleted = Position(carrier="A", number=1, place="new"), Position(carrier="A", number=2, gone=True)
    table.put(2, [changed, deleted])
    assert [(row["number"], row["note"], row["place"]) for row in _visible(table)] == [
        (1, "seen", "new"),
        (7, "of others", None),
    ]
    handle = table.sink.open_table(table.about)
    handle.rewind(handle.plan_rewind(1).to_version, 5)
    assert _visible(table) == before


def test_a_table_of_keys_alone_has_each_key_once(postgres: Postgres, tmp_path: Path) -> None:
    class Seen(msgspec.Struct):
        word: str

    table = PostgresTable.create(postgres, tmp_path, Seen, mode="upsert", keys="word", undo=_DAY).prepare()
    table.put(1, [Seen("a"), Seen("b"), Seen("a")])
    table.put(2, [Seen("b"), Seen("c")])
    assert table.ids("word") == ["a", "b", "c"]
    handle = table.sink.open_table(table.about)
    handle.rewind(handle.plan_rewind(1).to_version, 3)
    assert table.ids("word") == ["a", "b"]


def test_a_sink_goes_to_tasks_without_anything_that_connects(postgres: Postgres, tmp_path: Path) -> None:
    table = _table(postgres, tmp_path)
    sent = pickle.dumps(table.sink)
    assert CANARY.encode() not in sent and b"user=" not in sent
    copy = pickle.loads(sent)
    assert (copy.location, repr(copy)) == (table.sink.location, repr(table.sink))
    assert CANARY not in repr(table.sink) + repr(table.sink._settings) + str(vars(table.sink))
    moved = replace(table, sink=copy)
    assert table.sink.open_table(table.about).commit(1, moved.stage(1, [Position(carrier="A", number=1)])) == 1


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (("host=h", "t"), {"mode": "upsert"}), (("host=h", "t"), {"keys": "id"}), (("host=h", "t"), {"undo": _DAY}),
        (("host=h", "t"), {"timeout": timedelta(0)}), (("host=h", "a.b.c"), {}), (("host=h", "t" * 64), {}),
        (("host=h", "stateflow_tokens"), {}), (("host=h password=x", "t"), {"password": "y"}),
        ((f"hosts=h password={CANARY}", "t"), {}),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_are_errors(arguments: tuple[str, str], more: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError) as caught:
        PostgresSink(*arguments, **more)
    assert CANARY not in str(caught.value) and caught.value.__cause__ is None


def test_a_password_in_the_string_is_a_secret_as_well(postgres: Postgres) -> None:
    url = f"postgresql://postgres:{CANARY}@127.0.0.1:{postgres.port}/postgres"
    sink = PostgresSink(url, "t0")
    assert sink.location == f"postgresql://127.0.0.1:{postgres.port}/postgres/public.t0"
    assert CANARY not in repr(sink._settings)
    assert sink.check(context(Pair)) is None


@given(histories)
@one_in(12)
@pytest.mark.slow(reason="random changelogs in a server's tables")
def test_a_table_has_the_rows_that_are_not_retracted(
    postgres: Postgres, tmp_path_factory: pytest.TempPathFactory, history: list[list[Move]]
) -> None:
    folder = tmp_path_factory.mktemp("seats")
    table = PostgresTable.create(postgres, folder, SeatChange, mode="upsert", keys="seat", undo=_DAY)
    sink = table.sink.for_changelog(Changelog(row_kind="kind", retracts=True))
    assert isinstance(sink, PostgresSink)
    table, seats, contents = replace(table, sink=sink).prepare(), Seats(), [list[str]()]
    for token, moves in enumerate(history, 1):
        changes = [(move[0], change) for move in moves for change in seats.move(move)]
        # As of two tasks, of which the second one comes first.
        rows = [change for user, change in changes if user % 2] + [change for user, change in changes if not user % 2]
        table.put(token, rows)
        contents.append(seats.table)
        assert as_texts(table.rows("seat")) == seats.table
    handle = table.sink.open_table(table.about)
    assert handle.rewind(handle.plan_rewind(1).to_version, len(history) + 1) is not None
    assert as_texts(table.rows("seat")) == contents[1]


class Identified(msgspec.Struct):
    kind: RowKind
    id: int
    uid: uuid.UUID
    tags: list[str]


def test_a_delete_compares_values_with_columns_of_other_types(postgres: Postgres, tmp_path: Path) -> None:
    ddl = "CREATE TABLE {table} (id numeric PRIMARY KEY, uid text, tags json)"
    table = PostgresTable.create(postgres, tmp_path, Identified, ddl, mode="upsert", keys="id")
    sink = table.sink.for_changelog(Changelog(row_kind="kind", retracts=True))
    assert isinstance(sink, PostgresSink)
    table = replace(table, sink=sink).prepare()
    rows = [Identified(RowKind.INSERT, number, uuid.UUID(int=number), ["a"]) for number in range(3)]
    table.put(1, rows)
    other = msgspec.structs.replace(rows[1], kind=RowKind.DELETE, tags=["b"])
    table.put(2, [msgspec.structs.replace(rows[0], kind=RowKind.DELETE), other])
    assert [row["id"] for row in table.rows("id")] == [1, 2]
