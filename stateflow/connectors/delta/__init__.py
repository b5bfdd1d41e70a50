"""The Delta sink: writes to a table, reads its log, and rewinds it to an older version."""
