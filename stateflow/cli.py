"""The command line: arguments in, sentences out; everything else is in `ops`."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from stateflow import examination, ops, verification
from stateflow.checkpoint.collector import FileFate
from stateflow.cli_check import check, plan
from stateflow.cli_checkpoints import checkpoints
from stateflow.cli_recovery import fork, history, restore
from stateflow.cli_savepoint import savepoint, stop
from stateflow.cli_source import source
from stateflow.cli_status import status
from stateflow.clock import SystemClock
from stateflow.config import parse_assignments, read_toml
from stateflow.environment import RunRequest, RunResult, run_job
from stateflow.errors import ConfigError, StateflowError, StorageError
from stateflow.events import ContextFilter, log_event, log_within
from stateflow.examination import Health
from stateflow.runtime.bounds import DRAINED
from stateflow.runtime.job import BatchResult
from stateflow.runtime.new_root import Beginning
from stateflow.runtime.old_tables import OldTables
from stateflow.runtime.run import JobRun
from stateflow.settings import Settings
from stateflow.terminal import JSON, ROOT, attempt, fail, human_bytes, or_fail, refuse, tell
from stateflow.verification import Verified

log = logging.getLogger("stateflow")


def _version() -> str:
    try:
        return metadata.version("stateflow")
    except metadata.PackageNotFoundError:
        return "of a checkout"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version=_version())
def main() -> None:
    """Checkpoints, recovery and managed state for PySpark jobs."""


@main.command()
@click.argument("job", type=click.Path(path_type=Path), metavar="JOB.py")
@ROOT
@click.option(
    "--config", type=click.Path(path_type=Path), help="Settings in TOML; they win over the job's own."
)
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE",
              help="One setting, or job.NAME=VALUE for a parameter of the job; wins over the file.")  # fmt: skip
@click.option(
    "--result-file", type=click.Path(path_type=Path), help="Where to write how the run ended, as JSON."
)
@click.option("--drain", is_flag=True, help="When the run is caught up, take the input for ended: fire every "
              "event-time timer, as at the end of a bounded source. Only for the last run: on a schedule it would end "
              "every open session at the end of each run. Sets run.drain.")  # fmt: skip
@click.option("--run-id", default="", help="Who asked for this run; kept in the log.")
@click.option(
    "--from-savepoint",
    default="",
    metavar="PATH",
    help="Begin a new job root with this savepoint, wherever it is. A root that has begun with it goes on.",
)
@click.option(
    "--tables",
    type=click.Choice([t.value for t in OldTables]),
    default=OldTables.REFUSE.value,
    show_default=True,
    help="With --from-savepoint, what to do about tables that its job has written: continue "
    "goes on in them if nothing was published after the savepoint, keep in any case.",
)
@click.option(
    "--from-other-job", is_flag=True, help="With --from-savepoint: take one of a job with another name."
)
@click.option("--drop", multiple=True, metavar="UID",
              help="With --from-savepoint: drop the state of an operator that the job does not have.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["auto", "text", "json"]), default="auto", show_default=True,
              help="On stderr: auto is a live line on a terminal, and text otherwise.")  # fmt: skip
def run(job: Path, job_root: str, config: Path | None, result_file: Path | None, **options: Any) -> None:
    """Run a job until it is caught up with its source, or a bound is reached.

    A run always goes on from the newest checkpoint. With --from-savepoint a new job root begins with a savepoint's
    state and positions; the job gets an id of its own, as a fork does. The same command again goes on from the newest
    checkpoint, so it may stay in a schedule.

    Settings such as run.max_batches, checkpoints.retained or spark.conf.NAME come from the job, from --config and from
    --set; docs/settings.md lists them all, with their types and defaults.
    """
    progress = _progress(options["log_format"])

    def work() -> RunResult:
        _check_places(job_root, result_file)
        layers = ((read_toml(config),) if config else ()) + (parse_assignments(options["assignments"]),)
        if options["drain"]:
            layers += ({"run.drain": True},)
        return run_job(RunRequest(
            job, job_root, layers, options["run_id"], on_step=progress.step, on_start=progress.started,
            on_batch=progress.batch, beginning=_beginning(options),
        ))  # fmt: skip

    log_within(job="", run=options["run_id"], generation=0, batch=0, checkpoint=0)
    progress.step(f"loading {job}")
    result, error = attempt(work)
    if error:
        progress.failed(error)
    progress.ended()
    if result_file and result_file.parent.is_dir():
        _write_result(result_file, result, error)
    if error:
        sys.exit(error.exit_code)
    assert result is not None
    if options["drain"] and result.stopped_because != DRAINED:
        click.echo("not drained: the run ended before it was caught up; run it again", err=True)
    click.echo(_summary(result))


def _check_places(job_root: str, result_file: Path | None) -> None:
    if job_root.startswith("memory:"):
        raise ConfigError(
            "a job root in memory would be gone with this command", hint="use a path", root=job_root
        )
    if result_file and not result_file.parent.is_dir():
        raise ConfigError("the result file's folder is not there", hint="make it", path=str(result_file))


def _summary(result: RunResult) -> str:
    again = f", started {result.restarts + 1} times" if result.restarts else ""
    skipped = f", {result.quarantined_count} corrupt input files skipped" if result.quarantined_count else ""
    return (
        f"{result.job}: {result.batches} batches, {_rows(result.rows_in, result.rows_out)}, from "
        f"{result.started_at} to checkpoint {result.checkpoint_id}, {result.stopped_because}, "
        f"{result.duration_s:.1f} s{again}{skipped}"
    )


def _rows(rows_in: int, rows_out: Mapping[str, int]) -> str:
    """``4,905 rows in, 3,665 out``; of several sinks, each with its uid. Without sinks nothing is known to come out."""
    total = f"{rows_in:,} rows in"
    if not rows_out:
        return total
    each = ", ".join(f"{uid} {rows:,}" for uid, rows in rows_out.items())
    return f"{total}, {sum(rows_out.values()):,} out" + (f" ({each})" if len(rows_out) > 1 else "")


def _beginning(options: dict[str, Any]) -> Beginning | None:
    tables = OldTables(options["tables"])
    if options["from_savepoint"]:
        return Beginning(
            options["from_savepoint"], tables, options["from_other_job"], frozenset(options["drop"])
        )
    if tables is not OldTables.REFUSE or options["from_other_job"] or options["drop"]:
        raise ConfigError(
            "an option about a savepoint is given without one",
            hint="--tables, --from-other-job and --drop need --from-savepoint",
        )
    return None


@main.command()
@ROOT
@click.option("--retain", type=click.IntRange(min=1), help="Keep only this many checkpoints.")
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@click.option(
    "--files", "each", is_flag=True, help="With --dry-run: say of each file who needs it, or why nobody does."
)
@JSON
def gc(job_root: str, retain: int | None, dry_run: bool, each: bool, as_json: bool) -> None:
    """Delete what no retained checkpoint needs."""
    if each and (retain or not dry_run):
        refuse("--files is about what is stored now", "say --dry-run as well, and not --retain")
    report = or_fail(lambda: ops.collect_garbage(job_root, retain=retain, dry_run=dry_run))
    files = or_fail(lambda: ops.explain_files(job_root)) if each else []
    if as_json:
        told = [{"key": f.key, "size": f.size, "may_go": f.fate.may_go, "why": f.fate.value, "needed_by": f.needed_by}
                for f in files]  # fmt: skip
        click.echo(json.dumps({**dataclasses.asdict(report), **({"each": told} if each else {})}))
        return
    for found in files:
        click.echo(
            f"{'-' if found.fate.may_go else ' '} {found.key}  {human_bytes(found.size)}  {_why(found)}"
        )
    verb = "would delete" if dry_run else "deleted"
    click.echo(f"{report.job}: {verb} {report.files} files, {human_bytes(report.bytes_freed)}; "
               f"kept checkpoints {', '.join(map(str, report.retained)) or 'none'}")  # fmt: skip
    for name in report.unknown:
        click.echo(f"  not ours, left alone: {name}")


@main.command()
@ROOT
@click.option("--deep", is_flag=True, help="Also decode every key and value of the state.")
@click.option("--checkpoint", type=click.IntRange(min=1), metavar="ID", help="Only this one.")
@JSON
def verify(job_root: str, deep: bool, checkpoint: int | None, as_json: bool) -> None:
    """Read everything that kept checkpoints consist of, and compare it with what was recorded.

    Works beside a run. Exit code 0: all is sound. 4: something is missing or damaged, and it says what.
    """
    tell = _ignore if as_json else _tell_verified
    found = or_fail(lambda: verification.verify(job_root, deep, checkpoint, tell))
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(verified) for verified in found]))


def _ignore(_: Verified) -> None:
    """Told at the end, all at once."""


def _tell_verified(verified: Verified) -> None:
    decoded = "" if verified.entries is None else (
        f"; {verified.entries:,} entries decode, each in its key group")  # fmt: skip
    click.echo(f"checkpoint {verified.checkpoint_id}: {verified.files} files, {human_bytes(verified.bytes)}, "
               f"all as recorded{decoded}")  # fmt: skip


@main.command()
@click.option("--job-root", default="", metavar="URI", envvar="STATEFLOW_JOB_ROOT",
              help="Also look at the storage of this job root.")  # fmt: skip
@click.option(
    "--local-dir", type=click.Path(path_type=Path), help="Scratch space, when a job sets local_dir."
)
@JSON
def doctor(job_root: str, local_dir: Path | None, as_json: bool) -> None:
    """Look whether this machine and a job root's storage are as a run needs them.

    Works beside a run; what it writes below probe/ in the storage it removes again.

    Exit code 0: nothing is wrong, though somebody may have to look at something. 6: something is.
    """
    folder = local_dir or Settings().local_folder
    findings = or_fail(lambda: examination.examine(job_root, folder, SystemClock()))
    if as_json:
        click.echo(json.dumps([{**dataclasses.asdict(f), "health": f.health.value} for f in findings]))
    else:
        width = max(len(f.what) for f in findings)
        for f in findings:
            click.echo(f"{f.health.value:5}{f.what:{width}}  {f.found}")
            if f.hint:
                click.echo(f"{'':5}{'':{width}}  hint: {f.hint}")
    if any(f.health is Health.BAD for f in findings):
        sys.exit(_UNWELL)


@main.command("can-delete")
@click.argument("path")
@ROOT
def can_delete(path: str, job_root: str) -> None:
    """Say whether a file of a job root may be deleted by hand, and who needs it.

    Exit code 0: nothing needs it, and nothing ever will. 6: it must stay. Others: it could not be told.
    """
    found = or_fail(lambda: ops.can_delete(job_root, path))
    click.echo(f"{'yes' if found.fate.may_go else 'no'}: {_why(found)}")
    sys.exit(0 if found.fate.may_go else _MUST_STAY)


def _why(found: FileFate) -> str:
    return f"needed by {', '.join(found.needed_by)}" if found.needed_by else found.fate.value


@main.command()
@ROOT
@click.option("--drop", metavar="ID", help="Remove this pin; its reader, if it still reads, will fail.")
def pins(job_root: str, drop: str | None) -> None:
    """List checkpoints that are kept for readers outside the job, or drop an abandoned pin."""
    if drop:
        or_fail(lambda: ops.drop_pin(job_root, drop))
        click.echo(f"dropped {drop}")
        return
    found = or_fail(lambda: ops.list_pins(job_root))
    for pin in found:
        click.echo(
            f"{pin.id}  checkpoint {pin.checkpoint.id}  {pin.owner}: {pin.reason}  since {pin.since[:19]}"
        )
    if not found:
        click.echo("no pins")


for command in (plan, status, check, checkpoints, savepoint, stop, restore, fork, source, history):
    main.add_command(command)


_MUST_STAY = 6
_UNWELL = 6
_SPINNER = 2  # columns: the spinner and a space


class _Progress:
    """Reports a run: a live line on a terminal, a log line per batch otherwise."""

    def __init__(self) -> None:
        self._live = Console(stderr=True)
        self._status = self._live.status("starting")
        self._batches = 0
        self._rows_in = 0
        self._rows_out = 0
        self._status.start()

    def step(self, what: str) -> None:
        """The run is about to do something that takes time."""
        self._show(what)

    def started(self, run: JobRun) -> None:
        """The job is claimed and restored."""
        self._show(f"{run.job.root.job.job}: from {run.stood_at}")

    def batch(self, result: BatchResult) -> None:
        """A batch is processed."""
        self._batches += 1
        self._rows_in += result.rows_in
        self._rows_out += sum(result.rows_out.values())
        out = f", {self._rows_out:,} out" if result.rows_out else ""
        newest = f"checkpoint {result.checkpoint_id}" if result.checkpoint_id else "no checkpoint yet"
        self._show(f"batch {self._batches}: {self._rows_in:,} rows in{out}, {newest}, "
                   f"{result.seconds:.2f} s, +{human_bytes(result.increment_bytes)}")  # fmt: skip

    def _show(self, what: str) -> None:
        # As text, since a path may contain what is markup; and on one line, since a second one would stay below.
        text = Text(what)
        text.truncate(self._live.width - _SPINNER, overflow="ellipsis")
        self._status.update(text)

    def failed(self, error: StateflowError) -> None:
        """The run ends with an error."""
        self._status.stop()
        tell(error)

    def ended(self) -> None:
        """Nothing more comes."""
        self._status.stop()


class _LogProgress(_Progress):
    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._asynchronous = False
        self._only_checkpoints = False
        self._handler = logging.StreamHandler(sys.stderr)
        self._handler.setFormatter(_JsonFormatter() if as_json else _TextFormatter())
        self._handler.addFilter(ContextFilter())
        log.addHandler(self._handler)
        log.setLevel(logging.INFO)
        log.propagate = False

    def step(self, what: str) -> None:
        log_event(log, logging.INFO, "step", text=what, doing=what)

    def started(self, run: JobRun) -> None:
        restored, checkpoints = run.restored, run.job.settings.checkpoints
        by_interval = checkpoints.interval_batches is not None or checkpoints.interval is not None
        self._asynchronous = checkpoints.asynchronous
        # Each batch in one line for people: a checkpoint after every batch reports the batch as well.
        self._only_checkpoints = self._asynchronous and not by_interval and not self._as_json
        generation = run.head.entry.generation
        log_event(log, logging.INFO, "restored", text=_started_text(run), job=run.job.root.job.job, run=generation,
                  at=run.stood_at, checkpoint=restored.checkpoint_id, matched=list(restored.matched),
                  new=list(restored.new))  # fmt: skip

    def batch(self, result: BatchResult) -> None:
        if self._only_checkpoints:
            return
        # An asynchronous checkpoint logs its own "committed" event, possibly before this line.
        event = "committed" if result.committed and not self._asynchronous else "worked off"
        log_event(log, logging.INFO, event, checkpoint=result.checkpoint_id, batch=result.ordinal,
                  rows=result.rows_in, rows_out=result.rows_out, seconds=round(result.seconds, 3),
                  increment_bytes=result.increment_bytes, full_bytes=result.full_bytes)  # fmt: skip

    def failed(self, error: StateflowError) -> None:
        if self._as_json:
            log_event(log, logging.ERROR, "failed", code=error.code, error=str(error))
        else:
            tell(error)

    def ended(self) -> None:
        log.removeHandler(self._handler)


def _started_text(run: JobRun) -> str:
    """``resumes from checkpoint 17``, with what is matched and new."""
    restored = run.restored
    begins = f"resumes from {run.stood_at}" if run.manifest is not None else "starts from the beginning"
    given = [("state of", restored.matched), ("new", restored.new)]
    return "; ".join([begins, *(f"{what} {', '.join(uids)}" for what, uids in given if uids)])


class _TextFormatter(logging.Formatter):
    """One line, with its time in UTC, as every other time that the commands print."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s%(where)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return _in_utc(record).replace("+00:00", "Z")


def _in_utc(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _JsonFormatter(logging.Formatter):
    """One object a line, also for records that have no facts."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _in_utc(record),
            "level": record.levelname, "logger": record.name,
            "event": getattr(record, "event", record.getMessage()), "facts": getattr(record, "facts", {}),
            "context": getattr(record, "context", {}),
        }  # fmt: skip
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _progress(log_format: str) -> _Progress:
    if log_format == "auto" and sys.stderr.isatty():
        return _Progress()
    return _LogProgress(log_format == "json")


def _write_result(path: Path, result: RunResult | None, error: StateflowError | None) -> None:
    document: dict[str, Any] = {"status": "failed" if error else "finished", "error": None}
    if error:
        document["error"] = {"code": error.code, "message": error.sentence, "hint": error.hint,
                             "retryable": error.retryable}  # fmt: skip
    if result:
        document |= dataclasses.asdict(result)
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps(document))
        os.replace(partial, path)
    except OSError as e:
        fail(StorageError("how the run ended could not be written down", hint="make space, or choose another file; "
                           "the run itself ended as told above", path=str(path), reason=e.strerror))  # fmt: skip


if __name__ == "__main__":
    main()
