"""The versions of Airflow and of its Spark provider: which are supported, and what differs between them.

The operators use private names of both, so a version before the first tested one is refused. Airflow 3.2 has neither
resumable jobs nor retry policies nor a store for a task's state; `ResumableJobMixin`, `RetryPolicy` and
`RetryDecision` of this module replace what the operators use of them.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import Version

if TYPE_CHECKING:
    from airflow.sdk import ResumableJobMixin as ResumableJobMixin
    from airflow.sdk import RetryDecision as RetryDecision
    from airflow.sdk import RetryPolicy as RetryPolicy
    from airflow.sdk.exceptions import AirflowException

    FinalFailure = AirflowException
    HAS_RETRY_POLICIES = True
else:
    try:
        from airflow.sdk import ResumableJobMixin, RetryDecision, RetryPolicy
        from airflow.sdk.exceptions import AirflowException as FinalFailure

        HAS_RETRY_POLICIES = True
    except ImportError:
        HAS_RETRY_POLICIES = False


@dataclass(frozen=True)
class Supported:
    """The supported versions of a distribution.

    Attributes:
        first: the first one.
        refused: the first one that is refused untried: of the next major version.
        tested: the versions that tests have run with; docs/design/0032-supported-versions.md has dates.
    """

    first: str
    refused: str
    tested: tuple[str, ...]


SUPPORTED: Mapping[str, Supported] = {
    "apache-airflow-core": Supported("3.2.0", "4", ("3.2.2", "3.3.2")),
    "apache-airflow-providers-apache-spark": Supported("6.3.4", "7", ("6.3.4",)),
}
"""By distribution."""


class UnsupportedVersion(ImportError):
    """The installed version of a distribution is not supported.

    Attributes:
        distribution: its name.
        installed: its version; None if it is not installed.
    """

    def __init__(self, message: str, *, distribution: str = "", installed: str | None = None) -> None:
        super().__init__(message)
        self.distribution = distribution
        self.installed = installed


def require_supported(installed: Mapping[str, str] | None = None) -> None:
    """Raises UnsupportedVersion unless every installed version is in `SUPPORTED`.

    Modules of operators and the plugin call it at import: Airflow shows the message as an import error.

    Args:
        installed: versions by distribution; by default those of this environment.
    """
    for name, supported in SUPPORTED.items():
        found = installed.get(name) if installed is not None else _installed(name)
        if found is None or not Version(supported.first) <= Version(found) < Version(supported.refused):
            wanted = f"{name}>={supported.first},<{supported.refused}"
            raise UnsupportedVersion(
                f"stateflow's Airflow operators need {wanted}; installed: {found or 'none'}\n"
                f"  hint: pip install '{name}=={supported.tested[-1]}'",
                distribution=name,
                installed=found,
            )


def warn_of_untested(installed: Mapping[str, str] | None = None) -> list[str]:
    """Returns a warning for each installed version that is supported, and with which no test has run.

    Args:
        installed: as for `require_supported`.
    """
    warnings = []
    for name, supported in SUPPORTED.items():
        found = installed.get(name) if installed is not None else _installed(name)
        if found is not None and found not in supported.tested:
            tested = ", ".join(supported.tested)
            warnings.append(f"{name} {found} was not tested with this version of stateflow; tested: {tested}")
    return warnings


def require_partition_keys(installed: str | None = None) -> None:
    """Raises UnsupportedVersion if tasks of this Airflow cannot give the partition keys of their asset events.

    Args:
        installed: the version of ``apache-airflow-core``; by default the installed one.
    """
    found = installed or _installed("apache-airflow-core")
    if found is None or Version(found) < Version("3.3"):
        raise UnsupportedVersion(
            f"events of partitions need apache-airflow-core>=3.3; installed: {found or 'none'}\n"
            "  hint: omit partition_events, or install Airflow 3.3",
            distribution="apache-airflow-core",
            installed=found,
        )


def base_of_bundles(installed: str | None = None) -> str:
    """Returns the path from which Airflow resolves relative addresses of bundles to the base of its pages.

    Airflow 3.2 resolves them against its own script in static/assets, later ones against the base itself.

    Args:
        installed: as for `require_partition_keys`.
    """
    found = installed or _installed("apache-airflow-core")
    return "../../" if found is not None and Version(found) < Version("3.3") else ""


def add_retry_policy(arguments: dict[str, object], policy: RetryPolicy | None) -> None:
    """Adds a retry policy to the arguments of an operator, unless Airflow has none."""
    if HAS_RETRY_POLICIES:
        arguments["retry_policy"] = policy


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if not TYPE_CHECKING and not HAS_RETRY_POLICIES:
    # Airflow 3.2, or an Airflow that `require_supported` refuses.
    try:
        from airflow.sdk.exceptions import AirflowFailException as FinalFailure
    except ImportError:
        FinalFailure = RuntimeError

    class ResumableJobMixin:
        """A job that each try submits again: `StateflowRunOperator` itself waits for the program of an earlier try."""

        external_id_key = "remote_job_id"

        def __init__(self, *, durable: bool = True, **kwargs: object) -> None:
            super().__init__(**kwargs)
            self.durable = durable

        def execute_resumable(self, context: object) -> object:
            """Submits the job and waits for its end."""
            external_id = self.submit_job(context)
            polled = self.poll_until_complete(external_id, context)
            return self.get_job_result(external_id, context) if polled is None else polled

    class RetryDecision:
        """Not used: `FinalFailure` decides instead."""

    class RetryPolicy:
        """Not used: `FinalFailure` decides instead."""
