"""A program that opens a RocksDB store and reads samples of each key group, which `check` runs in a child process.

It has limits for memory and CPU time, and its end is all that matters to the caller. It imports nothing from stateflow:
it is started for each store that comes from elsewhere, and the caller passes its text to the interpreter.

Arguments: bytes of memory, seconds of CPU time, the folder of the store, the folder of the package rocksdict. It exits
with 0 if RocksDB could read the samples. After an error of RocksDB it prints the error and exits with 1. Any other end
means that the store is not safe to read.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # The text of this function precedes the program.
    from stateflow.process_limits import limit

_LONGEST_ERROR = 2000
_KEY_GROUPS = 1 << 15
_BLOCK_CACHE_BYTES = 8 << 20


def read_samples(folder: str) -> None:
    """Opens the store, and reads the first and the last entry of each key group."""
    import rocksdict

    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(_BLOCK_CACHE_BYTES))
    # Without a filter policy, RocksDB would not read the filters.
    table.set_bloom_filter(10, False)
    table.set_cache_index_and_filter_blocks(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(False)
    options.set_block_based_table_factory(table)
    options.set_max_file_opening_threads(1)
    store = rocksdict.Rdict(folder, options=options, access_type=rocksdict.AccessType.read_only())
    found = store.iter(rocksdict.ReadOptions())
    found.seek_to_first()
    while found.valid():
        key = found.key()
        store.get(key)
        next_group = int.from_bytes(key[:2].ljust(2, b"\0"), "big") + 1
        if next_group > _KEY_GROUPS:
            break
        found.seek(next_group.to_bytes(2, "big"))
    found.status()


def main(memory: str, cpu_seconds: str, folder: str, packages: str) -> int:
    """Returns the exit code."""
    sys.path.append(packages)
    limit(int(memory), int(cpu_seconds))
    try:
        read_samples(folder)
    except Exception as e:
        sys.stdout.write(str(e)[:_LONGEST_ERROR])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
