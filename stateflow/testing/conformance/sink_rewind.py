"""The part of the conformance suite of sinks that is about rewinds."""

from __future__ import annotations

import random  # noqa: TID251 - seeded dice for tests; nothing is decided by it
from typing import ClassVar

import pytest

from stateflow.checkpoint.sink_commit import Decision, decide
from stateflow.errors import SinkDiverged, SinkRefused
from stateflow.testing.conformance.sink_table import TableUnderTest


class SinkRewindConformance:
    """Tests of rewinds; part of `stateflow.testing.conformance.sink.SinkConformance`."""

    exactly_once: ClassVar[bool] = True
    is_shared: ClassVar[bool] = True
    sweeps: ClassVar[bool] = True
    rewinds: ClassVar[bool] = True
    """Whether the table can be rewound. Otherwise a plan is refused once there is output to undo."""
    rewinds_to_undone: ClassVar[bool] = True
    """Whether the table can also be rewound to a checkpoint that another rewind has undone."""
    actions: ClassVar[int] = 40
    """Number of commits and rewinds that are compared with a model."""

    @pytest.fixture
    def published(self, table: TableUnderTest) -> TableUnderTest:
        """A table in which checkpoint n published row n, up to 4."""
        for token in range(1, 5):
            table.put(token, [token])
        return table

    def _require_rewinds(self) -> None:
        if not (self.rewinds and self.exactly_once):
            pytest.skip("the table cannot be rewound")

    def test_a_rewind_restores_the_rows_of_a_checkpoint_and_sets_the_token(self, published: TableUnderTest) -> None:
        self._require_rewinds()
        plan = published.open().plan_rewind(2)
        assert plan.to_version is not None and plan.others == ()
        published.rewind(2, token=7)
        assert published.ids() == [1, 2]
        published.put(8, [8])
        assert published.ids() == [1, 2, 8]

    def test_a_rewind_that_is_not_possible_is_refused_in_the_plan(self, published: TableUnderTest) -> None:
        if self.rewinds or not self.exactly_once:
            pytest.skip("the table can be rewound, or has no tokens")
        handle = published.open()
        with pytest.raises(SinkRefused) as refused:
            handle.plan_rewind(2)
        assert refused.value.hint
        # Nothing was published after these.
        for checkpoint_id in (4, 6):
            assert handle.plan_rewind(checkpoint_id).to_version is None
        assert (published.open().token, published.ids()) == (4, [1, 2, 3, 4])

    def test_a_table_that_is_kept_gets_only_the_token(self, published: TableUnderTest) -> None:
        if not self.exactly_once:
            pytest.skip("the table has no tokens")
        handle = published.open()
        plan = handle.plan_rewind(6)
        assert (plan.to_version, plan.rows_removed, plan.rows_returned, plan.others) == (None, 0, 0, ())
        assert handle.rewind(None, token=7) is not None
        assert (published.open().token, published.ids()) == (7, [1, 2, 3, 4])

    def test_a_handle_of_an_older_version_rewinds_nothing(self, published: TableUnderTest) -> None:
        if not self.exactly_once:
            pytest.skip("the table has no tokens")
        stale = published.open()
        to_version = stale.plan_rewind(2).to_version if self.rewinds else None
        assert published.open().rewind(None, token=7) is not None
        assert stale.rewind(to_version, token=8) is None
        assert stale.rewind(None, token=8) is None
        assert (published.open().token, published.ids()) == (7, [1, 2, 3, 4])

    @pytest.mark.parametrize("keeps", [True, False], ids=["kept", "restored"])
    def test_a_driver_that_was_paused_during_a_rewind_publishes_nothing(
        self, published: TableUnderTest, keeps: bool
    ) -> None:
        """It is about to publish checkpoint 5 when entry 6 of the log rewinds the job."""
        if not self.exactly_once or not (keeps or self.rewinds):
            pytest.skip("the table cannot be rewound")
        files = published.write([5], ordinal=5)
        paused, handle = published.open(), published.open()
        assert handle.rewind(None if keeps else handle.plan_rewind(2).to_version, token=6) is not None
        assert paused.commit(5, files) is None
        token = published.open().token
        assert token is not None
        assert decide(token, published=4, checkpoint=5, head=5) is Decision.UNKNOWN_FUTURE
        assert published.ids() == ([1, 2, 3, 4] if keeps else [1, 2])

    def test_a_rewind_lists_what_another_sink_published(self, published: TableUnderTest) -> None:
        self._require_rewinds()
        if not self.is_shared:
            pytest.skip("the table has one sink")
        other = published.with_uid("other")
        seen = published.open().version
        other.put(50, [50, 51])
        [commit] = published.open().plan_rewind(3).others
        assert commit.applications == frozenset({other.context.application})
        changes = published.open().changes_since(seen)
        assert not changes.published
        assert [c.applications for c in changes.others] == [commit.applications]
        published.rewind(3, token=7)
        assert published.ids() == [1, 2, 3]
        assert published.open().changes_since(seen).published
        assert published.open().plan_rewind(2).others == ()
        assert other.open().token == 50

    def test_a_sweep_keeps_what_a_rewind_removed(self, published: TableUnderTest) -> None:
        self._require_rewinds()
        for checkpoint_id, token in ((3, 7), (1, 8)):
            published.rewind(checkpoint_id, token)
            lost = published.write([99], ordinal=99)
            removed = published.sink.sweep(published.context, lambda generation, ordinal, path: True)
            assert len(removed) == (len(lost) if self.sweeps else 0)
        if self.rewinds_to_undone:
            published.rewind(4, token=9)
        assert published.ids() == ([1, 2, 3, 4] if self.rewinds_to_undone else [1])

    def test_commits_and_rewinds_agree_with_a_model(self, table: TableUnderTest) -> None:
        """The model: the rows after each token, and the tokens that a job's chain of checkpoints has."""
        self._require_rewinds()
        dice, token, row = random.Random(11), 0, 0
        contents: dict[int, list[int]] = {0: []}
        chain = [0]
        for _ in range(self.actions):
            token += dice.choice([1, 1, 2, 5])
            if dice.random() < 0.7:
                new = list(range(row, row := row + dice.choice([0, 1, 3])))
                table.put(token, new)
                contents[token] = [*contents[chain[-1]], *new]
            else:
                target = dice.choice(list(contents) if self.rewinds_to_undone else chain)
                table.rewind(target, token)
                chain = [n for n in chain if n <= target] or [0]
                contents[token] = contents[target]
            chain.append(token)
            assert table.ids() == sorted(contents[token])
            assert table.open().token == token

    def test_a_target_that_no_longer_exists_is_refused_in_the_plan(self, published: TableUnderTest) -> None:
        if self.rewinds_to_undone or not (self.rewinds and self.exactly_once):
            pytest.skip("the table cannot be rewound, or it can to any checkpoint")
        published.rewind(1, token=7)
        with pytest.raises((SinkDiverged, SinkRefused)):
            published.open().plan_rewind(3)
        assert published.ids() == [1]
