"""A job with checkpoints, savepoints and restores, and clients of its pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from starlette.testclient import TestClient

from stateflow import Context, KeyedProcessFunction, RuntimeContext, ValueStateDescriptor, operations
from stateflow.checkpoint.log.job_root import JobRoot
from stateflow.clock import Clock
from stateflow.environment import StreamExecutionEnvironment
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.storage import Storage
from stateflow.ui.access import AccessPolicy, TokenPolicy
from stateflow.ui.app import make_app
from stateflow.ui.catalog import RootCatalog
from stateflow.ui.roots import CatalogJob, Orchestration, RootLimits, Roots, RootSearch
from tests.support.json_outputs import check
from tests.support.local_jobs import Growing, LocalJobs, plan_restore, prepared_job

UMA, OSCAR = "airflow-user:uma", "claim:root@host:oscar"


class Row(msgspec.Struct, frozen=True):
    key: str
    value: int


class Sum(KeyedProcessFunction[Row, Row]):
    def open(self, ctx: RuntimeContext) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total", int))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Row]:
        total = (self.total.value() or 0) + row.value
        self.total.update(total)
        yield Row(row.key, total)


class PagesJob(LocalJobs):
    """The job, run for some more rows at a time. A run makes a checkpoint of every four rows."""

    def __init__(self, folder: Path, storage: Storage | None = None, **settings: Any) -> None:
        given: dict[str, Any] = {"parallelism": 2, "max_parallelism": 16, "checkpoints__retained": 20}
        given |= {"checkpoints__asynchronous": "no", **settings}
        super().__init__(folder, storage=storage, **given)
        self.number = 0

    @property
    def address(self) -> str:
        return str(self.folder / "root")

    @property
    def root(self) -> JobRoot:
        return JobRoot.open(self.storage, self.clock)

    @property
    def checkpoints(self) -> list[int]:
        """The ids of the retained checkpoints, as the log has them."""
        root = self.root
        return [ref.id for ref in root.checkpoints.list_kept(root.head())]

    def build(self, env: StreamExecutionEnvironment) -> None:
        rows = [Row("abc"[at % 3], at) for at in range(self.number)]
        summed = env.from_source(Growing(rows, Row), uid="rows").key_by("key").process(Sum(), output=Row, uid="sum")
        summed.sink_to(self.sink("out"), uid="out")

    def grow(self, rows: int = 4, **settings: Any) -> int:
        """Runs the job for more rows; returns its newest checkpoint."""
        self.number += rows
        self.run(self.build, **settings)
        return self.root.head().checkpoint_id

    def go_back(self, target: int | str, reason: str = "wrong rows") -> None:
        """Restores a checkpoint or savepoint, as Uma has asked for and Oscar has approved."""
        plan = plan_restore(self, self.build, target=str(target))
        request = RestoreRequest(f"back-{plan.digest[:8]}", OSCAR, reason, UMA, "looks right")
        execute_plan(prepared_job(self, self.build), plan, request)

    def save(self, name: str, reason: str = "", by: str = UMA) -> operations.SavepointReport:
        request = operations.SavepointRequest(name=name, by=by, reason=reason)
        return operations.create_savepoint(self.address, request)


def opener(storage: Storage) -> Callable[[], Storage]:
    return lambda: storage


class FixedCatalog:
    """Storages that a test has made, by id."""

    def __init__(self, **storages: Storage) -> None:
        self._jobs = {id: CatalogJob(id, each.uri, opener(each)) for id, each in storages.items()}
        self.orchestration: dict[str, Orchestration] = {}

    def jobs(self) -> dict[str, CatalogJob]:
        return self._jobs

    def searches(self) -> list[RootSearch]:
        return []

    def orchestration_of(self, id: str) -> Orchestration:
        return self.orchestration.get(id, Orchestration())


class Pages:
    """A client of the pages of some jobs, which checks each answer against its schema."""

    def __init__(
        self,
        catalog: RootCatalog | FixedCatalog,
        policy: AccessPolicy | None = None,
        clock: Clock | None = None,
        **limits: Any,
    ) -> None:
        # As long as a look takes on a busy machine, unless a test says how long a page waits.
        longest = limits.get("deadline", timedelta(minutes=1))
        waits: dict[str, Any] = dict.fromkeys(("patience", "list_patience", "deadline"), longest)
        self.roots = Roots(RootLimits(**{**waits, **limits}), clock)
        self.app = make_app(catalog, policy or TokenPolicy(), roots=self.roots)
        self.http = TestClient(self.app, base_url="http://localhost")

    @classmethod
    def of(cls, job: LocalJobs, **limits: Any) -> Pages:
        return cls(FixedCatalog(job=job.storage), **limits)

    def get(self, path: str, output: type | None = None, **query: object) -> Any:
        answer = self.http.get(f"/api/v1/{path}", params={name: str(each) for name, each in query.items()})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        if output is not None:
            check(output, found)
        return found
