"""The requester of an action, and the source of the requester's name: the field `by` of records and requests.

The text begins with the source of the name. A text without one was not written by stateflow: it counts as a claim.
"""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from enum import StrEnum


class NameSource(StrEnum):
    """Where a requester's name comes from."""

    AIRFLOW_USER = "airflow-user"
    """Airflow has authenticated the user."""
    AIRFLOW_DAG = "airflow-dag"
    """A schedule or an event of Airflow has started the DAG."""
    OS_USER = "os-user"
    """The account of the process, as the operating system reports it."""
    PROCESS = "process"
    """A run, named by host and process id."""
    CLAIM = "claim"
    """The requester gave the name, such as with ``--by``; nothing has checked it."""


_STORED = re.compile(r"(airflow-user|airflow-dag|os-user|process):(.*)", re.DOTALL)
_CLAIM = re.compile(r"claim:([^:]*):(.*)", re.DOTALL)


@dataclass(frozen=True)
class Requester:
    """Who requested an action.

    Attributes:
        name: the name, or the account.
        source: where the name comes from.
        account: for a claim, the account of the process that made it; None if it is not known.
    """

    name: str
    source: NameSource = NameSource.CLAIM
    account: str | None = None

    @classmethod
    def parse(cls, stored: str) -> Requester:
        """Returns the requester in the stored text; for a text without a source, a claim."""
        if known := _STORED.fullmatch(stored):
            return cls(known[2], NameSource(known[1]))
        if claim := _CLAIM.fullmatch(stored):
            return cls(claim[2], account=claim[1] or None)
        return cls(stored)

    def to_stored(self) -> str:
        """Returns the text from which `parse` returns the requester."""
        if self.source is NameSource.CLAIM:
            return f"{self.source}:{self.account or ''}:{self.name}"
        return f"{self.source}:{self.name}"

    def __str__(self) -> str:
        """Returns the requester as text for a user, with the source of the name."""
        claimed = f"{self.name} (claimed, {self.account})" if self.account else f"{self.name} (claimed)"
        return {
            NameSource.AIRFLOW_USER: f"{self.name} (Airflow)",
            NameSource.AIRFLOW_DAG: f"DAG {self.name}",
            NameSource.CLAIM: claimed,
        }.get(self.source, self.name)


def describe_requester(stored: str) -> str:
    """Returns the requester in a stored text as text for a user; an empty text for none."""
    return str(Requester.parse(stored)) if stored else ""


def airflow_user(name: str) -> str:
    """Returns the stored text for a user whom Airflow has authenticated."""
    return f"{NameSource.AIRFLOW_USER}:{name}"


def airflow_dag(dag_id: str) -> str:
    """Returns the stored text for a DAG that no user has triggered."""
    return f"{NameSource.AIRFLOW_DAG}:{dag_id}"


def by_process(writer: str) -> str:
    """Returns the stored text for a process that acts for itself, such as a run."""
    return f"{NameSource.PROCESS}:{writer}"


def os_user(claimed: str = "") -> str:
    """Returns the stored text for the user of this process.

    Args:
        claimed: the name that the user gave; stored as a claim, next to the account.
    """
    account = os_account()
    return f"{NameSource.CLAIM}:{account}:{claimed}" if claimed else f"{NameSource.OS_USER}:{account}"


def os_account() -> str:
    """Returns ``user@host`` of this process. No environment variable can change the user's name."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # the user of a container may have no name
        name = str(os.geteuid())
    return f"{name}@{os.uname().nodename}".replace(":", "-")
