"""The API of jobs: streams, their functions, and the graph that they make.

- `source`, `sink`: what a connector implements; also the source of a list of rows, and the sink that prints.
- `schema`, `changelog`, `watermarks`: the columns, corrections and event times of a stream.
- `graph`: the nodes that the streams add, which the planner reads.
- `streams/`: the classes that a job calls; `sql/`: statements that call them.
- `functions/`: what users implement.
- `windows/`, `joins/`, `aggregates/`, `over/`, `patterns/`, `ranking`: the operators.
- `side_outputs`, `dead_letters`: rows that leave an operator another way.
- `input_files`: rules for the files of sources; `state_backends`: where state is kept.
"""
