"""Changed copies of savepoints: without some operators, and with states that functions transform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stateflow.bootstrap.layout import Layout
from stateflow.bootstrap.transforms import Transform
from stateflow.bootstrap.writer import SavepointWriter
from stateflow.checkpoint.log.documents import OperatorState
from stateflow.checkpoint.savepoints.catalog import savepoint_at
from stateflow.config.sources import SettingsLayer
from stateflow.errors import ConfigError
from stateflow.helpers import did_you_mean
from stateflow.launch import prepare
from stateflow.operations.job_savepoints import find
from stateflow.operations.written_savepoints import WrittenSavepoint, report_of, write_at_one_time
from stateflow.query.state_table import OPERATOR_PREFIX, TIMERS
from stateflow.runtime.job_loader import load_function
from stateflow.runtime.planning.state_discovery import DeclaredOperator, discover_operators
from stateflow.storage.locations import is_below


@dataclass(frozen=True)
class ChangeRequest:
    """A changed copy of a savepoint.

    Attributes:
        savepoint: path or URI of the folder of the savepoint, which stays as it is; or its name in the job root.
        output: path or URI of the folder of the copy.
        remove: uids of the operators that the copy does not have.
        transforms: functions that return new rows of a state, each as ``OPERATOR.STATE=FUNCTION``; for FUNCTION see
            `load_function`, and for what it does `SavepointWriter.transform_state`.
        job_file: the job that starts from the copy, which declares the states that are transformed; not needed for
            timers.
        layers: settings in addition to those of the job file.
        job_root: the job root of the savepoint; needed for a name.
        name: name of the copy; by default that of its folder.
        reason: why it is written, for display.
        on_step: called before each slow step with its description.
        by: who writes it, for display; by default the user of the operating system.
    """

    savepoint: str
    output: str
    remove: tuple[str, ...] = ()
    transforms: tuple[str, ...] = ()
    job_file: Path | None = None
    layers: tuple[SettingsLayer, ...] = ()
    job_root: str = ""
    name: str = ""
    reason: str = ""
    on_step: Callable[[str], None] = lambda step: None
    by: str = ""


@dataclass(frozen=True)
class _Transformation:
    """A function for the rows of a state, given by the names of both."""

    operator: str
    state: str
    function: str


def change_savepoint(request: ChangeRequest) -> WrittenSavepoint:
    """Writes a changed copy of a savepoint.

    If the call is killed, no copy exists, and the same call writes it again; a repetition of a complete call returns
    the copy.

    Raises:
        ConfigError: the savepoint, an operator, a state or a function does not exist, the job file does not declare a
            state that is transformed, or another savepoint is in the folder.
        MissingFile, CorruptFile: a file of the savepoint is missing or damaged.
        UserCodeError: a function has raised an exception.
        DataError, SchemaMismatch, StateError, EntryTooLarge: a row that it has returned cannot be stored.
        JobDefinitionError: the job file, or the file of a function, cannot be used.
    """
    if request.job_root and is_below(request.output, request.job_root):
        # A clean-up of the job root could delete it, and it the files of a savepoint that a run is making.
        raise ConfigError(
            "the output is within the job root",
            hint="write it elsewhere",
            output=request.output,
            job_root=request.job_root,
        )
    if not request.job_root and "/" not in request.savepoint:
        raise ConfigError(
            "a savepoint's name needs a job root",
            hint="pass --job-root, or the path of the savepoint",
            savepoint=request.savepoint,
        )
    uri = write_at_one_time(request.output, None, lambda: _write(request))
    return report_of(uri, savepoint_at(uri).document)


def _write(request: ChangeRequest) -> str:
    """Writes the copy; returns the URI of its folder."""
    stored = find(request.job_root, request.savepoint)
    document = stored.document
    writer = SavepointWriter(document.job, Layout(document.max_parallelism, 1, 0), existing=stored)
    for uid in request.remove:
        writer.without_operator(uid)
    operators = {operator.uid: operator for operator in document.manifest.operators}
    wanted = [_parse(option, operators) for option in request.transforms]
    declared = _declared(request, document.max_parallelism) if wanted else {}
    for each in wanted:
        _add(writer, each, declared, request)
    if wanted:
        request.on_step(f"transforming {', '.join(f'{each.operator}.{each.state}' for each in wanted)}")
    return writer.write(request.output, name=request.name, reason=request.reason, by=request.by)


def _declared(request: ChangeRequest, max_parallelism: int) -> dict[str, DeclaredOperator]:
    if request.job_file is None:
        return {}
    request.on_step(f"loading {request.job_file}")
    start = prepare(request.job_file, layers=request.layers).start
    return discover_operators(start.plan, max_parallelism)


def _states_of(operator: OperatorState) -> list[str]:
    """Returns the names of the states that can be transformed, as for `stateflow.read_state`."""
    timers = [TIMERS] if operator.key_types else []
    of_operator = [OPERATOR_PREFIX + schema.name for schema in operator.operator_states]
    return [*(schema.name for schema in operator.states), *timers, *of_operator]


def _parse(option: str, operators: Mapping[str, OperatorState]) -> _Transformation:
    known = {f"{uid}.{name}": (uid, name) for uid, each in operators.items() for name in _states_of(each)}
    # Names of states may have an equals sign.
    name = max((name for name in known if option.startswith(f"{name}=")), key=len, default=None)
    if name is not None and option != f"{name}=":
        return _Transformation(*known[name], option.removeprefix(f"{name}="))
    given, _, function = option.partition("=")
    if not (given and function):
        raise ConfigError(
            "a transformation is not of the form OPERATOR.STATE=FUNCTION",
            hint="for example sum.total=changes.py:in_hours",
            transform=option,
        )
    raise ConfigError(
        "the savepoint has no such state that can be transformed",
        hint=f"{did_you_mean(given, known)} Raw state cannot be transformed.",
        state=given,
        known=sorted(known),
    )


def _add(
    writer: SavepointWriter, given: _Transformation, declared: Mapping[str, DeclaredOperator], request: ChangeRequest
) -> None:
    """Adds a transformation to a writer; raises ConfigError if the job does not declare the state."""
    # The writer checks what it returns.
    function = cast("Transform", load_function(given.function))
    if given.state == TIMERS:
        writer.transform_timers(given.operator, function)
        return
    operator = declared.get(given.operator)
    name = given.state.removeprefix(OPERATOR_PREFIX)
    if operator and given.state != name and name in operator.broadcasts:
        writer.transform_broadcast_state(given.operator, operator.broadcasts[name], function)
    elif operator and given.state != name and name in (lists := {**operator.lists, **operator.unions}):
        writer.transform_operator_state(given.operator, lists[name], function)
    elif operator and given.state == name and name in operator.keyed:
        writer.transform_state(given.operator, operator.keyed[name], function)
    else:
        raise _undeclared(given, declared, request)


def _undeclared(
    given: _Transformation, declared: Mapping[str, DeclaredOperator], request: ChangeRequest
) -> ConfigError:
    facts = {"operator": given.operator, "state": given.state}
    if request.job_file is None:
        return ConfigError(
            "the declaration of a state that is transformed is not known",
            hint="pass the job file that starts from the copy: --job JOB.py",
            **facts,
        )
    return ConfigError(
        "the job does not declare a state that is transformed",
        hint="declare it as the copy has it, or start with a job file that does; an operator keeps its uid",
        **facts,
        job_file=str(request.job_file),
        declared=[f"{uid}.{name}" for uid, each in declared.items() for name in each.keyed],
    )
