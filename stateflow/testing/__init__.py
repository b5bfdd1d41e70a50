"""The test kit: a harness for keyed functions, scripted sources, a sink in a folder, failing storages."""

from stateflow.testing.harness_job import BroadcastInput, KeyedInput
from stateflow.testing.harness_state import PendingTimer
from stateflow.testing.keyed_harness import HarnessSnapshot, KeyedHarness

__all__ = ["BroadcastInput", "HarnessSnapshot", "KeyedHarness", "KeyedInput", "PendingTimer"]
