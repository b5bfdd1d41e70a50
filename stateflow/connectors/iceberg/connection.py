"""The catalog of an Iceberg sink: loads tables, and translates the errors of catalogs and storages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError, TableAlreadyExistsError
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from stateflow.connectors.iceberg.settings import IcebergSettings
from stateflow.errors import EnvironmentUnsupported, StateflowError, StorageError

_LONGEST_REASON = 500


class Connection:
    """A catalog, which is opened when it is first used.

    Args:
        settings: the table and the catalog.
    """

    def __init__(self, settings: IcebergSettings) -> None:
        self.settings = settings

    @cached_property
    def _catalog(self) -> Catalog:
        return load_catalog(self.settings.catalog, **dict(self.settings.properties))

    def find_table(self) -> Table | None:
        """Returns the table as it is now; None if it does not exist. Raises StorageError."""
        with self.errors():
            try:
                return self._catalog.load_table(self.settings.name)
            except NoSuchTableError:
                return None

    def has_namespace(self) -> bool:
        """Returns whether the namespace of the table exists. Raises StorageError."""
        with self.errors():
            return bool(self._catalog.namespace_exists(self.settings.name[:-1]))

    def create_table(self, schema: Schema, spec: PartitionSpec, properties: dict[str, str]) -> None:
        """Creates the table, unless another process creates it first. Raises StorageError."""
        with self.errors(), contextlib.suppress(TableAlreadyExistsError):
            self._catalog.create_table(self.settings.name, schema, partition_spec=spec, properties=properties)

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Translates the errors of catalogs and storages, whose libraries have no common class of errors.

        Raises:
            EnvironmentUnsupported: the catalog needs a package that is not installed.
            StorageError: anything else failed.
        """
        try:
            yield
        except StateflowError:
            raise
        except (NotInstalledError, ModuleNotFoundError) as e:
            raise EnvironmentUnsupported(
                "a package for the Iceberg catalog is not installed",
                hint="install it on the driver, for example pip install 'pyiceberg[sql-postgres]'",
                catalog=self.settings.catalog,
                reason=self._reason(e),
            ) from e
        except NoSuchNamespaceError as e:
            raise StorageError(
                "the namespace of an Iceberg table no longer exists", table=self.settings.location
            ) from e
        except Exception as e:
            raise StorageError(
                "the Iceberg catalog or its storage failed or did not respond",
                hint="check the catalog, its properties, and the credentials of its storage",
                table=self.settings.location,
                reason=self._reason(e),
            ) from e

    def _reason(self, error: Exception) -> str:
        text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        return self.settings.without_secrets(text)[:_LONGEST_REASON]
