"""Bugs of driver, planning, tasks and restores."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "exactly-once-output-is-published-early",
        "stateflow/runtime/driver/job_run.py",
        "if self.job.settings.checkpoints.mode != AT_LEAST_ONCE:",
        "if self.job.settings.checkpoints.mode == AT_LEAST_ONCE:",
        ("tests/recovery/test_checkpoint_modes.py::test_output_is_visible_at_its_checkpoint_or_at_each_barrier",),
    ),
    Bug(
        "batch-begins-without-a-fence-check",
        "stateflow/runtime/driver/job_run.py",
        "        self._fence_watch.check()\n        self._pipeline.check()\n",
        "        self._pipeline.check()\n",
        ("tests/runtime/test_fence_watch.py::test_a_run_that_detected_a_fence_begins_no_batch",),
    ),
    Bug(
        "idle-run-checks-no-fence",
        "stateflow/runtime/driver/job_run.py",
        "            self._fence_watch.check()\n            self._pipeline.checkpoint_if_idle()\n",
        "            self._pipeline.checkpoint_if_idle()\n",
        ("tests/runtime/test_continuous_runs.py::test_a_run_that_was_fenced_while_no_input_arrives_ends",),
    ),
    Bug(
        "aborted-checkpoint-loses-its-output",
        "stateflow/runtime/driver/checkpointing.py",
        "merged, self._aborted = pending.merged_after(self._aborted), PendingCheckpoint()",
        "merged, self._aborted = pending, PendingCheckpoint()",
        ("tests/runtime/test_asynchronous.py::test_the_next_checkpoint_publishes_the_output_of_an_aborted_one",),
    ),
    Bug(
        "failed-checkpoints-never-end-a-run",
        "stateflow/runtime/driver/checkpointing.py",
        "        if self._coordinator.has_failed_too_often:\n            raise finished.error\n",
        "",
        ("tests/runtime/test_asynchronous.py::test_one_failure_more_than_tolerable_fails_the_run_with_its_reason",),
    ),
    Bug(
        "last-barriers-wait-for-the-next-batch",
        "stateflow/runtime/driver/checkpointing.py",
        "            if self._coordinator.is_due_when_idle(now):",
        "            if self._submitted and self._coordinator.is_due_when_idle(now):",
        ("tests/runtime/test_continuous_runs.py::test_the_last_batches_become_a_checkpoint_although_no_batch_follows",),
    ),
    Bug(
        "idle-source-holds-timers-back",
        "stateflow/runtime/driver/batch_runner.py",
        "return self._fires_timers(self._watermarks(after_idleness, ended), now)",
        "return self._fires_timers(self.watermarks(ended), now)",
        (
            "tests/runtime/test_continuous_runs.py::test_a_source_that_becomes_idle_releases_event_time_timers_although_no_row_arrives",
        ),
    ),
    Bug(
        "background-work-retries-at-full-speed",
        "stateflow/runtime/driver/background.py",
        "_FIRST_PAUSE * 2 ** min(before.in_a_row, 20)",
        "_FIRST_PAUSE",
        (
            "tests/recovery/test_background_work.py::test_pauses_of_background_work_grow_with_failures_and_end_with_a_success",
        ),
    ),
    Bug(
        "newest-history-records-are-dropped",
        "stateflow/runtime/driver/background.py",
        "[*self.pending_records, record][-MAX_PENDING_RECORDS:]",
        "[*self.pending_records, record]",
        (
            "tests/recovery/test_background_work.py::test_a_run_succeeds_with_a_bounded_manifest_if_the_history_cannot_be_written",
        ),
    ),
    Bug(
        "withdrawn-stop-ends-the-run",
        "stateflow/runtime/driver/request_server.py",
        "if request.kind is RequestKind.STOP and counts.status == DONE:",
        "if request.kind is RequestKind.STOP:",
        ("tests/runtime/driver/test_request_server.py",),
    ),
    Bug(
        "expired-request-is-served",
        "stateflow/runtime/driver/request_server.py",
        "        if is_expired(request, self._root.clock.now()):",
        "        if request.takes_over and is_expired(request, self._root.clock.now()):",
        ("tests/runtime/driver/test_request_server.py",),
    ),
    Bug(
        "restart-begins-the-time-of-a-run-anew",
        "stateflow/runtime/driver/termination.py",
        "        if self._began is None:\n            self._began = self._clock.monotonic()",
        "        if True:\n            self._began = self._clock.monotonic()",
        ("tests/runtime/test_continuous_runs.py::test_a_restart_continues_the_rest_of_the_time",),
    ),
    Bug(
        "ticks-have-no-limit",
        "stateflow/runtime/driver/termination.py",
        "    for _ in range(_MOST_TICKS):",
        "    for _ in range(_MOST_TICKS + 1):",
        ("tests/runtime/test_timers.py::test_batches_without_rows_are_limited_and_continue_in_the_next_run",),
    ),
    Bug(
        "watermark-reaches-the-newest-row",
        "stateflow/runtime/watermarks.py",
        "reached = latest - strategy.out_of_orderness - 1",
        "reached = latest - strategy.out_of_orderness",
        ("tests/runtime/test_watermarks.py::test_a_source_s_watermark_stays_below_its_latest_row_and_never_decreases",),
    ),
    Bug(
        "operator-watermark-is-the-highest",
        "stateflow/runtime/watermarks.py",
        "    return min(known) if before is None else max(before, min(known))",
        "    return max(known) if before is None else max(before, max(known))",
        (
            "tests/runtime/test_watermarks.py::test_an_operator_s_watermark_is_the_smallest_of_its_sources_that_are_not_idle",
        ),
    ),
    Bug(
        "source-without-a-row-does-not-hold-back",
        "stateflow/runtime/watermarks.py",
        "    if not known or len(known) < len(active):",
        "    if not known:",
        (
            "tests/runtime/test_watermarks.py::test_an_operator_s_watermark_is_the_smallest_of_its_sources_that_are_not_idle",
        ),
    ),
    Bug(
        "rewind-goes-back-to-the-oldest-checkpoint",
        "stateflow/runtime/publisher.py",
        "        return older[-1], intents",
        "        return older[0], intents",
        (
            "tests/recovery/test_other_writers.py::test_a_run_whose_output_was_lost_is_rewound_by_one_checkpoint_and_replayed",
        ),
    ),
    Bug(
        "output-that-another-sink-published-is-replayed",
        "stateflow/runtime/publisher.py",
        "self._known(head, u).checkpoint_id) >= lost]",
        "self._known(head, u).checkpoint_id) > lost]",
        (
            "tests/recovery/test_other_writers.py::test_a_rewind_of_a_checkpoint_that_another_sink_has_published_is_refused",
        ),
    ),
    Bug(
        "successor-of-a-table-is-not-checked",
        "stateflow/runtime/publisher.py",
        "        if table.successor is not None:",
        "        if table.successor is not None and self.shares_table:",
        ("tests/recovery/test_from_savepoint.py::test_a_root_whose_tables_were_taken_over_publishes_nothing",),
    ),
    Bug(
        "failure-rate-permits-one-failure-less",
        "stateflow/runtime/restart_strategy.py",
        "len(self._failures) <= self._settings.max_failures else None",
        "len(self._failures) < self._settings.max_failures else None",
        ("tests/runtime/test_restarts.py::test_the_failure_rate_counts_the_failures_of_the_interval",),
    ),
    Bug(
        "removed-source-needs-no-option",
        "stateflow/runtime/restore/new_job_root.py",
        "    removed = [uid for uid in graph.sources.removed if uid not in drop]",
        "    removed = [uid for uid in graph.sources.removed if uid in drop]",
        (
            "tests/recovery/test_changed_graph.py::test_a_new_root_drops_the_position_of_a_removed_source_only_when_named",
        ),
    ),
    Bug(
        "table-with-later-rows-is-continued",
        "stateflow/runtime/restore/new_job_root.py",
        "if rewind.to_version is not None and (rewind.rows_removed != 0 or rewind.rows_returned != 0):",
        "if rewind.to_version is not None and rewind.rows_returned != 0:",
        (
            "tests/recovery/test_from_savepoint.py::test_tables_with_rows_after_the_savepoint_are_refused_until_their_rewind",
        ),
    ),
    Bug(
        "outdated-plan-is-executed",
        "stateflow/runtime/restore/plan_execution.py",
        "    if is_outdated(plan, head) and not own:",
        "    if is_outdated(plan, head) and own:",
        ("tests/recovery/test_plans.py::test_a_restore_is_refused_if_anything_is_not_as_planned",),
    ),
    Bug(
        "lost-output-is-published",
        "stateflow/runtime/restore/rewind.py",
        "publisher.publish_pending(head, lambda p: lost is None or p.checkpoint_id < lost)",
        "publisher.publish_pending(head, lambda p: lost is None or p.checkpoint_id <= lost)",
        (
            "tests/recovery/test_other_writers.py::test_a_run_whose_output_was_lost_is_rewound_by_one_checkpoint_and_replayed",
        ),
    ),
    Bug(
        "output-after-the-target-is-published",
        "stateflow/runtime/restore/sink_changes.py",
        "return pending.checkpoint_id <= upto or pending.sink in kept_tables",
        "return pending.checkpoint_id < upto or pending.sink in kept_tables",
        ("tests/recovery/test_restore.py::test_a_restore_publishes_the_pending_output_of_its_target_first",),
    ),
    Bug(
        "shared-table-is-restored-for-one-sink",
        "stateflow/runtime/restore/sink_changes.py",
        "if len(sharing) > 1 and any(change.mode is SinkMode.RESTORE for change in sharing)",
        "if len(sharing) > 1 and all(change.mode is SinkMode.RESTORE for change in sharing)",
        ("tests/runtime/restore/test_kept_tables.py::test_a_table_of_several_sinks_is_not_restored_for_one_of_them",),
    ),
    Bug(
        "second-position-of-a-source-wins",
        "stateflow/runtime/restore/source_starts.py",
        "        if uid in starts:\n            raise",
        "        if uid in texts:\n            raise",
        ("tests/runtime/restore/test_changed_sources.py::test_a_position_that_is_not_one_is_refused",),
    ),
    Bug(
        "joined-raw-state-is-lost",
        "stateflow/runtime/restore/state_import.py",
        "        raw=one.raw or other.raw,",
        "        raw=one.raw,",
        ("tests/runtime/restore/test_changed_operators.py::test_raw_state_comes_along_when_operators_are_joined",),
    ),
    Bug(
        "rows-skip-the-levels-in-between",
        "stateflow/runtime/planning/physical_plan.py",
        "for level in range(level_of(leaf) + 1, draft.level):",
        "for level in range(level_of(leaf) + 2, draft.level):",
        (
            "tests/runtime/planning/test_physical_plan.py::test_rows_are_relayed_once_over_each_level_that_does_not_use_them",
        ),
    ),
    Bug(
        "dead-letters-exceed-their-budget-by-one",
        "stateflow/runtime/task/dead_letters.py",
        "        if self.count > self._budget:",
        "        if self.count > self._budget + 1:",
        ("tests/runtime/test_dead_letters.py::test_each_task_of_each_batch_has_the_whole_budget",),
    ),
    Bug(
        "tasks-have-a-budget-each",
        "stateflow/runtime/task/dead_letters.py",
        "        if policy is not None and count > policy.budget:",
        "        if policy is not None and count > policy.budget * plan.parallelism:",
        ("tests/runtime/test_dead_letters.py::test_a_batch_beyond_the_budget_leaves_nothing",),
    ),
    Bug(
        "timers-of-a-key-see-the-fastest-source",
        "stateflow/runtime/task/input_reader.py",
        "watermark = reached if len(known) == 1 else min(known.values())",
        "watermark = reached",
        ("tests/runtime/test_timers.py::test_the_slower_of_two_sources_holds_the_watermark_back_until_its_end",),
    ),
    Bug(
        "dead-letter-keeps-what-its-row-emitted",
        "stateflow/runtime/task/keyed_operator.py",
        "                del emitted[count:]\n",
        "",
        ("tests/runtime/test_dead_letters.py::test_a_bad_row_leaves_a_letter_and_nothing_else",),
    ),
    Bug(
        "emitted-row-is-of-the-next-key",
        "stateflow/runtime/task/operator_runtime.py",
        "found = bisect_right(self._starts, position)",
        "found = bisect_right(self._starts, position - 1)",
        (
            "tests/runtime/test_user_errors.py::test_an_error_about_an_emitted_row_names_operator_key_class_column_and_row",
        ),
    ),
)
