"""Sets of hashed names: complete, small and cheap to copy."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.maintenance.hashed_names import HashedNames, SeenLive

NAMES = st.frozensets(st.text("abc", max_size=3))


@given(st.lists(NAMES), st.integers(0, 5), NAMES)
def test_hashed_names_know_exactly_the_names_ever_live(
    seen: list[frozenset[str]], first: int, names: frozenset[str]
) -> None:
    since, later = SeenLive(), SeenLive()
    for live in seen[:first]:
        since.add(live)
    for live in seen[first:]:
        later.add(live)
    since.absorb(later)
    assert since.among(names) == names & frozenset().union(*seen)


@given(st.lists(NAMES), NAMES)
def test_a_set_contains_exactly_the_added_names(
    several: list[frozenset[str]], names: frozenset[str]
) -> None:
    known = HashedNames()
    for some in several:
        known.add(some)
    assert {name for name in names if name in known} == names & frozenset().union(*several)


def test_a_million_names_take_eight_bytes_each_and_are_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beside a producer that commits 100 times a second there are as many in three hours, and
    10,000 looks.
    """
    copied = 0
    concat = pa.concat_arrays

    def counting(parts: list[pa.Array]) -> pa.Array:
        nonlocal copied
        copied += sum(map(len, parts))
        return concat(parts)

    monkeypatch.setattr(pa, "concat_arrays", counting)
    since = SeenLive()
    for first in range(0, 50_000, 50):
        since.add(frozenset(f"{number}.parquet" for number in range(first, first + 100)))
    assert since.nbytes == 8 * 50_050, "and what is still live is not added again"
    assert copied < 20 * 50_050
    assert since.among(["0.parquet", "50049.parquet", "50050.parquet"]) == {
        "0.parquet",
        "50049.parquet",
    }
