"""Keys that other programs have stored and that cannot be addressed: what lists them names the key and the fix."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from stateflow import DeltaSink, DeltaSource, FileSink
from stateflow.api.file_log import BatchLimits, BatchPlanner, StoredFiles
from stateflow.api.sink import Sink
from stateflow.checkpoint.log.job_root import check_vacant
from stateflow.errors import DataError
from stateflow.storage import open_storage
from tests.servers import s3
from tests.servers.google import google_server
from tests.servers.running import azure_request, azure_server, variables_of
from tests.support.delta_reads import batches_of
from tests.support.delta_tables import Pair, context, put
from tests.support.errors import raises

_ABOUT = context(Pair)
Change = Callable[[str, bytes | None], None]
"""Stores an object under a key, whatever it is, or deletes it, as another program does."""


class _OddS3(s3.Handler):
    """Also lists keys that a folder cannot have."""

    odd: dict[str, Path]
    """The content of each."""

    def _list_entries(self, bucket_dir: Path, prefix: str, delimiter: str, *more: Any) -> Any:
        contents, prefixes, *rest = super()._list_entries(bucket_dir, prefix, delimiter, *more)
        for key in (key for key in self.odd if key.startswith(prefix)):
            folder, is_below, _ = key.removeprefix(prefix).partition("/")
            if delimiter and is_below:
                prefixes.append(f"{prefix}{folder}/")
            else:
                contents.append((key, self.odd[key]))
        return contents, prefixes, *rest


@contextmanager
def _s3(folder: Path) -> Iterator[tuple[str, Mapping[str, str], Change]]:
    bucket, odd = folder / "bucket", dict[str, Path]()
    bucket.mkdir(parents=True)

    def change(key: str, content: bytes | None) -> None:
        if "//" not in key:
            (bucket / key).parent.mkdir(exist_ok=True)
            (bucket / key).write_bytes(content or b"")
        elif content is None:
            del odd[key]
        else:
            odd[key] = folder / "odd"
            odd[key].write_bytes(content)

    handler = type("OddS3", (_OddS3,), {"data_root": folder.resolve(), "odd": odd})
    with s3.Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield "s3://bucket", variables_of(f"http://127.0.0.1:{server.server_port}"), change
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _azure(folder: Path) -> Iterator[tuple[str, Mapping[str, str], Change]]:
    with azure_server(folder, "container") as variables:

        def change(key: str, content: bytes | None) -> None:
            server, path = variables["AZURE_ENDPOINT"], f"container/{key}"
            if content is None:
                azure_request(server, "DELETE", path).raise_for_status()
            else:
                azure_request(server, "PUT", path, content=content, x_ms_blob_type="BlockBlob").raise_for_status()

        yield "az://container", variables, change


@contextmanager
def _google(_: Path) -> Iterator[tuple[str, Mapping[str, str], Change]]:
    objects: dict[str, bytes] = {}
    with google_server(objects) as variables:

        def change(key: str, content: bytes | None) -> None:
            if content is None:
                del objects[f"/bucket/{key}"]
            else:
                objects[f"/bucket/{key}"] = content

        yield "gs://bucket", variables, change


def _sweep(sink: Sink) -> None:
    """As a run does at its start."""
    sink.begin_run(_ABOUT, 2)
    sink.sweep(_ABOUT, lambda *_: True)


def _plan(address: str, log: Path) -> list[str]:
    """Plans the next batch of a source, and returns the files that it lists."""
    files = StoredFiles(f"{address}/in")
    assert BatchPlanner(files, BatchLimits(), log).next_entry(-1) == 0
    return [file.path for file in files.list()]


@pytest.mark.long(reason="starts servers")
@pytest.mark.parametrize("serve", [_s3, _azure, _google])
def test_a_key_that_cannot_be_addressed_is_an_error_with_the_fix_and_nothing_is_passed_over(
    serve: Callable[[Path], AbstractContextManager[tuple[str, Mapping[str, str], Change]]], tmp_path: Path
) -> None:
    with serve(tmp_path / "server") as (address, variables, change), patch.dict(os.environ, variables):
        files, table = FileSink(f"{address}/files", format="json"), DeltaSink(f"{address}/table")
        source, written = DeltaSource(f"{address}/table", schema=Pair), [Pair(1, "a"), Pair(2, "b")]
        for sink in (files, table):
            sink.prepare(_ABOUT)
            put(sink, _ABOUT, 1, written)
        change("in/a.json", b'{"id": 1}\n')
        uses: dict[str, tuple[str, Callable[[], object]]] = {
            "in//b.json": (address, lambda: _plan(address, tmp_path / "log")),
            "files//x": (f"{address}/files", lambda: _sweep(files)),
            "table//x": (f"{address}/table", lambda: _sweep(table)),
            "table/_delta_log//x": (f"{address}/table", lambda: list(batches_of(source))),
            "job/log//x": (f"{address}/job", lambda: check_vacant(open_storage(f"{address}/job"))),
        }
        for key, (storage, use) in uses.items():
            change(key, b'{"id": 2}\n')
            with raises(DataError, storage=storage, bucket=address) as refused:
                use()
            # A list of a folder names the folder with the empty name.
            assert key.startswith(str(refused.value.facts["key"])) and "rename or delete" in refused.value.hint
            change(key, None)
            use()
        assert _plan(address, tmp_path / "other") == [f"{address}/in/a.json"]
        read = [row for _, batch in batches_of(source) for row in batch.to_pylist()]
        assert read == [msgspec.structs.asdict(row) for row in written]
