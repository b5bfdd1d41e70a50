"""Bugs of the PostgreSQL sink."""

from __future__ import annotations

from stateflow.connectors.postgres import transactions
from stateflow.connectors.postgres.transactions import Connection, Position, TokenTable
from tests.support.mutants.registry import Mutants

MUTANTS = Mutants()

_set, _row = TokenTable.set, TokenTable._row


@MUTANTS.plant("token-after-rows", (TokenTable, "set"))
def _set_after_commit(self: TokenTable, to: Connection, application: str, token: int, version: int) -> None:
    """The rows of a checkpoint are committed before its token, not in one transaction with it."""
    to.commit()
    _set(self, to, application, token, version)


@MUTANTS.plant("forgotten-commits", (transactions, "_require_durability"))
def _require_nothing(_: Connection) -> None:
    """A commit may be lost in a crash of the server, if its settings permit it."""


@MUTANTS.plant("unlocked-token", (TokenTable, "_row"))
def _row_without_lock(self: TokenTable, connection: Connection, application: str, lock: bool) -> Position:
    """The token is compared without a lock, so that another driver can publish before it is set."""
    return _row(self, connection, application, lock=False)
