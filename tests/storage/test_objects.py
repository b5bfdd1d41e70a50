"""Object storage with real servers of its protocols, with a server of this test for Google's, and with hostile ones."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

from stateflow.checkpoint.log.job_root import probe_job_root
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, EnvironmentUnsupported, MissingFile, StateflowError, StorageError
from stateflow.storage import Credentials, PutResult, Storage, object_store, open_storage
from stateflow.storage.object_store import ObjectStorage
from stateflow.testing.conformance.storage import StorageConformance
from tests.servers.faults import CUT_ANSWER, LOST_ANSWER, LOST_REQUEST, Faults, ProxyHandler, fault_proxy
from tests.servers.google import google_server
from tests.servers.hostile import Answer, Asked, HostileServer, answer, hostile_server
from tests.servers.running import CANARY, azure_server, careless_s3_server, free_port, hasty_s3_server, s3_server
from tests.storage.savepoints_over_storages import SavepointClaims, SavepointCopies
from tests.support.errors import raises
from tests.support.object_stores import Serve, behind_faults, serve_azure, serve_s3

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_numbers = itertools.count()
_ONCE: RetryConfig = {"max_retries": 0}


def _use(server: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Configures the clients of this process for a server."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3"), "bucket") as environment:
        yield environment


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with azure_server(tmp_path_factory.mktemp("azure"), "container") as environment:
        yield environment


class TestS3(SavepointClaims, SavepointCopies, StorageConformance):
    @pytest.fixture
    def storage(self, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Storage:
        _use(s3, monkeypatch)
        return ObjectStorage("s3", "bucket", f"jobs/{next(_numbers)}")


@pytest.mark.long(reason="starts a server of Azure's API")
class TestAzure(SavepointClaims, SavepointCopies, StorageConformance):
    @pytest.fixture
    def storage(self, azure: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Storage:
        _use(azure, monkeypatch)
        return ObjectStorage("az", "container", f"jobs/{next(_numbers)}")


@pytest.mark.long(reason="starts a server")
@pytest.mark.parametrize("server", [careless_s3_server, hasty_s3_server])
def test_a_server_that_lets_several_create_an_object_is_refused(
    server: Callable[[Path, str], AbstractContextManager[dict[str, str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with server(tmp_path, "bucket") as variables:
        _use(variables, monkeypatch)
        with raises(EnvironmentUnsupported, storage="s3://bucket/job") as refused:
            probe_job_root(open_storage("s3://bucket/job"), SystemClock())
    winners = refused.value.facts["winners"]
    assert isinstance(winners, int) and winners > 1


@pytest.fixture
def bucket(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Storage:
    _use(s3, monkeypatch)
    return open_storage(f"s3://bucket/own/{next(_numbers)}")


def test_a_large_file_is_stored_in_parts_and_overwrites_nothing(bucket: Storage, tmp_path: Path) -> None:
    large, other = tmp_path / "large", tmp_path / "other"
    large.write_bytes(random.Random(1).randbytes(17 << 20))
    other.write_bytes(random.Random(2).randbytes(17 << 20))
    bucket.put_file("a", large)
    bucket.put_file("a", large)
    with raises(StorageError, key="a", storage=bucket.uri, stored_bytes=17 << 20, new_bytes=17 << 20):
        bucket.put_file("a", other)
    bucket.fetch("a", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == large.read_bytes()


def test_prefixes_of_a_bucket_are_separate_storages_with_copies_in_the_server(bucket: Storage) -> None:
    bucket.put_new("there", b"x")
    other = open_storage(f"{bucket.uri}-other")
    assert other.list("") == [] and other.put_new("there", b"yy") is PutResult.CREATED
    assert [blob.size for blob in bucket.list("")] == [1]
    other.copy_from(bucket, "there", "here")
    assert other.get("here") == b"x"
    with pytest.raises(MissingFile):
        other.copy_from(bucket, "nothing", "nowhere")


def test_a_missing_bucket_is_a_configuration_error(bucket: Storage) -> None:
    with raises(ConfigError, bucket="s3://nothing-here", storage="s3://nothing-here/job"):
        open_storage("s3://nothing-here/job").put_new("a", b"x")


def test_an_endpoint_that_does_not_respond_is_an_error_without_credentials(
    bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    silent = ObjectStorage("s3", "bucket", "job", _ONCE)
    with raises(StorageError, storage="s3://bucket/job") as failed:
        silent.get("a")
    shown = repr(Credentials.of_process()) + str(Credentials.of_process())
    assert "AWS_SECRET_ACCESS_KEY" in shown and CANARY not in shown + str(failed.value)
    assert silent.put_new("a", b"x") is PutResult.UNKNOWN


def test_the_error_about_missing_credentials_names_their_variables(
    bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with raises(ConfigError, storage="s3://bucket/job") as refused:
        ObjectStorage("s3", "bucket", "job", _ONCE).get("a")
    assert "AWS_ACCESS_KEY_ID" in refused.value.hint


def test_a_forked_process_gets_an_error_and_does_not_hang(bucket: Storage) -> None:
    bucket.put_new("a", b"x")
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is what is tried here
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        try:
            bucket.get("a")
        except EnvironmentUnsupported:
            os.write(write, b"refused")
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"refused"
    os.close(read)


# -- Google Cloud Storage ---------------------------------------------------------------------------------------------


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    objects: dict[str, bytes] = {}
    with google_server(objects) as variables:
        _use(variables, monkeypatch)
        yield objects


def test_google_creates_an_object_once_and_never_replaces_an_object(google: dict[str, bytes]) -> None:
    storage = open_storage("gs://bucket/jobs")
    assert storage.put_new("log/1", b"one") is PutResult.CREATED
    assert storage.put_new("log/1", b"two") is PutResult.EXISTS
    assert {unquote(path): data for path, data in google.items()} == {"/bucket/jobs/log/1": b"one"}


def test_a_list_has_all_pages_from_any_beginning(google: dict[str, bytes]) -> None:
    names = [f"{folder}/{number:04}" for folder in ("a", "ab", "b") for number in range(1100)]
    google.update({f"/bucket/jobs/{name}": b"x" for name in names})
    storage = open_storage("gs://bucket/jobs")
    for prefix, after in (
        ("", ""),
        ("a/", ""),
        ("a", ""),
        ("a", "a/1050"),
        ("b/0", ""),
        ("ab/", "ab/0001"),
        ("c/", ""),
    ):
        wanted = [name for name in names if name.startswith(prefix) and name > after]
        assert [blob.key for blob in storage.list(prefix, after)] == wanted


_SECRET = b"body-of-the-internal-server"
_XML = b"<Error><Code>X</Code><Message>" + _SECRET + b"</Message></Error>"


def _refuse(status: int, _: Asked) -> Answer:
    return answer(status, _XML)


ANSWERS: dict[str, Callable[[Asked], Answer]] = {
    **{str(status): partial(_refuse, status) for status in (400, 401, 403, 404, 409, 412, 500)},
    "control characters": lambda _: answer(400, b"\x1b[2J" + _SECRET),
    "several lines": lambda _: answer(403, b"\n\n" + _SECRET),
    "no document": lambda _: answer(200, _SECRET, ETag="x"),
    "no HTTP": lambda _: iter([b"SSH-2.0-" + _SECRET + b"\r\n\r\n"]),
    "cut": lambda _: iter([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nETag: x\r\n\r\n" + _SECRET]),
}


def _configure(server: HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"ENDPOINT_URL": f"http://{server.host}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    more = {"REGION": "us-east-1", "ALLOW_HTTP": "true", "SESSION_TOKEN": "c"}
    for variable, value in {**variables, **more}.items():
        monkeypatch.setenv(f"AWS_{variable}", value)


@pytest.mark.parametrize("act", ["get", "list", "put", "delete"])
@pytest.mark.parametrize("name", ANSWERS)
def test_a_bad_answer_is_an_error_without_its_text(
    name: str, act: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hostile_server(ANSWERS[name]) as server:
        _configure(server, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p", _ONCE)
        acts: dict[str, Callable[[], object]] = {
            "get": lambda: bucket.size("x"),
            "list": lambda: bucket.list(""),
            "put": lambda: bucket.put_new("x", b"y"),
            "delete": lambda: bucket.delete(["x"]),
        }
        try:
            shown = str(acts[act]())
        except StateflowError as e:
            assert e.code in ("config", "storage", "missing-file")
            shown = str(e)
        else:
            assert act != "list" and shown in ("None", "27", "1000", *map(str, PutResult)), shown
    assert _SECRET.decode() not in shown + caplog.text
    assert "\x1b" not in shown + caplog.text


@pytest.mark.parametrize("status", [302, 307])
def test_a_server_that_a_request_is_redirected_to_gets_no_signature_and_no_content(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile_server(lambda _: answer(200, _SECRET, ETag="x")) as other:
        location = f"http://localhost:{other.port}/bucket/p/x"
        with hostile_server(lambda _: answer(status, Location=location)) as server:
            _configure(server, monkeypatch)
            bucket = ObjectStorage("s3", "bucket", "p", _ONCE)
            acts: list[Callable[[], object]] = [
                lambda: bucket.get("x"), lambda: bucket.size("x"), lambda: bucket.list(""),
                lambda: bucket.put_new("x", b"the content"), lambda: bucket.delete(["x"]),
            ]  # fmt: skip
            for act in acts:
                with contextlib.suppress(StateflowError):
                    act()
    assert server.asked
    for asked in other.asked:
        assert "authorization" not in asked.head.lower()
        assert b"the content" not in asked.body


@pytest.mark.long(reason="starts a server, and waits between repetitions")
@pytest.mark.parametrize("serve", [serve_s3, serve_azure])
def test_requests_whose_answers_are_lost_or_cut_are_sent_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that obstore does not repeat: conditional puts, deletions of several objects, and lists."""
    faults = Faults(random.Random(2), 0.2, (LOST_REQUEST, LOST_ANSWER, CUT_ANSWER))
    with serve(tmp_path / "server") as (bucket, variables), behind_faults(variables, faults) as changed:
        _use(changed, monkeypatch)
        storage = open_storage(f"{bucket}/job")
        large = bytes(range(256)) * (20 << 12)
        for number in range(20):
            data = b"%d" % number * 1000
            assert storage.put_new(f"a/{number}", data) is not PutResult.UNKNOWN
            assert storage.get(f"a/{number}") == data
            assert len(storage.list("a/")) == number + 1
            assert storage.list_folder("").folders == ("a",)
        storage.put_file("large", _file(tmp_path / "large", large))
        for _ in range(5):
            assert b"".join(storage.chunks("large")) == large
        storage.delete([f"a/{number}" for number in range(20)])
        assert storage.list("a/") == []
    assert min(faults.injected[kind] for kind in faults.kinds) > 0


class _LosesAnEnd(ProxyHandler):
    """Loses the first answer to a request that ends an upload in parts."""

    lost: list[str]

    def do_POST(self) -> None:
        answered = self.forward(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        if "uploadId=" in self.path and not self.lost:
            self.lost.append(self.path)
            self.reset()
        else:
            self.send(answered)


def test_an_upload_in_parts_whose_last_answer_is_lost_is_stored(
    s3: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that there is no such upload when it is asked again."""
    content, lost = random.Random(1).randbytes(1000), list[str]()
    monkeypatch.setattr(object_store, "_SINGLE_PUT", 10)
    handler = type("LosesAnEnd", (_LosesAnEnd,), {"lost": lost})
    with fault_proxy(s3["AWS_ENDPOINT_URL"], Faults(random.Random(1), 0), handler) as proxy:
        _use({**s3, "AWS_ENDPOINT_URL": proxy}, monkeypatch)
        storage = open_storage(f"s3://bucket/own/{next(_numbers)}")
        storage.put_file("a", _file(tmp_path / "file", content))
        assert (storage.get("a"), len(lost)) == (content, 1)


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
