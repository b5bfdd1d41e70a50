"""Where a PostgreSQL sink writes, and how it connects. Secrets stay on the driver."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib.util import find_spec

from stateflow.connectors.upserts import UpsertSettings
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError

TOKENS, UNDO = "stateflow_tokens", "stateflow_undo"
"""Tables of the sink, in the schema of the table that it writes to."""
LONGEST_NAME = 63
_SHADOW = "_shadow"


@dataclass(frozen=True)
class TableName:
    """A table and its schema, exactly as PostgreSQL stores their names."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Returns the name that ``table`` or ``schema.table`` has. Raises JobDefinitionError."""
        schema, _, table = text.rpartition(".")
        name = cls(schema or "public", table)
        if name.table in (TOKENS, UNDO) or not all(_is_name(part) for part in (name.schema, name.table)):
            raise JobDefinitionError(
                "the name of a table in PostgreSQL is not valid",
                hint=f"use table or schema.table, of at most {LONGEST_NAME} bytes each, and not the sink's own tables",
                table=text,
            )
        return name

    @property
    def shadow(self) -> TableName:
        """The table for the output of a dry run."""
        return TableName.parse(f"{self.schema}.{self.table}{_SHADOW}")

    def __str__(self) -> str:
        return f"{self.schema}.{self.table}"


def _is_name(text: str) -> bool:
    return bool(text) and text.isprintable() and "." not in text and len(text.encode()) <= LONGEST_NAME


@dataclass(frozen=True)
class PostgresSettings:
    """Settings of a sink.

    Attributes:
        name: the table.
        location: address of the table, for display: neither user nor password.
        upsert: how rows are matched; None for appends.
        undo: how long rows are kept that were replaced or deleted; None if a rewind is refused.
        timeout: the longest time of a transaction.
        conninfo: how to connect, without a password. Tasks have none.
        password: of the user; by default that of the environment or of the password file.
    """

    name: TableName
    location: str
    upsert: UpsertSettings | None
    undo: timedelta | None
    timeout: timedelta
    conninfo: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def for_tasks(self) -> PostgresSettings:
        """Returns the settings without everything that connects: tasks only stage rows."""
        return replace(self, conninfo="", password="")

    def shadow(self) -> PostgresSettings:
        """Returns the settings for the shadow table."""
        return replace(self, name=self.name.shadow, location=f"{self.location}{_SHADOW}")


def split_conninfo(conninfo: str, password: str) -> tuple[str, str, str]:
    """Returns a connection string without its password, the password, and the address for display.

    Raises:
        EnvironmentUnsupported: psycopg is not installed.
        JobDefinitionError: the string is malformed, or there are two passwords.
    """
    if find_spec("psycopg") is None:
        raise EnvironmentUnsupported(
            "a package for PostgreSQL is not installed",
            hint="install it on the driver: pip install 'stateflow[postgres]'",
            package="psycopg",
        )
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        options = conninfo_to_dict(conninfo)
    except ProgrammingError:
        # Without the reason, which may quote the password.
        raise JobDefinitionError(
            "the connection string is malformed", hint="use 'host=db dbname=flights user=etl' or a postgresql:// URL"
        ) from None
    found = str(options.pop("password", ""))
    if found and password:
        raise JobDefinitionError("the password is given twice", hint="give it as password=… or in the string")
    host, port, database = (str(options.get(name) or "") for name in ("host", "port", "dbname"))
    address = f"postgresql://{host}{f':{port}' if port else ''}/{database}"
    return make_conninfo("", **options), found or password, address
