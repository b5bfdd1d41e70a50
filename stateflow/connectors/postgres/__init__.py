"""PostgreSQL tables as sinks: the rows of a checkpoint and its token are published in one transaction.

- `sink`: `PostgresSink`; tasks stage rows in the job root.
- `target`: which table a sink writes, how the driver connects, and the types of columns.
- `table`: publishes and rewinds; creates and checks the table; copies, upserts, and former rows for rewinds.
- `transactions`: connections with limits, and the tokens of sinks.
"""
