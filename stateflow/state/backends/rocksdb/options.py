"""RocksDB options: memory, compression and compaction."""

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

from stateflow.config.state_settings import RocksDBSettings

_FILE_BYTES = 64 << 20
_LOG_BYTES = 256 << 10


@lru_cache(maxsize=4)
def _block_cache(size: int) -> Cache:
    # RocksDB's LRU cache has so many shards that the index and the filter of one file fill a whole shard, and are
    # evicted and read again all the time. 0: the cache estimates the size of its entries.
    return Cache.new_hyper_clock_cache(size, 0)


def rocksdb_options(settings: RocksDBSettings) -> Options:
    """Returns the options to open a store with."""
    table = BlockBasedOptions()
    table.set_block_cache(_block_cache(settings.block_cache_bytes))
    table.set_bloom_filter(10, False)
    # Otherwise each store keeps them for all its files in addition to the cache, and memory grows with the state.
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
    # RocksDB's info log grows by 4 kB per snapshot as long as the store is open.
    options.set_max_log_file_size(_LOG_BYTES)
    options.set_keep_log_file_num(1)
    # Statistics are off; RocksDB would still save them in memory every ten minutes.
    options.set_stats_persist_period_sec(0)
    options.set_stats_dump_period_sec(0)
    return options


def _choose_compaction(options: Options, settings: RocksDBSettings) -> None:
    options.set_level_zero_file_num_compaction_trigger(level0_trigger(settings, settings.compact_at_files))
    options.set_target_file_size_base(target_file_bytes(settings))
    if settings.compaction == "leveled":
        options.set_max_bytes_for_level_base(settings.level_base_bytes)
    else:
        options.set_compaction_style(DBCompactionStyle.universal())
        universal = UniversalCompactOptions()
        universal.max_size_amplification_percent = settings.max_size_amplification_percent
        options.set_universal_compaction_options(universal)


def target_file_bytes(settings: RocksDBSettings) -> int:
    """Returns the size at which a new data file begins, below level 0."""
    # Universal: the index of a file is one block of the cache, and that of a larger file would evict all others.
    # Leveled: a compaction into the next level reads one file and all files that it overlaps there, ten times as much.
    return max(1, settings.level_base_bytes // 4) if settings.compaction == "leveled" else _FILE_BYTES


def level0_trigger(settings: RocksDBSettings, compact_at: int) -> int:
    """Returns RocksDB's threshold for a compaction at `compact_at` files: universal compacts at one run more."""
    return compact_at if settings.compaction == "leveled" else max(1, compact_at - 1)


def without_wal() -> WriteOptions:
    """Returns options for writes without a write-ahead log: the checkpoint is the log."""
    options = WriteOptions()
    setattr(options, "disable_wal", True)  # noqa: B010 - an attribute that the stub declares as a method
    return options
