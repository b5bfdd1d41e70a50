"""Airflow's own API application with a database of DAGs, and users of each role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pendulum
import pytest
from airflow import plugins_manager
from airflow.api.common.delete_dag import delete_dag
from airflow.api_fastapi.app import create_app, get_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.deadline import Deadline
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.utils.db import initdb
from airflow.utils.db_cleanup import run_cleanup
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.testclient import TestClient

from stateflow_airflow import plugin
from stateflow_airflow.services.pages import STATE_VIEW

ROLES = {"vera": "viewer", "cleo": "viewer", "uma": "user", "oscar": "op", "ada": "admin"}
"""A user of each role of the simple auth manager."""
SECRET = "secret"
"""DAGs whose ids begin with this are for the administrator only."""
ONLY_DAGS = "cleo"
"""A user who may read DAGs, but neither their code nor their questions, and no values of state."""


class RightsPerDag(SimpleAuthManager):
    """The simple auth manager, with DAGs that only the administrator may read."""

    def is_authorized_dag(
        self,
        *,
        method: Any,
        user: SimpleAuthManagerUser,
        access_entity: DagAccessEntity | None = None,
        details: DagDetails | None = None,
    ) -> bool:
        allowed = super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
        if user.username == ONLY_DAGS and access_entity in (DagAccessEntity.CODE, DagAccessEntity.HITL_DETAIL):
            return False
        is_secret = details is not None and str(details.id).startswith(SECRET)
        return allowed and (not is_secret or user.role == "admin")

    def is_authorized_custom_view(self, *, method: Any, resource_name: str, user: SimpleAuthManagerUser) -> bool:
        allowed = super().is_authorized_custom_view(method=method, resource_name=resource_name, user=user)
        return bool(allowed) and (resource_name != STATE_VIEW or user.username != ONLY_DAGS)


@contextmanager
def airflow_of(folder: Path) -> Iterator[None]:
    """An Airflow with the settings of a folder, whose database has no DAGs, before and afterwards.

    Airflow and the plugin make the pages once in a process: with the settings of the test file that came first.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _environment(folder).items():
            patch.setenv(name, value)
        _forget_settings()
        initdb()
        _delete_dags()
        yield
        _delete_dags()
    _forget_settings()


def _forget_settings() -> None:
    plugin._pages.cache_clear()
    plugins_manager.get_fastapi_plugins.cache_clear()
    plugins_manager._get_ui_plugins.cache_clear()
    purge_cached_app()


def _delete_dags() -> None:
    with create_session() as session:
        dag_ids = list(session.scalars(select(DagModel.dag_id)))
    for dag_id in dag_ids:
        delete_dag(dag_id)


def _environment(folder: Path) -> dict[str, str]:
    return {
        "AIRFLOW__CORE__AUTH_MANAGER": f"{RightsPerDag.__module__}.{RightsPerDag.__name__}",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for name, role in ROLES.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
        "AIRFLOW__API_AUTH__JWT_SECRET": "not a secret, but long enough for the signature of tokens in tests" * 2,
        "AIRFLOW__STATEFLOW__PAGES_LOCATIONS": str(folder),
        # A DAG that changes within seconds is stored again.
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
    }


def store_dags(folder: Path, files: Mapping[str, str]) -> None:
    """Stores the DAGs of files in Airflow's database, as its DAG processor does."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    bag = DagBag(folder, bundle_path=folder, bundle_name="pages")
    assert bag.import_errors == {}
    with create_session() as session:
        if session.get(DagBundleModel, "pages") is None:
            session.add(DagBundleModel(name="pages"))
    sync_bag_to_db(bag, "pages", None)


def ask(dag_id: str, task_id: str) -> None:
    """Stores a question of a task of the newest DAG run, as Airflow does when the task asks it."""
    with create_session() as session:
        task = session.scalars(
            select(TaskInstance)
            .where(TaskInstance.dag_id == dag_id, TaskInstance.task_id == task_id)
            .order_by(TaskInstance.run_id.desc())
        ).first()
        assert task is not None
        session.add(HITLDetail(ti_id=task.id, options=["Approve", "Reject"], subject="Restore?", params={}))


def end_tasks(dag_id: str, state: TaskInstanceState) -> None:
    """Gives all tasks of a DAG this state."""
    with create_session() as session:
        for task in session.scalars(select(TaskInstance).where(TaskInstance.dag_id == dag_id)):
            task.state = state


def schedule(dag_id: str, at: datetime | None, *, is_paused: bool) -> None:
    """Stores when the next run of a DAG is created, as the scheduler does."""
    with create_session() as session:
        dag = session.scalars(select(DagModel).where(DagModel.dag_id == dag_id)).one()
        dag.next_dagrun_create_after, dag.is_paused = at, is_paused


def miss_deadline(dag_id: str, at: datetime) -> None:
    """Stores a deadline that the newest run of a DAG has missed, as the scheduler does."""
    with create_session() as session:
        deadline = Deadline(at, AsyncCallback(_alert), _newest_run(session, dag_id).id, None)
        deadline.missed = True
        session.add(deadline)


def end_run(dag_id: str, state: DagRunState, at: datetime) -> None:
    """Ends the newest run of a DAG."""
    with create_session() as session:
        run = _newest_run(session, dag_id)
        run.state, run.start_date, run.end_date = state, run.start_date or at, at


def clean_database(folder: Path) -> None:
    """Removes all that has happened before from Airflow's database, as ``airflow db clean`` does.

    Args:
        folder: has the DAG files, which Airflow reads all the time: only DAGs without a file are removed.
    """
    now = pendulum.now("UTC")
    store_dags(folder, {})
    run_cleanup(clean_before_timestamp=now, confirm=False, skip_archive=True)


async def _alert() -> None:
    """Called by nobody: the deadlines here are stored as missed already."""


def _newest_run(session: Session, dag_id: str) -> DagRun:
    return session.scalars(select(DagRun).where(DagRun.dag_id == dag_id).order_by(DagRun.id.desc()).limit(1)).one()


class Api:
    """Clients of Airflow's application."""

    def __init__(self) -> None:
        purge_cached_app()
        self.app = create_app("core")

    def token(self, name: str, role: str | None = None) -> str:
        """Returns a token of a user, who has a role of Airflow, or none."""
        return get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role or ROLES.get(name)))

    def client(self, name: str = "", prefix: str = "") -> TestClient:
        """Returns the browser of a user after the login; of nobody without a name."""
        cookies = {COOKIE_NAME_JWT_TOKEN: self.token(name)} if name else {}
        return TestClient(self.app, base_url=f"http://localhost{prefix}", cookies=cookies)
