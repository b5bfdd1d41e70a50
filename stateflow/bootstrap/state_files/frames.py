"""Adds the rows of files to a `SavepointWriter`, as the states that a job declares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from stateflow.bootstrap.encoding.frames import (
    DOMAIN,
    MAP_KEY,
    NAMESPACE,
    POSITION,
    TIME,
    VALUE,
    WRITTEN_AT,
    KeyedStateFrame,
)
from stateflow.bootstrap.state_files.columns import StateColumnNames
from stateflow.bootstrap.state_files.locations import find_files
from stateflow.bootstrap.state_files.rows import FileRows
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.errors import ConfigError, StateflowError
from stateflow.query.columns.state_table import OPERATOR_PREFIX, RAW, RAW_KEYED, TIMERS
from stateflow.runtime.planning.declared_descriptors import DeclaredOperator
from stateflow.similar_names import did_you_mean

OnStep = Callable[[str], None]


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
    options: Iterable[str], operators: Mapping[str, DeclaredOperator], max_parallelism: int
) -> list[StateFiles]:
    """Returns the files of states, and checks their columns.

    Args:
        options: files, each as ``OPERATOR.STATE=FILES``; for FILES see `find_files`.
        operators: what the job declares.
        max_parallelism: number of key groups.

    Raises:
        ConfigError: an option is not valid, the job declares no such state, no such file exists, or its columns are not
            those of the state.
        DataError: a file cannot be read.
    """
    known = {f"{uid}.{name}": (uid, name) for uid, operator in operators.items() for name in state_names(operator)}
    found: dict[str, StateFiles] = {}
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
        try:
            files = find_files(location)
            rows = FileRows.of(files, StateColumnNames.of(operators[uid], state, max_parallelism))
        except StateflowError as e:
            e.add_facts(operator=uid, state=state)
            raise
        found[name] = StateFiles(uid, state, rows)
    return list(found.values())


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
    writer: SavepointWriter, given: Sequence[StateFiles], operators: Mapping[str, DeclaredOperator], on_step: OnStep
) -> None:
    """Adds states to a writer.

    Args:
        writer: the writer.
        given: their files.
        operators: what the job declares.
        on_step: called before the files of a state are read, with a description.

    Raises:
        StateflowError: as the methods of `SavepointWriter` and of `FileRows` do.
    """
    for uid in dict.fromkeys(each.operator for each in given):
        of_operator = {each.state: each for each in given if each.operator == uid}
        _add_operator(writer, operators[uid], of_operator, on_step)


def _add_operator(
    writer: SavepointWriter, operator: DeclaredOperator, given: Mapping[str, StateFiles], on_step: OnStep
) -> None:
    keyed = [_keyed(operator, given[name], on_step) for name in operator.keyed if name in given]
    timers = _timers(operator, given[TIMERS], on_step) if TIMERS in given else None
    writer.with_operator(operator.uid, key=operator.key, states=keyed, timers=timers)
    for union, lists in ((False, operator.lists), (True, operator.unions)):
        for name, of_list in lists.items():
            if rows := given.get(OPERATOR_PREFIX + name):
                writer.with_operator_state(operator.uid, of_list, _frame(rows, on_step), union=union)
    for name, of_map in operator.broadcasts.items():
        if rows := given.get(OPERATOR_PREFIX + name):
            writer.with_broadcast_state(operator.uid, of_map, _frame(rows, on_step))
    raw, raw_keyed = (_frame(given[name], on_step) if name in given else None for name in (RAW, RAW_KEYED))
    if raw is not None or raw_keyed is not None:
        writer.with_raw_state(operator.uid, partitions=raw, key_groups=raw_keyed)


def _keyed(operator: DeclaredOperator, given: StateFiles, on_step: OnStep) -> KeyedStateFrame:
    columns, rows = given.rows.columns, given.rows
    by_position = POSITION in columns.names
    if by_position:
        on_step(f"reading the order of {given.name}")
        names_of_list = [name for name in columns.names if name in (*columns.keys, NAMESPACE)]
        try:
            by_position = not rows.is_in_order(names_of_list, POSITION)
        except StateflowError as e:
            e.add_facts(operator=given.operator, state=given.state)
            raise
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
