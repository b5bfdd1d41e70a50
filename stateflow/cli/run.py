"""The commands run and submit, and the progress that they print: a status line on a terminal, or log lines."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal, NoReturn, Protocol, cast

import click
from rich.console import Console
from rich.text import Text

import stateflow
from stateflow.checkpoint.launches import check_launch, record_run, store_result
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.checkpoint.restore.plan_document import GraphChanges
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.cli.common import (
    CLAIM_MODE,
    JOB,
    ROOT,
    as_stateflow_error,
    count_of,
    graph_options,
    human_bytes,
    log,
    print_error,
    print_text,
    settings_layers,
    to_duration,
    visible,
    with_options,
)
from stateflow.clock import SystemClock, to_milliseconds
from stateflow.config.sources import SettingsLayer, parse_toml, read_settings_file, resolve
from stateflow.errors import ConfigError, StateflowError, StorageError, error_class
from stateflow.launch import RunRequest, RunResult, prepare, run_if_idle, run_job
from stateflow.observability import ContextFilter, LogContext, log_event, set_log_context
from stateflow.outputs import (
    ErrorReport,
    OptionalId,
    OptionalText,
    encode_json,
    error_report,
    plain_fact,
    to_object,
    utc_text,
)
from stateflow.private_files import ScratchFolder, open_private
from stateflow.runtime.driver.job_run import JobRun
from stateflow.runtime.driver.termination import DRAINED
from stateflow.runtime.job import BatchResult
from stateflow.runtime.restore.new_job_root import ExistingTables, InitialSavepoint
from stateflow.runtime.spark.session.requirements import check_root
from stateflow.runtime.watermarks import waiting_texts
from stateflow.storage import Storage, open_storage
from stateflow.storage.locations import split_address
from stateflow.storage.paths import FORMAT
from stateflow.submission import open_cluster
from stateflow.submission.cluster import SparkSubmit
from stateflow.submission.cluster_run import FINISHED, ClusterRun, RunInCluster
from stateflow.submission.shipment import LaunchFile, Shipment, make_shipment, passed_environment, read_launch_file

_RUN_ARGUMENTS, _SPARK_SUBMIT = "stateflow.run-arguments", "stateflow.spark-submit"
_SEPARATOR = "--"


def _enter_launch(ctx: click.Context, option: click.Parameter, path: str | None) -> LaunchFile | None:
    """Returns the content of the launch file, after adding its variables to the environment. Raises ConfigError."""
    if path is None:
        return None
    launch = read_launch_file(Path(path))
    os.environ.update(launch.variables(os.environ))
    return launch


@click.command()
@JOB
@ROOT
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings; overrides the job file.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="A setting, or job.NAME=VALUE for a parameter of the job; overrides --config; repeatable.",
)
@click.option("--result-file", type=click.Path(path_type=Path), help="File for the run's result or error, as JSON.")
@click.option(
    "--drain",
    is_flag=True,
    help="Treat the input as ended once the run has caught up, and fire every event-time timer. Use it for the last "
    "run only: in a schedule, each run would close all open sessions. Sets run.drain.",
)
@click.option("--run-id", default="", help="Id of the requester, stored in the log.")
@click.option(
    "--from-savepoint",
    default="",
    metavar="PATH",
    help="Start a new job root from this savepoint, on any storage. A job root that was started from it continues.",
)
@click.option(
    "--tables",
    type=click.Choice([t.value for t in ExistingTables]),
    default=ExistingTables.REFUSE.value,
    show_default=True,
    help="How to treat tables that the same sink of another job root has written. With --from-savepoint, continue "
    "takes the tables over from the savepoint's job if nothing was published after the savepoint, and keep in any "
    "case: that job can publish nothing from then on. Without it, keep writes to tables that another job writes to.",
)
@click.option("--from-other-job", is_flag=True, help="With --from-savepoint: accept a job with another name.")
@click.option(
    "--drop",
    multiple=True,
    metavar="UID",
    help="With --from-savepoint: drop the state of an operator that the job does not have, OPERATOR.STATE, or "
    "the position of a source; repeatable.",
)
@with_options(graph_options("With --from-savepoint: "))
@click.option(
    "--claim-mode",
    type=CLAIM_MODE,
    default=ClaimMode.NO_CLAIM.value,
    show_default=True,
    help="With --from-savepoint: no-claim leaves the savepoint to you; with claim the job owns it, and deletes it once "
    "its state is no longer one of the job's retained checkpoints.",
)
@click.option("--launch-file", "launch", callback=_enter_launch, hidden=True, help="What submit gives to a driver.")
@click.option(
    "--log-format",
    type=click.Choice(["auto", "text", "json"]),
    default="auto",
    show_default=True,
    help="Format of the log on stderr; auto is a live status line on a terminal and text otherwise.",
)
def run(
    job: Path,
    job_root: str,
    config: Path | None,
    assignments: tuple[str, ...],
    result_file: Path | None,
    drain: bool,
    run_id: str,
    from_savepoint: str,
    tables: str,
    from_other_job: bool,
    drop: tuple[str, ...],
    maps: tuple[str, ...],
    sources: tuple[str, ...],
    claim_mode: str,
    launch: LaunchFile | None,
    log_format: str,
) -> None:
    """Run a job until it has caught up with its sources or reaches a bound; with run.until, until it is stopped.

    A run continues from the newest checkpoint. With --from-savepoint, a new job root starts with the state and source
    positions of a savepoint; the job gets a new id, as a fork does. The same command continues from the newest
    checkpoint when it is repeated, so it can stay in a schedule.

    Settings such as run.max_batches, checkpoints.retained or spark.conf.NAME are taken from the job file, --config and
    --set; later ones override earlier ones. docs/settings.md lists all settings with types and defaults.
    """
    progress = make_progress(log_format)
    set_log_context(job="", run_id=run_id, generation=0, ordinal=0, checkpoint_id=0)
    progress.step(f"loading {job}")
    result, error, report = None, None, _LaunchReport(launch, job_root, progress.started)
    try:
        _check_paths(job_root, result_file)
        layers = _run_layers(config, assignments, drain=drain, launch=launch)
        changes, claim = GraphChanges(maps, sources), ClaimMode(claim_mode)
        options = InitialSavepoint(
            from_savepoint, ExistingTables(tables), from_other_job, frozenset(drop), changes, claim
        )
        initial, shares_tables = _initial_savepoint(options), options.tables is ExistingTables.KEEP
        callbacks = progress.step, report.started, progress.batch
        result = run_job(RunRequest(job, job_root, layers, run_id, *callbacks, initial, shares_tables))
    except (Exception, KeyboardInterrupt) as e:
        error = as_stateflow_error(e)
        progress.failed(error)
    progress.ended()
    _store_outcome(result_file, result, error, report)
    assert result is not None
    if drain and result.stopped_because != DRAINED:
        print_text("not drained: the run ended before it had caught up; run it again", err=True)
    print_text(_summary(result))


@dataclass
class _LaunchReport:
    """Stores, for the process that has submitted this driver to a cluster, its runs and its result.

    Attributes:
        launch: the launch; None for a driver that was not submitted to a cluster.
        job_root: the job root.
        show: called with each run that has claimed the job.
        generation: of the newest run; 0 before the job is claimed.
    """

    launch: LaunchFile | None
    job_root: str
    show: Callable[[JobRun], None]
    generation: int = 0

    def started(self, run: JobRun) -> None:
        """Stores that a run that has claimed the job belongs to the launch."""
        self.generation = run.head.entry.generation
        if self.launch is not None:
            record_run(run.job.root.storage, self.launch.launch, self.generation)
        self.show(run)

    def ended(self, document: Mapping[str, object]) -> None:
        """Stores the result of the driver. An error is logged: the run ended as it did."""
        if self.launch is None:
            return
        try:
            storage = open_storage(self.job_root)
            head = JobRoot.open(storage, SystemClock()).log.read_head() if storage.size(FORMAT) is not None else None
            store_result(
                storage, self.launch.launch, head.entry.seq if head else 0, document, generation=self.generation
            )
        except StateflowError as e:
            log.warning("the result of the launch could not be stored: %s", e)


def _run_layers(
    config: Path | None, assignments: tuple[str, ...], *, drain: bool, launch: LaunchFile | None = None
) -> tuple[SettingsLayer, ...]:
    """Returns the settings of a run from its options. Raises ConfigError."""
    shipped = launch.layers() if launch is not None else ()
    return (*shipped, *settings_layers(config, assignments), *([{"run.drain": True}] if drain else []))


def _store_outcome(
    result_file: Path | None,
    result: RunResult | None,
    error: StateflowError | None,
    report: _LaunchReport | None = None,
) -> None:
    """Writes the result file, and for a launch in a cluster its result; then exits with the code of an error."""
    if report is not None:
        report.ended(_document(result, error))
    if result_file and result_file.parent.is_dir():
        _write_document(result_file, _document(result, error))
    if error:
        sys.exit(error.exit_code)


def _check_paths(job_root: str, result_file: Path | None) -> None:
    if job_root.startswith("memory:"):
        raise ConfigError("a job root in memory does not outlive this command", hint="use a path", root=job_root)
    if result_file and not result_file.parent.is_dir():
        raise ConfigError("the folder of the result file does not exist", hint="create it", path=str(result_file))


def _initial_savepoint(given: InitialSavepoint) -> InitialSavepoint | None:
    """Returns the savepoint to start from; None without one. Raises ConfigError for options without a savepoint."""
    if given.savepoint:
        return given
    if given not in (InitialSavepoint(""), InitialSavepoint("", ExistingTables.KEEP)):
        raise ConfigError(
            "options of a savepoint need --from-savepoint",
            hint="pass it, or omit --tables continue, --from-other-job, --drop, --map, --source and --claim-mode; to "
            "change the graph of an existing job, plan a restore: stateflow restore JOB.py --plan latest",
        )
    return None


def _summary(result: RunResult) -> str:
    waiting = "".join(f"; {each}" for each in waiting_texts(result.waiting))
    if result.idle:
        done = f"nothing to do at {result.start_label}; Spark was not started, {result.duration_ms / 1000:.1f} s"
        return f"{result.job}: {done}{waiting}"
    attempts = f", started {result.restarts + 1} times" if result.restarts else ""
    skipped = f", {result.quarantined_count} corrupt input files skipped" if result.quarantined_count else ""
    late = f", {count_of(result.late_rows_dropped, 'late row')} dropped" if result.late_rows_dropped else ""
    hot = "".join(f"; {each}" for each in result.hot_keys)
    return (
        f"{result.job}: {count_of(result.batches, 'batch')}, {_row_counts(result.rows_in, result.rows_out)}, from "
        f"{result.start_label} to checkpoint {result.checkpoint_id}, stopped: {result.stopped_because}, "
        f"{result.duration_ms / 1000:.1f} s{attempts}{skipped}{late}{hot}{waiting}"
    )


def _row_counts(rows_in: int, rows_out: Mapping[str, int]) -> str:
    """Returns ``4,905 rows in, 3,665 out``; several sinks are listed by uid, and no sink has no count."""
    total = f"{rows_in:,} rows in"
    if not rows_out:
        return total
    each = ", ".join(f"{uid} {rows:,}" for uid, rows in rows_out.items())
    return f"{total}, {sum(rows_out.values()):,} out" + (f" ({each})" if len(rows_out) > 1 else "")


@dataclass(frozen=True)
class RunOutcome:
    """The content of a result file.

    Attributes:
        status: ``finished`` or ``failed``.
        summary: the result in a sentence; empty for a run that failed.
        error: the error that the run ended with; None for a run that finished.
        result: the result; None for a run that failed.
    """

    status: Literal["finished", "failed"]
    summary: OptionalText
    error: ErrorReport | None
    result: RunResult | None


def _document(result: RunResult | None, error: StateflowError | None) -> dict[str, object]:
    """Returns the result of a run, or its error, as in the result file."""
    if error is not None:
        return to_object(RunOutcome("failed", "", error_report(error), None))
    assert result is not None
    return to_object(RunOutcome("finished", _summary(result), None, result))


def _write_document(path: Path, document: Mapping[str, object]) -> None:
    """Replaces the result file atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open_private(partial) as file:
            file.write(encode_json(document).encode())
        os.replace(partial, path)
    except OSError as e:
        raise StorageError(
            "could not write the result file",
            hint="free space or choose another file; the run itself ended as reported above",
            path=str(path),
            reason=e.strerror,
        ) from e


class _SubmitCommand(click.Command):
    """A command with the options of `run`, then ``--`` and the command line of spark-submit without the job file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = args.index(_SEPARATOR) if _SEPARATOR in args else len(args)
        ctx.meta[_RUN_ARGUMENTS], ctx.meta[_SPARK_SUBMIT] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args[:at])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- SPARK-SUBMIT…"]


def _submit(log_format: str, run_id: str, result_file: Path | None, **others: object) -> None:
    """Run a job through spark-submit, but end without it if there is nothing to do.

    Takes the options of run, then -- and the command line of spark-submit without the job file, such as
    -- spark-submit --master spark://host:7077. With Spark, stateflow run gets the same options.

    spark-submit starts a JVM before the job file is read. This command first asks the sources for new input. Unless
    they all confirm that there is none, or with run.skip_idle off, spark-submit replaces this process. A job root that
    denies access ends this command at once.

    With --deploy-mode cluster, on YARN or Kubernetes, the driver runs in the cluster, and this command follows it: it
    reports the checkpoints, and ends with the result of the run. A first SIGTERM or SIGINT ends the run with a
    checkpoint. After this command was killed, the same command with the same --launch-id follows the same driver.
    """
    ctx = click.get_current_context()
    progress = make_progress(log_format)
    set_log_context(job="", run_id=run_id, generation=0, ordinal=0, checkpoint_id=0)
    document: Mapping[str, object] | None = None
    try:
        _check_paths(str(others["job_root"]), result_file)
        spark_submit = _spark_submit(ctx.meta[_SPARK_SUBMIT])
        if spark_submit.is_cluster_mode:
            document = _run_in_cluster(spark_submit, progress, run_id, others)
        else:
            _refuse_cluster_options(ctx)
            progress.step("checking whether there is anything to do")
            result = _idle_result(others, run_id)
            document = None if result is None else _document(result, None)
    except (StateflowError, KeyboardInterrupt) as e:
        error = as_stateflow_error(e)
        progress.failed(error)
        progress.ended()
        _store_outcome(result_file, None, error)
    progress.ended()
    if document is None:
        main = str(Path(stateflow.__file__).with_name("__main__.py"))
        arguments: list[str] = ctx.meta[_RUN_ARGUMENTS]
        _replace_process([spark_submit.program, *spark_submit.options, main, "run", *arguments])
    _end_with(document, result_file)


_CLUSTER_ONLY = ("launch_id", "follow_only", "end_timeout", "driver_environment")
_CLUSTER_OPTIONS = (
    click.Option(
        ["--launch-id"],
        default="",
        metavar="ID",
        help="With --deploy-mode cluster: the id under which the driver is found again; by default a new one.",
    ),
    click.Option(
        ["--follow-only"],
        is_flag=True,
        help="With --launch-id: submit no driver; return the result of the one that has ended.",
    ),
    click.Option(
        ["--end-timeout"],
        callback=to_duration,
        default="1 min",
        show_default=True,
        metavar="DURATION",
        help="With --deploy-mode cluster: how long the run may take to end with a checkpoint before it is killed.",
    ),
    click.Option(
        ["--driver-env", "driver_environment"],
        multiple=True,
        metavar="NAME",
        help="With --deploy-mode cluster: an environment variable that the driver gets as well, or a pattern with *; "
        "repeatable. Variables of OpenLineage and stateflow are passed on; those of buckets, HDFS and OpenTelemetry "
        "are, unless the driver's host has its own. Those about a file or an identity of this host must be named.",
    ),
)


submit = _SubmitCommand("submit", callback=_submit, params=[*run.params, *_CLUSTER_OPTIONS], help=_submit.__doc__)


def _spark_submit(words: list[str]) -> SparkSubmit:
    """Returns the command line of spark-submit. Raises ConfigError if spark-submit is missing."""
    found = shutil.which(words[0]) if words else None
    if found is None:
        raise ConfigError(
            "the command line of spark-submit is missing, or does not exist",
            hint="append -- and the command line: -- spark-submit --master …",
            given=words[:1],
        )
    return SparkSubmit(found, tuple(words[1:]), dict(os.environ))


def _refuse_cluster_options(ctx: click.Context) -> None:
    """Raises ConfigError for options of a driver in a cluster that were given for one on this host."""
    options = [parameter for parameter in ctx.command.params if parameter.name in _CLUSTER_ONLY]
    given = [option.opts[0] for option in options if _is_given(ctx, option)]
    if given:
        raise ConfigError(
            "an option is for drivers in a cluster only", hint="add --deploy-mode cluster, or omit it", given=given
        )


def _is_given(ctx: click.Context, parameter: click.Parameter) -> bool:
    return ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE


_LOCATIONS = ("job_root", "from_savepoint")
"""Parameters that are addresses of storages: paths or URIs."""


def _absolute(location: str) -> str:
    """Returns an absolute path for one that depends on this process's working or home folder; others and URIs stay."""
    if not location or split_address(location) is not None:
        return location
    return str(Path(location).expanduser().absolute())


def _run_options(ctx: click.Context, without: Collection[str]) -> list[str]:
    """Returns the options of this command as words, except those that were not given, and arguments."""
    words = []
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in without or not _is_given(ctx, parameter) or not isinstance(parameter, click.Option):
            continue
        value = _absolute(ctx.params[name]) if name in _LOCATIONS else ctx.params[name]
        if parameter.is_flag:
            words.append(parameter.opts[0])
        else:
            words += [f"{parameter.opts[0]}={each}" for each in (value if parameter.multiple else [value])]
    return words


def _run_in_cluster(
    spark_submit: SparkSubmit, progress: Progress, run_id: str, options: Mapping[str, object]
) -> Mapping[str, object]:
    """Runs the job in the cluster, unless there is nothing to do; returns the result of the run."""
    clock = SystemClock()
    if options["follow_only"] and not options["launch_id"]:
        raise ConfigError("--follow-only needs the launch to follow", hint="pass --launch-id as well")
    launch = check_launch(str(options["launch_id"]) or clock.new_id())
    storage, end_timeout = open_storage(str(options["job_root"])), cast("timedelta", options["end_timeout"])
    target = RunInCluster(launch, storage, end_timeout, run_id, progress.step)
    driver = ClusterRun(open_cluster(spark_submit, clock), target, clock)
    if options["follow_only"]:
        return driver.run(None)
    config = cast("Path | None", options["config"])
    read_config = functools.cache(lambda: _settings_text(config))
    if not options["launch_id"] or driver.find_active() is None:
        # Not for a driver that is active: it has its settings.
        read_config()
        _check_shared_root(storage, spark_submit.master, options)
        progress.step("checking whether there is anything to do")
        if (result := _idle_result(options, run_id)) is not None:
            return _document(result, None)
        progress.step(f"the driver's launch id is {launch}")
    named, assignments = (cast("tuple[str, ...]", options[name]) for name in ("driver_environment", "assignments"))
    ctx = click.get_current_context()
    with ScratchFolder() as folder:

        def shipment() -> Shipment:
            environment, yielding = passed_environment(os.environ, named)
            content = LaunchFile(launch, environment, read_config(), assignments, yielding)
            shipped = (*_CLUSTER_ONLY, "config", "assignments", "result_file", "log_format", "launch")
            run_options = [*_run_options(ctx, shipped), "--log-format=text"]
            return make_shipment(folder.path, cast("Path", options["job"]), content, run_options)

        return driver.run(shipment)


def _settings_text(config: Path | None) -> str:
    """Returns the text of the file of ``--config``; empty without one. Raises ConfigError."""
    if config is None:
        return ""
    text = read_settings_file(config)
    parse_toml(text, config)
    return text.decode()


def _check_shared_root(storage: Storage, master: str, options: Mapping[str, object]) -> None:
    """Raises ConfigError for a job root on this host, unless the settings say that the cluster's hosts share it.

    The driver would refuse it, or use a folder of its own host, and its result would stay there.
    """
    if not storage.host_local:
        return
    config, assignments = cast("Path | None", options["config"]), cast("tuple[str, ...]", options["assignments"])
    layers = settings_layers(config, assignments)
    shared = resolve(*layers).storage.shared
    if not shared:
        # A job file that this host cannot load says nothing.
        with contextlib.suppress(StateflowError):
            shared = prepare(cast("Path", options["job"]), None, layers).start.settings.storage.shared
    check_root(storage, master, shared)


def _end_with(document: Mapping[str, object], result_file: Path | None) -> None:
    """Writes the result of a run to its file, prints it, and exits with the code of an error."""
    if result_file and result_file.parent.is_dir():
        _write_document(result_file, document)
    if document.get("status") == FINISHED:
        print_text(str(document.get("summary") or "the run has finished"))
        return
    found = document.get("error")
    given: Mapping[str, object] = found if isinstance(found, Mapping) else {}
    kind = error_class(str(given.get("code", "")))
    error = kind(str(given.get("message", "the run has failed")), hint=str(given.get("hint") or ""))
    facts = given.get("facts")
    error.add_facts(**(facts if isinstance(facts, Mapping) else {}))
    print_error(error)
    sys.exit(error.exit_code)


def _idle_result(options: Mapping[str, object], run_id: str) -> RunResult | None:
    """Returns the result of a start with nothing to do; None if Spark is needed, or if the check fails.

    Raises ConfigError if an option is not valid, or the job root refuses access.
    """
    if options["from_savepoint"]:
        return None
    try:
        config, assignments = cast("Path | None", options["config"]), cast("tuple[str, ...]", options["assignments"])
        layers = _run_layers(config, assignments, drain=bool(options["drain"]))
        return run_if_idle(RunRequest(cast("Path", options["job"]), str(options["job_root"]), layers, run_id))
    except ConfigError:
        raise
    except Exception as e:
        # The run that follows reports what is wrong, or does not need what this check has needed.
        log.warning("the check whether there is anything to do failed: %s", as_stateflow_error(e))
        return None


def _replace_process(command: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores it, and a program inherits that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execv(command[0], command)


_SPINNER_WIDTH = 2
"""Columns of the spinner and the space after it."""


class Progress(Protocol):
    """Receives the events of a run."""

    def step(self, description: str) -> None:
        """Reports that a slow step begins."""

    def started(self, run: JobRun) -> None:
        """Reports that the job is claimed and restored."""

    def batch(self, result: BatchResult) -> None:
        """Reports a processed batch."""

    def failed(self, error: StateflowError) -> None:
        """Reports the error that the run ended with."""

    def ended(self) -> None:
        """Releases the output; no event follows."""


def make_progress(log_format: str) -> Progress:
    """Returns the progress report for a ``--log-format``: ``auto``, ``text`` or ``json``."""
    if log_format == "auto" and sys.stderr.isatty():
        return LiveProgress()
    return LogProgress(as_json=log_format == "json")


class LiveProgress:
    """Shows the progress in one line of the terminal that is redrawn."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._status = self._console.status("starting")
        self._batches = 0
        self._rows_in = 0
        self._rows_out = 0
        self._status.start()

    def step(self, description: str) -> None:
        """Shows the step."""
        self._show(description)

    def started(self, run: JobRun) -> None:
        """Shows what the run starts from."""
        self._show(f"{run.job.root.job.job}: from {run.start_label}")

    def batch(self, result: BatchResult) -> None:
        """Shows the totals of the run after a batch."""
        self._batches += 1
        self._rows_in += result.rows_in
        self._rows_out += sum(result.rows_out.values())
        out = f", {self._rows_out:,} out" if result.rows_out else ""
        newest = f"checkpoint {result.checkpoint_id}" if result.checkpoint_id else "no checkpoint yet"
        self._show(
            f"batch {self._batches}: {self._rows_in:,} rows in{out}, {newest}, "
            f"{result.seconds:.2f} s, +{human_bytes(result.increment_bytes)}"
        )

    def failed(self, error: StateflowError) -> None:
        """Removes the line and prints the error."""
        self._status.stop()
        print_error(error)

    def ended(self) -> None:
        """Removes the line."""
        self._status.stop()

    def _show(self, line: str) -> None:
        # A path may contain what rich takes for markup, hence Text; a second line would not be erased, hence truncate.
        text = Text(visible(line))
        text.truncate(self._console.width - _SPINNER_WIDTH, overflow="ellipsis")
        self._status.update(text)


class LogProgress:
    """Logs the progress to stderr, one line per event.

    Args:
        as_json: whether each line is a JSON object.
    """

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._is_asynchronous = False
        self._omits_batches = False
        self._handler = logging.StreamHandler(sys.stderr)
        self._handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
        self._handler.addFilter(ContextFilter())
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)
        log.propagate = False

    def step(self, description: str) -> None:
        """Logs the step."""
        log_event(log, logging.INFO, "step", text=description, doing=description)

    def started(self, run: JobRun) -> None:
        """Logs what the run starts from."""
        restored, checkpoints = run.restored, run.job.settings.checkpoints
        has_interval = checkpoints.interval_batches is not None or checkpoints.interval is not None
        self._is_asynchronous = checkpoints.asynchronous
        # One text line per batch: with a checkpoint after every batch, the checkpoint's own line reports the batch.
        self._omits_batches = self._is_asynchronous and not has_interval and not self._as_json
        log_event(
            log,
            logging.INFO,
            "restored",
            text=_start_text(run),
            job=run.job.root.job.job,
            generation=run.head.entry.generation,
            label=run.start_label,
            checkpoint_id=restored.checkpoint_id,
            matched=list(restored.matched),
            new=list(restored.new),
        )

    def batch(self, result: BatchResult) -> None:
        """Logs a batch as "committed" or "processed"."""
        if self._omits_batches:
            return
        # An asynchronous checkpoint logs its own "committed" event, possibly before this line.
        event = "committed" if result.committed and not self._is_asynchronous else "processed"
        log_event(
            log,
            logging.INFO,
            event,
            checkpoint_id=result.checkpoint_id,
            ordinal=result.ordinal,
            rows_in=result.rows_in,
            rows_out=result.rows_out,
            duration_ms=to_milliseconds(result.seconds),
            increment_bytes=result.increment_bytes,
            full_bytes=result.full_bytes,
        )

    def failed(self, error: StateflowError) -> None:
        """Logs the error as JSON, or prints it as text."""
        if self._as_json:
            log_event(log, logging.ERROR, "failed", code=error.code, error=str(error))
        else:
            print_error(error)

    def ended(self) -> None:
        """Removes the log handler."""
        log.removeHandler(self._handler)


def _start_text(run: JobRun) -> str:
    """Returns ``resumes from checkpoint 17``, the operators with restored and new state, and a change of the code."""
    restored = run.restored
    begins = f"resumes from {run.start_label}" if run.manifest is not None else "starts from the beginning"
    operators = [("operators with state:", restored.matched), ("new operators:", restored.new)]
    changed = run.manifest.code_difference(run.job.code) if run.manifest is not None else ""
    states = [f"{what} {', '.join(uids)}" for what, uids in operators if uids]
    return "; ".join(filter(None, [begins, *states, changed]))


class _TextFormatter(logging.Formatter):
    """Formats a record as one line with a UTC timestamp, as all commands print timestamps."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s%(where)s")

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return utc_text(_logged_at(record))


@dataclass(frozen=True)
class LoggedContext:
    """The run that a log line is about, and its position.

    Attributes:
        job: name of the job; empty before the job file is loaded.
        run_id: id of the requester, or host and process id; empty before the run has begun.
        generation: its generation; 0 before it has claimed the job.
        ordinal: number of the newest batch of the generation that has begun; 0 before the first.
        checkpoint_id: the newest checkpoint; 0 before the first.
    """

    job: OptionalText
    run_id: OptionalText
    generation: OptionalId
    ordinal: OptionalId
    checkpoint_id: OptionalId


@dataclass(frozen=True)
class LogLine:
    """A line of the log of a run with ``--log-format json``.

    Attributes:
        logged_at: when it was logged.
        level: ``INFO``, ``WARNING`` or another level of Python's module `logging`.
        logger: name of the logger: the module, or another library.
        event: what has happened; of another library, the message.
        facts: further values by name, depending on the event.
        context: the run, and its position.
        traceback: the traceback of an error; empty without one.
    """

    logged_at: datetime
    level: str
    logger: str
    event: str
    facts: dict[str, object]
    context: LoggedContext
    traceback: OptionalText


class _JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line, also when it has no event and facts."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = getattr(record, "facts", {})
        context = getattr(record, "context", None) or asdict(LogContext())
        line = LogLine(
            _logged_at(record),
            record.levelname,
            record.name,
            getattr(record, "event", None) or record.getMessage(),
            {name: plain_fact(name, value) for name, value in facts.items()},
            LoggedContext(**context),
            self.formatException(record.exc_info) if record.exc_info else "",
        )
        return encode_json(line)


def _logged_at(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
