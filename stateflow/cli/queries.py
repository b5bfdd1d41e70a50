"""The commands query and serve: a client of state servers, and a state server."""

from __future__ import annotations

import gc
import json
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from stateflow.cli.common import ROOT, SECONDS, json_lines, print_json, print_text, with_options
from stateflow.compare.changes import to_json
from stateflow.config.settings import RocksDBSettings
from stateflow.errors import ConfigError, EnvironmentUnsupported, UnknownState
from stateflow.helpers import did_you_mean
from stateflow.outputs import OptionalText
from stateflow.process_limits import end_with_parent, ends_at_sigterm, isolate
from stateflow.query.snapshot import describe_snapshot
from stateflow.state.handles import StateSchema
from stateflow.state.schema import name_fields
from stateflow.types.key_values import parse_key, plain_key

if TYPE_CHECKING:
    from stateflow.serving.client import QueryableStateClient
    from stateflow.serving.lookups import StateDescription
    from stateflow.serving.steps import QueryOptions


TOKEN_FILE = click.Path(path_type=Path)
_LARGEST = 10_000
_OTHERS = stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH


def read_token(file: Path | None) -> str:
    """Returns the token in a file; an empty text without a file.

    Raises:
        ConfigError: the file cannot be read, is empty, or other users may read or write it.
    """
    if file is None:
        return ""
    try:
        with file.open() as opened:
            mode = os.fstat(opened.fileno()).st_mode
            token = opened.read(_LARGEST).strip()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(
            "the file with the token cannot be read",
            hint="check the path and its permissions",
            file=str(file),
            reason=str(e),
        ) from e
    # A group may read it, as a secret that is mounted for a group.
    if mode & _OTHERS:
        raise ConfigError(
            "other users may read or write the file with the token",
            hint=f"chmod 600 {file}, and write a new token into it",
            file=str(file),
            mode=oct(stat.S_IMODE(mode)),
        )
    if not token:
        raise ConfigError("the file with the token is empty", hint="write a long random text into it", file=str(file))
    return token


_NO_VALUE = 6
"""Exit code of get for a key without a value, as that of ``stateflow state get``."""
_SERVER = [
    ROOT,
    click.option("--token-file", type=TOKEN_FILE, help="File with the token of the servers."),
    click.option(
        "--timeout",
        type=SECONDS,
        default=30,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for a server, or for the checkpoint of --at-least.",
    ),
]
_AT = [
    click.option("--at-least", type=click.IntRange(1), metavar="N", help="Wait for checkpoint N or a later one."),
    click.option("--exactly", type=click.IntRange(1), metavar="N", help="Ask for checkpoint N."),
]
_NAME = click.argument("name", metavar="NAME")
_KEY = click.option(
    "--key",
    "texts",
    required=True,
    multiple=True,
    metavar="KEY",
    help="Value of the key column; with several, once for each in their order, or a JSON array of their values, or an "
    "object with their names.",
)
_LIMIT = click.option("--limit", type=click.IntRange(1), metavar="N", help="Print at most N. Default: all.")


@dataclass(frozen=True)
class QueryableState:
    """A state that can be queried.

    Attributes:
        name: the queryable name.
        operator: uid of the operator.
        state: name within the operator.
        kind: ``value``, ``map``, ``reducing`` or ``aggregating``.
        value_type: the declared type of the values.
        key_names: names of the key columns.
        key_types: type of each key column, as Spark names it.
        map_key_type: the declared type of a map's keys; empty for other kinds.
    """

    name: str
    operator: str
    state: str
    kind: str
    value_type: str
    key_names: list[str]
    key_types: list[str]
    map_key_type: OptionalText


@dataclass(frozen=True)
class QueriedValue:
    """The value of a key, or of one key of its map.

    Attributes:
        checkpoint_id: the checkpoint that it is from.
        value: the value.
    """

    checkpoint_id: int
    value: object


@dataclass(frozen=True)
class QueriedEntry:
    """An entry of the map of a key.

    Attributes:
        checkpoint_id: the checkpoint that it is from.
        map_key: its key in the map.
        value: its value.
    """

    checkpoint_id: int
    map_key: object
    value: object


@dataclass(frozen=True)
class QueriedKey:
    """A key that has a value.

    Attributes:
        checkpoint_id: the checkpoint that it is from.
        key: the value of the key column; a list for several columns.
    """

    checkpoint_id: int
    key: object


@click.group()
def query() -> None:
    """Query the committed state of a job, from its state servers.

    NAME is the queryable name of a state. Each result is a line of JSON with the checkpoint that it is from.
    """


@query.command()
@json_lines(QueryableState)
@with_options(_SERVER)
def states(job_root: str, token_file: Path | None, timeout: float) -> None:
    """List the states that can be queried, with their keys and types."""
    with _client(job_root, token_file, timeout) as client:
        for state in client.states():
            print_json(QueryableState(**msgspec.structs.asdict(state)))


@query.command()
@json_lines(QueriedValue)
@_NAME
@_KEY
@click.option("--map-key", metavar="KEY", help="For a map: the key in the map.")
@with_options([*_AT, *_SERVER])
def get(
    name: str,
    texts: tuple[str, ...],
    map_key: str | None,
    at_least: int | None,
    exactly: int | None,
    job_root: str,
    token_file: Path | None,
    timeout: float,
) -> None:
    """Print the value of a key.

    Exit codes: 0 the key has a value; 6 it has none at the checkpoint; others: an error.
    """
    with _client(job_root, token_file, timeout) as client:
        state = _described(client, name)
        key = _key(texts, state)
        map_keys = None if map_key is None else [_map_key(map_key, state)]
        (result,) = client.get_many(name, [key], map_keys, **_options(at_least, exactly))
    if not result.found:
        print_text(f"the key has no value at checkpoint {result.checkpoint_id}", err=True)
        sys.exit(_NO_VALUE)
    print_json(QueriedValue(result.checkpoint_id, _plain(name_fields(result.value, _schema(job_root, state)))))


@query.command()
@json_lines(QueriedEntry)
@_NAME
@_KEY
@click.option("--prefix", metavar="TEXT", help="Only entries whose key in the map begins with this text.")
@_LIMIT
@with_options([*_AT, *_SERVER])
def scan(
    name: str,
    texts: tuple[str, ...],
    prefix: str | None,
    limit: int | None,
    at_least: int | None,
    exactly: int | None,
    job_root: str,
    token_file: Path | None,
    timeout: float,
) -> None:
    """Print the entries of one key's map, in order of the keys in the map."""
    with _client(job_root, token_file, timeout) as client:
        state = _described(client, name)
        schema = _schema(job_root, state)
        entries = client.scan(name, _key(texts, state), prefix, **_options(at_least, exactly))
        for entry in islice(entries, limit):
            value = _plain(name_fields(entry.value, schema))
            print_json(QueriedEntry(entry.checkpoint_id, _plain(entry.key), value))


@query.command()
@json_lines(QueriedKey)
@_NAME
@_LIMIT
@with_options([*_AT, *_SERVER])
def keys(
    name: str,
    limit: int | None,
    at_least: int | None,
    exactly: int | None,
    job_root: str,
    token_file: Path | None,
    timeout: float,
) -> None:
    """Print the keys that have a value."""
    with _client(job_root, token_file, timeout) as client:
        for entry in islice(client.keys(name, **_options(at_least, exactly)), limit):
            values = entry.key if isinstance(entry.key, tuple) else (entry.key,)
            print_json(QueriedKey(entry.checkpoint_id, _plain(plain_key(values))))


@contextmanager
def _client(job_root: str, token_file: Path | None, timeout: float) -> Iterator[QueryableStateClient]:
    from stateflow import QueryableStateClient

    token = read_token(token_file)
    with QueryableStateClient(job_root, token=token, timeout=timedelta(seconds=timeout)) as client:
        yield client


def _options(at_least: int | None, exactly: int | None) -> QueryOptions:
    found: QueryOptions = {}
    if at_least is not None:
        found["at_least"] = at_least
    if exactly is not None:
        found["exactly"] = exactly
    return found


def _described(client: QueryableStateClient, name: str) -> StateDescription:
    known = {state.name: state for state in client.states()}
    if name not in known:
        raise UnknownState(
            "no state of the job has this queryable name",
            hint=did_you_mean(name, known),
            name=name[:100],
            found=sorted(known)[:20],
        )
    return known[name]


def _key(texts: tuple[str, ...], state: StateDescription) -> tuple[object, ...]:
    return parse_key(texts, dict(zip(state.key_names, state.key_types, strict=True)))


def _map_key(text: str, state: StateDescription) -> object:
    """Returns a key of a map: a text as it is, other types from JSON; the client checks the type."""
    if state.map_key_type == "str":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _schema(job_root: str, state: StateDescription) -> StateSchema | None:
    """Returns the recorded schema of a state, which has the names of fields that values may be stored without."""
    operator = describe_snapshot(job_root).operator(state.operator)
    return next((schema for schema in operator.states if schema.name == state.state), None)


def _plain(value: object) -> object:
    """Returns a value of a user's type as what JSON has."""
    return json.loads(to_json(value))


_MIB = 1 << 20
_SWITCH_SECONDS = 0.0005


@click.command()
@ROOT
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", type=click.IntRange(0, 65535), default=8470, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--token-file",
    type=TOKEN_FILE,
    help="File with the token that clients must send; required unless the address is a loopback address.",
)
@click.option(
    "--advertise", default="", metavar="URL", help="URL at which clients reach this server, such as that of a proxy."
)
@click.option(
    "--keep", type=click.IntRange(1, 100), default=3, show_default=True, help="Checkpoints that are kept open."
)
@click.option(
    "--poll", type=SECONDS, metavar="SECONDS", help="Interval at which the log is read; 0.05, or 1 in object storage."
)
@click.option(
    "--lease",
    type=click.FloatRange(1, 3600),
    default=10,
    show_default=True,
    metavar="SECONDS",
    help="Other servers take over the key groups of this one if it does not renew its lease for so long.",
)
@click.option(
    "--cache-mib", type=click.IntRange(8), default=256, show_default=True, help="Block cache for all open stores."
)
@click.option(
    "--memory-mib",
    type=click.IntRange(256),
    default=4096,
    show_default=True,
    help="Memory that the process may use; it ends when it needs more.",
)
@click.option(
    "--end-with", "parent", type=click.IntRange(1), metavar="PID", help="Id of the parent process, to end with it."
)
def serve(
    job_root: str,
    host: str,
    port: int,
    token_file: Path | None,
    advertise: str,
    keep: int,
    poll: float | None,
    lease: float,
    cache_mib: int,
    memory_mib: int,
    parent: int | None,
) -> None:
    """Serve the committed state of a job to queries over HTTP, until SIGINT or SIGTERM arrives.

    It serves the states that the job has named with set_queryable or as_queryable_state, and follows the job from
    checkpoint to checkpoint. Several servers of one job divide its key groups. They register in the job root, where
    clients find them. The job may run, wait or not exist yet; a server changes nothing of it.
    """
    try:
        from stateflow.serving.app import AppSettings
        from stateflow.serving.follower import FollowSettings
        from stateflow.serving.server import ServerSettings, StateServer
    except ModuleNotFoundError as e:
        raise EnvironmentUnsupported(
            "a package for state servers is not installed", hint="pip install 'stateflow[serve]'", package=e.name
        ) from e
    if parent is not None:
        # As from a user, so that the lease ends.
        end_with_parent(parent, signal.SIGTERM)
    # A forged file of a store may crash the process that opens it: that is this one, which harms no run.
    isolate(memory_mib * _MIB)
    # A query must not wait 5 ms for the thread that checks new files whenever it needs the interpreter.
    sys.setswitchinterval(_SWITCH_SECONDS)
    settings = ServerSettings(
        host=host,
        port=port,
        advertise=advertise,
        poll=None if poll is None else timedelta(seconds=poll),
        lease=timedelta(seconds=lease),
        app=AppSettings(token=read_token(token_file)),
        follow=FollowSettings(keep, RocksDBSettings(block_cache_bytes=cache_mib * _MIB)),
        fetches_apart=True,
    )
    with StateServer(job_root, settings) as server, ends_at_sigterm(server.stop):
        print_text(f"serving {job_root} at {server.url}")
        # A collection of all objects takes tens of milliseconds, most of it for modules.
        gc.collect()
        gc.freeze()
        server.run()
