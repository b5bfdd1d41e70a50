"""The command that runs a job."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from stateflow.checkpoint.restore.graph_plan import GraphChanges
from stateflow.checkpoint.savepoints.claim_slots import ClaimMode
from stateflow.cli.common import CLAIM_MODE, JOB, ROOT, as_stateflow_error, graph_options, settings_layers, with_options
from stateflow.cli.formatting import count_of, print_text
from stateflow.cli.progress import make_progress
from stateflow.errors import ConfigError, StateflowError, StorageError
from stateflow.launch import RunRequest, RunResult, run_job
from stateflow.observability.logging import set_log_context
from stateflow.private_files import open_private
from stateflow.runtime.driver.termination import DRAINED
from stateflow.runtime.restore.existing_tables import ExistingTables
from stateflow.runtime.restore.new_job_root import InitialSavepoint


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
    help="Start a new job root from this savepoint on any storage. A root that was started from it continues.",
)
@click.option(
    "--tables",
    type=click.Choice([t.value for t in ExistingTables]),
    default=ExistingTables.REFUSE.value,
    show_default=True,
    help="With --from-savepoint: how to treat tables that the savepoint's job has written. continue appends to them "
    "if nothing was published after the savepoint; keep appends in any case.",
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
    set_log_context(job="", run=run_id, generation=0, batch=0, checkpoint=0)
    progress.step(f"loading {job}")
    result, error = None, None
    try:
        _check_paths(job_root, result_file)
        layers = (*settings_layers(config, assignments), *([{"run.drain": True}] if drain else []))
        changes, claim = GraphChanges(maps, sources), ClaimMode(claim_mode)
        options = InitialSavepoint(
            from_savepoint, ExistingTables(tables), from_other_job, frozenset(drop), changes, claim
        )
        initial = _initial_savepoint(options)
        callbacks = progress.step, progress.started, progress.batch
        result = run_job(RunRequest(job, job_root, layers, run_id, *callbacks, initial))
    except (Exception, KeyboardInterrupt) as e:
        error = as_stateflow_error(e)
        progress.failed(error)
    progress.ended()
    _store_outcome(result_file, result, error)
    assert result is not None
    if drain and result.stopped_because != DRAINED:
        print_text("not drained: the run ended before it had caught up; run it again", err=True)
    print_text(_summary(result))


def _store_outcome(result_file: Path | None, result: RunResult | None, error: StateflowError | None) -> None:
    """Writes the result file, and exits with the code of an error."""
    if result_file and result_file.parent.is_dir():
        _write_result(result_file, result, error)
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
    if given != InitialSavepoint(""):
        raise ConfigError(
            "options of a savepoint need --from-savepoint",
            hint="pass it, or omit --tables, --from-other-job, --drop, --map, --source and --claim-mode; to change the "
            "graph of an existing job, plan a restore: stateflow restore JOB.py --plan latest",
        )
    return None


def _summary(result: RunResult) -> str:
    attempts = f", started {result.restarts + 1} times" if result.restarts else ""
    skipped = f", {result.quarantined_count} corrupt input files skipped" if result.quarantined_count else ""
    return (
        f"{result.job}: {count_of(result.batches, 'batch')}, {_row_counts(result.rows_in, result.rows_out)}, from "
        f"{result.started_at} to checkpoint {result.checkpoint_id}, stopped: {result.stopped_because}, "
        f"{result.duration_s:.1f} s{attempts}{skipped}"
    )


def _row_counts(rows_in: int, rows_out: Mapping[str, int]) -> str:
    """Returns ``4,905 rows in, 3,665 out``; several sinks are listed by uid, and no sink has no count."""
    total = f"{rows_in:,} rows in"
    if not rows_out:
        return total
    each = ", ".join(f"{uid} {rows:,}" for uid, rows in rows_out.items())
    return f"{total}, {sum(rows_out.values()):,} out" + (f" ({each})" if len(rows_out) > 1 else "")


def _write_result(path: Path, result: RunResult | None, error: StateflowError | None) -> None:
    """Replaces the result file atomically.

    Raises:
        StorageError: the file cannot be written.
    """
    document: dict[str, object] = {"status": "failed" if error else "finished", "error": None}
    if error:
        document["error"] = {
            "code": error.code,
            "message": error.sentence,
            "facts": error.facts,
            "hint": error.hint,
            "retryable": error.retryable,
        }
    if result:
        document |= dataclasses.asdict(result)
    partial = path.with_name(path.name + ".partial")
    try:
        # Facts may have values and keys that JSON does not support.
        with open_private(partial) as file:
            file.write(json.dumps(document, default=str, skipkeys=True).encode())
        os.replace(partial, path)
    except OSError as e:
        raise StorageError(
            "could not write the result file",
            hint="free space or choose another file; the run itself ended as reported above",
            path=str(path),
            reason=e.strerror,
        ) from e
