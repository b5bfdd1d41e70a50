"""Functions over Arrow batches of an unkeyed stream."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

ColumnsFunction = Callable[[pa.RecordBatch], pa.RecordBatch | pa.Table | None]
"""Takes some rows of a stream as Arrow columns, and returns any number of rows; None for no rows."""
