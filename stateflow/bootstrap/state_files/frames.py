"""Adds the rows of files to a `SavepointWriter`, as the states that a job declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from stateflow.bootstrap.encoding.frames import (
    DOMAIN,
    MAP_KEY,
    NAMESPACE,
    POSITION,
    TIME,
    VALUE,
    WRITTEN_AT,
    Frame,
    KeyedStateFrame,
)
from stateflow.bootstrap.spark_checkpoint.addresses import PREFIX, QueryAddress
from stateflow.bootstrap.spark_checkpoint.imported_states import ImportedState, SparkQueries
from stateflow.bootstrap.state_files.columns import StateColumnNames
from stateflow.bootstrap.state_files.locations import find_files
from stateflow.bootstrap.state_files.rows import FileRows
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.errors import ConfigError, StateflowError
from stateflow.query.columns.state_table import OPERATOR_PREFIX, RAW, RAW_KEYED, TIMERS
from stateflow.runtime.planning.declared_descriptors import DeclaredOperator
from stateflow.similar_names import did_you_mean

OnStep = Callable[[str], None]
_Frames = Mapping[str, "StateFiles | ImportedState"]


@dataclass(frozen=True)
class StateFiles:
    """The files of one state.

    Attributes:
        operator: uid of the operator.
        state: name of the state, as for `stateflow.read_state`.
        rows: the rows of the files.
    """

    operator: str
    state: str
    rows: FileRows

    @property
    def name(self) -> str:
        """The state's name with its operator: ``sum.total``."""
        return f"{self.operator}.{self.state}"


def state_names(operator: DeclaredOperator) -> list[str]:
    """Returns the names of the states that an operator can have, as for `stateflow.read_state`."""
    declared = (*operator.lists, *operator.unions, *operator.broadcasts)
    return [*operator.keyed, TIMERS, *(OPERATOR_PREFIX + name for name in declared), RAW, RAW_KEYED]


def parse_states(
    options: Iterable[str], operators: Mapping[str, DeclaredOperator], max_parallelism: int, columns: Iterable[str] = ()
) -> list[StateFiles | ImportedState]:
    """Returns where states are, and checks the columns of files.

    Args:
        options: states, each as ``OPERATOR.STATE=FILES``, where FILES is as for `find_files`; or as
            ``OPERATOR.STATE=spark:QUERY``, where QUERY is as for `QueryAddress.of_state`.
        operators: what the job declares.
        max_parallelism: number of key groups.
        columns: columns of states of queries, each as ``OPERATOR.STATE.COLUMN=EXPRESSION``.

    Raises:
        ConfigError: an option is not valid, the job declares no such state, no such file exists, or its columns are not
            those of the state.
        DataError: a file cannot be read.
    """
    known = {f"{uid}.{name}": (uid, name) for uid, operator in operators.items() for name in state_names(operator)}
    found: dict[str, StateFiles | ImportedState] = {}
    for option in options:
        # Names of states may have an equals sign.
        name = max((name for name in known if option.startswith(f"{name}=")), key=len, default=None)
        if name is None or option == f"{name}=":
            raise _unknown(option, operators, known)
        if name in found:
            raise ConfigError(
                "the files of a state are given twice", hint="pass a folder, or a quoted pattern", state=name
            )
        uid, state = known[name]
        location = option.removeprefix(f"{name}=")
        with _named(uid, state):
            if location.startswith(PREFIX):
                found[name] = _imported(operators[uid], state, location.removeprefix(PREFIX))
                continue
            rows = FileRows.of(find_files(location), StateColumnNames.of(operators[uid], state, max_parallelism))
        found[name] = StateFiles(uid, state, rows)
    for option in columns:
        _add_column(found, option)
    return list(found.values())


@contextmanager
def _named(operator: str, state: str) -> Iterator[None]:
    """Adds operator and state to an error."""
    try:
        yield
    except StateflowError as e:
        e.add_facts(operator=operator, state=state)
        raise


def _imported(operator: DeclaredOperator, state: str, query: str) -> ImportedState:
    if state not in (*operator.keyed, TIMERS):
        raise ConfigError(
            "a query of Spark has no state of this kind",
            hint="import keyed states and timers; pass files of the others",
            state=state,
        )
    return ImportedState(operator.uid, state, QueryAddress.of_state(query))


def _add_column(found: dict[str, StateFiles | ImportedState], option: str) -> None:
    """Adds the expression of a column to an imported state; raises ConfigError if there is none of its name."""
    name = max((name for name in found if option.startswith(f"{name}.")), key=len, default="")
    column, equals, expression = option.removeprefix(f"{name}.").partition("=")
    given = found.get(name)
    if not isinstance(given, ImportedState) or not (column and equals and expression.strip()):
        raise ConfigError(
            "a column is not one of a state that is imported from Spark",
            hint="for example --column counts.stats.total=value.sum, with --state counts.stats=spark:CHECKPOINT",
            column=option,
            imported=[each.name for each in found.values() if isinstance(each, ImportedState)],
        )
    if column in given.columns:
        raise ConfigError("a column of a state is given twice", hint="pass one expression", state=name, column=column)
    found[name] = replace(given, columns={**given.columns, column: expression})


def _unknown(option: str, operators: Mapping[str, DeclaredOperator], known: Iterable[str]) -> ConfigError:
    name, equals, files = option.partition("=")
    if not (name and equals and files):
        return ConfigError(
            "the files of a state are not of the form OPERATOR.STATE=FILES",
            hint="for example sum.total=totals.parquet",
            state=option,
        )
    operator = next((uid for uid in operators if name.startswith(f"{uid}.")), None)
    if operator is None:
        return ConfigError(
            "the job has no such operator with state",
            hint=did_you_mean(name.partition(".")[0], operators) if operators else "the job has no keyed operator",
            operator=name.partition(".")[0],
            known=sorted(operators),
        )
    state = name.removeprefix(f"{operator}.")
    hint = did_you_mean(state, state_names(operators[operator]))
    if state.startswith(OPERATOR_PREFIX):
        hint += " The map of a broadcast state has to be an attribute of its function, or a name in the same module."
    return ConfigError(
        "the operator declares no such state before its first row",
        hint=hint,
        operator=operator,
        state=state,
        known=[each for each in known if each.startswith(f"{operator}.")],
    )


def add_states(
    writer: SavepointWriter,
    given: Sequence[StateFiles | ImportedState],
    operators: Mapping[str, DeclaredOperator],
    queries: SparkQueries,
    on_step: OnStep,
) -> None:
    """Adds states to a writer.

    Args:
        writer: the writer.
        given: where they are.
        operators: what the job declares.
        queries: reads those of Spark.
        on_step: called before the files of a state are read, with a description.

    Raises:
        StateflowError: as the methods of `SavepointWriter`, of `FileRows` and of `SparkQueries` do.
    """
    for uid in dict.fromkeys(each.operator for each in given):
        of_operator = {each.state: each for each in given if each.operator == uid}
        _add_operator(writer, operators[uid], of_operator, queries, on_step)


def _add_operator(
    writer: SavepointWriter, operator: DeclaredOperator, given: _Frames, queries: SparkQueries, on_step: OnStep
) -> None:
    files = {name: each for name, each in given.items() if isinstance(each, StateFiles)}
    keyed: list[KeyedStateFrame] = []
    timers: Frame | None = None
    for name in (*operator.keyed, TIMERS):
        each = given.get(name)
        if each is None:
            continue
        with _named(operator.uid, name):
            if name == TIMERS:
                timers = _timer_frame(operator, each, queries, on_step)
            elif isinstance(each, ImportedState):
                keyed.append(queries.frame(each, operator))
            else:
                keyed.append(_keyed(operator, each, on_step))
    writer.with_operator(operator.uid, key=operator.key, states=keyed, timers=timers)
    _add_operator_state(writer, operator, files, on_step)


def _timer_frame(
    operator: DeclaredOperator, given: StateFiles | ImportedState, queries: SparkQueries, on_step: OnStep
) -> Frame:
    return queries.timers(given, operator) if isinstance(given, ImportedState) else _timers(operator, given, on_step)


def _add_operator_state(
    writer: SavepointWriter, operator: DeclaredOperator, files: Mapping[str, StateFiles], on_step: OnStep
) -> None:
    for union, lists in ((False, operator.lists), (True, operator.unions)):
        for name, of_list in lists.items():
            if rows := files.get(OPERATOR_PREFIX + name):
                writer.with_operator_state(operator.uid, of_list, _frame(rows, on_step), union=union)
    for name, of_map in operator.broadcasts.items():
        if rows := files.get(OPERATOR_PREFIX + name):
            writer.with_broadcast_state(operator.uid, of_map, _frame(rows, on_step))
    raw, raw_keyed = (_frame(files[name], on_step) if name in files else None for name in (RAW, RAW_KEYED))
    if raw is not None or raw_keyed is not None:
        writer.with_raw_state(operator.uid, partitions=raw, key_groups=raw_keyed)


def _keyed(operator: DeclaredOperator, given: StateFiles, on_step: OnStep) -> KeyedStateFrame:
    columns, rows = given.rows.columns, given.rows
    by_position = POSITION in columns.names
    if by_position:
        on_step(f"reading the order of {given.name}")
        names_of_list = [name for name in columns.names if name in (*columns.keys, NAMESPACE)]
        by_position = not rows.is_in_order(names_of_list, POSITION)
    is_left_out = POSITION in columns.names and not by_position
    return KeyedStateFrame(
        operator.keyed[given.state],
        _frame(given, on_step, POSITION if is_left_out else ""),
        value=columns.name_of(VALUE),
        map_key=columns.name_of(MAP_KEY) or MAP_KEY,
        order_by=columns.name_of(POSITION) if by_position else (),
        written_at=columns.name_of(WRITTEN_AT),
        namespace=columns.name_of(NAMESPACE),
    )


def _timers(operator: DeclaredOperator, given: StateFiles, on_step: OnStep) -> pa.RecordBatchReader:
    taken = {TIME, DOMAIN, NAMESPACE} & set(operator.key)
    if taken:
        raise ConfigError(
            "a key column has the name of a column of timers", hint="rename it in key_by", columns=sorted(taken)
        )
    return _frame(given, on_step)


def _frame(given: StateFiles, on_step: OnStep, without: str = "") -> pa.RecordBatchReader:
    count = len(given.rows.files)
    files = given.rows.files[0].uri if count == 1 else f"{count} files"
    return given.rows.reader(lambda: on_step(f"reading {given.name} from {files}"), without)
