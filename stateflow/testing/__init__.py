"""Test utilities.

- `harness`: runs keyed functions, rows in and rows out
- `sources`, `sinks`: a scripted source, and a sink in a folder
- `conformance`: suites that storages, state backends and sinks must pass
"""

from stateflow.testing.harness.batches import HarnessSnapshot
from stateflow.testing.harness.job import BroadcastInput, KeyedInput, sql_query
from stateflow.testing.harness.keyed import KeyedHarness
from stateflow.testing.harness.operator_view import PendingTimer

__all__ = ["BroadcastInput", "HarnessSnapshot", "KeyedHarness", "KeyedInput", "PendingTimer", "sql_query"]
