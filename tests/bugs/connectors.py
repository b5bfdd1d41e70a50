"""Bugs of sources and sinks, and of windows, joins, rankings, patterns and SQL functions."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "token-is-not-in-the-commit",
        "stateflow/connectors/delta/sink.py",
        'return [{"commitInfo": info}, self._transaction(token, now), *added]',
        'return [{"commitInfo": info}, *added]',
        ("tests/connectors/test_delta_publish.py::test_checkpoints_are_published_in_order_and_once",),
    ),
    Bug(
        "file-of-another-size-is-published",
        "stateflow/connectors/delta/sink.py",
        "return [c.path for c in committables if self._size(c.path) != c.size]",
        "return [c.path for c in committables if self._size(c.path) is None]",
        ("tests/connectors/test_delta_table.py::test_missing_and_changed_files_are_reported",),
    ),
    Bug(
        "emitted-files-of-an-upsert-stay",
        "stateflow/connectors/delta/sink.py",
        "useless = rewrite.added if version is None else committables",
        "useless = rewrite.added if version is None else []",
        ("tests/connectors/test_delta_upsert.py",),
    ),
    Bug(
        "entry-of-a-recreated-table",
        "stateflow/connectors/delta/log.py",
        "if not is_current(table, head) or not append_entry(table, version, actions):",
        "if not append_entry(table, version, actions):",
        ("tests/connectors/test_delta_table.py::test_a_handle_of_an_older_version_commits_nothing",),
    ),
    Bug(
        "file-with-the-key-at-its-bound-is-kept",
        "stateflow/connectors/delta/versions.py",
        'if ends["max"] < low or high < ends["min"]:',
        'if ends["max"] <= low or high <= ends["min"]:',
        ("tests/connectors/test_delta_upsert.py::test_a_table_has_the_last_row_of_each_key",),
    ),
    Bug(
        "file-at-the-time-is-skipped",
        "stateflow/connectors/files/source.py",
        "skipped = sorted((file, time) for file, time in modified.items() if time < limit)",
        "skipped = sorted((file, time) for file, time in modified.items() if time <= limit)",
        ("tests/connectors/test_skipped_files.py",),
    ),
    Bug(
        "file-of-the-position-counts-as-later",
        "stateflow/connectors/files/source.py",
        "return {file.path for log in logs for file in _read_files(log) if file.batchId > last}",
        "return {file.path for log in logs for file in _read_files(log) if file.batchId >= last}",
        ("tests/connectors/test_file_source.py::test_a_position_is_held_while_the_files_that_were_read_since_exist",),
    ),
    Bug(
        "row-at-the-begin-of-a-share-is-lost",
        "stateflow/connectors/files/text_files.py",
        "    file.seek(position := at - 1)",
        "    file.seek(position := at)",
        ("tests/connectors/test_decoded_files.py::test_shares_of_a_file_have_each_row_once_and_in_order",),
    ),
    Bug(
        "rewritten-file-is-read-in-parts",
        "stateflow/connectors/files/parquet_files.py",
        "                if source.size() != share.size:",
        "                if source.size() < share.size:",
        ("tests/runtime/spark/test_file_reader.py::test_a_file_that_was_written_again_is_left_to_spark",),
    ),
    Bug(
        "token-of-another-sink-is-taken",
        "stateflow/connectors/iceberg/snapshots.py",
        "        if found is not None and found.application == application:\n            return found.token",
        "        if found is not None:\n            return found.token",
        ("tests/connectors/test_iceberg_publish.py::test_a_rewind_by_another_sink_of_the_table_is_listed",),
    ),
    Bug(
        "open-transaction-is-new-input",
        "stateflow/connectors/kafka/source.py",
        'ends = client.ends(client.partitions(self.topics), committed=isolation == "read_committed")',
        "ends = client.ends(client.partitions(self.topics), committed=False)",
        (
            "tests/connectors/test_new_input.py::test_only_committed_records_are_new_input_unless_an_option_says_otherwise",
        ),
    ),
    Bug(
        "retracted-row-has-a-value",
        "stateflow/connectors/kafka/formats.py",
        "            value = None if number in deleted else values(number)",
        "            value = values(number)",
        ("tests/connectors/test_changelog_sinks.py::test_records_of_kafka_have_no_value_for_rows_that_are_retracted",),
    ),
    Bug(
        "ends-are-read-before-the-starts",
        "stateflow/connectors/partitioned/source.py",
        "        found = Available(self._offsets(self.starts), self._offsets(self.ends))",
        "        ends = self._offsets(self.ends)\n        found = Available(self._offsets(self.starts), ends)",
        (
            "tests/connectors/test_partitioned_source.py::test_rows_may_be_removed_while_a_source_is_asked_for_its_offsets",
        ),
    ),
    Bug(
        "query-passes-the-target",
        "stateflow/connectors/partitioned/spark_reader.py",
        'self._source.next_position(start["position"], self._limits, self._target))',
        'self._source.next_position(start["position"], self._limits))',
        (
            "tests/connectors/test_python_readers.py::test_batches_of_a_query_have_each_row_once_with_its_partition_and_end_at_the_target",
        ),
    ),
    Bug(
        "staged-file-with-missing-rows-is-published",
        "stateflow/connectors/staged_output.py",
        '    if rows != committable.rows:\n        raise _damaged(committable, f"it has {rows} rows")\n',
        "",
        ("tests/connectors/test_staged_output.py::test_damaged_rows_are_refused",),
    ),
    Bug(
        "null-mark-deletes-the-row",
        "stateflow/connectors/upserts.py",
        "pc.fill_null(rows.column(settings.deletes), False)",
        "pc.fill_null(rows.column(settings.deletes), True)",
        ("tests/connectors/test_delta_upsert.py",),
    ),
    Bug(
        "missing-column-is-null-in-every-row",
        "stateflow/connectors/column_policy.py",
        '        elif not column.nullable or policy.missing == "refuse":',
        '        elif policy.missing == "refuse":',
        ("tests/connectors/test_source_columns.py::test_missing_columns_are_refused_or_null_if_they_may_be",),
    ),
    Bug(
        "row-at-the-end-is-in-the-window",
        "stateflow/api/windows/assigners.py",
        "range(latest, timestamp - self.size, -self.slide)]",
        "range(latest, timestamp - self.size - 1, -self.slide)]",
        ("tests/windows/test_flink_cases.py::test_tumbling_event_time_windows",),
    ),
    Bug(
        "replaced-rank-is-not-retracted",
        "stateflow/api/ranking.py",
        "        had = before >= 0\n",
        "        had = before > 0\n",
        ("tests/changelogs/test_flink_cases.py",),
    ),
    Bug(
        "top-n-has-one-row-more",
        "stateflow/api/ranking.py",
        "        is_chosen = rank < self._selection.n\n",
        "        is_chosen = rank <= self._selection.n\n",
        ("tests/changelogs/test_flink_cases.py::test_a_top_n_without_rank_inserts_and_deletes",),
    ),
    Bug(
        "match-continues-with-its-last-row",
        "stateflow/api/patterns/skip.py",
        "            return last + 1\n",
        "            return last\n",
        ("tests/patterns/test_flink_cases.py",),
    ),
)
