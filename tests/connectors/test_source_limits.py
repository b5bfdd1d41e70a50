"""Limits of a batch: which sources they apply to, and which ones are refused."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from stateflow import DeltaSource, FileSource, KafkaSource, SparkSource
from stateflow.api.source import check_limits, limits_of
from stateflow.config.settings import LIMITS, SourceSettings
from stateflow.config.sources import resolve
from stateflow.errors import ConfigError
from tests.connectors.partitioned_lists import Lists
from tests.support.errors import raises


class Row(msgspec.Struct):
    id: int


SOURCES: dict[str, Any] = {
    "json": FileSource("/in", schema=Row, format="json"),
    "parquet": FileSource("/in", schema=Row),
    "bucket": FileSource("s3a://bucket/in", schema=Row),
    "delta": DeltaSource("/table", schema=Row),
    "kafka": KafkaSource("host:1", schema=Row, topics="t"),
    "lists": Lists({}),
    "rate": SparkSource("rate", schema=Row, name="ticks"),
}
FILES, ROWS = LIMITS


def test_each_source_has_the_limits_that_change_batches() -> None:
    found = {uid: set(source.limited_by) for uid, source in SOURCES.items()}
    assert found == {
        "json": {FILES},
        "parquet": {FILES, ROWS},
        "bucket": {FILES},
        "delta": {FILES},
        "kafka": {ROWS},
        "lists": {ROWS},
        "rate": set(),
    }


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(SOURCES, 2)))
def test_two_sources_can_be_limited_and_no_hint_names_a_limit_that_is_refused(one: str, other: str) -> None:
    sources = {uid: SOURCES[uid] for uid in (one, other)}
    for limit in LIMITS:
        settings = resolve({f"source.{limit}": "7"}).source
        if any(limit in source.limited_by for source in sources.values()):
            check_limits(sources, settings)
            for uid, source in sources.items():
                assert limits_of(uid, source, settings).given == ({limit: 7} if limit in source.limited_by else {})
            continue
        with raises(ConfigError, setting=f"source.{limit}") as refused:
            check_limits(sources, settings)
        for name in LIMITS:
            if f"source.{name}" in refused.value.hint:
                check_limits(sources, resolve({f"source.{name}": "7"}).source)
    own = {f"source.of.{uid}.{limit}": 3 for uid, source in sources.items() for limit in sorted(source.limited_by)[:1]}
    settings = resolve({"source.max_rows_per_batch": "9", **own}).source
    for uid, source in sources.items():
        if source.limited_by:
            assert limits_of(uid, source, settings).given == {sorted(source.limited_by)[0]: 3}


def test_a_limit_that_one_source_does_not_have_is_refused() -> None:
    with raises(ConfigError, setting="source.of.delta.max_rows_per_batch") as refused:
        check_limits(SOURCES, resolve({"source.of.delta.max_rows_per_batch": 1}).source)
    assert "source.of.delta.max_files_per_batch" in refused.value.hint
    with raises(ConfigError, uid="delt", known=sorted(SOURCES)):
        check_limits(SOURCES, resolve({"source.of.delt.max_rows_per_batch": 1}).source)
    for name in ("source.of.delta", "source.of.delta.max_bytes", "source.of.max_rows_per_batch"):
        with pytest.raises(ConfigError):
            resolve({name: 1})
    dotted = resolve({"source.of.a.b.max_rows_per_batch": 2}).source.of
    assert dotted == {"a.b": SourceSettings(max_rows_per_batch=2)}
