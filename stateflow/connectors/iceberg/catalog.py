"""The catalog of an Iceberg sink: loads tables, commits snapshots, and translates errors of catalogs and storages.

A commit is one request to the catalog, on condition that the current snapshot is still the same. PyIceberg builds the
snapshot, but does not commit it: after a conflict, its transactions append the same files to the table as it then is,
whatever its token. They also delete the files of a commit that is reported as conflicting, which may nevertheless have
been made, if a proxy repeated the request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io import load_file_io as file_io_of
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID, SetSnapshotRefUpdate, TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import ManageSnapshots
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.config import Config
from pyiceberg.utils.properties import property_as_bool

from stateflow import failpoints
from stateflow.connectors.iceberg.snapshots import SnapshotToken
from stateflow.connectors.iceberg.target import IcebergSettings
from stateflow.errors import EnvironmentUnsupported, SinkRefused, StateflowError, StorageError

_logger = logging.getLogger(__name__)

_LONGEST_REASON = 500
_OF_PROTOCOL = frozenset({"prefix", "warehouse", "namespace-separator", "view-endpoints-supported"})
"""Properties of a REST catalog that its server sets."""
_REGIONS = frozenset({"s3.region", "client.region"})
"""Properties that it sets as well, if they are names: the name is a part of the address."""
_REGION = re.compile(r"[a-z0-9-]{1,63}")


@dataclass(frozen=True)
class _Vended:
    """Credentials that a REST catalog gives for a table, which replace the operator's for the same storage.

    Attributes:
        needed: properties, all of which it must give; for one of an account, a dot and its name follow.
        taken: beginnings of the properties that are taken from its answer.
        replaced: beginnings of the operator's properties that are dropped.
    """

    needed: tuple[str, ...]
    taken: tuple[str, ...]
    replaced: tuple[str, ...]


_PAIR = ("access-key-id", "secret-access-key")
_S3 = tuple(f"s3.{name}" for name in _PAIR)
_CLIENT = tuple(f"client.{name}" for name in _PAIR)
_OF_AWS = tuple(
    f"{prefix}.{name}"
    for prefix in ("s3", "client")
    for name in (*_PAIR, "session-token", "profile-name", "role-", "anonymous")
)
_OF_AZURE = tuple(
    f"adls.{name}"
    for name in ("account-key", "anon", "client-", "connection-string", "credential", "sas-token", "tenant-id", "token")
)
_ADDRESSES = ("s3.endpoint", "s3.force-virtual-addressing")
_CREDENTIALS = (
    _Vended(_CLIENT, (*_CLIENT, "client.session-token"), _OF_AWS),
    # After `client.*`, because PyIceberg prefers `s3.*`. An address needs both keys of `s3.*`: no request to it may be
    # signed with the operator's.
    _Vended(_S3, (*_S3, "s3.session-token", *_ADDRESSES), _OF_AWS),
    _Vended(("gcs.oauth2.token",), ("gcs.oauth2.token",), ("gcs.oauth2.",)),
    _Vended(("adls.sas-token",), ("adls.sas-token",), _OF_AZURE),
)


def refusal_of(table: Table) -> tuple[str, str] | None:
    """Returns why PyIceberg may not write to a table, and the property; None if it may.

    A table may be changed by others than those who run the job. It chooses neither code, which PyIceberg would import
    and call, nor where files are.
    """
    metadata = table.metadata
    properties, location = metadata.properties, metadata.location.rstrip("/")
    if properties.get(TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL):
        return "it names code that would run", TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL
    for name in (TableProperties.WRITE_DATA_PATH, TableProperties.WRITE_METADATA_PATH):
        if not is_below(properties.get(name) or f"{location}/", location):
            return "its files would be outside of its location, or reached through a link", name
    # The catalog names this file; all other places are named in it.
    if not is_below(table.metadata_location, location):
        return "its metadata is outside of its location, or is reached through a link", "metadata-location"
    head = metadata.current_snapshot()
    if head is not None and not is_below(head.manifest_list, location):
        return "its metadata is outside of its location, or is reached through a link", "manifest-list"
    return None


def is_below(path: str, location: str) -> bool:
    """Returns whether a path is below a location, and if it is local, reached without links."""
    if not path.startswith(f"{location}/"):
        return False
    parts = path.removeprefix(f"{location}/").split("/")
    return ".." not in parts and "." not in parts and not _leads_through_link(location, parts)


def _leads_through_link(location: str, parts: Iterable[str]) -> bool:
    """Returns whether a name below a local location is a link, or of a FIFO or the like, on which a reader waits."""
    scheme, _, place = PyArrowFileIO.parse_location(location)
    if scheme != "file":
        return False
    for part in parts:
        place = os.path.join(place, part)
        try:
            mode = os.lstat(place).st_mode
        except FileNotFoundError:
            return False
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            return True
    return False


class _TableIO(FileIO):
    """The storage of a table, for files below the table's location only.

    All names of files but one are in files that each writer of the table can write: lists of manifests, manifests and
    the log of metadata. With the operator's credentials, PyIceberg would read and delete what they name.

    Args:
        io: the storage.
        location: of the table.
    """

    def __init__(self, io: FileIO, location: str) -> None:
        super().__init__(io.properties)
        self._io = io
        self._location = location.rstrip("/")

    def new_input(self, location: str) -> InputFile:
        self._check(location)
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        self._check(location)
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        if not is_below(path, self._location):
            # An OSError, which PyIceberg logs: it deletes after a commit, which is made.
            raise PermissionError(f"outside of the table's location: {path}")
        self._io.delete(path)

    def _check(self, path: str) -> None:
        if not is_below(path, self._location):
            raise SinkRefused(
                "the Iceberg table names a file outside of its location, or reached through a link",
                hint="rewrite the table's manifests, replace the link by the file itself, or use another table",
                location=self._location,
                file=path,
            )


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
        catalog.properties = {**given, **of_server, **_regions(catalog.properties)}

        def table_of(identifier: tuple[str, ...], answer: TableResponse) -> Table:
            resolve = catalog._resolve_storage_credentials  # noqa: SLF001 - as above
            credentials = resolve(answer.storage_credentials, answer.metadata_location)
            own = load_file_io(EMPTY_DICT, answer.metadata_location).properties
            properties = _with_vended(own, {**answer.config, **credentials})
            io = file_io_of(properties, answer.metadata_location)
            return Table(identifier, answer.metadata, str(answer.metadata_location), io, catalog, answer.config)

        replaced["_response_to_table"] = table_of
    if isinstance(catalog, MetastoreCatalog):
        stage = catalog._update_and_stage_table  # noqa: SLF001 - as above

        def checked(current_table: Table | None, *more: Any) -> StagedTable:
            # PyIceberg reads the table again for the commit.
            if current_table is not None and (refusal := refusal_of(current_table)):
                raise SinkRefused(f"the Iceberg table cannot be written to: {refusal[0]}", property=refusal[1])
            return stage(current_table, *more)

        replaced["_update_and_stage_table"] = checked
    for name, function in replaced.items():
        setattr(catalog, name, function)
    return catalog


def _regions(answer: Mapping[str, object]) -> dict[str, str]:
    return {n: v for n, v in answer.items() if n in _REGIONS and isinstance(v, str) and _REGION.fullmatch(v)}


def _with_vended(own: Mapping[str, object], answer: Mapping[str, str]) -> dict[str, object]:
    """Returns the operator's properties with the credentials that a REST catalog has given for a table.

    No request has credentials of both: the answer would otherwise choose where the operator's are used.
    """
    found: dict[str, object] = {**own, **_regions(answer)}
    given = {name: value for name, value in answer.items() if value}
    for each in _CREDENTIALS:
        if all(any(name == n or name.startswith(f"{n}.") for name in given) for n in each.needed):
            found = {name: value for name, value in found.items() if not name.startswith(each.replaced)}
            found |= {name: value for name, value in given.items() if name.startswith(each.taken)}
    return found


class CatalogConnection:
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
                table = self._catalog.load_table(self.settings.name)
            except NoSuchTableError:
                return None
            table.io = _TableIO(table.io, table.location())
            return table

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


@dataclass(frozen=True)
class NewSnapshot:
    """A new snapshot.

    Attributes:
        token: the entries of its summary about the sink.
        files: the data files that it adds.
        base: id of the snapshot whose content it has otherwise; None for the current content.
    """

    token: SnapshotToken
    files: Sequence[DataFile] = ()
    base: int | None = None


class TableCommit:
    """A change of a table, which is made once or not at all.

    Args:
        connection: the catalog.
        table: the table as it was read; another current snapshot is a conflict.
        change: the change.
    """

    def __init__(self, connection: CatalogConnection, table: Table, change: NewSnapshot) -> None:
        self._connection = connection
        self._table = table
        transaction = _Transaction(_with_merges(table))
        if change.base is not None:
            # The first condition of a transaction counts: that the current snapshot is the one that was read.
            ManageSnapshots(transaction).set_current_snapshot(change.base)
        producer = transaction.update_snapshot(snapshot_properties=change.token.summary()).merge_append()
        for file in change.files:
            producer.append_data_file(file)
        producer.commit()
        transaction.set_properties(change.token.properties())
        self._snapshot_id = producer.snapshot_id
        self._written = transaction.table_metadata.snapshot_by_id(self._snapshot_id)
        self._updates = tuple(_with_retention(update, table.metadata) for update in transaction.updates)
        self._requirements = (*transaction.requirements, AssertTableUUID(uuid=table.metadata.table_uuid))

    def make(self) -> int | None:
        """Sends the commit. Returns the version of the new snapshot; None if the table has changed.

        Raises:
            StorageError: the commit was not made, as far as the catalog has answered.
        """
        failpoints.hit("iceberg.before-commit")
        try:
            with self._connection.errors():
                return self._send()
        except StorageError:
            # The answer may have been lost.
            version = self._version_in(self._connection.find_table())
            if version is None:
                raise
            return version

    def _send(self) -> int | None:
        try:
            response = self._table.catalog.commit_table(self._table, self._requirements, self._updates)
        except (CommitFailedException, NoSuchTableError):
            return self._after_conflict()
        _remove_old_metadata(self._table, response.metadata)
        return self._version_of(response.metadata)

    def _after_conflict(self) -> int | None:
        found = self._connection.find_table()
        version = self._version_in(found)
        if version is None and found is not None and head_of(found.metadata) != head_of(self._table.metadata):
            # The condition no longer holds, so that no request can still succeed.
            self._remove_manifests()
        return version

    def _remove_manifests(self) -> None:
        assert self._written is not None
        manifests = self._written.manifests(self._table.io)
        own = [m.manifest_path for m in manifests if m.added_snapshot_id == self._snapshot_id]
        remove_files(self._table.io, [*own, self._written.manifest_list])

    def _version_in(self, table: Table | None) -> int | None:
        return self._version_of(table.metadata) if table else None

    def _version_of(self, metadata: TableMetadata) -> int | None:
        snapshot = metadata.snapshot_by_id(self._snapshot_id)
        return snapshot.sequence_number if snapshot else None


class _Transaction(Transaction):
    """A transaction whose updates are not committed by itself."""

    @property
    def updates(self) -> tuple[TableUpdate, ...]:
        return self._updates

    @property
    def requirements(self) -> tuple[TableRequirement, ...]:
        return self._requirements


def head_of(metadata: TableMetadata) -> int | None:
    """Returns the id of the current snapshot; None without one."""
    snapshot: Snapshot | None = metadata.current_snapshot()
    return snapshot.snapshot_id if snapshot else None


def remove_files(io: FileIO, paths: Iterable[str]) -> None:
    """Deletes files that nothing refers to; one that cannot be deleted is logged."""
    for path in paths:
        try:
            io.delete(path)
        except FileNotFoundError:
            pass
        except Exception as e:
            # Of any class: each storage has errors of its own.
            _logger.warning("a file that no snapshot has cannot be deleted: file=%s reason=%s", path, e)


def _with_merges(table: Table) -> Table:
    """Returns the table with the default of Iceberg's other writers, which merge small manifests."""
    properties = {TableProperties.MANIFEST_MERGE_ENABLED: "true", **table.properties}
    metadata = table.metadata.model_copy(update={"properties": properties})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)


def _with_retention(update: TableUpdate, metadata: TableMetadata) -> TableUpdate:
    """Returns an update that keeps the retention settings of the branch, which PyIceberg removes."""
    branch = metadata.refs.get(update.ref_name) if isinstance(update, SetSnapshotRefUpdate) else None
    if branch is None:
        return update
    names = ("max_ref_age_ms", "max_snapshot_age_ms", "min_snapshots_to_keep")
    return update.model_copy(update={name: getattr(branch, name) for name in names})


def _remove_old_metadata(table: Table, now: TableMetadata) -> None:
    """Deletes metadata files that the commit has dropped from the table's log, if the table's properties say so."""
    name = TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED
    if property_as_bool(now.properties, name, TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED_DEFAULT):
        kept = {entry.metadata_file for entry in now.metadata_log}
        old = {entry.metadata_file for entry in table.metadata.metadata_log} - kept
        # The log is part of the table's metadata, which could name any file.
        folder = table.metadata_location.rpartition("/")[0]
        remove_files(table.io, (file for file in sorted(old) if file.rpartition("/")[0] == folder))
