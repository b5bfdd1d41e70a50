"""Any order of publications, commits of others and rewinds, compared with a list of the rows of each version."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from stateflow.connectors import DeltaSink
from stateflow.connectors.delta.log import checkpoint
from tests.support.delta_tables import Pair, commit_elsewhere, context, pairs, put

_ABOUT = context()
_STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 4)),
    st.tuples(st.just("append"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["delete", "update"]), st.integers(0, 40)),
    st.tuples(st.sampled_from(["compact", "checkpoint"]), st.just(0)),
    st.tuples(st.just("rewind"), st.integers(0, 20)),
)


class _Model:
    """A table, and the rows and the token of each of its versions."""

    def __init__(self, table: Path) -> None:
        self.table = table
        self.sink = DeltaSink(table)
        self.sink.prepare(_ABOUT)
        self.versions: list[tuple[Counter[tuple[int, str]], int]] = [(Counter(), 0)]
        self._next_id, self._last = 0, 0

    def publish(self, count: int) -> None:
        put(self.sink, _ABOUT, self._new_token(), self._new_rows(count))

    def append(self, count: int) -> None:
        commit_elsewhere(self.table, self._new_rows(count))

    def delete(self, row: int) -> None:
        DeltaTable(str(self.table)).delete(f"id = {row}")

    def update(self, row: int) -> None:
        DeltaTable(str(self.table)).update({"text": f"'{self._last} {row}'"}, predicate=f"id = {row}")

    def compact(self, _: int) -> None:
        DeltaTable(str(self.table)).optimize.compact()

    def checkpoint(self, _: int) -> None:
        checkpoint(self.table)

    def rewind(self, checkpoint_id: int) -> None:
        target = self._target(checkpoint_id)
        handle = self.sink.open_table(_ABOUT)
        plan = handle.plan_rewind(checkpoint_id)
        assert plan.to_version == target
        now = self.versions[-1][0]
        then = now if target is None else self.versions[target][0]
        if plan.rows_removed is not None:
            assert (plan.rows_removed, plan.rows_returned) == ((now - then).total(), (then - now).total())
        assert handle.rewind(plan.to_version, self._new_token()) == len(self.versions)
        assert self._read() == then

    def record(self) -> None:
        """Records the rows of the newest versions, as the table's log has them."""
        newest = DeltaTable(str(self.table)).version()
        for _ in range(len(self.versions), newest + 1):
            token = self.sink.open_table(_ABOUT).token
            assert token is not None
            self.versions.append((self._read(), token))
        assert len(self.versions) == newest + 1

    def _target(self, checkpoint_id: int) -> int | None:
        later = (version for version, (_, token) in enumerate(self.versions) if token > checkpoint_id)
        first = next(later, None)
        return None if first is None else first - 1

    def _read(self) -> Counter[tuple[int, str]]:
        uris = DeltaTable(str(self.table)).file_uris()
        return Counter((row["id"], row["text"]) for uri in uris for row in pq.read_table(uri).to_pylist())

    def _new_rows(self, count: int) -> list[Pair]:
        self._next_id += count
        return pairs(self._next_id - count, count)

    def _new_token(self) -> int:
        self._last += 1
        return self._last


@given(st.lists(_STEPS, min_size=3, max_size=12))
def test_a_rewind_restores_the_rows_of_its_target_and_counts_them_correctly(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = _Model(Path(folder) / "out")
        for name, argument in steps:
            getattr(model, name)(argument)
            model.record()
