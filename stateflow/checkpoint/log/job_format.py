"""The FORMAT document of a job root: whose it is. Written once, then only compared."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.documents import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.envelope import LIMIT, seal, unseal
from stateflow.errors import ConfigError, MissingFile, StorageError, WrongJobRoot
from stateflow.ids import check_name
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT, PROBE

_FORMAT_TRIES = 4


@dataclass(frozen=True)
class NewJob:
    """What a job root is created with; an existing root must agree.

    Attributes:
        max_parallelism: number of key groups. None takes what an existing root has, and the default for a new one.
        key_types: Spark type names of the key columns, by operator uid.
    """

    name: str
    max_parallelism: int | None
    key_types: dict[str, list[str]]


def write_format(storage: Storage, document: JobFormat) -> None:
    """Writes FORMAT unless there is one. Whoever loses this race, or does not hear its answer, reads what is there."""
    for _ in range(_FORMAT_TRIES):
        storage.put_new(FORMAT, seal(document)[0])
        if storage.size(FORMAT) is not None:
            return
    raise StorageError("the storage does not say whether it made the job root", hint="try again", key=FORMAT,
                       tries=_FORMAT_TRIES)  # fmt: skip


def read_format(storage: Storage) -> JobFormat:
    """FORMAT of an existing job root. Raises ConfigError, WrongJobRoot or CorruptFile."""
    try:
        document, _ = unseal(storage.get(FORMAT, LIMIT), JobFormat, FORMAT)
    except MissingFile as e:
        raise ConfigError("there is no job here", hint="check --job-root", storage=storage.uri) from e
    if document.version != FORMAT_VERSION:
        raise WrongJobRoot("the job root has a format that this version does not know", hint="use the version of "
                           "stateflow that wrote it", found=document.version, known=FORMAT_VERSION)  # fmt: skip
    check_name("a job's uuid", document.job_uuid)
    return document


def check_vacant(storage: Storage) -> None:
    """Raises ConfigError for a place that holds anything but what a probe has left."""
    others = [blob.key for blob in storage.list("") if not blob.key.startswith(PROBE)]
    if others:
        raise ConfigError("the place for the new job root is not empty", hint="choose another one", root=storage.uri,
                          found=others[0])  # fmt: skip


def check_same_job(found: JobFormat, wanted: NewJob, uri: str) -> None:
    """Raises WrongJobRoot unless an existing root is the wanted job's."""
    if found.job != wanted.name:
        raise WrongJobRoot("the job root belongs to another job", hint="give each job a root of its own",
                           root=uri, found=found.job, wanted=wanted.name)  # fmt: skip
    if wanted.max_parallelism not in (None, found.max_parallelism):
        raise WrongJobRoot(
            "the job root was made with another max parallelism",
            hint="set max_parallelism to what the root has, or do not set it",
            found=found.max_parallelism,
            wanted=wanted.max_parallelism,
        )
    for uid, types in wanted.key_types.items():
        if found.key_types.get(uid, types) != types:
            raise WrongJobRoot("the key columns of an operator have other types than its state was written with",
                               hint="cast the columns back, or give the operator a new uid", uid=uid,
                               found=found.key_types[uid], wanted=types)  # fmt: skip
