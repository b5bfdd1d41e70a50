"""The fuzz targets for options of the command line that name states, their columns, and functions."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Never

from stateflow.bootstrap.spark_imported_states import ImportedState, SparkQueries
from stateflow.bootstrap.state_files import parse_states
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.errors import ConfigError
from stateflow.operations.changed_savepoints import _parse
from stateflow.query.state_table import TIMERS
from stateflow.runtime.job_loader import load_function
from stateflow.runtime.planning.state_discovery import DeclaredOperator
from stateflow.state.handles import StateSchema
from stateflow.state.schema import type_schema
from stateflow.types.descriptors import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from tests.fuzz.mutations import random_text
from tests.fuzz.target import Target

_HOSTILE = [
    *("", ".", "=", "#", ",", ":", "/", "..", " ", "\0", "\n", "\ud800", "\x1b[2J", "²", "٣", "é", "-1", "9" * 5000),
    *("a" * 300, "a." * 700, "(" * 3000, "'", "`", '"', "${x}", "%s"),
]
_STATES: dict[str, StateDescriptor] = {
    "total": ValueStateDescriptor("total", int),
    "a=b": ValueStateDescriptor("a=b", dict[str, int]),
    "a.b": MapStateDescriptor("a.b", str, int),
}
_OPERATORS = {uid: DeclaredOperator(uid, {"shop": "string"}, _STATES, {}, {}, {}, (), ()) for uid in ("sum", "sum.a")}
_NAMES = [f"{uid}.{state}" for uid in _OPERATORS for state in (*_STATES, TIMERS)]
_COLUMNS = ["shop", "value", "map_key", "namespace", "time", "domain", "key"]
_PARTS = ["variable", "operator", "store", "batch", "x"]
_Options = tuple[list[str], list[str]]
"""Options --state and --column."""


def _no_spark() -> Never:
    raise ConfigError("no session", hint="the target needs none")


@contextmanager
def column_option(folder: Path) -> Iterator[Target]:
    """Names states of queries of Spark and their columns, up to where Spark reads the first one."""

    def mutate(rng: random.Random) -> _Options:
        states = [f"{name}=spark:{folder}/query{_address(rng)}" for name in rng.sample(_NAMES, rng.randrange(1, 4))]
        columns = []
        for _ in range(rng.randrange(1, 5)):
            name = rng.choice(states).split("=spark:")[0] if rng.random() < 0.9 else random_text(rng, _HOSTILE)
            column = rng.choice(_COLUMNS) if rng.random() < 0.8 else random_text(rng, [*_COLUMNS, *_HOSTILE])
            columns.append(f"{name}.{column}={random_text(rng, [*_COLUMNS, *_HOSTILE])}")
        return states, columns

    def read(given: _Options) -> None:
        queries = SparkQueries(_no_spark)
        for found in parse_states(given[0], _OPERATORS, 128, given[1]):
            assert isinstance(found, ImportedState) and found.name in _NAMES
            assert all(name and text.strip() for name, text in found.columns.items())
            operator = _OPERATORS[found.operator]
            if found.state == TIMERS:
                queries.timers(found, operator)
            else:
                queries.frame(found, operator)

    yield Target(mutate, read)


def _address(rng: random.Random) -> str:
    if rng.random() < 0.3:
        return ""
    if rng.random() < 0.1:
        return "#" + random_text(rng, [*_PARTS, *_HOSTILE])
    parts = rng.sample(_PARTS, rng.randrange(1, 4))
    return "#" + ",".join(f"{name}={rng.choice(['1', 'left', *_HOSTILE])}" for name in parts)


@contextmanager
def transform_option(folder: Path) -> Iterator[Target]:
    """Names a state and a function of a file or module."""
    (folder / "fuzz_changes.py").write_text("def in_hours(rows):\n    return rows\n\nname = 'x'\n")
    (folder / "fuzz_wrong.py").write_text("raise ValueError('x')\n")
    (folder / "fuzz_text.py").write_bytes(b"\xff\0")
    states = [StateSchema(name=name, kind="value", value_type="int", type=type_schema(int)) for name in _STATES]
    operators = {
        uid: OperatorState(
            uid=uid,
            parallelism=1,
            key_types=["string"],
            key_names=["key"],
            states=states,
            subtasks=[],
            operator_states=states[:1],
        )
        for uid in _OPERATORS
    }
    names = [*_NAMES, "sum._operator/total", "sum._raw"]
    files = [f"{folder}/{name}.py" for name in ("fuzz_changes", "fuzz_wrong", "fuzz_text", "json", "none")]
    modules = ["json", "os.path", "tests.fuzz.mutations", "no_such_module", ".json", "json.", "stateflow.sdk"]
    functions = ["in_hours", "name", "dumps", "join", "_x", "__name__", "class"]

    def mutate(rng: random.Random) -> str:
        name = rng.choice(names) if rng.random() < 0.8 else random_text(rng, [*names, *_HOSTILE])
        where = rng.choice([*files, *files, *modules]) if rng.random() < 0.7 else random_text(rng, [*files, *_HOSTILE])
        function = rng.choice(functions) if rng.random() < 0.8 else random_text(rng, [*functions, *_HOSTILE])
        return rng.choice([f"{name}={where}:{function}"] * 8 + [f"{name}={where}", name, f"{where}:{function}"])

    def read(option: str) -> None:
        parsed = _parse(option, operators)
        assert option == f"{parsed.operator}.{parsed.state}={parsed.function}"
        assert callable(load_function(parsed.function))

    yield Target(mutate, read)
