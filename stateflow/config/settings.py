"""Settings: plain values in frozen dataclasses, validated once."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from stateflow.errors import ConfigError
from stateflow.keygroups import DEFAULT_MAX_PARALLELISM

RESTART_STRATEGIES = ("none", "fixed-delay", "exponential-delay", "failure-rate")
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
COMPACTIONS = ("universal", "leveled")
BACKENDS = ("rocksdb", "filesystem", "memory")
LARGEST_INLINE = 1 << 20
LARGEST_SORT = 1 << 31
LARGEST_MEMORY_STATE = 24 << 20
"""A manifest is read up to 64 MiB, its bytes are base64 there, and state is not all that is in it."""
_INLINE_TOTAL = 16 << 20

Count = int
"""A whole number that may be 0."""
Delay = timedelta
"""A duration that may be zero."""
Choice = str
"""One of a list of words, in any case; underscores and hyphens are equal, so that Flink's constants are understood."""


@dataclass(frozen=True)
class RunSettings:
    """When a run ends: caught up with what the sources held at its start, or earlier by one of these.

    Attributes:
        max_tick_batches: how many batches without rows a run ends with at most, while timers are due.
        drain: whether a run that is caught up takes its sources for ended, and so fires every event-time timer.
    """

    max_batches: int | None = None
    max_duration: timedelta | None = None
    max_tick_batches: int = 10
    drain: bool = False


@dataclass(frozen=True)
class SourceSettings:
    """How much one micro-batch takes in at most."""

    max_files_per_batch: int | None = None
    max_rows_per_batch: int | None = None


@dataclass(frozen=True)
class CheckpointSettings:
    """When there is a checkpoint, how many of them stay restorable, and after how many of them garbage is collected.

    Attributes:
        mode: ``exactly-once``: output becomes visible with the checkpoint that has it. ``at-least-once``: at its
            barrier; state is exact all the same, and what was not committed when a run died comes again.
        interval_batches, interval: a checkpoint behind so many batches, or so much time after the last one, whatever
            comes first; with neither, behind each batch.
        min_pause: a checkpoint is no sooner than this after the last one.
        asynchronous: whether files are stored and checkpoints committed and published while the next batch works; if
            not, a batch ends when all of that is done.
        timeout: a checkpoint whose files are not stored by then is aborted.
        max_in_flight: no barrier becomes a checkpoint while so many of them are not completed.
        retained, max_age: checkpoints that can be restored: this many of the newest, and of these the ones that are not
            older; the newest always.
        tolerable_failures: how many checkpoints may fail one after the other; the next one fails the run.
    """

    mode: Choice = EXACTLY_ONCE
    interval_batches: int | None = None
    interval: timedelta | None = None
    min_pause: Delay | None = None
    asynchronous: bool = True
    timeout: timedelta = timedelta(minutes=10)
    max_in_flight: int = 1
    tolerable_failures: Count = 0
    retained: int = 3
    max_age: timedelta | None = None
    collect_every: int = 10

    def __post_init__(self) -> None:
        _one_of("checkpoints.mode", self.mode, (EXACTLY_ONCE, AT_LEAST_ONCE), "mode of checkpoints")


@dataclass(frozen=True)
class FixedDelay:
    """Of restarts that always wait as long."""

    attempts: int = 1
    delay: Delay = timedelta(seconds=1)


@dataclass(frozen=True)
class ExponentialDelay:
    """Of restarts that wait longer and longer.

    Attributes:
        reset_after: a run that has worked for so long begins with the shortest delay again.
        jitter: which part of a delay is left to chance.
    """

    initial_backoff: timedelta = timedelta(seconds=1)
    max_backoff: timedelta = timedelta(minutes=1)
    multiplier: float = 1.5
    reset_after: timedelta = timedelta(hours=1)
    jitter: float = 0.1
    attempts: int | None = None

    def __post_init__(self) -> None:
        if self.multiplier < 1:
            raise ConfigError("delays must not become shorter", hint="at least 1", value=self.multiplier,
                              name="restart.exponential_delay.multiplier")  # fmt: skip
        if self.jitter >= 1:
            raise ConfigError("the part of a delay that is left to chance is too large", hint="below 1",
                              value=self.jitter, name="restart.exponential_delay.jitter")  # fmt: skip


@dataclass(frozen=True)
class FailureRate:
    """Of restarts that go on while failures are rare."""

    max_failures: int = 1
    interval: timedelta = timedelta(minutes=1)
    delay: Delay = timedelta(seconds=1)


@dataclass(frozen=True)
class RestartSettings:
    """Whether a run that has failed starts again by itself, before whoever launched it decides.

    Attributes:
        strategy: one of `RESTART_STRATEGIES`.
    """

    strategy: Choice = "none"
    fixed_delay: FixedDelay = FixedDelay()
    exponential_delay: ExponentialDelay = ExponentialDelay()
    failure_rate: FailureRate = FailureRate()

    def __post_init__(self) -> None:
        _one_of("restart.strategy", self.strategy, RESTART_STRATEGIES, "restart strategy")


@dataclass(frozen=True)
class RequestSettings:
    """How often a run looks at what others do.

    Attributes:
        interval: for what outsiders ask of it: savepoints, a stop.
        fence_interval: for a newer run that has claimed the job.
    """

    interval: timedelta = timedelta(seconds=1)
    fence_interval: timedelta = timedelta(seconds=5)


@dataclass(frozen=True)
class HistorySettings:
    """How many records of checkpoints and actions are kept for people."""

    retained: int = 10_000


@dataclass(frozen=True)
class StateSettings:
    """What keeps keyed state, and what is done with it beside what functions do.

    Attributes:
        backend: ``rocksdb``, ``filesystem`` or ``memory``. State that another one wrote is taken over.
        incremental: whether RocksDB stores only files that the checkpoint before does not have.
        memory_limit_bytes: the memory backend refuses more state than this, all operators and subtasks together.
        inline_below_bytes: a subtask's state that is smaller goes into the manifest, with the filesystem backend.
        ttl_cleanup_entries: how many due expiry entries a subtask works off per batch, for each state with a time to
            live; a key group that is looked at counts as three.
        cache_limit_bytes: what a host keeps at most of files of stores that are not open there, all jobs together, when
            a store is opened; the least recently used go first.
    """

    backend: Choice = "rocksdb"
    incremental: bool = True
    memory_limit_bytes: int = 5 << 20
    inline_below_bytes: int = 20 << 10
    ttl_cleanup_entries: int = 1000
    cache_limit_bytes: int = 20 << 30

    def __post_init__(self) -> None:
        _one_of("state.backend", self.backend, BACKENDS, "state backend")
        why = "state in a manifest is written and read in one piece"
        _at_most("state.inline_below_bytes", self.inline_below_bytes, LARGEST_INLINE, why)
        _at_most("state.memory_limit_bytes", self.memory_limit_bytes, LARGEST_MEMORY_STATE, why)

    @property
    def snapshots_are_full(self) -> bool:
        """Whether a checkpoint of changed state reads and stores all of it, and not only what is new."""
        return self.backend != "rocksdb" or not self.incremental

    def shared_by(self, subtasks: int) -> StateSettings:
        """The same, with no more state in a manifest than it can hold when each of so many subtasks puts some in."""
        fair = max(1, _INLINE_TOTAL // subtasks)
        return dataclasses.replace(self, inline_below_bytes=min(self.inline_below_bytes, fair))


def _one_of(name: str, value: str, known: tuple[str, ...], what: str) -> None:
    if value not in known:
        raise ConfigError(
            f"there is no such {what}", hint=f"known: {', '.join(known)}", name=name, value=value
        )


def _at_most(name: str, value: int, limit: int, why: str) -> None:
    if value > limit:
        raise ConfigError("a setting is too large", hint=why, name=name, value=value, limit=limit)


@dataclass(frozen=True)
class RocksDBSettings:
    """Memory and compaction of one store.

    Attributes:
        write_buffer_bytes: how much is collected in memory before a file is written.
        block_cache_bytes: memory for blocks of files, shared by all stores of a worker process.
        compaction: ``universal`` merges files of similar size, and all of them when those beside the largest have
            grown; ``leveled`` keeps files without overlap below the newest ones, and merges a part of them at a time.
        compact_at_files: when a look-up may have to ask so many files, some are merged, in the task, before its
            snapshot: one merge per batch and subtask.
        max_size_amplification_percent: universal merges everything when the other files reach this share of the
            largest one.
        level_base_bytes: leveled keeps up to so much on the first level, in four files, and ten times that on each one
            below.
    """

    write_buffer_bytes: int = 64 << 20
    block_cache_bytes: int = 64 << 20
    compaction: Choice = "universal"
    compact_at_files: int = 12
    max_size_amplification_percent: int = 60
    level_base_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        _one_of("rocksdb.compaction", self.compaction, COMPACTIONS, "kind of compaction")


@dataclass(frozen=True)
class ShuffleSettings:
    """How rows come to the subtasks of their keys.

    Attributes:
        sort_memory_bytes: what a task sorts its rows in; more of them go through files in ``local_dir``.
    """

    sort_memory_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        _at_most("shuffle.sort_memory_bytes", self.sort_memory_bytes, LARGEST_SORT, "rows that are sorted are one "
                 "piece of memory, which Arrow addresses by 31 bits")  # fmt: skip


QUIET, FULL = "quiet", "full"


@dataclass(frozen=True)
class SparkSettings:
    """How a run starts Spark, unless spark-submit has started it. ``spark.conf.NAME`` settings go to Spark as they are.

    Attributes:
        log: ``quiet`` shows Spark's errors in one line each and keeps all else in a file; ``full`` leaves it to Spark.
    """

    master: str = "local[2,4]"
    log: str = QUIET
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of("spark.log", self.log, (QUIET, FULL), "log of Spark")


@dataclass(frozen=True)
class StorageSettings:
    """Facts about the job root that cannot be seen from here."""

    shared: bool = False
    """The job root's path is the same file system on every host (CephFS, Lustre, …)."""


@dataclass(frozen=True)
class TelemetrySettings:
    """Where metrics and spans go, while a run lasts.

    Attributes:
        prometheus_port: metrics are served there, on loopback alone.
        otlp_endpoint: address of a collector that speaks OTLP over HTTP, which gets metrics and spans; what it asks for
            as credentials comes from the environment, as OpenTelemetry has it (``OTEL_EXPORTER_OTLP_HEADERS``).
        interval: metrics are sent to the collector this often.
    """

    prometheus_port: int | None = None
    otlp_endpoint: str = ""
    interval: timedelta = timedelta(seconds=10)


@dataclass(frozen=True)
class Settings:
    """Everything that can be set for a run.

    Attributes:
        name: the job; by default the job file's name without its ending.
        parallelism: subtasks of each operator.
        max_parallelism: number of key groups, fixed for the life of the job root. If None, an existing job root's own
            number, and `DEFAULT_MAX_PARALLELISM` for a new one.
        local_dir: scratch space on each host: working stores, and the cache of state files.
        job: the job's own parameters, from ``job.NAME``.
    """

    name: str = ""
    parallelism: int = 2
    max_parallelism: int | None = None
    local_dir: str = ""
    run: RunSettings = RunSettings()
    source: SourceSettings = SourceSettings()
    checkpoints: CheckpointSettings = CheckpointSettings()
    restart: RestartSettings = RestartSettings()
    requests: RequestSettings = RequestSettings()
    history: HistorySettings = HistorySettings()
    state: StateSettings = StateSettings()
    rocksdb: RocksDBSettings = RocksDBSettings()
    shuffle: ShuffleSettings = ShuffleSettings()
    spark: SparkSettings = SparkSettings()
    storage: StorageSettings = StorageSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    job: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.max_parallelism is not None and self.parallelism > self.max_parallelism:
            raise ConfigError("parallelism is out of range", hint="1 to max_parallelism", value=self.parallelism,
                              max_parallelism=self.max_parallelism)  # fmt: skip
        if self.checkpoints.retained < 1 or self.checkpoints.collect_every < 1:
            raise ConfigError("at least one checkpoint must be retained, and collecting needs an interval",
                              retained=self.checkpoints.retained)  # fmt: skip

    @property
    def key_groups(self) -> int:
        """Number of key groups of a job root that these settings create."""
        return self.max_parallelism or DEFAULT_MAX_PARALLELISM

    @property
    def local_folder(self) -> Path:
        """Where scratch files go."""
        return Path(self.local_dir or os.path.join(tempfile.gettempdir(), f"stateflow-{os.getuid()}"))
