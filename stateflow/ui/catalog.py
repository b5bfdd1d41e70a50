"""The job roots that a server of pages shows: those that it is told, and those that it finds in folders."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stateflow.errors import ConfigError, InternalError, StateflowError
from stateflow.outputs import error_report
from stateflow.storage import PosixStorage, Storage, check_address, is_object_address, open_storage
from stateflow.storage.paths import FORMAT
from stateflow.ui.roots import CatalogJob, Orchestration, RootSearch

log = logging.getLogger(__name__)

_SLUG = re.compile("[^A-Za-z0-9._-]+")
_LONGEST_SLUG = 60
_EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class SearchLimits:
    """Limits of a search for job roots.

    Attributes:
        depth: folders between the searched one and a job root, at most.
        folders: folders that are looked into.
        job_roots: job roots that are found.
    """

    depth: int = 4
    folders: int = 2000
    job_roots: int = 500


def job_at(job_root: str) -> CatalogJob:
    """Returns the job root at a path or URI; whether a job exists there is not checked.

    Raises ConfigError for an address that cannot be used, or has a user or a password.
    """
    check_address(job_root)
    storage = open_storage(job_root)
    location = str(storage.root) if isinstance(storage, PosixStorage) else job_root
    return CatalogJob(_id_of(location), location, lambda: storage)


def job_opened_by(open_root: Callable[[str], Storage], job_root: str) -> CatalogJob:
    """Returns the job root at a path or URI, which is opened when it is read.

    Raises ConfigError for an address that is not valid, or has a user or a password.
    """
    check_address(job_root)
    location = job_root
    if not is_object_address(job_root):
        storage = open_storage(job_root)
        location = str(storage.root) if isinstance(storage, PosixStorage) else job_root
    return CatalogJob(_id_of(location), location, partial(open_root, job_root))


def _id_of(location: str) -> str:
    """Returns an id that is the same in each process: the name of the folder, and a hash that distinguishes it.

    The hash is so long that a user cannot make another job root with the same id, to get the rights of others.
    """
    name = _SLUG.sub("-", location.rstrip("/").rpartition("/")[2])[:_LONGEST_SLUG].strip("-.") or "job"
    return f"{name}-{hashlib.sha256(location.rstrip('/').encode('utf-8', 'surrogateescape')).hexdigest()[:16]}"


def find_job_roots(storage: Storage, limits: SearchLimits = SearchLimits()) -> tuple[list[str], bool]:
    """Returns the folders below a storage's root that are job roots, and whether the search ended at a limit.

    A job root is recognized by its FORMAT. Folders within it are not looked into.
    """
    waiting, found, seen = deque([("", 0)]), list[str](), 0
    while waiting:
        prefix, depth = waiting.popleft()
        if seen >= limits.folders or len(found) >= limits.job_roots:
            return found, True
        seen += 1
        if storage.size(f"{prefix}{FORMAT}") is not None:
            found.append(prefix)
        elif depth < limits.depth:
            waiting.extend((f"{prefix}{name}/", depth + 1) for name in storage.folders(prefix))
    return found, False


class RootCatalog:
    """The job roots that a server was started with, and those that a thread finds in folders again and again.

    Args:
        job_roots: paths or URIs of job roots.
        folders: paths or URIs below which job roots are looked for.
        limits: of each search.

    Raises ConfigError for an address that cannot be used.
    """

    def __init__(
        self, job_roots: Sequence[str], folders: Sequence[str] = (), limits: SearchLimits = SearchLimits()
    ) -> None:
        for folder in folders:
            check_address(folder)
        self._given = {job.id: job for job in map(job_at, job_roots)}
        self._folders = {folder: open_storage(folder) for folder in folders}
        self._limits = limits
        self._found: dict[str, Mapping[str, CatalogJob]] = {}
        self._searches: dict[str, RootSearch] = {}
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._search_again, args=(folder,), name="stateflow-search", daemon=True)
            for folder in self._folders
        ]

    def jobs(self) -> Mapping[str, CatalogJob]:
        """Returns the job roots that were given or found, by id."""
        found = {id: job for jobs in list(self._found.values()) for id, job in jobs.items()}
        return dict(sorted({**found, **self._given}.items()))

    def searches(self) -> Sequence[RootSearch]:
        """Returns the newest search of each folder."""
        return [self._searches.get(folder, RootSearch(folder, 0, False, None)) for folder in self._folders]

    def orchestration_of(self, id: str) -> Orchestration:
        """Returns nothing: a job root does not tell it."""
        return Orchestration()

    def start(self) -> None:
        """Begins to search, in a thread for each folder, so that one that hangs does not hinder the others."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the searches, without waiting for one that hangs."""
        self._stopping.set()

    def search(self, folder: str) -> None:
        """Searches a folder once. After an error, the job roots that were found before stay."""
        before = self._found.get(folder, {})
        try:
            storage = self._folders[folder]
            if isinstance(storage, PosixStorage) and not storage.root.is_dir():
                hint = f"correct the path, or create it: it is looked for each {_EVERY_SECONDS:.0f} seconds"
                raise ConfigError("the folder does not exist", hint=hint, folder=str(storage.root))
            prefixes, truncated = find_job_roots(storage, self._limits)
            self._found[folder] = jobs = self._jobs_at(folder, prefixes)
        except StateflowError as e:
            self._searches[folder] = RootSearch(folder, len(before), False, error_report(e))
        except Exception as e:
            log.exception("unexpected error while looking for job roots")
            error = InternalError(f"{type(e).__name__}: {e}", hint="report this")
            self._searches[folder] = RootSearch(folder, len(before), False, error_report(error))
        else:
            self._searches[folder] = RootSearch(folder, len(jobs), truncated, None)

    def _search_again(self, folder: str) -> None:
        while not self._stopping.is_set():
            self.search(folder)
            self._stopping.wait(_EVERY_SECONDS)

    def _jobs_at(self, folder: str, prefixes: Sequence[str]) -> dict[str, CatalogJob]:
        storage, found = self._folders[folder], dict[str, CatalogJob]()
        for prefix in prefixes:
            if isinstance(storage, PosixStorage):
                # Not by `job_at`: the name of a folder that a user made is not a URI.
                path = Path(storage.root, prefix)
                job = CatalogJob(_id_of(str(path)), str(path), partial(PosixStorage, path))
            else:
                try:
                    job = job_at(f"{folder.rstrip('/')}/{prefix}".rstrip("/"))
                except ConfigError as e:
                    log.warning("skipped a job root whose address cannot be used: %s", e)
                    continue
            found[job.id] = job
        return found
