"""Windows: which rows belong together, and when results are emitted.

- `assigners`, `window`: the windows of a row; `trigger`, `triggers`: when a window emits; `evictors`: which rows stay.
- `functions`: what users implement.
- `window_operator`: windows row by row, with their contents and merging sessions.
- `column_windows`: the base of column aggregates in windows; `column_time_windows`, `column_sessions`: their kinds.
"""
