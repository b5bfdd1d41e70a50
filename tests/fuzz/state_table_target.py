"""The fuzz target for state as data: what `read_state` and Spark read of a hostile savepoint, as Arrow."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import io
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from stateflow import MemoryStateBackend
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, CorruptFile
from stateflow.query.reader import table_names, table_of
from stateflow.query.state_table import Rows
from stateflow.state.backends.entry_stream import entries_of
from stateflow.state.backends.hash_maps import decode_snapshot, encode_snapshot
from stateflow.state.handles import OperatorPart, StateSchema, SubtaskState
from stateflow.state.schema import type_schema
from stateflow.storage import MemoryStorage
from stateflow.testing.harness.job import OPERATOR
from stateflow.types.decoders import msgpack_decoder
from stateflow.types.key_groups import KeyGroupRange
from stateflow.types.serializers import ValueSerializer
from tests.fuzz.mutations import changed_bytes, changed_json, random_text
from tests.fuzz.target import Target
from tests.query.every_kind import KEY_GROUPS, Row, Rule, harness, snapshot_of

Entry = tuple[bytes, bytes]
Input = tuple[bytes, dict[str, str], int]
"""The operator's state, options of a DataFrame, and a seed for what is read."""

_OPTIONS = ("path", "snapshot", "operator", "state", "columns", "table", "lease_seconds", "PATH", "x")
_TEXTS = ["", "1", "-1", "²", "9" * 400, "value", "key,value", "_timers", "states", ",", "\0", "\ud800", "a" * 300]


class EveryType(msgspec.Struct):
    """Fields of every type of a column."""

    at: datetime.datetime
    day: datetime.date
    time: datetime.time
    lasts: datetime.timedelta
    price: decimal.Decimal
    some: list[int | None]
    by_day: dict[datetime.date, tuple[int, ...]]
    either: int | str
    data: bytes | None = None


_VALUE = EveryType(
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 1),
    datetime.time(1),
    datetime.timedelta(seconds=1),
    decimal.Decimal("1.50"),
    [1, None],
    {datetime.date(2026, 1, 1): (1, 2)},
    "a",
)
_KINDS: list[object] = [
    int,
    str,
    bytes,
    float,
    bool,
    list[int],
    dict[str, int],
    dict[int, list[str]],
    set[int],
    EveryType,
]


@contextmanager
def state_table(_: Path) -> Iterator[Target]:
    """Changes the operator of a manifest, its stored entries and values; reads one of its tables."""
    # Other targets need no Spark.
    from stateflow.query import data_source

    with harness(MemoryStateBackend()) as job:
        rows = [Row(f"k{number % 3}", number, number) for number in range(7)]
        job.push_both(rows, [Rule("r", 0.5)])
        intact = snapshot_of(job).operator(OPERATOR)
    storage = MemoryStorage()

    def mutate(rng: random.Random) -> Input:
        options = {rng.choice(_OPTIONS): random_text(rng, _TEXTS) for _ in range(rng.randrange(5))}
        found = intact
        if rng.random() < 0.7:
            found = replace(found, subtasks=[_changed_entries(rng, each) for each in found.subtasks])
        if rng.random() < 0.2:
            found = replace(found, parts=[_changed_part(rng, each) for each in found.parts])
        if rng.random() < 0.4:
            found = replace(found, states=[_other_type(rng, each) for each in found.states])
        data = msgspec.json.encode(found)
        if rng.random() < 0.4:
            about = msgspec.json.encode(replace(found, subtasks=[], parts=[]))
            changed = changed_json(rng, about, [about])
            data = changed[:-1] + data[data.index(b',"subtasks"') :] if rng.random() < 0.5 else changed
        return data, options, rng.randrange(1 << 30)

    def read(given: Input) -> None:
        data, options, seed = given
        with contextlib.suppress(ConfigError):
            data_source.ReadRequest.of(options)
        _read(_decoded(data), storage, random.Random(seed))

    yield Target(mutate, read)


def _decoded(data: bytes) -> OperatorState:
    """Returns the operator as a manifest has it, which another target reads."""
    try:
        return msgspec.json.decode(data, type=OperatorState)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise CorruptFile("not decoded", reason=str(e)[:200]) from e


def _read(operator: OperatorState, storage: MemoryStorage, rng: random.Random) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema

    from stateflow.query.data_source import _cast, _encoded, _spark_schema

    keys = None if rng.random() < 0.8 else tuple(f"k{number}" for number in range(2))
    groups = None if rng.random() < 0.8 else KeyGroupRange(*sorted(rng.sample(range(-1, 1 << 15), 2)))
    table = table_of(operator, rng.choice(table_names(operator)), Rows(keys, groups), KEY_GROUPS)
    names = list(table.schema.names)
    for number in table.subtasks:
        # As a task of Spark receives it.
        msgpack_decoder(OperatorState).decode(_encoded(operator, number))
    target = to_arrow_schema(_spark_schema(table.schema), timezone="UTC") if rng.random() < 0.5 else None
    for batch in table.batches(storage, SystemClock(), names):
        batch.validate(full=True)
        assert batch.schema == table.schema
        if target is not None:
            _cast(batch, target).validate(full=True)


def _changed_entries(rng: random.Random, subtask: SubtaskState) -> SubtaskState:
    """Returns the subtask with one to three other entries, nearly always in order."""
    content = subtask.inline or b""
    entries = list(entries_of(decode_snapshot(io.BytesIO(content), len(content), "s"))) if content else []
    if not entries:
        return subtask
    known = [*entries, (entries[0][0], ValueSerializer[EveryType](EveryType).encode(_VALUE))]
    for _ in range(rng.choice([1, 1, 2, 3])):
        at = rng.randrange(len(entries))
        key, value = entries[at]
        _, other = rng.choice(known)
        entries[at] = rng.choice([(_changed(rng, key, [k for k, _ in known]), value), (key, other)])
        if rng.random() < 0.6:
            entries[at] = key, _changed(rng, value, [v for _, v in known])
    if rng.random() < 0.95:
        entries = sorted(dict(entries).items())
    return replace(subtask, inline=b"".join(encode_snapshot(entries)))


def _changed(rng: random.Random, data: bytes, others: list[bytes]) -> bytes:
    # The first bytes are the key group and the id of the state, or the format of the value.
    start = rng.choice([0, 1, min(6, len(data))])
    return data[:start] + changed_bytes(rng, data[start:], others)


def _changed_part(rng: random.Random, part: OperatorPart) -> OperatorPart:
    return replace(part, content=changed_bytes(rng, part.content or b"", [part.content or b""]))


def _other_type(rng: random.Random, state: StateSchema) -> StateSchema:
    """Returns the state with another recorded type, nearly always that of a value in `_changed_entries`."""
    return replace(state, type=type_schema(rng.choice([*_KINDS, EveryType, EveryType])))
