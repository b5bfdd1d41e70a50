"""Test utilities: a harness for keyed functions, scripted sources, a sink in a folder, conformance suites."""

from stateflow.testing.harness.batches import HarnessSnapshot
from stateflow.testing.harness.job import BroadcastInput, KeyedInput, sql_query
from stateflow.testing.harness.keyed import KeyedHarness
from stateflow.testing.harness.operator_view import PendingTimer

__all__ = ["BroadcastInput", "HarnessSnapshot", "KeyedHarness", "KeyedInput", "PendingTimer", "sql_query"]
