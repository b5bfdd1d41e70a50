"""All rows of the scoreboard, in the order in which they are shown."""

from tests.scoreboard.rows import (
    clocks,
    cluster,
    damage,
    disks,
    forks,
    formats,
    histories,
    killed_drivers,
    network,
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
        *damage.ROWS,
        *states.ROWS,
        *disks.ROWS,
        *clocks.ROWS,
        *forks.ROWS,
        *formats.ROWS,
        *other_writers.ROWS,
    ],
    key=lambda row: row.number,
)
