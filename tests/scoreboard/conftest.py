"""Gives each row of the scoreboard its rounds, and writes the report: ``make scoreboard``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results import stamp
from tests.scoreboard.report import Score, headline, read, write
from tests.scoreboard.row import TIERS, Rounds, Row
from tests.support.mutants import MUTANTS


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of `make scoreboard`; without them the slice is played, and nothing is written."""
    group = parser.getgroup("scoreboard")
    group.addoption("--tier", choices=TIERS, help="play the rows this often, and write docs/scoreboard.md")
    group.addoption("--rows", default="", metavar="NAME,…", help="only these rows; the page keeps the others")
    group.addoption("--seed", type=int, help="one round of each row; nothing is written")


def pytest_configure(config: pytest.Config) -> None:
    """The report is written by the process that all reports come to."""
    config.addinivalue_line("markers", "row(row): a row of the scoreboard")
    if config.getoption("tier", None) and config.getoption("seed", None) is None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Scoreboard(config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrises a row over its seeds, and its planted bugs."""
    row = row_of(metafunc.definition)
    if row is None:
        return
    seed = metafunc.config.getoption("seed", None)
    tier = TIERS.index(metafunc.config.getoption("tier", None) or TIERS[0])
    seeds = range(row.plays[tier]) if seed is None else [seed]
    params = [pytest.param(n, id=f"seed-{n}") for n in seeds]
    if seed is None:
        slow = pytest.mark.slow(reason=f"plays up to {row.within} rounds until one finds the bug")
        params += [pytest.param(mutant, id=mutant, marks=slow) for mutant in row.mutants]
    metafunc.parametrize("rounds", params, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`make scoreboard` plays rows and no other tests."""
    if config.getoption("tier", None):
        names = config.getoption("rows")
        items[:] = [item for item in items if (row := row_of(item)) and (not names or row.name in names.split(","))]


def row_of(item: pytest.Item) -> Row | None:
    mark = item.get_closest_marker("row")
    return mark.args[0] if mark else None


@pytest.fixture
def rounds(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    caplog: pytest.LogCaptureFixture,
) -> Rounds:
    row = row_of(request.node)
    assert row is not None
    # Runs that lose log it, and there are thousands.
    caplog.set_level(logging.CRITICAL, logger="stateflow")
    fault, holds = (" ".join(text.split()) for text in request.function.__doc__.split("\n\n"))
    bug, *more = [MUTANTS[mutant].what for mutant in row.mutants]
    facts = {"number": row.number, "on_spark": row.on_spark, "bug": bug, "more_bugs": dict.fromkeys(more, "")}
    record_property("row", (row.name, {**facts, "fault": fault, "holds": holds}))
    return Rounds(row, tmp_path, request.param, record_property)


class Scoreboard:
    """Collects what the rows found, also in xdist's processes, and writes it at the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._docs = config.rootpath / "docs"
        self._keeps_others = bool(config.getoption("rows"))
        facts = stamp()
        machine = facts["machine"]
        where = f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}"
        self._stamp = {"tier": config.getoption("tier"), "at": facts["at"], "commit": facts["commit"], "machine": where}
        self._scores: dict[str, Score] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        results: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and "row" in results:
            name, facts = results["row"]
            score = self._scores.setdefault(name, Score(**facts, **self._stamp))
            score.add(results, report.duration)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode) -> None:
        """Writes the report, unless the rows were interrupted."""
        if self._scores and exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            write(self._docs, (read(self._docs) if self._keeps_others else {}) | self._scores)
            terminalreporter.write_line(f"{headline(self._scores)} Written: {self._docs / 'scoreboard.md'}")
