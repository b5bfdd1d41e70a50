"""A server for each kind of object storage, and copies of local folders in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit

import pytest

from stateflow.storage import Storage, open_storage
from tests.servers.faults import Faults, ProxyHandler, fault_proxy
from tests.servers.google import google_server
from tests.servers.hdfs import webhdfs_server
from tests.servers.running import azure_server, s3_server

Serve = Callable[[Path], AbstractContextManager[tuple[str, dict[str, str]]]]
"""Runs a server in a folder; yields the address of a bucket, and the environment variables of its clients."""


@contextmanager
def serve_s3(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with s3_server(folder, "bucket") as variables:
        yield "s3://bucket", variables


@contextmanager
def serve_azure(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with azure_server(folder, "container") as variables:
        yield "az://container", variables


@contextmanager
def serve_google(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with google_server({}) as variables:
        yield "gs://bucket", variables


@contextmanager
def serve_hdfs(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    with webhdfs_server(folder, "token") as address:
        server = f"web{address.replace('http', 'hdfs')}"
        yield f"{server}/own", {"WEBHDFS_TOKEN": "token", "WEBHDFS_NAMENODES": server}


EACH_STORE = [
    serve_s3,
    pytest.param(serve_azure, marks=pytest.mark.long(reason="starts a server of Azure's API")),
    serve_google,
    serve_hdfs,
]


@contextmanager
def bucket_of(serve: Serve, folder: Path) -> Iterator[str]:
    """Runs a server, for whose bucket the environment has credentials; yields the address of the bucket."""
    with serve(folder) as (address, variables), mock.patch.dict("os.environ", variables):
        yield address


@contextmanager
def behind_faults(
    variables: Mapping[str, str], faults: Faults, handler: type[ProxyHandler] | None = None
) -> Iterator[dict[str, str]]:
    """Runs a proxy with faults in front of a server of S3 or Azure; yields the environment variables of its clients.

    Args:
        variables: of clients of the server.
        faults: what the proxy injects.
        handler: injects them; `ProxyHandler` unless given.
    """
    (name,) = variables.keys() & {"AWS_ENDPOINT_URL", "AZURE_ENDPOINT"}
    server = urlsplit(variables[name])
    with fault_proxy(f"http://{server.netloc}", faults, handler) as proxy:
        yield {**variables, name: f"{proxy}{server.path}"}


def mirror(folder: Path, storage: Storage, known: Mapping[str, bytes] = {}) -> dict[str, bytes]:
    """Makes the objects of a storage equal to the files of a folder, logs of tables last; returns these.

    Args:
        known: what was returned before, for the same storage.
    """
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    changed = sorted((key for key in found if known.get(key) != found[key]), key=lambda key: ("_log/" in key, key))
    storage.delete([*(known.keys() - found.keys()), *(key for key in changed if key in known)])
    for key in changed:
        storage.put_new(key, found[key])
    return found


def copy_of(address: str, folder: Path) -> Path:
    """Copies the objects at an address into a new local folder, so that another library can read it."""
    storage = open_storage(address)
    for blob in storage.list(""):
        path = folder / blob.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(storage.get(blob.key))
    return folder
