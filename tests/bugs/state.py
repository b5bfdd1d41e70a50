"""Bugs of state, timers, backends, stored types and storage."""

from __future__ import annotations

from tests.bugs.bug import Bug

BUGS: tuple[Bug, ...] = (
    Bug(
        "an-entry-expires-one-millisecond-late",
        "stateflow/state/kinds/ttl.py",
        "start + self._milliseconds <= now",
        "start + self._milliseconds < now",
        ("tests/state/kinds/test_ttl.py::test_an_entry_of_each_kind_of_state_expires_after_its_time_to_live",),
    ),
    Bug(
        "a-time-to-live-that-was-added-expires-older-entries-at-once",
        "stateflow/state/kinds/ttl.py",
        "else max(timestamp, self.since)",
        "else timestamp",
        ("tests/state/kinds/test_ttl.py",),
    ),
    Bug(
        "a-key-that-comes-back-sees-what-was-prefetched",
        "stateflow/state/kinds/single_value.py",
        "self._prefetched.pop(key, None)\n            self._changed = False",
        "self._changed = False",
        (
            "tests/state/kinds/test_keyed_state.py::test_a_key_that_comes_back_sees_its_change_and_not_what_was_prefetched",
        ),
    ),
    Bug(
        "an-expired-value-is-returned-twice",
        "stateflow/state/kinds/single_value.py",
        "# Not cached: an expired value is returned once.",
        "self._stored_key = key",
        ("tests/state/kinds/test_ttl.py::test_relaxed_visibility_returns_a_stale_value_once",),
    ),
    Bug(
        "a-scan-has-the-entries-of-longer-namespaces",
        "stateflow/state/kinds/key_context.py",
        "takewhile(lambda entry: ends_at(entry[0], end), found)",
        "takewhile(lambda entry: entry, found)",
        ("tests/state/kinds/test_state_kinds_model.py",),
    ),
    Bug(
        "a-rollback-keeps-what-was-written-through",
        "stateflow/state/kinds/key_context.py",
        "self.update(overwritten)",
        "pass",
        (
            "tests/state/kinds/test_keyed_state.py::"
            "test_a_rollback_undoes_what_a_scan_wrote_through_and_what_was_changed_in_place",
        ),
    ),
    Bug(
        "two-states-with-one-id-are-declared",
        "stateflow/state/kinds/state_registry.py",
        "taken & {other.id, *expiry_ids(other.schema.name)}",
        "False",
        ("tests/state/kinds/test_state_declarations.py::test_two_names_whose_ids_collide_are_refused_by_name",),
    ),
    Bug(
        "raw-state-of-a-key-group-of-another-subtask-is-written",
        "stateflow/state/kinds/raw_state.py",
        "group not in self._groups or group in self._written",
        "group in self._written",
        ("tests/state/kinds/test_operator_state.py",),
    ),
    Bug(
        "a-new-key-keeps-the-namespace-of-the-last-one",
        "stateflow/state/kinds/keyed_state.py",
        "context.current_key = (group, key)",
        "context.current_key = (group, key)\n        return",
        ("tests/state/kinds/test_keyed_state.py",),
    ),
    Bug(
        "a-key-group-with-a-timer-at-exactly-the-watermark-is-not-due",
        "stateflow/state/kinds/timer_index.py",
        "if time <= until}",
        "if time < until}",
        ("tests/state/kinds/test_timers.py::test_the_index_has_the_earliest_timer_of_each_key_group",),
    ),
    Bug(
        "elements-that-are-added-in-one-batch-replace-each-other",
        "stateflow/state/kinds/list_state.py",
        "self._added += 1",
        "pass",
        ("tests/state/kinds/test_keyed_state.py::test_elements_keep_their_order_over_batches_and_restores",),
    ),
    Bug(
        "elements-of-an-older-batch-come-after-newer-ones",
        "stateflow/state/kinds/list_state.py",
        'struct.pack(">Q", context.time.epoch)',
        'struct.pack("<Q", context.time.epoch)',
        ("tests/state/kinds/test_keyed_state.py::test_elements_keep_their_order_over_batches_and_restores",),
    ),
    Bug(
        "a-union-list-stores-the-elements-of-all-subtasks",
        "stateflow/state/kinds/operator_state.py",
        "descriptor.element_type, list(own), list(visible)",
        "descriptor.element_type, list(visible), list(visible)",
        (
            "tests/state/kinds/test_operator_state.py::"
            "test_a_union_list_has_the_elements_of_all_subtasks_and_stores_only_its_own",
        ),
    ),
    Bug(
        "every-subtask-stores-the-broadcast-state",
        "stateflow/state/kinds/operator_state.py",
        "if e and keeps_broadcasts}",
        "if e}",
        ("tests/state/kinds/test_operator_state.py",),
    ),
    Bug(
        "a-key-of-a-map-beyond-its-declared-limits-is-stored",
        "stateflow/state/kinds/maps/map_state.py",
        "if encode is None or self.is_limited:",
        "if encode is None:",
        ("tests/state/kinds/test_map_keys.py",),
    ),
    Bug(
        "a-timer-at-exactly-its-time-does-not-fire",
        "stateflow/state/kinds/timers.py",
        "if _time(entry) > current.until:",
        "if _time(entry) >= current.until:",
        ("tests/state/kinds/test_timers.py::test_timers_fire_once_in_order_of_time_over_all_keys_and_namespaces",),
    ),
    Bug(
        "a-timer-that-was-deleted-while-others-fire-fires",
        "stateflow/state/kinds/timers.py",
        "exists = self.changed.get(entry, True)",
        "exists = True",
        ("tests/state/kinds/test_timers.py::test_a_timer_may_delete_and_set_others_that_are_due",),
    ),
    Bug(
        "the-next-timer-of-a-window-is-forgotten",
        "stateflow/state/kinds/window_timers.py",
        "islice(backend.scan_range(rest, end), 1)",
        "islice(backend.scan_range(rest, end), 0)",
        ("tests/state/kinds/test_window_timers.py",),
    ),
    Bug(
        "a-damaged-copy-in-the-host-cache-is-used",
        "stateflow/state/host_cache.py",
        "return has_size(path, file) and hash_file(path) == file.sha256",
        "return has_size(path, file)",
        ("tests/state/backends/test_damaged_copies.py::test_a_hash_map_s_file_is_checked_at_each_opening",),
    ),
    Bug(
        "a-large-number-wraps-in-a-column",
        "stateflow/state/column_serializer.py",
        "known = (sizes >= 0) & ~too_large | nulls",
        "known = (sizes >= 0) | nulls",
        ("tests/state/columnar/test_columns.py::test_a_number_beyond_signed_64_bits_is_refused",),
    ),
    Bug(
        "a-null-in-a-key-changes-the-hash",
        "stateflow/state/rehash.py",
        "hashes = np.where(is_null, hashes, found)",
        "hashes = found",
        ("tests/state/columnar/test_key_hashes.py::test_usual_keys_have_sparks_hashes_without_decoding",),
    ),
    Bug(
        "an-upload-of-a-running-process-is-taken-over",
        "stateflow/state/uploads.py",
        "elif generation == own and not is_running(owner):",
        "elif generation == own:",
        ("tests/state/files/test_uploads.py",),
    ),
    Bug(
        "nan-is-written-as-null",
        "stateflow/state/schema.py",
        "return value if math.isfinite(value) else {_FLOAT: _name_of(value)}",
        "return value",
        ("tests/bootstrap/test_restored_values.py",),
    ),
    Bug(
        "operator-state-is-not-compared-with-its-hash",
        "stateflow/state/operator_content.py",
        "check_content(part.handle, len(data), hashlib.sha256(data).hexdigest())",
        "check_content(part.handle, len(data), part.handle.sha256)",
        ("tests/runtime/task/test_operator_state.py::test_a_file_with_another_hash_is_corrupt",),
    ),
    Bug(
        "a-subtask-uses-the-state-that-another-one-wrote-as-its-own",
        "stateflow/state/handles.py",
        "if (p.subtask, p.groups) == (self.subtask, self.owned)",
        "if p.groups == self.owned",
        (
            "tests/checkpoint/restore/test_state_matching.py::"
            "test_state_of_the_same_key_groups_under_another_number_is_rescaled",
        ),
    ),
)
