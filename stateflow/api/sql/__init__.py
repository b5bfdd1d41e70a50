"""SQL statements over streams: text, plan, and the calls of the API that a plan describes.

- `parser`: text to sqlglot's tree, and errors with a position.
- `queries`: the tables, views and sinks of a job, where a statement starts; with `selects` and `joins`: tree to plan.
- `plan`: plans, and scopes of names.
- `build`: plan to streams.
- `analysis`: parsed expressions to typed ones; `expressions`: these, and their types.
- `calls`: typed calls; `sql_functions`: one row for each function; `dates`, `text_patterns`: what it needs.
- `renderings`: expressions as Spark SQL and as Python functions.
"""
