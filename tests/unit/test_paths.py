"""Names below a job root: what is built is read back, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import ConfigError, DataError
from stateflow.ids import check_name
from stateflow.storage import paths
from stateflow.storage.paths import DataKey
from tests.support.errors import raises

seqs = st.integers(0, 10**20 - 1)
ordinals = st.integers(0, 10**10 - 1)
attempts = st.from_regex(r"[A-Za-z0-9]{1,64}", fullmatch=True)
names = st.from_regex(r"[A-Za-z0-9._-]{1,200}", fullmatch=True).filter(lambda name: name not in (".", ".."))
anything = st.text(max_size=60) | st.from_regex(r"(log|data|spark|probe)/[0-9]{19,21}(/.{0,9})?", fullmatch=True)


@given(seqs, seqs)
def test_log_entries_sort_as_their_numbers(a: int, b: int) -> None:
    assert paths.entry_seq(paths.log_entry(a)) == a
    assert (paths.log_entry(a) < paths.log_entry(b)) == (a < b)


@given(seqs, ordinals, attempts, names)
def test_a_data_file_says_who_wrote_it(generation: int, ordinal: int, attempt: str, name: str) -> None:
    key = f"{paths.data_folder(generation, ordinal, attempt)}{name}"
    assert paths.parse_data(key) == DataKey(generation, ordinal, attempt, name)
    assert paths.check_key(key) == key


@given(seqs, names)
def test_a_location_and_a_probe_say_whose_they_are(generation: int, name: str) -> None:
    assert paths.owned_generation(f"{paths.spark_location(generation)}/{name}") == generation
    assert paths.owned_generation(paths.probe(generation, name)) == generation


@given(anything)
def test_a_name_has_one_reading_and_that_builds_it_again(key: str) -> None:
    seq, data = paths.entry_seq(key), paths.parse_data(key)
    generation = paths.owned_generation(key)
    assert [seq, data, generation].count(None) >= 2
    if seq is not None:
        assert paths.log_entry(seq) == key
    if data is not None:
        assert f"{paths.data_folder(data.generation, data.ordinal, data.attempt)}{data.name}" == key
    if generation is not None:
        assert key.startswith((f"{paths.spark_location(generation)}/", paths.probe(generation, "")))


@pytest.mark.parametrize(
    "key",
    [
        "log/" + "1" * 19,
        "log/" + "1" * 21,
        "log/" + "1" * 19 + "x",
        " log/" + "1" * 20,
        "log/" + "1" * 20 + "\n",
        "log/" + "٣" * 20,
        "LOG/" + "1" * 20,
        "data/" + "1" * 20 + "/1-a/x",
        "data/" + "1" * 20 + "/0000000001-/x",
        "data/" + "1" * 20 + "/0000000001-a/",
        "data/" + "1" * 20 + "/0000000001-a/b/c",
        "data/" + "1" * 20 + "/0000000001-a_b/c",
        "spark/" + "1" * 20,
        "spark/" + "1" * 20 + "/",
        "history/" + "1" * 20 + "-checkpoint.json",
        "FORMAT",
        "",
    ],
)
def test_nothing_else_is_ours(key: str) -> None:
    assert (paths.entry_seq(key), paths.parse_data(key), paths.owned_generation(key)) == (None, None, None)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../x",
        "a/../b",
        "a/..",
        "./a",
        "a/./b",
        "a//b",
        "a/",
        "a\0b",
        "a b",
        "a\n",
        "ü",
        "a/" * 8 + "a",
        "x" * 201,
        "~/x",
        "a\\b",
        "%2e%2e/x",
    ],
)
def test_a_stored_name_that_could_lead_elsewhere_is_refused(key: str) -> None:
    with raises(DataError, key=key):
        paths.check_key(key)


@pytest.mark.parametrize("name", ["a", "0", "orders-v1.2_x", "A" * 100])
def test_a_name_is_fit_for_a_path(name: str) -> None:
    assert check_name("a uid", name) == name


@given(st.text(max_size=8))
def test_whatever_passes_for_a_name_is_one_segment(name: str) -> None:
    try:
        check_name("a uid", name)
    except ConfigError as e:
        assert e.facts == {"name": name} and "a uid" in e.message
    else:
        assert name.isascii() and "/" not in name and name not in (".", "..") and name.strip() == name != ""
