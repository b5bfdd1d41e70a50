"""A query of Nexmark in Flink SQL, in Flink's own Python environment: nothing of the project can be imported here.

``python flink_nexmark.py ORDER ANSWER``: both JSON files. The order has Flink's settings, the query, the sink of its
result, and for each run in this JVM the statements that define tables and views: the first runs warm the JVM up. The
answer has the columns of the result, and when each run began and ended, by the monotonic clock.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, Table, TableDescriptor, TableEnvironment


def main(order: dict[str, Any]) -> dict[str, Any]:
    """Runs the query to the end of each input."""
    configuration = Configuration()
    for name, value in order["settings"].items():
        configuration.set_string(name, value)
    settings = EnvironmentSettings.new_instance().with_configuration(configuration).build()
    tables = [_table(settings, statements, order["query"]) for statements in order["statements"]]
    schema = tables[-1].get_schema()
    names = schema.get_field_names()
    return {
        "columns": [[name, str(schema.get_field_data_type(name))] for name in names],
        "runs": [_run(table, order["sink"], run) for run, table in enumerate(tables)],
        "plan": tables[-1].explain(),
    }


def _table(settings: EnvironmentSettings, statements: list[str], query: str) -> Table:
    """Returns the result of a query over the tables that statements define."""
    env = TableEnvironment.create(settings)
    for statement in statements:
        env.execute_sql(statement)
    return env.sql_query(query)


def _run(table: Table, sink: dict[str, Any], run: int) -> list[float]:
    builder = TableDescriptor.for_connector(sink["connector"])
    for name, value in sink["options"].items():
        builder = builder.option(name, f"{value}/{run}" if name == "path" else value)
    if sink["partitioned_by"]:
        builder = builder.partitioned_by(*sink["partitioned_by"])
    began = time.monotonic()
    table.execute_insert(builder.build()).wait()
    return [began, time.monotonic()]


if __name__ == "__main__":
    answer = main(json.loads(Path(sys.argv[1]).read_text()))
    Path(sys.argv[2]).write_text(json.dumps(answer))
