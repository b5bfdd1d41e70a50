"""Which table an Iceberg sink writes, and how it connects to the catalog. Secrets stay on the driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Literal

from stateflow.api.datasets import Dataset
from stateflow.errors import EnvironmentUnsupported, JobDefinitionError
from stateflow.storage.locations import without_secrets

SchemaEvolution = Literal["refuse", "add-columns"]
REFUSE: SchemaEvolution = "refuse"
ADD_COLUMNS: SchemaEvolution = "add-columns"
_SHADOW = "_shadow"
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]+@")
_SECRET = re.compile(r"secret|password|token|credential|key|account|header|auth", re.IGNORECASE)
_HIDDEN = "…"


@dataclass(frozen=True)
class IcebergSettings:
    """Settings of a sink.

    Attributes:
        name: namespaces and name of the table.
        catalog: name of the catalog.
        schema_evolution: what happens to columns that only the row class has.
        partition_by: the partitions of a new table.
        properties: how to connect to the catalog, in addition to PyIceberg's configuration. Tasks have none.
    """

    name: tuple[str, ...]
    catalog: str
    schema_evolution: SchemaEvolution
    partition_by: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def location(self) -> str:
        """The name of the table with its catalog's, as Spark has it."""
        return ".".join((self.catalog, *self.name))

    @property
    def dataset(self) -> Dataset:
        """The table as lineage events name it: in the namespace of its catalog's address, if that is known."""
        address = dict(self.properties).get("uri", "")
        namespace = without_secrets(address).rstrip("/") if "://" in address else f"iceberg://{self.catalog}"
        return Dataset(namespace, ".".join(self.name), kind="TABLE", storage="iceberg", file_format="parquet")

    def for_tasks(self) -> IcebergSettings:
        """Returns the settings without everything that connects: tasks only stage rows."""
        return replace(self, properties=())

    def shadow(self) -> IcebergSettings:
        """Returns the settings for the shadow table."""
        return replace(self, name=(*self.name[:-1], f"{self.name[-1]}{_SHADOW}"))

    def without_secrets(self, text: str) -> str:
        """Returns a message of the catalog without logins of addresses and values of secret properties."""
        for name, value in self.properties:
            if _SECRET.search(name) and value:
                text = text.replace(value, _HIDDEN)
        return _USER_OF_URL.sub(f"{_HIDDEN}@", text)


def parse_name(text: str) -> tuple[str, ...]:
    """Returns the parts of a name such as ``namespace.table``. Raises JobDefinitionError."""
    parts = tuple(text.split("."))
    if len(parts) < 2 or not all(part and part.isprintable() and part.strip() == part for part in parts):
        raise JobDefinitionError(
            "the name of an Iceberg table is not valid", hint="use namespace.table, without the catalog", table=text
        )
    return parts


def require_pyiceberg() -> None:
    """Raises EnvironmentUnsupported without PyIceberg, which the driver needs; tasks only stage rows."""
    if find_spec("pyiceberg") is None:
        raise EnvironmentUnsupported(
            "a package for Iceberg tables is not installed",
            hint="install it on the driver: pip install 'stateflow[iceberg]'",
            package="pyiceberg",
        )
