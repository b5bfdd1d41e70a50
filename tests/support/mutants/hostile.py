"""Bugs that an attacker could use: what is trusted of stored files and of servers."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import requests
from urllib3.exceptions import HTTPError

from stateflow import http
from stateflow.checkpoint.log import manifest_files
from stateflow.clock import Clock
from stateflow.compare import shared_files
from stateflow.errors import CorruptFile
from stateflow.operations import verification
from stateflow.state import host_cache
from stateflow.state import operator_content as operator_files
from stateflow.state.backends.rocksdb import backend, check, manifest, rescale
from stateflow.state.handles import StateFile
from stateflow.state.host_cache import HostCache, damaged_copy
from stateflow.storage import PosixStorage, hdfs, object_store, posix
from stateflow.storage.hdfs import HdfsRefusal, HdfsSession
from tests.support.mutants.registry import Mutant, Mutants

MUTANTS = Mutants()

# -- stored files -----------------------------------------------------------------------------------------------------


@MUTANTS.plant("unchecked-stores", (backend, "check_once"), (rescale, "check_once"))
def _check_nothing(*_: object) -> None:
    """RocksDB opens stores from elsewhere without a check."""


@MUTANTS.plant("verify-opens-nothing", (verification, "_open_stores"))
def _open_no_stores(*_: object) -> None:
    """The verification of a savepoint compares hashes only."""


MUTANTS.add(
    Mutant(
        "trusted-numbers",
        "The numbers of a store's manifest are not checked.",
        ((manifest, "_LEVELS", 1 << 64), (manifest, "_LARGEST_NUMBER", 1 << 65)),
    )
)


@MUTANTS.plant("retried-forgery", (check, "_unsafe"))
def _as_damaged(cache: HostCache, path: Path, file: StateFile, reason: str) -> CorruptFile:
    """A forged store counts as a damaged copy, which a retry fetches again."""
    return damaged_copy(file, path, reason)


MUTANTS.add(
    Mutant(
        "followed-links",
        "Symbolic links in place of files are followed.",
        ((posix, "_FILE", posix._FILE & ~os.O_NOFOLLOW),),
    )
)


@MUTANTS.plant("followed-folders", (posix, "open_folder"))
def _open_folder_or_link(parent: int, name: str) -> int:
    """Symbolic links in place of folders are followed."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)


@MUTANTS.plant("linked-strangers", (posix, "is_ours_alone"))
def _is_anybodys(_: os.stat_result) -> bool:
    """Files of another user are linked, not copied."""
    return True


def _any_names(_: Any, key: str) -> Sequence[str]:
    return key.strip("/").split("/")


MUTANTS.add(
    Mutant(
        "keys-to-anywhere",
        "A recorded path may lead out of the savepoint.",
        (
            (PosixStorage, "_names", _any_names),
            (host_cache, "check_key", str),
            (manifest_files, "check_key", str),
            (operator_files, "check_key", str),
            (shared_files, "check_key", str),
        ),
    )
)


# -- servers ----------------------------------------------------------------------------------------------------------


@MUTANTS.plant("token-to-anybody", (HdfsSession, "to_data_node"))
def _with_token(
    self: HdfsSession, method: str, location: str, data: bytes | IO[bytes] | None = None
) -> requests.Response:
    """The delegation token is sent to where a NameNode redirects."""
    self._check(location)
    return self._session.request(
        method, location, params=self._users.query, data=data, timeout=5, allow_redirects=False, stream=True
    )


@MUTANTS.plant("redirected-anywhere", (HdfsSession, "_check"))
def _check_no_location(*_: object) -> None:
    """Requests are redirected to any port."""


def _successful_or_echoed(answer: requests.Response, _: Clock) -> requests.Response:
    if answer.status_code < 300 or answer.is_redirect:
        return answer
    text = answer.raw.read(1000).decode(errors="replace")
    known = re.search('"exception": "([A-Za-z]+)"', text)
    raise HdfsRefusal(answer.status_code, known[1] if known else text)


MUTANTS.add(
    Mutant(
        "echoed-answers",
        "Errors contain what a server has answered.",
        ((hdfs, "successful", _successful_or_echoed), (object_store, "_reason", str)),
    )
)


@MUTANTS.plant("endless-answers", (http, "stream_answer"), (hdfs, "stream_answer"))
def _all_pieces(answer: requests.Response, _: Clock, __: int) -> Iterator[bytes]:
    """An answer has no limit of size and duration."""
    yield from answer.raw.stream(1 << 20)


_pieces = http.stream_answer


@MUTANTS.plant("no-length-check", (http, "stream_answer"), (hdfs, "stream_answer"))
def _pieces_so_far(answer: requests.Response, clock: Clock, limit: int) -> Iterator[bytes]:
    """An answer that ends too early counts as complete."""
    with contextlib.suppress(HTTPError):
        yield from _pieces(answer, clock, limit)
