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
    new_roots,
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
        *states.ROWS,
        *disks.ROWS,
        *clocks.ROWS,
        *forks.ROWS,
        *formats.ROWS,
    ],
    key=lambda row: row.number,
)
