"""Writes savepoints without a run: from DataFrames, Arrow tables, files and Spark's checkpoints, and changed copies.

- `writer`: `SavepointWriter`, and the fields of the savepoint; `document`: source positions, and storing the document
- `layout`: the operators and how their state is divided
- `frames`: rows of a state; `encoded_values`, `encoded_entries`: the bytes that stores have for them
- `keyed_files`, `spark_keyed_files`: files of keyed state, written in this process and on Spark
- `operator_states`: operator state and broadcast state
- `transforms`: the state of an existing savepoint as frames
- `state_files`, `json_lines`: rows of files
- `spark_checkpoint`, `spark_state`, `spark_imported_states`: checkpoints of Structured Streaming
"""
