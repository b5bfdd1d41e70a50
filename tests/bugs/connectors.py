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
        "vacuum-deletes-restored-files",
        "stateflow/connectors/delta/maintenance.py",
        "removed is not None and removed < until and p not in active)",
        "removed is not None and removed < until)",
        ("tests/connectors/test_delta_maintenance.py::test_recently_removed_and_restored_files_stay",),
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
        "negative-option-of-a-reader",
        "stateflow/connectors/files/source.py",
        "        fits = 0 <= parse(str(value)) <= most",
        "        fits = parse(str(value)) <= most",
        ("tests/connectors/test_reader_options.py::test_a_value_that_spark_would_refuse_in_each_batch_is_refused",),
    ),
    Bug(
        "token-of-another-sink-is-taken",
        "stateflow/connectors/iceberg/snapshots.py",
        "        if found is not None and found.application == application:\n            return found.token",
        "        if found is not None:\n            return found.token",
        ("tests/connectors/test_iceberg_publish.py::test_a_rewind_by_another_sink_of_the_table_is_listed",),
    ),
    Bug(
        "files-of-a-failed-commit-stay",
        "stateflow/connectors/iceberg/table.py",
        "        if version is None:\n            files.remove()\n",
        "",
        ("tests/connectors/test_iceberg_publish.py::test_a_commit_is_not_repeated_after_a_commit_of_another_writer",),
    ),
    Bug(
        "lost-answer-to-a-commit-is-an-error",
        "stateflow/connectors/iceberg/catalog.py",
        "            version = self._version_in(self._connection.find_table())\n"
        "            if version is None:\n"
        "                raise\n"
        "            return version",
        "            raise",
        ("tests/connectors/test_iceberg_publish.py::test_a_lost_answer_to_a_commit_that_was_made_is_resolved",),
    ),
    Bug(
        "secrets-go-to-tasks",
        "stateflow/connectors/iceberg/sink.py",
        "        return self._settings.for_tasks(), self._target",
        "        return self._settings, self._target",
        ("tests/connectors/test_iceberg_columns.py::test_secrets_stay_on_the_driver",),
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
        "value-without-the-magic-byte-is-decoded",
        "stateflow/connectors/kafka/avro.py",
        "        if len(value) < _HEADER.size or value[0] != 0:",
        "        if len(value) < _HEADER.size:",
        ("tests/connectors/test_avro.py::test_spark_has_the_rows_of_several_writers_and_the_rejected_records",),
    ),
    Bug(
        "partition-with-few-rows-is-held-back",
        "stateflow/connectors/partitioned/positions.py",
        "taken = {name: 1 + (count - 1) * spare // more if more else 1 for name, count in new.items()}",
        "taken = {name: (count - 1) * spare // more if more else 1 for name, count in new.items()}",
        (
            "tests/connectors/test_partitioned_source.py::test_every_partition_with_rows_makes_progress_within_the_limit",
        ),
    ),
    Bug(
        "offset-of-a-row-counts-from-its-split",
        "stateflow/connectors/partitioned/split_rows.py",
        "        offset = self._split.start + self._number",
        "        offset = self._number",
        (
            "tests/connectors/test_partitioned_rows.py::test_rows_that_do_not_fit_are_rejected_one_by_one_with_their_position",
        ),
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
        "equal-rows-of-a-table-are-one",
        "stateflow/connectors/batch_table.py",
        "            matched[identity] -= 1\n",
        "            pass\n",
        ("tests/connectors/test_batch_table.py::test_each_version_is_what_the_one_before_lacks_and_has_too_much",),
    ),
    Bug(
        "position-at-the-first-offset-is-lost",
        "stateflow/connectors/partition_offsets.py",
        "        elif earliest[partition] > start:",
        "        elif earliest[partition] >= start:",
        (
            "tests/connectors/test_partition_offsets.py::test_gaps_are_the_rows_between_a_position_and_the_first_that_exists",
        ),
    ),
    Bug(
        "too-large-number-wraps-around",
        "stateflow/connectors/store_assignment.py",
        "made = values.cast(kind, safe=not pa.types.is_time(values.type))",
        "made = values.cast(kind, safe=False)",
        (
            "tests/connectors/test_existing_tables.py::test_values_that_narrower_columns_have_are_written_and_others_end_the_batch_before_its_checkpoint",
        ),
    ),
    Bug(
        "function-gets-each-row-of-a-kept-rewind",
        "stateflow/connectors/foreach_batch.py",
        "        if self._on_rewind == _REFUSE:",
        "        if self._on_rewind == _KEEP:",
        (
            "tests/connectors/test_foreach_batch.py::test_a_restore_is_refused_in_its_plan_unless_the_rows_are_to_be_kept",
        ),
    ),
    Bug(
        "rows-of-two-partitions-are-in-one-file",
        "stateflow/connectors/partitions.py",
        "np.unique(codes * len(texts[-1]) + found[-1], return_inverse=True)",
        "np.unique(codes + found[-1], return_inverse=True)",
        ("tests/connectors/test_delta_partitions.py::test_another_reader_finds_the_rows_and_values_of_each_partition",),
    ),
    Bug(
        "nan-has-an-upper-bound",
        "stateflow/connectors/data_files.py",
        "        has_high = math.isfinite(high) and not self._nan",
        "        has_high = math.isfinite(high)",
        ("tests/connectors/test_delta_files.py::test_the_bounds_and_nulls_of_a_column",),
    ),
    Bug(
        "missing-column-is-null-in-every-row",
        "stateflow/connectors/column_policy.py",
        '        elif not column.nullable or policy.missing == "refuse":',
        '        elif policy.missing == "refuse":',
        ("tests/connectors/test_source_columns.py::test_missing_columns_are_refused_or_null_if_they_may_be",),
    ),
    Bug(
        "rows-between-positions-begin-at-the-start",
        "stateflow/connectors/python.py",
        'self._source.between(_position(start), end["position"])',
        'self._source.between(None, end["position"])',
        (
            "tests/connectors/test_batch_table.py::test_spark_gets_the_rows_between_two_versions_and_the_error_of_a_version_that_is_gone",
        ),
    ),
)
