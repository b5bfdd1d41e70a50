"""What a task tells stateflow about itself: who asks, and an id by which a later try of it is known again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateflow_airflow.failures import failure, misconfigured, report

if TYPE_CHECKING:
    from airflow.sdk import Context

    from stateflow.recovery import JobCode


def request_id(context: Context, *more: object) -> str:
    """The same for every try of this task in this DAG run, and for no other task."""
    ti = context["ti"]
    # The length of each part goes in: no name can look like two.
    parts = [str(part) for part in (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, *more)]
    text = "/".join(f"{len(part)}:{part}" for part in parts)
    return f"airflow-{sha256(text.encode()).hexdigest()[:24]}"


def default_name(origin: str, context: Context, request: str) -> str:
    """A savepoint's name when nobody chose one: why and when, and the same for every try."""
    run = context.get("dag_run")
    stamp = f"{run.run_after:%Y%m%dT%H%M%SZ}-" if run else ""
    return f"{origin}-{stamp}{request[-6:]}"


def asker(context: Context) -> str:
    """The user who triggered the DAG run, or the DAG when its schedule did."""
    user = getattr(context.get("dag_run"), "triggering_user_name", None)
    return str(user) if user else f"airflow DAG {context['ti'].dag_id}"


def job_code(file: str, settings: Mapping[str, Any]) -> JobCode:
    """The job file and its settings, as ``--set`` takes them."""
    from stateflow.config import parse_assignments
    from stateflow.recovery import JobCode

    if not Path(file).is_absolute() or not Path(file).is_file():
        raise misconfigured(f"there is no job file {file!r} on this worker", "give its absolute path")
    assignments = tuple(f"{key}={as_text(value)}" for key, value in settings.items())
    return JobCode(Path(file), (parse_assignments(assignments),))


def as_text(value: object) -> str:
    """A setting as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_truth(name: str, value: bool | str) -> bool:
    """What a template rendered for true or false."""
    if str(value).lower() not in ("true", "false"):
        raise misconfigured(f"{name}={value!r} is neither true nor false", "give true or false")
    return str(value).lower() == "true"


def as_count(name: str, value: int | str | None, things: str) -> int | None:
    """What a template rendered for a number of things to keep, or for none."""
    if value is None or value in ("", "None"):
        return None
    if not str(value).isdecimal() or int(value) < 1:
        raise misconfigured(f"{name}={value!r} is not a number of {things}", "give 1 or more, or None")
    return int(value)


def as_age(name: str, value: timedelta | str | None) -> timedelta | None:
    """What a template rendered for a duration, or for none."""
    from stateflow.config import parse_duration

    if value is None or value in ("", "None"):
        return None
    try:
        return value if isinstance(value, timedelta) else parse_duration(value)
    except (ValueError, OverflowError) as error:
        raise misconfigured(f"{name}={value!r} is not a duration", "like 36h or 30d") from error


def as_names(value: str | Iterable[str]) -> frozenset[str]:
    """Names from a list, or from a text with blanks or commas between them."""
    names = re.split(r"[\s,]+", value) if isinstance(value, str) else value
    return frozenset(name for name in names if name)


def check_root(job_root: str) -> str:
    """The job root, when it can mean the same to every worker."""
    if "://" not in job_root and not Path(job_root).is_absolute():
        raise misconfigured(
            f"the job root {job_root!r} is neither a URI nor an absolute path",
            "give its whole path, as /data/jobs/flights",
        )
    return job_root


@contextmanager
def told_as_failures() -> Iterator[None]:
    """Turns stateflow's errors into failures of the task, each with its code and with whether to try again."""
    from stateflow.errors import StateflowError

    try:
        yield
    except StateflowError as error:
        # Without the library's stack: the sentence says what is wrong, and nothing is wrong with the library.
        cause = error if error.code == "internal" else None
        raise report(failure(error.code, str(error), error.hint, retryable=error.retryable)) from cause
