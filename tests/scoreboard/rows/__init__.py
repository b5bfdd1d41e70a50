"""All rows of the scoreboard, in the order in which they are shown."""

from tests.scoreboard.rows import (
    clocks,
    cluster,
    damage,
    damaged_copies,
    disks,
    forks,
    formats,
    histories,
    killed_drivers,
    long_runs,
    network,
    new_roots,
    other_writers,
    racing,
    spark,
    states,
)

ROWS = sorted(
    [
        *histories.ROWS,
        *killed_drivers.ROWS,
        *spark.ROWS,
        *cluster.ROWS,
        *racing.ROWS,
        *network.ROWS,
        *new_roots.ROWS,
        *damage.ROWS,
        *damaged_copies.ROWS,
        *states.ROWS,
        *disks.ROWS,
        *clocks.ROWS,
        *forks.ROWS,
        *formats.ROWS,
        *long_runs.ROWS,
        *other_writers.ROWS,
    ],
    key=lambda row: row.number,
)
