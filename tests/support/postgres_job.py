"""A job whose tables are in PostgreSQL, and what they must have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.servers.postgres import Postgres
from tests.support import root_files
from tests.support.job_fixture import AccountsJob, Row


@dataclass
class PostgresJob(AccountsJob):
    job_name: str = "accounts_in_postgres"
    server: Postgres | None = None
    schema: str = "public"

    @property
    def upserts_totals(self) -> bool:
        return True

    @classmethod
    def create(cls, server: Postgres, schema: str, **more: Any) -> PostgresJob:
        """A job with an empty schema; further arguments as for `JobFixture`."""
        server.execute(f"CREATE SCHEMA {schema}")
        settings = {"job__postgres": server.conninfo, "job__schema": schema, **more.pop("settings", {})}
        return cls(settings=settings, variables=server.variables, server=server, schema=schema, **more)

    def rows(self, table: str) -> list[Row]:
        assert self.server is not None
        return self.server.rows(f"{self.schema}.{table}")

    def tokens(self) -> dict[str, int]:
        assert self.server is not None
        found = self.server.execute(
            f"SELECT split_part(application, '/', 2), token FROM {self.schema}.stateflow_tokens WHERE application <> ''"
        )
        return dict(found)

    def check_clean(self) -> None:
        self.collect()
        root_files.check_no_orphans(self.root)
