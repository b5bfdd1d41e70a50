"""Names below a job root: each name that is built is read back, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stateflow.errors import ConfigError, DataError
from stateflow.helpers import check_name
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
def test_a_file_s_name_has_its_writer(generation: int, ordinal: int, attempt: str, name: str) -> None:
    key = f"{paths.data_folder(generation, ordinal, attempt)}{name}"
    assert paths.parse_data(key) == DataKey(generation, ordinal, attempt, name)
    assert paths.check_key(key) == key
    assert paths.owned_generation(f"{paths.spark_location(generation)}/{name}") == generation
    assert paths.owned_generation(paths.probe_key(generation, name)) == generation


@given(anything)
def test_a_name_has_at_most_one_meaning_which_builds_the_same_name(key: str) -> None:
    seq, data, generation = paths.entry_seq(key), paths.parse_data(key), paths.owned_generation(key)
    assert [seq, data, generation].count(None) >= 2
    if seq is not None:
        assert paths.log_entry(seq) == key
    if data is not None:
        assert f"{paths.data_folder(data.generation, data.ordinal, data.attempt)}{data.name}" == key
    if generation is not None:
        assert key.startswith((f"{paths.spark_location(generation)}/", paths.probe_key(generation, "")))


ONES, NO_DATA = "1" * 20, ["1-a/x", "0000000001-/x", "0000000001-a/", "0000000001-a/b/c", "0000000001-a_b/c"]
NO_ENTRY = ["log/" + "1" * 19, f"log/{ONES}1", f"log/{ONES[1:]}x", f" log/{ONES}", f"log/{ONES}\n", "log/" + "٣" * 20]


@pytest.mark.parametrize(
    "key",
    [
        *NO_ENTRY,
        *(f"data/{ONES}/{rest}" for rest in NO_DATA),
        *(f"LOG/{ONES}", f"spark/{ONES}", f"spark/{ONES}/", f"history/{ONES}-checkpoint.json", "FORMAT", ""),
    ],
)
def test_other_names_have_no_meaning(key: str) -> None:
    assert (paths.entry_seq(key), paths.parse_data(key), paths.owned_generation(key)) == (None, None, None)


DOTS, CHARACTERS = ".. ../x a/../b a/.. ./a a/./b", ["a\0b", "a b", "a\n", "ü", "~/x", "a\\b", "%2e%2e/x"]


@pytest.mark.parametrize(
    "key", ["", "/", "/etc/passwd", "a//b", "a/", *DOTS.split(), *CHARACTERS, "a/" * 8 + "a", "x" * 201]
)
def test_a_stored_name_that_could_lead_elsewhere_is_refused(key: str) -> None:
    with raises(DataError, key=key):
        paths.check_key(key)


@given(st.text(max_size=8) | st.sampled_from(["a", "0", "orders-v1.2_x", "A" * 100]))
def test_an_accepted_name_is_one_segment_of_a_path(name: str) -> None:
    try:
        assert check_name("a uid", name) == name
    except ConfigError as e:
        assert e.facts == {"name": name} and "a uid" in e.message
        assert name not in ("a", "0", "orders-v1.2_x", "A" * 100)
    else:
        assert name.isascii() and "/" not in name and name not in (".", "..") and name.strip() == name != ""
