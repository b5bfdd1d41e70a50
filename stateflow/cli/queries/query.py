"""Commands that query the state servers of a job."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from stateflow.cli.common import ROOT, SECONDS, with_options
from stateflow.cli.formatting import print_text
from stateflow.cli.queries.token_file import TOKEN_FILE, read_token
from stateflow.compare.change_rows import to_json
from stateflow.errors import UnknownState
from stateflow.query.snapshot import describe_snapshot
from stateflow.similar_names import did_you_mean
from stateflow.state.handles import StateSchema
from stateflow.state.schema.named_values import named_value
from stateflow.types.key_values import parse_key, plain_key

if TYPE_CHECKING:
    from stateflow.serving.client import QueryableStateClient
    from stateflow.serving.requests import StateDescription
    from stateflow.serving.steps import QueryOptions

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


@click.group()
def query() -> None:
    """Query the committed state of a job, from its state servers.

    NAME is the queryable name of a state. Each result is a line of JSON with the checkpoint that it is from.
    """


@query.command()
@with_options(_SERVER)
def states(job_root: str, token_file: Path | None, timeout: float) -> None:
    """List the states that can be queried, with their keys and types."""
    with _client(job_root, token_file, timeout) as client:
        for state in client.states():
            print_text(msgspec.json.encode(state).decode())


@query.command()
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
    _print(result.checkpoint_id, {"value": named_value(result.value, _schema(job_root, state))})


@query.command()
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
            _print(entry.checkpoint_id, {"map_key": entry.key, "value": named_value(entry.value, schema)})


@query.command()
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
            _print(entry.checkpoint_id, {"key": plain_key(values)})


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


def _print(checkpoint_id: int, fields: dict[str, object]) -> None:
    parts = {name: msgspec.Raw(to_json(value).encode()) for name, value in fields.items()}
    print_text(msgspec.json.encode({"checkpoint_id": checkpoint_id, **parts}).decode())
