"""The keyed state of one subtask during one batch: its base, the open store and the snapshot at the end."""

from __future__ import annotations

from stateflow import failpoints
from stateflow.runtime.task import store_cache
from stateflow.runtime.task_spec import TaskSpec
from stateflow.state.backends.base import KeyedStateBackend
from stateflow.state.backends.memory import check_limit
from stateflow.state.handles import Base, SubtaskState
from stateflow.state.kinds.timer_index import TimerIndex
from stateflow.types.key_groups import range_of


class SubtaskStore:
    """Opens the state backend of a subtask when it is first needed, and takes its snapshot.

    Attributes:
        base: the state that the subtask starts from.
        compaction_bytes: bytes that the snapshot stored again because of compactions.
        ttl_cleanup_at: see `SubtaskState`; that of the base unless the batch sets it.
    """

    def __init__(self, task: TaskSpec) -> None:
        self._task = task
        batch, chain = task.batch, task.chain
        parts = store_cache.decode_parts(chain.bases[task.subtask]) if chain.keying else ()
        owned = range_of(task.subtask, task.level.parallelism, batch.settings.max_parallelism)
        self.base = Base(task.subtask, owned, parts)
        self.compaction_bytes = 0
        self.ttl_cleanup_at = self.base.ttl_cleanup_at
        self._key = store_cache.StoreKey.of(batch, chain.uid, task.subtask)
        self._backend: KeyedStateBackend | None = None

    def open(self) -> KeyedStateBackend:
        """Returns the backend with the base in it."""
        if self._backend is None:
            task = self._task
            self._backend = store_cache.acquire(self._key, self.base, task.batch, task.attempt, task.level.parallelism)
            failpoints.hit("task.restored")
        return self._backend

    @property
    def must_open(self) -> bool:
        """Whether the subtask stores new state even without rows.

        The next manifest must not mix the states of two parallelisms, nor may a full checkpoint refer to files of
        earlier ones.
        """
        return self.base.rescales or (self._task.batch.settings.full_snapshot and bool(self.base.parts))

    @property
    def timer_index(self) -> TimerIndex:
        """The index of the timers in the store; opens the store."""
        return store_cache.timers_of(self.open(), self.base)

    def snapshot(self) -> SubtaskState | None:
        """Stores the state and returns it; returns that of the base for a store that was never opened.

        Raises:
            ConfigError: the state exceeds the memory limit.
        """
        if self._backend is None:
            return self.base.own
        task, owned = self._task, self.base.owned
        batch, uid = task.batch, task.chain.uid
        name = f"{batch.id.data_folder(task.attempt)}{uid}-{task.subtask}-"
        taken = self._backend.snapshot(name, batch.settings.full_snapshot)
        earliest = self.timer_index.earliest
        self.compaction_bytes = taken.compaction_bytes
        state = SubtaskState(
            subtask=task.subtask,
            first_group=owned.first,
            last_group=owned.last,
            snapshot=name,
            files=list(taken.files),
            backend=batch.settings.state.backend,
            inline=taken.inline,
            store_manifest=taken.store_manifest,
            event_timer=earliest.event,
            processing_timer=earliest.processing,
            ttl_cleanup_at=self.ttl_cleanup_at,
        )
        # The driver checks all subtasks together; state that exceeds the limit alone need not be sent there.
        check_limit({uid: [state]}, batch.settings.state.memory_limit_bytes)
        failpoints.hit("task.uploaded")
        store_cache.release(self._key, self._backend, name, batch.settings.state)
        self._backend = None
        return state

    def new_bytes(self, state: SubtaskState | None) -> int:
        """Returns how many bytes of `state` the base does not contain; `state` as `snapshot` returned it."""
        if state is None:
            return 0
        known = {file.handle.key for part in self.base.parts for file in part.files}
        files = {file.handle.key: file.handle.size for file in state.files}
        new = sum(size for key, size in files.items() if key not in known)
        return new if state is self.base.own else new + len(state.inline or b"")

    def close(self) -> None:
        """Closes the store without a snapshot, after a failure."""
        if self._backend is not None:
            self._backend.close()
            self._backend = None
