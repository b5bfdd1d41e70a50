"""A bidder's longest runs of bids for an auction with an average price below 10,000, one from each bid on."""

from __future__ import annotations

from benchmarks.nexmark.queries import cep1
from benchmarks.nexmark.tables import Tables
from stateflow import AfterMatchSkipStrategy, DataStream


def query(tables: Tables) -> DataStream:
    """Returns the result."""
    return cep1.matched_runs(tables, AfterMatchSkipStrategy.skip_to_next())
