"""Object storage with real servers of its protocols, with a server of this test for Google's, and with hostile ones."""

from __future__ import annotations

import ast
import base64
import contextlib
import itertools
import json
import os
import pickle
import random
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import unquote

import httpx
import obstore
import pytest
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, S3Store

from stateflow.checkpoint.log.job_root import probe_job_root
from stateflow.clock import SystemClock
from stateflow.errors import ConfigError, DataError, EnvironmentUnsupported, MissingFile, StateflowError, StorageError
from stateflow.storage import Credentials, PutResult, Storage, object_store, open_storage
from stateflow.storage.locations import NAMES
from stateflow.storage.object_store import ObjectStorage
from stateflow.testing.conformance.storage import StorageConformance
from tests.servers import s3 as s3_handler
from tests.servers.faults import CUT_ANSWER, LOST_ANSWER, LOST_REQUEST, Faults, ProxyHandler
from tests.servers.google import google_server
from tests.servers.hostile import Answer, Asked, HostileServer, answer, hostile_server
from tests.servers.listening import QuietHandler, certificate, listening
from tests.servers.running import (
    CANARY,
    azure_request,
    azure_server,
    careless_s3_server,
    free_port,
    hasty_s3_server,
    s3_server,
    variables_of,
)
from tests.storage.savepoints_over_storages import SavepointClaims, SavepointCopies
from tests.support.errors import raises
from tests.support.object_stores import Serve, behind_faults, serve_azure, serve_s3
from tests.support.traffic import own_traffic

if TYPE_CHECKING:
    from obstore.store import RetryConfig

_numbers = itertools.count()
_ONCE: RetryConfig = {"max_retries": 0}
_ONCE_AND_AGAIN: RetryConfig = {"max_retries": 1}
"""By obstore once more, so that stateflow repeats requests as well."""


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


_REQUESTS: dict[str, Callable[[Storage, Path], object]] = {
    "get": lambda bucket, _: bucket.get("x"),
    "chunks": lambda bucket, _: list(bucket.chunks("x")),
    "list": lambda bucket, _: bucket.list(""),
    "list of a folder": lambda bucket, _: bucket.list_folder("a/"),
    "put": lambda bucket, _: bucket.put_new("x", b"y"),
    "put of a file": lambda bucket, small: bucket.put_file("x", small),
    "deletion": lambda bucket, _: bucket.delete(["x", "y"]),
    "copy": lambda bucket, _: bucket.copy_from(bucket, "x", "y"),
}


def _give(body: bytes, _: Asked) -> Answer:
    return answer(200, body)


def _code(status: int, code: str) -> Answer:
    return answer(status, f"<Error><Code>{code}</Code><Message>any</Message></Error>".encode())


@pytest.mark.parametrize("request_name", _REQUESTS)
@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [
        (301, "PermanentRedirect", "AWS_REGION"),
        (307, "TemporaryRedirect", "AWS_REGION"),
        (400, "AuthorizationHeaderMalformed", "AWS_REGION"),
        (400, "ExpiredToken", "AWS_ACCESS_KEY_ID"),
        (400, "InvalidToken", "AWS_ACCESS_KEY_ID"),
        (400, "AnyOther", "endpoint"),
        (401, "AnyOther", "AWS_SECRET_ACCESS_KEY"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "RequestTimeTooSkewed", "clock"),
        (404, "NoSuchBucket", "create it"),
        (405, "MethodNotAllowed", "endpoint"),
        (501, "NotImplemented", "endpoint"),
    ],
)
def test_a_refusal_is_a_configuration_error_after_one_request(
    status: int, code: str, fix: str, request_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    small = _file(tmp_path / "small", b"x")
    with hostile_server(lambda _: _code(status, code)) as server:
        _configure(server, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p", _ONCE if status == 501 else None)
        with raises(ConfigError, storage="s3://bucket/p", bucket="s3://bucket") as refused:
            _REQUESTS[request_name](bucket, small)
    assert fix in refused.value.hint and len(server.asked) == 1


@pytest.mark.parametrize("request_name", sorted(_REQUESTS.keys() - {"put", "put of a file"}))
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "RequestTimeout"),
        (403, "rateLimitExceeded"),
        (408, ""),
        (429, ""),
        (500, "InternalError"),
        (503, "SlowDown"),
    ],
)
def test_a_failure_that_may_pass_is_a_storage_error(
    status: int, code: str, request_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hostile_server(lambda _: _code(status, code)) as server:
        _configure(server, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p", _ONCE)
        with raises(StorageError, storage="s3://bucket/p"):
            _REQUESTS[request_name](bucket, tmp_path)
        if status != 403:
            assert bucket.put_new("x", b"y") is PutResult.UNKNOWN


@pytest.mark.parametrize("request_name", sorted(_REQUESTS.keys() - {"put of a file"}))
@pytest.mark.parametrize(
    ("status", "code", "fix"),
    [(403, "AccessDenied", "GOOGLE_APPLICATION_CREDENTIALS"), (404, "NoSuchBucket", "create it")],
)
def test_a_refusal_by_google_is_a_configuration_error(
    status: int, code: str, fix: str, request_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with hostile_server(lambda _: _code(status, code)) as server:
        account = {"gcs_base_url": f"http://{server.host}", "disable_oauth": True}
        empty = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        _use({"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(account | empty), "GOOGLE_ALLOW_HTTP": "true"}, monkeypatch)
        with raises(ConfigError, storage="gs://bucket/p", answer=code) as refused:
            _REQUESTS[request_name](ObjectStorage("gs", "bucket", "p"), tmp_path)
    assert fix in refused.value.hint


def test_a_key_with_the_words_of_an_error_is_not_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile_server(lambda _: answer(404)) as server:
        _configure(server, monkeypatch)
        with raises(MissingFile):
            ObjectStorage("s3", "bucket", "p").get("NoSuchBucket/AccessDenied status code: 403")


def test_an_object_that_may_not_be_deleted_is_an_error_without_the_text_of_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = b"<Key>p/x</Key><Code>AccessDenied</Code><Message>" + _SECRET + b"</Message>"
    answers = b"<DeleteResult><Error>" + error + b"</Error></DeleteResult>", _XML.replace(b"X", b"InternalError")
    for body, kind in zip(answers, (ConfigError, StorageError), strict=True):
        with hostile_server(partial(_give, body)) as server:
            _configure(server, monkeypatch)
            with raises(kind, storage="s3://bucket/p") as failed:
                ObjectStorage("s3", "bucket", "p", _ONCE).delete(["x"])
        assert _SECRET.decode() not in str(failed.value)


@pytest.mark.parametrize(
    ("scheme", "environment", "variable"),
    [
        ("az", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        (
            "az",
            {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "not-base64!!"},
            "AZURE_STORAGE_ACCOUNT_KEY",
        ),
        ("s3", {"AWS_ACCESS_KEY_ID": "a"}, "AWS_SECRET_ACCESS_KEY"),
        ("gs", {"GOOGLE_APPLICATION_CREDENTIALS": "/missing.json"}, "GOOGLE_APPLICATION_CREDENTIALS"),
    ],
)
def test_incomplete_credentials_are_a_configuration_error_before_any_request(
    scheme: str, environment: dict[str, str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    _use(environment, monkeypatch)
    with raises(ConfigError, storage=f"{scheme}://bucket/job") as refused:
        open_storage(f"{scheme}://bucket/job")
    assert variable in refused.value.hint and refused.value.facts["reason"]


@pytest.mark.parametrize("endpoint", ["", "127.0.0.1:9000", "localhost", "htp://host", "http://", "/path"])
@pytest.mark.parametrize(
    ("scheme", "variable"),
    [("s3", "AWS_ENDPOINT_URL"), ("s3", "AWS_ENDPOINT"), ("az", "AZURE_STORAGE_ENDPOINT"), ("gs", "GOOGLE_BASE_URL")],
)
def test_an_endpoint_that_is_not_an_url_is_refused_with_its_variable(
    scheme: str, variable: str, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, endpoint)
    with raises(ConfigError, storage=f"{scheme}://bucket/job", variable=variable) as refused:
        ObjectStorage(scheme, "bucket", "job", _ONCE)
    assert variable in refused.value.hint


def test_an_endpoint_without_tls_is_refused_with_the_variable_that_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile_server(lambda _: answer(404)) as server:
        _configure(server, monkeypatch)
        monkeypatch.delenv("AWS_ALLOW_HTTP")
        with raises(ConfigError, storage="s3://bucket/p") as refused:
            ObjectStorage("s3", "bucket", "p").list("")
    assert "AWS_ALLOW_HTTP" in refused.value.hint and server.asked == []


def test_an_endpoint_whose_certificate_is_not_trusted_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traffic = own_traffic("stateflow.storage.object_store", monkeypatch)
    with listening(QuietHandler, certificate(tmp_path)) as endpoint:
        _use({**variables_of(endpoint), "AWS_ALLOW_HTTP": "false"}, monkeypatch)
        bucket, before = ObjectStorage("s3", "bucket", "p", _ONCE_AND_AGAIN), traffic.now()
        with raises(ConfigError, storage="s3://bucket/p") as refused:
            bucket.list("")
    assert "SSL_CERT_FILE" in refused.value.hint and (traffic.now() - before).requests == 1


@pytest.mark.long(reason="starts a server of Azure's API")
def test_a_missing_container_and_a_wrong_key_of_azure_are_configuration_errors(
    azure: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _use(azure, monkeypatch)
    with raises(ConfigError, bucket="az://nothing-here", answer="ContainerNotFound"):
        open_storage("az://nothing-here/job").list("")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "eHh4eA==")
    for request_name in ("list", "deletion", "get"):
        with raises(ConfigError, storage="az://container/job") as refused:
            _REQUESTS[request_name](open_storage("az://container/job"), tmp_path)
        assert "AZURE_STORAGE_ACCOUNT_KEY" in refused.value.hint


_ENTRY = "<Key>{}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
_LIST = f"<ListBucketResult><Contents>{_ENTRY}</Contents></ListBucketResult>"


@pytest.mark.parametrize("key", ["p//x", "p/./x", "p/../x", "p/a\x7fb", "p/a&#10;b", 'p/"x"//y'])
def test_a_list_with_a_key_that_cannot_be_addressed_is_an_error_that_names_the_key(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that retries do not repeat: no file of a source is passed over."""
    with hostile_server(lambda _: answer(200, _LIST.format(key).encode())) as server:
        _configure(server, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p")
        for act in (lambda: bucket.list(""), lambda: bucket.list_folder("")):
            with raises(DataError, key=key.replace("&#10;", "\n"), storage="s3://bucket/p"):
                act()
        assert len(server.asked) == 2


def test_an_object_that_marks_a_folder_is_not_in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As consoles of providers make it: its key is the folder's, with the slash at its end."""
    entries = "".join(f"<Contents>{_ENTRY.format(key)}</Contents>" for key in ("p/", "p/a/", "p/x"))
    with hostile_server(lambda _: answer(200, f"<ListBucketResult>{entries}</ListBucketResult>".encode())) as server:
        _configure(server, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p")
        assert [blob.key for blob in bucket.list_folder("").files] == ["a", "x"]
        assert [blob.key for blob in bucket.list("")] == ["a", "x"]


def test_a_key_with_a_control_character_is_refused(bucket: Storage) -> None:
    for act in (bucket.get, bucket.info, lambda key: bucket.put_new(key, b"x"), lambda key: bucket.delete([key])):
        with raises(DataError, key="a\x01b"):
            act("a\x01b")


@contextlib.contextmanager
def _logged_s3(folder: Path, log: list[str]) -> Iterator[dict[str, str]]:
    """Runs an S3 server with a bucket; adds the method of each request to the log."""

    class Logged(s3_handler.Handler):
        data_root = folder.resolve()

        def parse_request(self) -> bool:
            is_valid = super().parse_request()
            log.append(self.command)
            return is_valid

    with s3_handler.Server(("127.0.0.1", 0), Logged) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield variables_of(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()


def test_requests_are_counted_as_the_server_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "stateflow")
    traffic = own_traffic("stateflow.storage.object_store", monkeypatch)
    log: list[str] = []
    large, small = _file(tmp_path / "large", bytes(17 << 20)), _file(tmp_path / "small", b"x")
    many = tmp_path / "data" / "bucket" / "p" / "many"
    many.mkdir(parents=True)
    keys = [f"many/{number:04d}" for number in range(1100)]
    for key in keys:
        (many.parent / key).touch()
    acts: dict[str, tuple[Callable[[Storage], object], int]] = {
        "a list of two pages": (lambda bucket: bucket.list("many/"), 2),
        "a list of one page": (lambda bucket: bucket.list("many/", "many/0099"), 1),
        "a list up to the end of a prefix": (lambda bucket: bucket.list("many/00"), 1),
        "a list of a folder": (lambda bucket: bucket.list_folder("many/"), 2),
        "deletions": (lambda bucket: bucket.delete(keys), 2),
        "no deletion": (lambda bucket: bucket.delete([]), 0),
        "parts": (lambda bucket: bucket.put_file("large", large), 6),
        "one part": (lambda bucket: bucket.put_file("small", small), 1),
        "the same file again": (lambda bucket: bucket.put_file("small", small), 3),
        "get": (lambda bucket: bucket.get("small"), 1),
        "chunks": (lambda bucket: list(bucket.chunks("small")), 1),
        "info": (lambda bucket: bucket.info("missing"), 1),
        "a copy": (lambda bucket: bucket.copy_from(bucket, "small", "copy"), 1),
    }
    with _logged_s3(tmp_path / "data", log) as variables:
        _use(variables, monkeypatch)
        bucket = ObjectStorage("s3", "bucket", "p")
        counted: dict[str, tuple[int, int]] = {}
        for name, (act, _) in acts.items():
            before, sent = traffic.now(), len(log)
            act(bucket)
            counted[name] = (traffic.now() - before).requests, len(log) - sent
    assert counted == {name: (number, number) for name, (_, number) in acts.items()}


def test_a_repeated_request_counts_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list whose answer breaks off, which obstore does not repeat itself."""
    traffic = own_traffic("stateflow.storage.object_store", monkeypatch)
    answers: list[Answer] = [
        iter([b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n<"]),
        answer(200, _LIST.format("p/x").encode()),
    ]
    with hostile_server(lambda _: answers.pop(0)) as server:
        _configure(server, monkeypatch)
        bucket, before = ObjectStorage("s3", "bucket", "p"), traffic.now()
        assert [blob.key for blob in bucket.list("")] == ["x"]
        assert (traffic.now() - before).requests == len(server.asked) == 2


_STORES_OF: dict[str, Callable[..., object]] = {"AWS": S3Store, "AZURE": AzureStore, "GOOGLE": GCSStore}
_BUCKETS = {"AWS_BUCKET", "AWS_BUCKET_NAME", "AZURE_CONTAINER_NAME", "GOOGLE_BUCKET", "GOOGLE_BUCKET_NAME"}
"""The address has them."""


def _is_read(variable: str) -> bool:
    """Whether obstore knows the name: it accepts the lower-case name as a key of its configuration."""
    with pytest.raises(exceptions.UnknownConfigurationKeyError) as refused:
        # The second key is known to be unknown, and ends the creation of a client, which takes time.
        _STORES_OF[variable.partition("_")[0]]("x", config={variable.lower(): "x", "no_such_key": "x"})
    return "no_such_key" in str(refused.value)


def _documented_variables() -> set[str]:
    """The variables that obstore's type stubs name, and one for each key of its configurations."""
    found: set[str] = set()
    for file, prefix in (("_aws", "AWS"), ("_azure", "AZURE"), ("_gcs", "GOOGLE")):
        text = (Path(obstore.__file__).parent / "_store" / f"{file}.pyi").read_text()
        found |= set(re.findall(rf"`({prefix}_[A-Z0-9_]+)`", text))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and node.name.endswith("Config"):
                keys = [
                    each.target.id
                    for each in node.body
                    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
                ]
                found |= {f"{prefix}_{key.upper().removeprefix(f'{prefix}_')}" for key in keys}
    return found


def test_tasks_get_each_variable_that_obstore_reads() -> None:
    """Fails when a new version of obstore has another one: add it to the names, or to those of buckets."""
    read = {name for name in _documented_variables() if _is_read(name)}
    assert len(read) > 50 and read - {*NAMES} == _BUCKETS
    assert [name for name in NAMES if name.partition("_")[0] in _STORES_OF and not _is_read(name)] == []


def test_a_task_encrypts_what_it_stores_as_the_driver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with hostile_server(lambda _: answer(200, ETag="x")) as server:
        _configure(server, monkeypatch)
        monkeypatch.setenv("AWS_SERVER_SIDE_ENCRYPTION", "aws:kms")
        monkeypatch.setenv("AWS_SSE_KMS_KEY_ID", "key-1")
        sent = pickle.loads(pickle.dumps(Credentials.of_process()))
        with mock.patch.dict("os.environ"):
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                del os.environ[name]
            sent.adopt()
            assert open_storage("s3://bucket/p").put_new("x", b"y") is PutResult.CREATED
    assert "x-amz-server-side-encryption-aws-kms-key-id: key-1" in server.asked[0].head


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

    def do_GET(self) -> None:
        answered = self.forward(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        is_end = (self.command == "POST" and "uploadId=" in self.path) or "comp=blocklist" in self.path
        if is_end and not self.lost:
            self.lost.append(self.path)
            self.reset()
        else:
            self.send(answered)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET


@pytest.mark.parametrize(
    "serve", [serve_s3, pytest.param(serve_azure, marks=pytest.mark.long(reason="starts Azurite"))]
)
def test_an_upload_in_parts_whose_last_answer_is_lost_is_stored(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again, S3 says that there is no such upload, and Azure that its blocks do not exist."""
    content, lost = random.Random(1).randbytes(1000), list[str]()
    monkeypatch.setattr(object_store, "_SINGLE_PUT", 10)
    handler = type("LosesAnEnd", (_LosesAnEnd,), {"lost": lost})
    with (
        serve(tmp_path / "server") as (bucket, variables),
        behind_faults(variables, Faults(random.Random(1), 0), handler) as changed,
    ):
        _use(changed, monkeypatch)
        storage = open_storage(f"{bucket}/job")
        storage.put_file("a", _file(tmp_path / "file", content))
        assert (storage.get("a"), len(lost)) == (content, 1)


# -- blocks that a writer has left in Azure ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Azure:
    """An empty folder of Azure, as stateflow and as another program uses it. `endpoint`: of the server."""

    storage: Storage
    endpoint: str

    def send(self, method: str, key: str, query: Mapping[str, str] = {}, content: bytes = b"") -> httpx.Response:
        path = f"{self.storage.uri.removeprefix('az://')}/{key}"
        return azure_request(self.endpoint, method, path, query, content)

    def put_block(self, key: str, number: str, content: bytes) -> None:
        query = {"comp": "block", "blockid": base64.b64encode(number.encode()).decode()}
        self.send("PUT", key, query, content).raise_for_status()


@pytest.fixture
def in_azure(azure: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> _Azure:
    """Files of more than ten bytes are uploaded in blocks."""
    _use(azure, monkeypatch)
    monkeypatch.setattr(object_store, "_SINGLE_PUT", 10)
    return _Azure(open_storage(f"az://container/left/{next(_numbers)}"), azure["AZURE_ENDPOINT"])


@pytest.mark.long(reason="starts a server of Azure's API")
def test_blocks_that_a_dead_writer_has_left_are_not_an_object_and_stop_no_other_writer(
    in_azure: _Azure, tmp_path: Path
) -> None:
    storage, small, large = in_azure.storage, b"x", random.Random(1).randbytes(1000)
    # As long as the ids of obstore.
    numbers = [f"{number:032x}" for number in range(2)]
    for key in ("small", "large", "never"):
        for number in numbers:
            in_azure.put_block(key, number, b"of the dead writer")
    assert storage.list("") == [] and storage.list_folder("").files == () and storage.info("small") is None
    with raises(MissingFile, key="small"):
        storage.get("small")
    assert storage.put_new("small", small) is PutResult.CREATED
    storage.put_file("large", _file(tmp_path / "file", large))
    assert (storage.get("small"), storage.get("large")) == (small, large)
    assert [blob.key for blob in storage.list("")] == ["large", "small"]
    # The end of the dead writer's upload arrives.
    ids = "".join(f"<Uncommitted>{base64.b64encode(each.encode()).decode()}</Uncommitted>" for each in numbers)
    for key in ("small", "large"):
        blocks = f"<?xml version='1.0' encoding='utf-8'?><BlockList>{ids}</BlockList>".encode()
        late = in_azure.send("PUT", key, {"comp": "blocklist"}, blocks)
        assert (late.status_code, late.headers["x-ms-error-code"]) == (400, "InvalidBlockList")
    assert (storage.get("small"), storage.get("large")) == (small, large)


@pytest.mark.long(reason="starts a server of Azure's API")
def test_blocks_of_another_program_with_ids_of_another_length_are_named_with_the_way_out(
    in_azure: _Azure, tmp_path: Path
) -> None:
    storage = in_azure.storage
    in_azure.put_block("a", "short", b"x")
    with raises(ConfigError, storage=storage.uri, key="a", answer="InvalidBlobOrBlock") as refused:
        storage.put_file("a", _file(tmp_path / "file", bytes(1000)))
    assert "uncommitted" in refused.value.hint
    in_azure.send("DELETE", "a").raise_for_status()
    storage.put_file("a", tmp_path / "file")
    assert storage.get("a") == bytes(1000)


def _file(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
