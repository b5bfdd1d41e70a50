"""The catalog of an Iceberg sink: loads tables, and translates the errors of catalogs and storages."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, NotInstalledError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.config import Config

from stateflow.connectors.iceberg.settings import IcebergSettings
from stateflow.errors import EnvironmentUnsupported, SinkRefused, StateflowError, StorageError

_LONGEST_REASON = 500
_OF_PROTOCOL = frozenset(
    {"prefix", "warehouse", "namespace-separator", "view-endpoints-supported", "s3.region", "client.region"}
)
"""Properties of a REST catalog that its server sets."""
_KEYS = (
    frozenset({"s3.access-key-id", "s3.secret-access-key"}),
    frozenset({"client.access-key-id", "client.secret-access-key"}),
)
_VENDED = frozenset({"s3.session-token", "s3.region", "client.region", "client.session-token"}).union(*_KEYS)
_VENDED_PREFIXES = ("gcs.oauth2.token", "adls.sas-token")
"""Credentials that a REST catalog gives for a table."""
_ADDRESSES = frozenset({"s3.endpoint", "s3.force-virtual-addressing"})
"""Properties that it may choose as well if requests have credentials from it, and none from the operator."""


def refusal_of(metadata: TableMetadata) -> tuple[str, str] | None:
    """Returns why PyIceberg may not write to a table, and the property; None if it may.

    A table may be changed by others than those who run the job. It chooses neither code, which PyIceberg would import
    and call, nor where files go.
    """
    properties, location = metadata.properties, metadata.location.rstrip("/")
    if properties.get(TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL):
        return "it names code that would run", TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
    for name in (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH):
        if not is_below(properties.get(name) or f"{location}/", location):
            return "its files would be outside of its location", name
    head = metadata.current_snapshot()
    if head is not None and not is_below(head.manifest_list, location):
        return "its metadata is outside of its location", "manifest-list"
    return None


def is_below(path: str, location: str) -> bool:
    """Returns whether a path is below a location, both with a scheme or both without."""
    parts = path.removeprefix(f"{location}/").split("/") if path.startswith(f"{location}/") else [".."]
    return ".." not in parts and "." not in parts


def _guarded(catalog: Catalog, given: Mapping[str, str]) -> Catalog:
    """Returns a catalog whose tables choose neither code nor addresses nor credentials.

    PyIceberg merges the properties of a table, which each writer of it can set, into the properties of the storage.

    Args:
        given: the properties that the operator has given.
    """
    load_file_io = catalog._load_file_io  # noqa: SLF001 - PyIceberg has no option for it

    def of_catalog(properties: Mapping[str, str] = EMPTY_DICT, location: str | None = None) -> FileIO:
        return load_file_io(EMPTY_DICT, location)

    replaced: dict[str, object] = {"_load_file_io": of_catalog}
    if isinstance(catalog, RestCatalog):
        of_server = {name: value for name, value in catalog.properties.items() if name in _OF_PROTOCOL}
        catalog.properties = {**given, **of_server}

        def table_of(identifier: tuple[str, ...], answer: TableResponse) -> Table:
            resolve = catalog._resolve_storage_credentials  # noqa: SLF001 - as above
            credentials = resolve(answer.storage_credentials, answer.metadata_location)
            io = load_file_io(_vended({**answer.config, **credentials}), answer.metadata_location)
            return Table(identifier, answer.metadata, str(answer.metadata_location), io, catalog, answer.config)

        replaced["_response_to_table"] = table_of
    if isinstance(catalog, MetastoreCatalog):
        stage = catalog._update_and_stage_table  # noqa: SLF001 - as above

        def checked(current_table: Table | None, *more: Any) -> StagedTable:
            # PyIceberg reads the table again for the commit.
            if current_table is not None and (refusal := refusal_of(current_table.metadata)):
                raise SinkRefused(f"the Iceberg table cannot be written to: {refusal[0]}", property=refusal[1])
            return stage(current_table, *more)

        replaced["_update_and_stage_table"] = checked
    for name, function in replaced.items():
        setattr(catalog, name, function)
    return catalog


def _vended(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the credentials that a REST catalog has given, and addresses only together with keys."""
    found = {n: v for n, v in properties.items() if n in _VENDED or n.startswith(_VENDED_PREFIXES)}
    if any(keys <= found.keys() for keys in _KEYS):
        found |= {name: value for name, value in properties.items() if name in _ADDRESSES}
    return found


class Connection:
    """A catalog, which is opened when it is first used.

    Args:
        settings: the table and the catalog.
    """

    def __init__(self, settings: IcebergSettings) -> None:
        self.settings = settings

    @cached_property
    def _catalog(self) -> Catalog:
        configured = Config().get_catalog_config(self.settings.catalog) or {}
        given = {name: str(value) for name, value in configured.items()} | dict(self.settings.properties)
        return _guarded(load_catalog(self.settings.catalog, **dict(self.settings.properties)), given)

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
