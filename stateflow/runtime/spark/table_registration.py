"""Registers the tables of sinks in the catalog of a Spark session, under the names that the sinks declare.

The path of a table remains its identity: output is published, and a restore is planned, without a catalog. A name is an
entry by which readers find the path, so it is never changed or dropped here.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession

from stateflow.api.sink import CatalogEntry, Sink
from stateflow.errors import ConfigError, StorageError

_EXTENSIONS = "spark.sql.extensions"
_CATALOG = "spark.sql.catalog."
_SESSION_CATALOG = "spark_catalog"
_IMPLEMENTATION = "spark.sql.catalogImplementation"
_IN_MEMORY = "in-memory"
_REQUIRED_EXTENSIONS = {"delta": "io.delta.sql.DeltaSparkSessionExtension"}
"""The extension that a session needs for each format of tables."""
_NO_FOLDER = "DELTA_PATH_DOES_NOT_EXIST"
_FILE = re.compile(r"^file:(//)?(?=/)")

log = logging.getLogger(__name__)


def check_entry(session: SparkSession, entry: CatalogEntry) -> None:
    """Checks that a table can be registered, or is; changes nothing.

    Raises:
        ConfigError: the session has no catalog for such tables, or no such schema; or the name exists, and is that of
            another table or of a view.
        StorageError: the catalog did not respond.
    """
    _check_settings(session, entry)
    with _translate_errors(entry):
        if _is_registered(session, entry):
            return
        schema = _quoted(entry.name[:-1])
        if not session.catalog.databaseExists(schema):
            raise ConfigError(
                "the schema of a name in the catalog does not exist",
                hint=f"CREATE SCHEMA {schema}, or choose another name",
                name=entry.text,
            )


def register(session: SparkSession, entry: CatalogEntry) -> None:
    """Registers an existing table under its name, unless it is registered.

    May be repeated, and be done by several processes at the same time.

    Raises:
        ConfigError: another table or a view has the name.
        StorageError: the catalog did not respond, or refused the entry.
    """
    with _translate_errors(entry):
        if _is_registered(session, entry):
            return
        try:
            session.catalog.createTable(_quoted(entry.name), path=entry.location, source=entry.provider)
        except AnalysisException:
            # Another process may have created the entry in between.
            if not _is_registered(session, entry):
                raise
            return
    log.info("registered a table: name=%s table=%s", entry.text, entry.location)


def register_tables(session: SparkSession, sinks: Iterable[Sink]) -> None:
    """Registers the existing tables of the sinks that declare a name; raises as `register` does."""
    for sink in sinks:
        if sink.catalog_entry is not None:
            register(session, sink.catalog_entry)


def warn_of_lost_names(session: SparkSession, entries: Iterable[CatalogEntry]) -> list[str]:
    """Returns a warning for each name that ends with the session, because its catalog is in memory."""
    if session.conf.get(_IMPLEMENTATION, _IN_MEMORY) != _IN_MEMORY:
        return []
    return [
        f"the name {entry.text} ends with the run: the catalog of the session is in memory. Use a metastore, such as "
        f"Hive's with {_IMPLEMENTATION}=hive"
        for entry in entries
        if _catalog_of(entry) == _SESSION_CATALOG
    ]


def _check_settings(session: SparkSession, entry: CatalogEntry) -> None:
    extension = _REQUIRED_EXTENSIONS.get(entry.provider)
    catalog = f"{_CATALOG}{_catalog_of(entry)}"
    given = (session.conf.get(_EXTENSIONS, None) or "").split(",")
    missing = [f"{_EXTENSIONS}={extension}"] if extension and extension not in map(str.strip, given) else []
    missing += [] if session.conf.get(catalog, None) else [catalog]
    if missing:
        raise ConfigError(
            "the Spark session has no catalog for the table of a sink",
            hint="set spark.conf.* as described in docs/guides/write-by-key.md, or omit register_as",
            name=entry.text,
            missing=missing,
        )


def _is_registered(session: SparkSession, entry: CatalogEntry) -> bool:
    """Returns whether the name is that of the table; False if there is no such name.

    Raises:
        ConfigError: the name is that of something else.
    """
    name = _quoted(entry.name)
    try:
        if not session.catalog.tableExists(name):
            return False
        rows = session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except AnalysisException as e:
        if e.getCondition() != _NO_FOLDER:
            raise
        # The folder of a registered table does not exist: it may be the one that the sink will create.
        facts = {"Location": (e.getMessageParameters() or {}).get("path", ""), "Provider": "delta"}
    else:
        facts = {row.col_name: row.data_type for row in _details(rows)}
    location, provider = facts.get("Location", ""), facts.get("Provider", facts.get("Type", ""))
    if provider != entry.provider or not _is_same_path(location, entry.location):
        raise ConfigError(
            "a name in the catalog belongs to something else than the table of the sink",
            hint="choose another name, or drop that one after you have checked what it is",
            name=entry.text,
            table=entry.location,
            found=location or "no location",
            kind=provider,
        )
    return True


def _details(rows: list[Row]) -> Iterator[Row]:
    """Yields the rows of a description that follow those of the columns, which may have any names."""
    found = iter(rows)
    for row in found:
        if row.col_name.startswith("# Detailed"):
            yield from found


def _is_same_path(found: str, table: str) -> bool:
    path = _FILE.sub("", found)
    # Catalogs differ in whether a location is a URI.
    return os.path.realpath(table) in {os.path.realpath(path), os.path.realpath(unquote(path))} if path else False


def _catalog_of(entry: CatalogEntry) -> str:
    return entry.name[0] if len(entry.name) > 2 else _SESSION_CATALOG


def _quoted(name: tuple[str, ...]) -> str:
    # Parts have letters, digits, "_" and "-" only.
    return ".".join(f"`{part}`" for part in name)


@contextmanager
def _translate_errors(entry: CatalogEntry) -> Iterator[None]:
    try:
        yield
    except PySparkException as e:
        raise StorageError(
            "the catalog of the Spark session did not do what a sink needs",
            hint="check the catalog and the permissions of the job's user in it, or omit register_as",
            name=entry.text,
            table=entry.location,
            reason=f"{e.getCondition() or type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}"[:1000],
        ) from e
