"""Errors of Delta's source for Spark, as errors of stateflow."""

from __future__ import annotations

import pytest

from stateflow.connectors.delta.source import stream_error
from stateflow.errors import DataError, InputLost, SchemaMismatch

_UPDATED = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: [DELTA_SOURCE_TABLE_IGNORE_CHANGES] Detected a data "
    'update (for example UPDATE (Map(predicate -> "id = 1"))) in the source table at version 2. This is currently not '
    "supported. The source table can be found at path file:/in/a%20b. SQLSTATE: XXKST\n=== Streaming Query ==="
)
_KNOWN = [
    ("[DELTA_SOURCE_IGNORE_DELETE] Detected deleted data from streaming source at version 7. x", DataError, 7),
    ("[DELTA_MISSING_CHANGE_DATA] Error getting change data for range [4 , 5] as change data", DataError, None),
    ("[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] Streaming read is", SchemaMismatch, None),
    ("[DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE] If you never deleted it", InputLost, None),
]


@pytest.mark.parametrize(("reason", "error", "version"), _KNOWN)
def test_an_error_that_another_try_does_not_solve_is_explained(reason: str, error: type, version: int | None) -> None:
    found = stream_error(reason, "DeltaSource[rows:/in]", "/in")
    assert found is not None and type(found) is error
    assert found.facts.get("version") == version and not found.retryable


def test_an_error_that_names_a_table_is_one_of_its_source() -> None:
    for same in ("/in/a b", "file:///in/a b"):
        found = stream_error(_UPDATED, f"DeltaSource[rows:{same}]", same)
        assert isinstance(found, DataError) and found.facts["version"] == 2 and found.hint
    for other in ("/in/c", "/in/a", "/in", "/a b"):
        assert stream_error(_UPDATED, f"DeltaSource[rows:{other}]", other) is None


def test_an_error_that_a_new_run_may_solve_is_not_explained() -> None:
    for reason in ("", "x", "[DELTA_SCHEMA_CHANGED] Detected schema change", "[STREAM_FAILED] a\n[DELTA_"):
        assert stream_error(reason, "s", "/in") is None
