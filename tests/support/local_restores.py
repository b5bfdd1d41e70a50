"""Restores of jobs without Spark that are functions of a test."""

from __future__ import annotations

from typing import Any

from stateflow.checkpoint.restore.plan_document import GraphChanges, RestorePlan
from stateflow.runtime.job import Job
from stateflow.runtime.restore.plan_execution import RestoreRequest, execute_plan
from stateflow.runtime.restore.planner import RestoreOptions, make_restore_plan
from tests.support.local_jobs import Build, LocalJobs


def prepared_job(jobs: LocalJobs, build: Build) -> Job:
    return jobs.prepare(build).job


def plan_restore(jobs: LocalJobs, build: Build, *maps: str, target: str = "latest", **more: Any) -> RestorePlan:
    """Plans a restore; further arguments are those of `RestoreOptions`, and the positions of `sources`."""
    changes = GraphChanges(maps, tuple(more.pop("sources", ())))
    more["drop"] = frozenset(more.get("drop", ()))
    return make_restore_plan(prepared_job(jobs, build), target, RestoreOptions(changes=changes, **more))


def restore(jobs: LocalJobs, build: Build, *maps: str, **more: Any) -> RestorePlan:
    plan = plan_restore(jobs, build, *maps, **more)
    execute_plan(prepared_job(jobs, build), plan, RestoreRequest(f"restore-{plan.digest}"))
    jobs.run(build)
    return plan
