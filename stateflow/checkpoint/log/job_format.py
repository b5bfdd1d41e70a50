"""Writes, reads and checks FORMAT, which identifies the job of a job root."""

from __future__ import annotations

from dataclasses import dataclass

from stateflow.checkpoint.log.documents import FORMAT_VERSION, JobFormat
from stateflow.checkpoint.log.sealed_json import LIMIT, seal, unseal
from stateflow.errors import ConfigError, MissingFile, StorageError, WrongJobRoot
from stateflow.ids import check_name
from stateflow.storage import Storage
from stateflow.storage.paths import FORMAT, PROBE

_FORMAT_TRIES = 4


@dataclass(frozen=True)
class NewJob:
    """The job that a job root is created for; an existing root must match it.

    Attributes:
        name: name of the job.
        max_parallelism: number of key groups. None accepts that of an existing root, and means the default for a new
            root.
        key_types: Spark type names of the key columns, by operator uid; written into the FORMAT of a new root.
    """

    name: str
    max_parallelism: int | None
    key_types: dict[str, list[str]]


def write_format(storage: Storage, document: JobFormat) -> None:
    """Writes FORMAT unless it exists. A process that loses the race, or gets no answer, reads the stored document.

    Raises StorageError when the storage does not confirm it.
    """
    for _ in range(_FORMAT_TRIES):
        storage.put_new(FORMAT, seal(document)[0])
        if storage.size(FORMAT) is not None:
            return
    raise StorageError(
        "the storage does not confirm that the job root exists", hint="try again", key=FORMAT, tries=_FORMAT_TRIES
    )


def read_format(storage: Storage) -> JobFormat:
    """Returns FORMAT of an existing job root. Raises ConfigError, WrongJobRoot or CorruptFile."""
    try:
        document, _ = unseal(storage.get(FORMAT, LIMIT), JobFormat, FORMAT)
    except MissingFile as e:
        raise ConfigError("no job exists here", hint="check --job-root", storage=storage.uri) from e
    if document.version != FORMAT_VERSION:
        raise WrongJobRoot(
            "the job root has a format that this version does not know",
            hint="use the version of stateflow that wrote it",
            found=document.version,
            known=FORMAT_VERSION,
        )
    check_name("a job's uuid", document.job_uuid)
    return document


def check_vacant(storage: Storage) -> None:
    """Raises ConfigError unless the storage is empty, apart from objects of a storage probe."""
    others = [blob.key for blob in storage.list("") if not blob.key.startswith(PROBE)]
    if others:
        raise ConfigError(
            "the folder for the new job root is not empty", hint="choose another one", root=storage.uri, found=others[0]
        )


def check_same_job(found: JobFormat, wanted: NewJob, uri: str) -> None:
    """Raises WrongJobRoot unless an existing root belongs to the wanted job.

    Key types are compared with those of each checkpoint, which has them by operator: a restore may have given the uid
    of an operator to another one, with other keys.
    """
    if found.job != wanted.name:
        raise WrongJobRoot(
            "the job root belongs to another job",
            hint="give each job a root of its own",
            root=uri,
            found=found.job,
            wanted=wanted.name,
        )
    if wanted.max_parallelism not in (None, found.max_parallelism):
        raise WrongJobRoot(
            "the job root was created with another max parallelism",
            hint="set max_parallelism to that of the job root, or leave it unset",
            found=found.max_parallelism,
            wanted=wanted.max_parallelism,
        )
