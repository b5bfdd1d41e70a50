"""What an `airflow` command of a guide would do with the DAGs of `dags/`; nothing is run.

``python -m tests.docs.airflow_cli_check dags trigger …`` exits with 0 if Airflow would accept the command, and prints
the reason otherwise: no such DAG, a key that is not in the form, a value that it refuses.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
WITHOUT_A_DAG = ("connections", "plugins", "pools", "standalone")
"""Commands that are right if Airflow can parse them."""


class WouldFail(Exception):
    """Airflow would refuse the command, or ignore a part of it.

    Args:
        wrong: the command, the DAG, a key of the form, or a value.
    """

    def __init__(self, wrong: str, reason: str) -> None:
        super().__init__(reason)
        self.wrong = wrong


def load_dags(folder: Path = REPOSITORY / "dags") -> dict[str, Any]:
    """The DAGs of a folder by id."""
    from airflow.dag_processing.dagbag import DagBag

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Airflow's own
        bag = DagBag(str(folder))
    assert bag.import_errors == {}
    return dict(bag.dags)


def check(arguments: Sequence[str], dags: Mapping[str, Any]) -> None:
    """Raises WouldFail unless Airflow knows the command, and it fits the DAGs."""
    parsed = _parsed(arguments)
    if arguments[0] in WITHOUT_A_DAG:
        return
    if parsed.dag_id not in dags:
        raise WouldFail("dag", f"no DAG {parsed.dag_id}, there are {sorted(dags)}")
    if parsed.subcommand == "trigger":
        check_form(dags[parsed.dag_id], json.loads(parsed.conf or "{}"))


def check_form(dag: Any, conf: Mapping[str, Any]) -> dict[str, Any]:
    """The params of a DAG run with that ``--conf``."""
    # Airflow accepts keys that are not in the form, and nothing reads them.
    if unknown := sorted(conf.keys() - dag.params.keys()):
        raise WouldFail("key", f"{dag.dag_id} has no params {unknown}, but {sorted(dag.params)}")
    params = copy.deepcopy(dag.params)
    try:
        params.update(conf)
        return dict(params.validate())
    except ValueError as e:
        raise WouldFail("value", f"{dag.dag_id} refuses {conf}: {e}") from e


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    from airflow.cli.cli_parser import get_parser

    try:
        parsed = get_parser().parse_args(arguments)
    except SystemExit as e:
        raise WouldFail("command", f"airflow has no such command: {' '.join(arguments)}") from e
    if arguments[0] not in WITHOUT_A_DAG and parsed.subcommand not in ("pause", "unpause", "trigger"):
        raise WouldFail("not supported", f"this check does not know the command: {' '.join(arguments)}")
    return parsed


if __name__ == "__main__":
    try:
        check(sys.argv[1:], load_dags())
    except WouldFail as refused:
        sys.exit(f"airflow: {refused}")
