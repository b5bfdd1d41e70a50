"""Tables and servers that would choose code, addresses or credentials for the driver of an Iceberg sink."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import write_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table.locations import SimpleLocationProvider
from pyiceberg.types import LongType, NestedField, StringType

from stateflow.connectors.iceberg.catalog import CatalogConnection
from stateflow.connectors.iceberg.target import IcebergSettings
from stateflow.errors import SinkRefused
from tests.support.delta_tables import Pair, pairs, snapshot
from tests.support.errors import raises
from tests.support.iceberg_tables import IcebergTable, catalog_in

_CALLS: list[str] = []
_HERE = "tests.connectors.test_iceberg_attacks"
_EVIL = {
    "s3.endpoint": "http://evil.invalid",
    "s3.access-key-id": "evil",
    "s3.proxy-uri": "http://evil.invalid",
    "py-io-impl": f"{_HERE}.EvilIO",
}


class EvilIO(PyArrowFileIO):
    def __init__(self, properties: Any = None) -> None:
        _CALLS.append("io")
        super().__init__(properties or {})


class EvilProvider(SimpleLocationProvider):
    def __init__(self, location: str, properties: Any) -> None:
        _CALLS.append("provider")
        super().__init__(location, properties)


@pytest.fixture
def table(tmp_path: Path) -> IcebergTable:
    return IcebergTable.create(tmp_path, Pair)


def _plant(table: IcebergTable, properties: dict[str, str]) -> None:
    fields = [NestedField(1, "id", LongType(), required=False), NestedField(2, "text", StringType(), required=False)]
    catalog_in(table.folder / "lake").create_table(table.name, Schema(*fields), properties=properties)
    _CALLS.clear()


def test_properties_of_a_table_reach_neither_its_storage_nor_its_code(table: IcebergTable) -> None:
    _plant(table, _EVIL)
    table.prepare().put(1, pairs(0, 2))
    handle = table.sink.open_table(table.about)
    assert handle.rewind(handle.plan_rewind(0).to_version, 2) is not None
    assert _CALLS == []
    found = table.sink._connection.find_table()
    assert found is not None and not found.io.properties.keys() & _EVIL.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.py-location-provider.impl", f"{_HERE}.EvilProvider"),
        ("write.data.path", "s3://evil/data"),
        ("write.metadata.path", "file:///tmp/elsewhere"),
        ("write.data.path", "{location}/../other"),
    ],
)
def test_a_table_that_chooses_code_or_other_places_is_refused_also_between_two_steps(
    table: IcebergTable, name: str, value: str
) -> None:
    table.prepare()
    handle, files = table.sink.open_table(table.about), table.stage(1, pairs(0, 1))
    value = value.format(location=table.table.location())
    with table.table.transaction() as transaction:
        transaction.set_properties({name: value})
    _CALLS.clear()
    with raises(SinkRefused, property=name):
        handle.commit(1, files)
    for act in (table.sink.check, table.sink.prepare, table.sink.open_table):
        with raises(SinkRefused, property=name):
            act(table.about)
    assert _CALLS == []


def _path(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


def _forge(table: IcebergTable, change: Callable[[dict[str, Any]], None]) -> None:
    """Writes the newest metadata file again, as a writer of the table's folder can."""
    path = _path(table.table.metadata_location)
    metadata = json.loads(path.read_text())
    change(metadata)
    path.write_text(json.dumps(metadata))


def test_metadata_that_a_catalog_finds_outside_of_the_table_is_refused(table: IcebergTable) -> None:
    table.prepare()
    moved = shutil.copy(_path(table.table.metadata_location), table.folder / "00007-x.metadata.json")
    with closing(sqlite3.connect(table.folder / "lake" / "catalog.db")) as catalog, catalog:
        catalog.execute("UPDATE iceberg_tables SET metadata_location = ?", (f"file://{moved}",))
    for act in (table.sink.check, table.sink.prepare, table.sink.open_table):
        with raises(SinkRefused, property="metadata-location"):
            act(table.about)


@pytest.mark.parametrize("folder", ["data", "metadata"])
def test_a_linked_folder_of_a_table_gets_no_files(table: IcebergTable, folder: str) -> None:
    table.prepare().put(1, pairs(0, 1))
    handle, files = table.sink.open_table(table.about), table.stage(2, pairs(1, 1))
    place, outside = _path(table.table.location()) / folder, table.folder / "outside"
    place.rename(outside)
    place.symlink_to(outside)
    before = snapshot(outside)
    with raises(SinkRefused):
        handle.commit(2, files)
    assert snapshot(outside) == before


@pytest.mark.parametrize("kind", ["link", "FIFO"])
def test_a_list_of_manifests_that_is_not_a_regular_file_is_not_read(table: IcebergTable, kind: str) -> None:
    table.prepare().put(1, pairs(0, 1))
    head = table.table.current_snapshot()
    assert head is not None
    place = _path(head.manifest_list)
    moved = place.rename(table.folder / "list.avro")
    place.symlink_to(moved) if kind == "link" else os.mkfifo(place)
    for act in (table.sink.check, table.sink.prepare, table.sink.open_table):
        with raises(SinkRefused, property="manifest-list"):
            act(table.about)


def test_a_rewind_reads_no_snapshot_outside_of_the_table(table: IcebergTable) -> None:
    table.prepare().put(1, pairs(0, 1))
    table.put(2, pairs(1, 1))
    outside = f"file://{table.folder}/list.avro"

    def move(metadata: dict[str, Any]) -> None:
        for each in metadata["snapshots"]:
            if each["snapshot-id"] != metadata["current-snapshot-id"]:
                shutil.copy(_path(each["manifest-list"]), _path(outside))
                each["manifest-list"] = outside

    version = table.sink.open_table(table.about).plan_rewind(1).to_version
    _forge(table, move)
    handle = table.sink.open_table(table.about)
    with raises(SinkRefused, file=outside):
        handle.plan_rewind(1)
    with raises(SinkRefused, file=outside):
        handle.rewind(version, 3)


def test_a_commit_reads_no_manifest_outside_of_the_table(table: IcebergTable) -> None:
    table.prepare().put(1, pairs(0, 1))
    found = table.table
    head, outside = found.current_snapshot(), f"file://{table.folder}/manifest.avro"
    assert head is not None
    manifests = head.manifests(found.io)
    shutil.copy(_path(manifests[0].manifest_path), _path(outside))
    manifests[0]._data[0] = outside
    list_file = found.io.new_output(head.manifest_list)
    with write_manifest_list(2, list_file, head.snapshot_id, head.parent_snapshot_id, 2, "deflate") as written:
        written.add_manifests(manifests)
    _forge(table, lambda metadata: metadata["properties"].update({"commit.manifest.min-count-to-merge": "0"}))
    files, before = table.stage(2, pairs(1, 1)), table.data_files()
    with raises(SinkRefused, file=outside):
        table.sink.open_table(table.about).commit(2, files)
    assert table.data_files() == before


class Triple(Pair):
    more: int | None = None


def test_added_columns_delete_no_file_outside_of_the_table(table: IcebergTable) -> None:
    table.prepare()
    other = table.folder / "precious"
    other.write_text("x")

    def log(metadata: dict[str, Any]) -> None:
        metadata["metadata-log"] = [{"timestamp-ms": 1, "metadata-file": f"file://{other}"}]
        metadata["properties"] |= {
            "write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"
        }  # fmt: skip

    _forge(table, log)
    table.of(Triple, schema_evolution="add-columns").prepare()
    assert "more" in table.table.schema().column_names
    assert other.exists()


# -- REST catalogs -----------------------------------------------------------------------------------------------------


@contextmanager
def _server(answers: dict[str, Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path.partition("?")[0]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


_OWN = {
    "s3.access-key-id": "own", "s3.secret-access-key": "own", "s3.session-token": "own", "client.role-arn": "own",
    "gcs.oauth2.token": "own", "adls.account-key": "own", "adls.client-secret": "own", "adls.account-name": "own",
}  # fmt: skip
_PAIR = ("access-key-id", "secret-access-key")
_OF_STORES = {"gcs.oauth2.token-expires-at": "9", "adls.sas-token-expires-at-ms.evil": "9"}


@pytest.mark.parametrize(
    ("vended", "replaced", "has_address"),
    [
        ({}, (), False),
        ({f"s3.{name}": "vended" for name in _PAIR}, ("s3.", "client."), True),
        ({f"client.{name}": "vended" for name in _PAIR}, ("s3.", "client."), False),
        ({"s3.access-key-id": "vended", "client.secret-access-key": "vended"}, (), False),
        ({"s3.session-token": "vended", **_OF_STORES}, (), False),
        ({"gcs.oauth2.token": "vended"}, ("gcs.",), False),
        ({"adls.sas-token.evil": "vended"}, ("adls.account-key", "adls.client-secret"), False),
    ],
    ids=["nothing", "s3", "client", "halves", "tokens", "gcs", "adls"],
)
def test_credentials_of_a_rest_catalog_are_used_alone_and_its_address_only_with_them(
    table: IcebergTable, vended: dict[str, str], replaced: tuple[str, ...], has_address: bool
) -> None:
    _plant(table, {**_EVIL, "s3.session-token": "of the table"})
    loaded = table.table
    config = {"s3.endpoint": "http://vended.invalid", "py-io-impl": f"{_HERE}.EvilIO", "s3.region": "r", **vended}
    metadata = json.loads(loaded.metadata.model_dump_json(by_alias=True))
    answers = {
        "/v1/config": {
            "defaults": {"s3.region": "d", "client.region": "x@evil.invalid/"},
            "overrides": {**_EVIL, "prefix": "p"},
        },
        "/v1/p/namespaces/db/tables/t": {
            "metadata-location": loaded.metadata_location,
            "metadata": metadata,
            "config": config,
        },
    }
    _CALLS.clear()
    with _server(answers) as uri:
        given = {"type": "rest", "uri": uri, **_OWN}
        settings = IcebergSettings(("db", "t"), "rest", "refuse", properties=tuple(given.items()))
        found = CatalogConnection(settings).find_table()
    assert found is not None and _CALLS == []
    properties = found.io.properties
    kept = {name: value for name, value in _OWN.items() if not (replaced and name.startswith(replaced))}
    used = {name: value for name, value in properties.items() if value in ("own", "vended", "9")}
    assert used == {**kept, **(vended if replaced else {})}
    assert properties.get("s3.endpoint") == ("http://vended.invalid" if has_address else None)
    assert properties["s3.region"] == "r"
    assert not properties.keys() & {"py-io-impl", "s3.proxy-uri", "client.region"}
