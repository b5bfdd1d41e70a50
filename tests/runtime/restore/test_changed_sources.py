"""Jobs that are restored with other sources, or other positions of sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stateflow import StreamExecutionEnvironment
from stateflow.api.source import LocalSource, Slice
from stateflow.checkpoint.restore.plan_document import RestorePlan, SourceAction, cautions
from stateflow.clock import ManualClock
from stateflow.config.settings import SourceSettings
from stateflow.errors import ConfigError
from tests.support.errors import raises
from tests.support.graphs import Row
from tests.support.local_jobs import Build, LocalJobs, plan_restore, restore


class Numbers(LocalSource):
    """Numbers from 1 to `last`, of one source; its positions are plain numbers."""

    def __init__(self, key: str, last: int, name: str = "numbers") -> None:
        from stateflow.api.schema import RowSchema

        self.schema = RowSchema.of(Row)
        self.key, self.last, self.name = key, last, name

    @property
    def description(self) -> str:
        return self.name

    def read(self, position: str | None, limits: SourceSettings) -> Slice | None:
        start = int(position or 0)
        rows = [Row(self.key, n) for n in range(start + 1, self.last + 1)]
        return Slice(rows, str(self.last)) if rows else None


def _sources(jobs: LocalJobs, **sources: LocalSource) -> Build:
    """Writes the rows of all sources to one table; keywords are uids."""

    def build(env: StreamExecutionEnvironment) -> None:
        first, *others = [env.from_source(source, uid=uid) for uid, source in sources.items()]
        (first.union(*others) if others else first).sink_to(jobs.sink("out"), uid="out")

    return build


def _read(jobs: LocalJobs) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for key, number, _ in sorted(jobs.rows()):
        found.setdefault(key, []).append(number)
    return found


@pytest.fixture
def source_jobs(tmp_path: Path) -> LocalJobs:
    jobs = LocalJobs(tmp_path, ManualClock())
    jobs.run(_sources(jobs, a=Numbers("a", 2), b=Numbers("b", 2)))
    return jobs


def _actions(plan: RestorePlan) -> dict[str, tuple[object, object, SourceAction]]:
    return {s.uid: (s.current_offset, s.target_offset, s.action) for s in plan.sources}


def test_a_start_reads_an_added_source_from_the_beginning(source_jobs: LocalJobs) -> None:
    jobs = source_jobs
    build = _sources(jobs, a=Numbers("a", 3), aa=Numbers("aa", 2), b=Numbers("b", 3))
    started = jobs.prepare(build)
    started.start()
    assert started.manifest is not None
    assert [(p.uid, p.offset) for p in started.manifest.sources] == [("a", "2"), ("aa", "-"), ("b", "2")]
    started.abandon()
    jobs.run(build)
    assert _read(jobs) == {"a": [1, 2, 3], "aa": [1, 2], "b": [1, 2, 3]}


@pytest.mark.parametrize(
    ("sources", "facts"),
    [
        ({"a": Numbers("a", 3)}, {"found": ["a", "b"], "wanted": ["a"]}),
        ({"a": Numbers("a", 3), "c": Numbers("b", 3)}, {"wanted": ["a", "c"]}),
        ({"a": Numbers("a", 3), "b": Numbers("b", 3, "letters")}, {"uid": "b", "before": "numbers", "now": "letters"}),
    ],
    ids=["removed", "renamed", "replaced"],
)
def test_a_start_with_removed_or_replaced_sources_is_refused(
    source_jobs: LocalJobs, sources: dict[str, LocalSource], facts: dict[str, Any]
) -> None:
    with raises(ConfigError, **facts):
        source_jobs.run(_sources(source_jobs, **sources))
    assert _read(source_jobs) == {"a": [1, 2], "b": [1, 2]}


def test_a_restore_removes_adds_and_renames_sources_as_planned(source_jobs: LocalJobs) -> None:
    jobs = source_jobs
    build = _sources(jobs, c=Numbers("c", 2), d=Numbers("d", 3))
    plan = restore(jobs, build, "b=d")
    assert _actions(plan) == {
        "a": (2, None, SourceAction.REMOVED),
        "c": (None, None, SourceAction.NEW),
        "d": (2, 2, SourceAction.KEPT),
    }
    assert {c.about for c in cautions(plan)} >= {"source a", ""}
    assert _read(jobs) == {"a": [1, 2], "b": [1, 2], "c": [1, 2], "d": [3]}


@pytest.mark.parametrize(
    ("position", "then", "read"),
    [("earliest", None, [1, 1, 2, 2, 3]), ("position:1", 1, [1, 2, 2, 3]), ("keep", 2, [1, 2, 3])],
)
def test_a_source_continues_where_the_option_says(
    source_jobs: LocalJobs, position: str, then: int | None, read: list[int]
) -> None:
    jobs = source_jobs
    plan = restore(jobs, _sources(jobs, a=Numbers("a", 3), b=Numbers("b", 3)), sources=[f"a={position}"])
    (source, _) = plan.sources
    assert (source.current_offset, source.target_offset) == (2, then)
    assert (source.action is SourceAction.KEPT) == (position == "keep")
    assert ("source a" in {c.about for c in cautions(plan)}) == (position != "keep")
    assert _read(jobs) == {"a": read, "b": [1, 2, 3]}


@pytest.mark.parametrize(("position", "read"), [("keep", [3]), ("earliest", [1, 2, 3])])
def test_a_replaced_source_keeps_or_resets_its_position(source_jobs: LocalJobs, position: str, read: list[int]) -> None:
    jobs = source_jobs
    build = _sources(jobs, a=Numbers("a", 2), b=Numbers("B", 3, "letters"))
    with raises(ConfigError, uid="b", before="numbers", now="letters"):
        plan_restore(jobs, build)
    plan = restore(jobs, build, sources=[f"b={position}"])
    assert _actions(plan)["b"][2] is (SourceAction.REPLACED if position == "keep" else SourceAction.RESET)
    assert "source b" in {c.about for c in cautions(plan)}
    assert _read(jobs) == {"a": [1, 2], "b": [1, 2], "B": read}


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["a"], {"source": "a"}), (["a=later"], {"source": "a=later"}),
        (["a=timestamp:yesterday"], {"source": "a=timestamp:yesterday"}), (["a={1"], {"source": "a={1"}),
        (["a=position:"], {"source": "a=position:"}), (["a=position:1\n2"], {"source": "a=position:1\n2"}),
        (["a=latest"], {"uid": "a", "position": "latest"}),
        (["a=timestamp:2026-01-31"], {"uid": "a", "position": "timestamp"}),
        (["c=earliest"], {"uid": "c", "known": ["a", "b"]}), (["a=keep", "a=earliest"], {"uid": "a"}),
    ],
)  # fmt: skip
def test_a_position_that_is_not_one_is_refused(
    source_jobs: LocalJobs, options: list[str], facts: dict[str, Any]
) -> None:
    with raises(ConfigError, **facts):
        plan_restore(source_jobs, _sources(source_jobs, a=Numbers("a", 3), b=Numbers("b", 3)), sources=options)


def test_a_source_is_not_mapped_to_one_with_a_position_of_its_own(source_jobs: LocalJobs) -> None:
    jobs = source_jobs
    build = _sources(jobs, a=Numbers("a", 3), b=Numbers("b", 3))
    with raises(ConfigError, uids=["b"]):
        plan_restore(jobs, build, "a=b")
    plan = plan_restore(jobs, build, "a=b", "b=a")
    assert [(s.uid, s.old) for s in plan.sources] == [("a", "b"), ("b", "a")]


def test_the_position_of_a_source_that_the_job_has_is_not_dropped(source_jobs: LocalJobs) -> None:
    build = _sources(source_jobs, a=Numbers("a", 3), b=Numbers("b", 3))
    with raises(ConfigError, uids=["a"]):
        plan_restore(source_jobs, build, drop=["a"])
