"""How RocksDB is set up: memory, compression and compaction."""

from __future__ import annotations

from functools import lru_cache

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompactionStyle,
    DBCompressionType,
    Options,
    UniversalCompactOptions,
    WriteOptions,
)

from stateflow.settings import RocksDBSettings

_FILE_BYTES = 64 << 20
_LOG_BYTES = 256 << 10


@lru_cache(maxsize=4)
def _block_cache(size: int) -> Cache:
    # RocksDB's older cache is cut into so many shards that the index and the filter of one file fill a whole one, and
    # go out and come in again all the time. 0: it finds out how large what it keeps is.
    return Cache.new_hyper_clock_cache(size, 0)


def rocksdb_options(settings: RocksDBSettings) -> Options:
    """The options that each store is opened with."""
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache(settings.block_cache_bytes))
    table.set_bloom_filter(10, False)
    # Otherwise each store holds those of all its files in addition to the cache, and memory grows with state.
    table.set_cache_index_and_filter_blocks(True)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_disable_auto_compactions(True)
    _choose_compaction(options, settings)
    options.set_write_buffer_size(settings.write_buffer_bytes)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_block_based_table_factory(table)
    options.set_level_zero_slowdown_writes_trigger(1 << 20)
    options.set_level_zero_stop_writes_trigger(1 << 20)
    options.set_max_open_files(256)
    # RocksDB's own log gets 4 kB at each snapshot, as long as the store is open.
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(1)
    # It has no statistics, and would keep them in memory every ten minutes.
    options.set_stats_persist_period_sec(0)
    options.set_stats_dump_period_sec(0)
    return options


def _choose_compaction(options: Options, settings: RocksDBSettings) -> None:
    options.set_level_zero_file_num_compaction_trigger(level0_trigger(settings, settings.compact_at_files))
    if settings.compaction == "leveled":
        options.set_max_bytes_for_level_base(settings.level_base_bytes)
        # A merge into the next level takes one file, and all that it overlaps there: ten times as much.
        options.set_target_file_size_base(max(1, settings.level_base_bytes // 4))
    else:
        # The index of a file is one block of the cache: of larger files it would push out all others.
        options.set_target_file_size_base(_FILE_BYTES)
        options.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.max_size_amplification_percent = settings.max_size_amplification_percent
        options.set_universal_compaction_options(universal)


def level0_trigger(settings: RocksDBSettings, compact_at: int) -> int:
    """RocksDB's own threshold: leveled merges at so many files of level 0, universal at one run more."""
    return compact_at if settings.compaction == "leveled" else max(1, compact_at - 1)


def without_wal() -> WriteOptions:
    """For writes without RocksDB's log: the checkpoint is the log."""
    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010 - its stub has it as a method, it is an attribute
    return options
