"""Another application that writes to a job's tables, and what must be in them then."""

from __future__ import annotations

import json

from tests.support.job_fixture import AccountsJob, Row, expected, multiset

TABLES = ("movements", "totals")


def append(job: AccountsJob, table: str, number: int = 1) -> list[Row]:
    """Appends to a table as another application; the rows that it brings."""
    folder = job.table(table)
    version = newest_version(job, table) + 1
    name, rows = f"other-{version}.json", [{"other": version, "row": i} for i in range(number)]
    (folder / "data" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    document = {"application": "another writer", "token": 1, "paths": [name]}
    (folder / f"versions/{version:08d}").write_text(json.dumps(document))
    return rows


def newest_version(job: AccountsJob, table: str) -> int:
    """The table's version."""
    return len(list((job.table(table) / "versions").iterdir())) - 1


def check_tables(job: AccountsJob, others: dict[str, list[Row]]) -> None:
    """Each table has the job's rows once, and those of the other writer."""
    wanted = expected(job.delivered)
    for table, rows in (("movements", wanted.movements), ("totals", wanted.totals)):
        assert multiset(job.rows(table)) == multiset(rows) + multiset(others.get(table, [])), f"rows of {table}"
