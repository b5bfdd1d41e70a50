"""Parts that the operators share: base classes, allowed locations, requesters, Markdown and the status of DAGs.

Constructors of operators have more parameters than other functions of this project: Airflow passes each as a keyword
argument, and renders templates in the attribute of the same name (`template_fields`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

from airflow.sdk import Asset, BaseOperator, conf

from stateflow_airflow.failures import (
    BY_ERROR_CODE,
    PermanentFailure,
    config_failure,
    hide_tracebacks,
    translate_errors,
)
from stateflow_airflow.operators.template_values import as_list, check_texts
from stateflow_airflow.versions import RetryPolicy, add_retry_policy

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue


TaskArgument: TypeAlias = Any
"""An argument of Airflow's own base class, such as ``task_id`` or ``retries``."""


class LibraryOperator(BaseOperator):
    """An operator that calls the library. By default, the error code decides whether the task is retried.

    Args:
        locations: paths and URIs outside of the job root below which savepoints and forks may be. Not templated: a
            user who may only trigger the DAG cannot extend them.
    """

    # A default in the signature is one of a mapped operator, too: `partial` reads it there, and calls no constructor.
    def __init__(
        self,
        *,
        locations: str | Sequence[str] = (),
        retry_policy: RetryPolicy | None = BY_ERROR_CODE,
        **kwargs: TaskArgument,
    ) -> None:
        add_retry_policy(kwargs, retry_policy)
        super().__init__(**kwargs)
        self.locations = as_list(locations)

    def pre_execute(self, context: Context) -> None:
        """Hides the tracebacks of failures whose messages explain them, and checks rendered texts."""
        hide_tracebacks()
        check_texts(self)

    def add_to_assets(self, context: Context, facts: Mapping[str, object]) -> None:
        """Adds facts to the event of each asset in `outlets`."""
        for asset in self.outlets:
            if isinstance(asset, Asset):
                context["outlet_events"][asset].extra.update(cast("Mapping[str, JsonValue]", facts))

    def library(self) -> AbstractContextManager[None]:
        """Restricts the library to the allowed locations, and translates its errors into failures of the task."""
        return restrict_library(self.locations)


class JobRootOperator(LibraryOperator):
    """An operator on a job root.

    Args:
        job_root: the job root.
    """

    def __init__(self, *, job_root: str, **kwargs: TaskArgument) -> None:
        super().__init__(**kwargs)
        self.job_root = job_root


class JobOperator(JobRootOperator):
    """An operator that also loads the job file, with the settings of the job's runs."""

    def __init__(
        self, *, job: str, job_root: str, settings: Mapping[str, object] | str | None = None, **kwargs: TaskArgument
    ) -> None:
        super().__init__(job_root=job_root, **kwargs)
        self.job = job
        # Not copied: the output of a task or a template is a mapping only once it is rendered.
        self.settings = cast("Mapping[str, object]", settings or {})


@contextmanager
def restrict_library(locations: Sequence[str]) -> Iterator[None]:
    """Restricts the library to the allowed locations, and translates its errors into failures of the task.

    Args:
        locations: see `LibraryOperator`.
    """
    restricted = {**os.environ, **allowed_locations(locations)}
    with translate_errors(), environment(restricted):
        yield


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets the environment of this process, and restores it at the end."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


VARIABLE = "STATEFLOW_ALLOWED_LOCATIONS"
"""The library's variable, whose module is not imported here: DAG files import this one."""


def allowed_locations(of_the_job: Sequence[str]) -> dict[str, str]:
    """Returns the environment variable that restricts the library to the job root and these locations.

    Args:
        of_the_job: paths and URIs, in addition to those of the worker's environment and of Airflow's setting
            ``[stateflow] allowed_locations``.

    Raises:
        PermanentFailure: a location contains whitespace, which separates locations.
    """
    for location in of_the_job:
        if len(location.split()) != 1:
            raise config_failure(
                f"the location {location!r} is empty or contains whitespace",
                "write a space in a path as %20, in a URI that starts with file://",
                location=location,
            )
    configured = conf.get("stateflow", "allowed_locations", fallback=None) or ""
    return {VARIABLE: " ".join([*of_the_job, *configured.split(), *os.environ.get(VARIABLE, "").split()])}


def request_id(context: Context, *more: object) -> str:
    """Returns an id that is the same for every try of this task in this DAG run, and unique to the task."""
    ti = context["ti"]
    # Each part is prefixed with its length, so that different parts never give the same text.
    parts = [str(part) for part in (ti.dag_id, ti.run_id, ti.task_id, ti.map_index, *more)]
    text = "/".join(f"{len(part)}:{part}" for part in parts)
    return f"airflow-{sha256(text.encode()).hexdigest()[:24]}"


def default_name(origin: str, context: Context, request: str) -> str:
    """Returns a savepoint's default name: its origin and the time of the DAG run; the same for every try."""
    run = context.get("dag_run")
    stamp = f"{run.run_after:%Y%m%dT%H%M%SZ}-" if run else ""
    return f"{origin}-{stamp}{request[-6:]}"


def triggering_user(context: Context) -> str:
    """Returns the user who triggered the DAG run, as Airflow has authenticated the user; empty without a user."""
    return str(getattr(context.get("dag_run"), "triggering_user_name", None) or "")


def requester(context: Context) -> str:
    """Returns the user who triggered the DAG run, or the DAG, as stored in the job's records.

    Nothing that the user enters can change it: neither the form nor the configuration of the DAG run.
    """
    from stateflow.requesters import airflow_dag

    user = triggering_user(context)
    return airflow_user(user) if user else airflow_dag(context["ti"].dag_id)


def find_requester(context: Context) -> str:
    """Returns the user who triggered the DAG run, or the DAG, for display."""
    return triggering_user(context) or f"DAG {context['ti'].dag_id}"


def airflow_user(name: str) -> str:
    """Returns a user whom Airflow has authenticated, as stored in the job's records."""
    from stateflow import requesters

    return requesters.airflow_user(name)


_SPECIAL = re.compile(
    r"[\\`*\[\]|~]"
    # An underscore within a word is not emphasis.
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    # Headings, lists, quotations, and the second line of a table with one column.
    r"|^[#>+=:-]|" + "|".join(rf"(?<=^[0-9]{{{digits}}})[.)]" for digits in range(1, 10))
)
_ADDRESS = re.compile(r"(?<=http:)/|(?<=https:)/|(?<=www)\.|@", re.IGNORECASE)
"""The first character at which GitHub's Markdown recognizes an address, even if it is escaped."""
_ZERO_WIDTH_SPACE = "\u200b"
_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u2069\u3164\ufeff"
    "\ud800-\udfff\ufff9-\ufffb\U000e0000-\U000e007f]+"
)
"""Control characters, invisible ones, changes of direction, and lone surrogates."""
_LONGEST = 4000


def escape(text: object) -> str:
    """Returns a text as one line that Markdown shows as it is: no format, no link, no HTML, no control characters."""
    line = " ".join(_CONTROLS.sub(" ", str(text)).split())
    line = line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"
    line = _SPECIAL.sub(r"\\\g<0>", line.replace("&", "&amp;").replace("<", "&lt;"))
    return _ADDRESS.sub(rf"{_ZERO_WIDTH_SPACE}\g<0>", line)


def quote(text: object) -> str:
    """Returns a text of several lines as a quotation in plain text; an empty one as a dash."""
    lines = str(text).strip().splitlines()[:50] or ["-"]
    # Two spaces at its end keep a line from being joined with the next one.
    return "\n".join(f"> {escape(line)}  " for line in lines)


def code_block(text: str, language: str = "") -> str:
    """Returns a text of several lines as a block of code, which Markdown shows as it is; no control characters.

    Args:
        text: the text.
        language: its language, such as ``diff``.
    """
    lines = "\n".join(_CONTROLS.sub(" ", line.expandtabs(4)) for line in text.splitlines())
    # Only as many backticks end the block.
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", lines)), 3)
    return f"{fence}{language}\n{lines}\n{fence}"


class DagStatus(TypedDict):
    """Whether a DAG is paused, and the number of its running and queued runs."""

    paused: bool
    active_runs: int


def dag_status(context: Context, dag_id: str) -> DagStatus:
    """Returns the status of a DAG, as Airflow's API server reports it to a task."""
    ti = context["ti"]
    return {
        "paused": ti.get_dag(dag_id).is_paused,
        "active_runs": ti.get_dr_count(dag_id, states=["running", "queued"]),
    }


def require_paused(context: Context, dag_id: str) -> None:
    """Raises PermanentFailure unless the DAG is paused; checks nothing for an empty id."""
    if dag_id and not dag_status(context, dag_id)["paused"]:
        raise PermanentFailure(
            "dag-not-paused",
            f"the DAG {dag_id!r} is not paused and would start the job again at once",
            f"pause {dag_id}, then clear this task; unpause it to start the job",
            {"dag": dag_id},
        )
