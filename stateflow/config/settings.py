"""Settings of a run: frozen dataclasses whose values are validated when they are created.

Durations and ends of runs are parsed here.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

from stateflow.errors import ConfigError
from stateflow.helpers import check_choice
from stateflow.types.key_groups import DEFAULT_MAX_PARALLELISM

COMPACTIONS = ("universal", "leveled")
BACKENDS = ("rocksdb", "filesystem", "memory")
LARGEST_INLINE = 1 << 20
LARGEST_SORT = 1 << 31
LARGEST_MEMORY_STATE = 24 << 20
"""A manifest has at most 48 MiB; state in it is base64-encoded, and it has other contents as well."""
_INLINE_TOTAL = 16 << 20
LARGEST_KEY = 1 << 20
LARGEST_VALUE = 16 << 20
"""Upper bounds of the limits for entries. They bound the blocks of data files, and so the memory in which stores from
elsewhere are checked."""


@dataclass(frozen=True)
class EntryLimits:
    """The largest entries that functions may write; stored entries may be larger.

    Attributes:
        key_bytes: size of an encoded key.
        map_key_bytes: size of an encoded key of a map.
        value_bytes: size of one encoded value: a value, an element of a list, a value of a map, or an accumulator.
    """

    key_bytes: int = 64 << 10
    map_key_bytes: int = 64 << 10
    value_bytes: int = 16 << 20


@dataclass(frozen=True)
class StateSettings:
    """State backend choice, limits and TTL cleanup.

    Attributes:
        backend: state backend: ``rocksdb``, ``filesystem`` or ``memory``; see [state backends](#state-backends). It can
            be changed: state of another backend is converted.
        incremental: RocksDB stores only the files that the previous checkpoint does not have. Flink's name
            ``state.backend.incremental`` is accepted; in a TOML file it needs quotes: ``"backend.incremental"`` in
            ``[state]``.
        memory_limit_bytes: maximum state of the memory backend, over all operators and subtasks; a batch that ends with
            more fails. At most 24 MiB.
        inline_below_bytes: the filesystem backend stores state of a subtask that is smaller in the manifest instead of
            a file. At most 1 MiB, and at most 16 MiB divided by the number of all subtasks.
        ttl_cleanup_interval: how often subtasks without rows remove expired entries of states with a time to live in
            processing time, if there are any, in a run that waits for input. While no input arrives, it makes a batch
            without rows for it, in which a subtask processes ten times as many entries.
        cache_limit_bytes: maximum size of the files that a host caches for closed stores, over all jobs. The limit is
            enforced when a store is opened, least recently used files first. Hard links to files of an open store or of
            a job root on the same file system do not count.
        max_key_bytes: maximum size of a key, encoded: a text takes its UTF-8 bytes, two more, and one for each NUL. A
            row with a larger key fails, or becomes a dead letter. At most 1 MiB. See [limits of keys and
            values](#limits-of-keys-and-values).
        max_map_key_bytes: the same for a key of a map state. At most 1 MiB.
        max_value_bytes: maximum size of one encoded value: a value, an element of a list, a value of a map, or an
            accumulator. At most 16 MiB encoded and 100 MiB decoded.
    """

    backend: Choice = "rocksdb"
    incremental: bool = True
    memory_limit_bytes: int = 5 << 20
    inline_below_bytes: int = 20 << 10
    ttl_cleanup_interval: timedelta = timedelta(minutes=1)
    cache_limit_bytes: int = 20 << 30
    max_key_bytes: int = EntryLimits.key_bytes
    max_map_key_bytes: int = EntryLimits.map_key_bytes
    max_value_bytes: int = EntryLimits.value_bytes

    def __post_init__(self) -> None:
        check_choice("state.backend", self.backend, BACKENDS)
        why = "state in a manifest is written and read in one piece"
        check_at_most("state.inline_below_bytes", self.inline_below_bytes, LARGEST_INLINE, why)
        check_at_most("state.memory_limit_bytes", self.memory_limit_bytes, LARGEST_MEMORY_STATE, why)
        why = "larger entries could not be checked in bounded memory when they are restored"
        check_at_most("state.max_key_bytes", self.max_key_bytes, LARGEST_KEY, why)
        check_at_most("state.max_map_key_bytes", self.max_map_key_bytes, LARGEST_KEY, why)
        check_at_most("state.max_value_bytes", self.max_value_bytes, LARGEST_VALUE, why)

    @property
    def limits(self) -> EntryLimits:
        """The largest entries that functions may write."""
        return EntryLimits(self.max_key_bytes, self.max_map_key_bytes, self.max_value_bytes)

    @property
    def snapshots_are_full(self) -> bool:
        """Whether each checkpoint of changed state reads and stores all of it."""
        return self.backend != "rocksdb" or not self.incremental

    def with_inline_limit(self, subtasks: int) -> StateSettings:
        """Returns these settings with `inline_below_bytes` so low that the state of all subtasks fits in a manifest."""
        fair = max(1, _INLINE_TOTAL // subtasks)
        return dataclasses.replace(self, inline_below_bytes=min(self.inline_below_bytes, fair))


@dataclass(frozen=True)
class RocksDBSettings:
    """Memory and compaction of RocksDB.

    Attributes:
        write_buffer_bytes: size of the memtable of a store; a second one is filled while the first is written. See
            [memory of a worker](#memory-of-a-worker).
        block_cache_bytes: size of the block cache that all stores of a worker process share, indexes and filters
            included.
        compaction: ``universal`` merges files of similar size, and all files at the size amplification limit;
            ``leveled`` keeps files without overlap on each level and merges a part of them at a time. It can be
            changed: [choose a compaction](guides/choose-compaction.md).
        compact_at_files: number of files that a lookup may have to read which triggers a compaction. It runs in the
            task, before the snapshot, at most once per batch and subtask.
        max_size_amplification_percent: universal compaction merges all files when the size of the others reaches this
            percentage of the largest one.
        level_base_bytes: size of the first level of leveled compaction, in four files; each level below has ten times
            as much.
    """

    write_buffer_bytes: int = 64 << 20
    block_cache_bytes: int = 64 << 20
    compaction: Choice = "universal"
    compact_at_files: int = 12
    max_size_amplification_percent: int = 60
    level_base_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        check_choice("rocksdb.compaction", self.compaction, COMPACTIONS)


@dataclass(frozen=True)
class ShuffleSettings:
    """Sorting of rows in the tasks after a shuffle.

    Attributes:
        sort_memory_bytes: memory in which a task on Spark sorts its rows; more rows are spilled to unnamed files in
            ``local_dir``. At most 2 GiB. See [memory of a worker](#memory-of-a-worker).
    """

    sort_memory_bytes: int = 128 << 20

    def __post_init__(self) -> None:
        check_at_most(
            "shuffle.sort_memory_bytes",
            self.sort_memory_bytes,
            LARGEST_SORT,
            "sorted rows are one Arrow buffer, whose offsets have 31 bits",
        )


Count = int
"""Annotation of an integer that may be 0; ``int`` is at least 1."""
Delay = timedelta
"""Annotation of a duration that may be zero; ``timedelta`` is positive."""
Choice = str
"""Annotation of an enumerated value. Case is ignored, and underscores equal hyphens, as in Flink's constants."""


EndCondition = str
"""Annotation of ``run.until``; a duration or a time of day is converted to text."""


def check_at_most(name: str, value: int, limit: int, why: str) -> None:
    """Raises ConfigError when the value exceeds the limit."""
    if value > limit:
        raise ConfigError("a setting exceeds its limit", hint=why, name=name, value=value, limit=limit)


_UNITS = {
    0.001: ("ms", "milli", "millis", "millisecond", "milliseconds"),
    1.0: ("s", "sec", "secs", "second", "seconds"),
    60.0: ("m", "min", "mins", "minute", "minutes"),
    3600.0: ("h", "hour", "hours"),
    86400.0: ("d", "day", "days"),
}
"""Names of the units of a duration, by their length in seconds."""
_SECONDS = {name: seconds for seconds, names in _UNITS.items() for name in names}
_DURATION = re.compile(r"\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*(?P<unit>[a-z]+)\s*", re.IGNORECASE | re.ASCII)


def parse_duration(text: str) -> timedelta:
    """Parses a duration such as ``90s``, ``10 min``, ``500ms``, ``2h`` or ``1 day``.

    Raises:
        ValueError: the text is not a number with a unit.
        OverflowError: the duration is too long for a timedelta.
    """
    found = _DURATION.fullmatch(text)
    if found is None or found["unit"].lower() not in _SECONDS:
        raise ValueError(text)
    return timedelta(seconds=float(found["number"]) * _SECONDS[found["unit"].lower()])


INPUT_ENDS, STOPPED = "input-ends", "stopped"


_TIME_OF_DAY = re.compile(r"(?P<time>\d\d:\d\d(:\d\d)?)(\s+(?P<zone>[A-Za-z][\w+/-]*))?", re.ASCII)


@dataclass(frozen=True)
class RunEnd:
    """When a run ends.

    Attributes:
        continuous: whether the run waits for more input when it has processed all of it.
        after: how long a continuous run lasts; None without such a limit.
        at: the time of day at which a continuous run ends; None without one.
        zone: the time zone of `at`.
    """

    continuous: bool = False
    after: timedelta | None = None
    at: time | None = None
    zone: tzinfo = UTC

    def next_time(self, now: datetime) -> datetime | None:
        """Returns the next occurrence of the time of day after `now`, in UTC; None without a time of day."""
        if self.at is None:
            return None
        today = now.astimezone(self.zone).date()
        # The day is added to the date, not to the time: a day has 23 or 25 hours when the clocks change.
        times = (datetime.combine(today + timedelta(days=days), self.at, self.zone).astimezone(UTC) for days in (0, 1))
        return next(each for each in times if each > now)


def parse_run_end(text: str) -> RunEnd:
    """Parses a value of ``run.until``.

    Raises:
        ConfigError: the value has none of the allowed forms.
    """
    if text.lower().replace("_", "-") == INPUT_ENDS:
        return RunEnd()
    if text.lower() == STOPPED:
        return RunEnd(continuous=True)
    try:
        return _time_of_day(text) or _duration(text)
    except (ValueError, OverflowError, KeyError, OSError) as e:
        raise ConfigError(
            "invalid value of a setting",
            hint=f"expected {INPUT_ENDS}, {STOPPED}, a duration such as 90 min or 8h, or a time of day such as 18:00 "
            "(in UTC) or 18:00 Europe/Berlin",
            name="run.until",
            value=text,
        ) from e


def _time_of_day(text: str) -> RunEnd | None:
    """Returns the end at a time of day; None for a text that is none. Raises for an unknown hour or zone."""
    found = _TIME_OF_DAY.fullmatch(text.strip())
    if found is None:
        return None
    zone = ZoneInfo(found["zone"]) if found["zone"] else UTC
    return RunEnd(continuous=True, at=time.fromisoformat(found["time"]), zone=zone)


def _duration(text: str) -> RunEnd:
    duration = parse_duration(text)
    if not duration:
        raise ValueError(text)
    return RunEnd(continuous=True, after=duration)


RESTART_STRATEGIES = ("none", "fixed-delay", "exponential-delay", "failure-rate")
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"


@dataclass(frozen=True)
class RunSettings:
    """When a run ends, and how often it looks for input.

    Attributes:
        until: ``input-ends``: the run ends when it has processed what the sources held at its start. ``stopped``: it
            waits for more input until ``stateflow stop``, SIGTERM or SIGINT; see [keep a
            job running](guides/run-continuously.md). With a duration, such as ``8h``, or a time of day, such as
            ``18:00`` (in UTC) or ``18:00 Europe/Berlin``, the run keeps waiting for input until that time, then
            finishes its current batch and ends. A duration counts from when the run was restored, and a time of day is
            its next occurrence. With ``run.drain`` every run ends as with ``input-ends``.
        interval: time between two polls for input of a run that waits for more. A poll that finds input starts a batch,
            and a batch that takes longer delays the next poll. Without it, a run polls again as soon as a batch has
            ended, and every 500 ms when it finds no input.
        max_batches: maximum number of batches of a run.
        max_duration: the run ends with the first batch that completes after this time, counted from when it was
            restored.
        drain: treat all sources as ended once the run has caught up, which fires every event-time timer. ``stateflow
            run --drain`` and *Last run: drain* in Airflow set it. Use it for the last run only: on a schedule it would
            close every open session at the end of each run. A run that ends earlier, at a limit, does not drain.
        skip_idle: end without starting Spark if there is certainly nothing to do: every source confirms that it has no
            new input, no timer is due, and nothing is left from earlier runs or waits for a run.
        take_over: how long an active run of the job may take to end with a checkpoint, once this run has started Spark.
            Then, or when the active run has ended, this run claims the job. Without it, a run claims the job at once,
            and repeats the batches of the active run since its last checkpoint.
    """

    until: EndCondition = INPUT_ENDS
    interval: timedelta | None = None
    max_batches: int | None = None
    max_duration: timedelta | None = None
    drain: bool = False
    skip_idle: bool = True
    take_over: timedelta | None = None

    def __post_init__(self) -> None:
        parse_run_end(self.until)

    @property
    def end(self) -> RunEnd:
        """When a run ends."""
        return RunEnd() if self.drain else parse_run_end(self.until)


LIMITS = ("max_files_per_batch", "max_rows_per_batch")
"""Names of the limits of a source."""


@dataclass(frozen=True)
class SourceSettings:
    """Limits of the input of a micro-batch.

    Attributes:
        max_files_per_batch: maximum number of files of each source in a batch, for files and Delta tables; without it,
            a batch takes all new files.
        max_rows_per_batch: maximum number of rows of each source in a batch, for Kafka, sources in Python, which get it
            as an argument, and Parquet files in a local folder, for which it limits the bytes of whole files. A limit
            that no source of the job has is refused.
        of: a limit of the source with this uid, such as ``source.of.flights.max_rows_per_batch``. For a source with
            limits of its own, the limits for all sources do not apply.
    """

    max_files_per_batch: int | None = None
    max_rows_per_batch: int | None = None
    of: Mapping[str, SourceSettings] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, int]:
        """The limits for all sources that are set, by name."""
        values = {name: getattr(self, name) for name in LIMITS}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class CheckpointSettings:
    """Checkpoint interval, mode, limits and retention.

    Attributes:
        mode: ``exactly-once`` publishes output with the checkpoint that contains it. ``at-least-once`` publishes it at
            its barrier, also when no checkpoint follows; state is exact in both modes, and output that no checkpoint
            contained when a run died is published again.
        interval_batches: number of batches after which a checkpoint is made. Between checkpoints state files are
            stored, but nothing is committed or published; a killed run repeats those batches. Without this setting and
            ``checkpoints.interval``, each batch ends with a checkpoint.
        interval: time since the last checkpoint after which the next batch ends with one. With both intervals, the one
            that is reached first counts.
        min_pause: minimum time between two checkpoints. Savepoints, stops and the end of a run ignore it.
        asynchronous: store files, commit and publish while the next batch is processed. A batch then ends at its
            barrier, and a kill repeats the batches whose checkpoints were incomplete. The run still ends when its last
            checkpoint is published. Otherwise a batch ends after all of that.
        timeout: a checkpoint whose files are not stored within this time after its barrier is aborted.
        max_in_flight: maximum number of incomplete checkpoints. Further barriers do not become checkpoints; the next
            checkpoint contains their output. Savepoints and stops ignore it.
        tolerable_failures: number of consecutive aborted checkpoints that do not fail the run. The next checkpoint
            publishes the output of an aborted one.
        retained: number of checkpoints that are kept, the newest included. With 1, a run cannot return to the previous
            checkpoint when output was deleted before it was published.
        max_age: maximum age of kept checkpoints, by the clocks of the runs that committed them. Older ones are released
            with the next checkpoints, at most half of them each time. The newest is always kept.
        collect_every: number of checkpoints between two garbage collections; a run also collects at its end. With more
            than 80 kept checkpoints, data is collected only after an eighth as many log entries.
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
        check_choice("checkpoints.mode", self.mode, (EXACTLY_ONCE, AT_LEAST_ONCE))


@dataclass(frozen=True)
class FixedDelay:
    """Restart strategy ``fixed-delay``: a limited number of restarts, each after the same delay.

    Attributes:
        attempts: maximum number of restarts.
        delay: time between a failure and the restart.
    """

    attempts: int = 1
    delay: Delay = timedelta(seconds=1)


@dataclass(frozen=True)
class ExponentialDelay:
    """Restart strategy ``exponential-delay``: each delay is 1.5 times the one before, up to `max_backoff`.

    Attributes:
        initial_backoff: delay of the first restart; each further one is 1.5 times the one before, and up to a tenth
            more or less. After an hour without failure the delay is this one again, and the attempts are counted from
            zero.
        max_backoff: maximum delay.
        attempts: maximum number of restarts; none for no limit.
    """

    initial_backoff: timedelta = timedelta(seconds=1)
    max_backoff: timedelta = timedelta(minutes=1)
    attempts: int | None = None


@dataclass(frozen=True)
class FailureRate:
    """Restart strategy ``failure-rate``: restarts unless more than `max_failures` failures occur within `interval`.

    Attributes:
        max_failures: maximum number of failures within the interval, its ends included; one more ends the run.
        interval: length of the interval.
        delay: time between a failure and the restart.
    """

    max_failures: int = 1
    interval: timedelta = timedelta(minutes=1)
    delay: Delay = timedelta(seconds=1)


@dataclass(frozen=True)
class RestartSettings:
    """Automatic restarts of a failed run, within the same process.

    Attributes:
        strategy: restart strategy of a failed run, which starts again from the newest checkpoint within the same
            process: ``none``, ``fixed-delay``, ``exponential-delay`` or ``failure-rate``. An error that a restart
            cannot fix fails the run at once. When the strategy gives up, the run ends with its error, and Airflow's
            retries apply.
    """

    strategy: Choice = "none"
    fixed_delay: FixedDelay = FixedDelay()
    exponential_delay: ExponentialDelay = ExponentialDelay()
    failure_rate: FailureRate = FailureRate()

    def __post_init__(self) -> None:
        check_choice("restart.strategy", self.strategy, RESTART_STRATEGIES)


@dataclass(frozen=True)
class RequestSettings:
    """Polling intervals of a run.

    Attributes:
        interval: how often a run looks for requests: savepoints and stops.
        fence_interval: how often a run looks for a newer run that has claimed the job, to end a batch that cannot be
            committed: one LIST and one GET. The log fences an older run independently of this setting.
    """

    interval: timedelta = timedelta(seconds=1)
    fence_interval: timedelta = timedelta(seconds=5)


NATIVE, CANONICAL = "native", "canonical"


@dataclass(frozen=True)
class SavepointSettings:
    """Format, workers and files of savepoints.

    Attributes:
        stop_format: format of the savepoint of a stop whose request names none: ``canonical`` or ``native``. Other
            savepoints are native unless the request names a format.
        worker_bytes: size of the state of one subtask for each worker that writes it in the canonical format. A worker
            writes contiguous key groups into one file; small subtasks share a worker.
        max_workers: maximum number of workers for one subtask.
        native_files: maximum number of files for the keyed state of a native savepoint. They are written to local disk
            first, two at a time, instead of being linked. 0 copies the files as they are.
    """

    stop_format: Choice = CANONICAL
    worker_bytes: int = 5 << 30
    max_workers: int = 4
    native_files: Count = 0

    def __post_init__(self) -> None:
        check_choice("savepoint.stop_format", self.stop_format, (CANONICAL, NATIVE))


@dataclass(frozen=True)
class HistorySettings:
    """Retention of the job's history.

    Attributes:
        retained: maximum number of records of checkpoints and actions in ``stateflow history``. A run removes older
            ones at its start, at its end and every 100 batches.
    """

    retained: int = 10_000


QUIET, FULL = "quiet", "full"


@dataclass(frozen=True)
class SparkSettings:
    """How a run starts Spark when spark-submit did not launch it.

    Attributes:
        master: URL of Spark's master when nothing else sets it. A local master must allow task retries: ``local[N,4]``.
        log: ``quiet`` logs each Spark error in one line, and writes warnings and stack traces to
            ``spark-logs/<job>-<process id>.log`` in ``local_dir``, of which the newest ten are kept. ``full`` is
            Spark's own log. A ``log4j2`` configuration of your own (``SPARK_CONF_DIR``,
            ``spark.driver.extraJavaOptions``) overrides both.
        conf: Spark's setting ``NAME``, passed on unchanged. Settings that change the meaning of rows or expressions
            are fixed, and refused with other values: time zone (``UTC``), ANSI mode, case of names, rebasing of dates,
            and others; ``spark-defaults.conf`` does not change them. Unless set, Spark's web interface keeps 20
            plans, 50 jobs and 100 stages (``spark.sql.ui.retainedExecutions``, ``spark.ui.retainedJobs``,
            ``spark.ui.retainedStages``).
    """

    master: str = "local[2,4]"
    log: str = QUIET
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("spark.log", self.log, (QUIET, FULL))


@dataclass(frozen=True)
class StorageSettings:
    """Properties of the storage that cannot be detected.

    Attributes:
        shared: the job root's path is the same file system on every host (CephFS, Lustre, …). Required for a path when
            Spark's tasks run on other hosts.
    """

    shared: bool = False


@dataclass(frozen=True)
class TelemetrySettings:
    """Export of metrics and spans during a run.

    Attributes:
        prometheus_port: port of a Prometheus endpoint on the loopback interface, served during a run; see [observe a
            job](guides/observe-a-job.md).
        otlp_endpoint: address of a collector for metrics and spans over OTLP/HTTP. Credentials are read from the
            environment variables of OpenTelemetry, such as ``OTEL_EXPORTER_OTLP_HEADERS``.
        interval: export interval of metrics to the collector; they are also sent at the end of a run.
    """

    prometheus_port: int | None = None
    otlp_endpoint: str = ""
    interval: timedelta = timedelta(seconds=10)


@dataclass(frozen=True)
class Settings:
    """All settings of a run.

    Attributes:
        name: name of the job; by default the job file's name without its suffix. Fixed for the life of the job root.
        parallelism: number of subtasks of each operator and sink. Each run may use another one, up to
            ``max_parallelism``.
        max_parallelism: number of key groups, 1 to 32768, fixed for the life of the job root. By default that of the
            job root; 4096 for a new one.
        local_dir: scratch folder on each host for working stores and cached state files; by default ``stateflow-<user
            id>`` in the folder for temporary files. Hosts and containers must not share it.
        job: parameter of the job, for ``env.parameter("NAME")``; a parameter that the job does not read is logged as a
            warning.
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
    savepoint: SavepointSettings = SavepointSettings()
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
            raise ConfigError(
                "parallelism exceeds max_parallelism",
                hint="use 1 to max_parallelism",
                value=self.parallelism,
                max_parallelism=self.max_parallelism,
            )
        if self.checkpoints.retained < 1 or self.checkpoints.collect_every < 1:
            raise ConfigError(
                "checkpoints.retained and checkpoints.collect_every must be at least 1",
                hint="set both to 1 or more",
                retained=self.checkpoints.retained,
                collect_every=self.checkpoints.collect_every,
            )

    @property
    def key_groups(self) -> int:
        """Number of key groups of a new job root."""
        return self.max_parallelism or DEFAULT_MAX_PARALLELISM

    @property
    def local_folder(self) -> Path:
        """Scratch folder of this host."""
        return Path(self.local_dir) if self.local_dir else default_local_folder()


def default_local_folder() -> Path:
    """Returns the scratch folder of this host if no setting names one."""
    return Path(tempfile.gettempdir(), f"stateflow-{os.getuid()}")
