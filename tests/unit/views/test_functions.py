"""Python functions in the SQL of views: their types, their place in a program, their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any, Optional

import pyarrow as pa
import pytest

from deltaq import Producer, Topic
from deltaq.errors import InvalidConfig
from deltaq.store import forget_memory_store
from deltaq.views import Views
from deltaq.views.functions import FunctionSignature, named_failure, view_function
from deltaq.views.modes import Mode
from tests.doubles.views import runner

ROOT = "memory://view-functions"
WORDS = pa.schema([("k", pa.int64()), ("word", pa.string()), ("n", pa.int64())])
EVERY = pa.schema(
    [
        ("b", pa.bool_()),
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("x", pa.binary()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
    ]
)


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    yield
    forget_memory_store("view-functions")


def score(word: str, n: int | None) -> int:
    return len(word) * 10 + (0 if n is None else n)


def write(*rows: tuple[int, str | None, int | None]) -> None:
    with Producer(bootstrap_servers=ROOT) as producer:
        for row in rows:
            producer.produce("words", dict(zip(WORDS.names, row, strict=True)))


def scored(call: Callable[..., Any] = score, mode: Mode = "auto", name: str = "score") -> Views:
    Topic("words", WORDS, bootstrap_servers=ROOT).create(exist_ok=True)
    views = Views("g", ROOT)
    views.function(call, name=name)
    views.view("v", f"select k, {name}(word, n) as s from words", mode=mode)
    views.view("high", "select k, s from v where s > 30", mode=mode)
    return views


def rows(views: Views, name: str) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in views.read()[name].to_arrow().to_pylist())


def test_a_function_is_called_by_rules_and_in_full():
    Topic("words", WORDS, bootstrap_servers=ROOT).create()
    written: list[tuple[int, str | None, int | None]] = []
    views = Views("g", ROOT)
    views.function(score)

    @views.function
    def parity(n: int) -> str | None:
        return None if n == 4 else "even" if n % 2 == 0 else "odd"

    assert parity(3) == "odd"
    for mode in ("full", "incremental"):
        views.view(f"all_{mode}", "select k, score(word, n) as s from words", mode=mode)
        views.view(f"high_{mode}", "select k from words where Score(word, n) > 12", mode=mode)
        views.view(
            f"sums_{mode}",
            "select parity(n) as p, sum(score(word, n)) as s from words group by 1",
            mode=mode,
        )
        views.view(
            f"joined_{mode}",
            "select a.k, b.k as other from words a join words b on parity(a.n) = parity(b.n)",
            mode=mode,
        )
    with runner(views) as running:
        for step in (
            [],
            [(1, "a", 1), (2, "bcd", None), (3, None, 5), (4, "e", 4)],
            [(5, "bcd", 6), (1, "a", 1)],
        ):
            write(*step)
            written += step
            running.tick()
            found = [None if w is None else score(w, n) for _, w, n in written]
            names = [None if n is None else parity(n) for _, _, n in written]
            sums = Counter[str | None]()
            for name, value in zip(names, found, strict=True):
                sums[name] += value or 0
            keys = [k for k, _, _ in written]
            for mode in ("full", "incremental"):
                pairs = Counter(zip(keys, found, strict=True))
                assert rows(views, f"all_{mode}") == pairs
                assert rows(views, f"high_{mode}") == Counter(
                    (k,) for k, s in zip(keys, found, strict=True) if s and s > 12
                )
                assert dict(rows(views, f"sums_{mode}")) == dict.fromkeys(sums.items(), 1)
                assert rows(views, f"joined_{mode}") == Counter(
                    (a, b)
                    for a, p in zip(keys, names, strict=True)
                    for b, q in zip(keys, names, strict=True)
                    if p is not None and p == q
                )
    assert views.check() == []
    assert not any(found.refused for found in views.explain())


def test_all_types_go_in_and_out():
    Topic("every", EVERY.append(pa.field("id", pa.int64())), bootstrap_servers=ROOT).create()
    views = Views("g", ROOT)

    def b(x: bool) -> bool:
        return not x

    def i(x: int) -> int:
        return x + 1

    def f(x: float) -> float:
        return x / 2

    def s(x: str) -> str:
        return x.upper()

    def x(x: bytes) -> bytes:
        return x * 2

    def d(x: date) -> date:
        return x + timedelta(days=1)

    def t(x: datetime) -> datetime:
        return x + timedelta(seconds=1)

    def maybe(x: Optional[int]) -> int | None:  # noqa: UP045 - users write it
        return 7 if x is None else None

    for call in (b, i, f, s, x, d, t):
        views.function(call, name=f"{call.__name__}_of")
    views.function(maybe)
    columns = [*(f"{name}_of({name}) as {name}" for name in EVERY.names), "maybe(i) as m"]
    views.view("v", f"select {', '.join(columns)} from every")
    values: dict[str, Any] = {
        "b": True,
        "i": 1,
        "f": 3.0,
        "s": "ß",
        "x": b"\0",
        "d": date(2026, 12, 31),
        "t": datetime(2026, 1, 1, tzinfo=UTC),
    }
    with Producer(bootstrap_servers=ROOT) as producer:
        producer.produce("every", values | {"id": 1})
        producer.produce("every", dict.fromkeys(values) | {"id": 2})
    views.run(until="now")
    assert rows(views, "v") == Counter(
        [
            (
                False,
                2,
                1.5,
                "SS",
                b"\0\0",
                date(2027, 1, 1),
                datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC),
                None,
            ),
            (*[None] * 7, 7),
        ]
    )
    assert views.check() == []


# --- what is refused ---


def untyped(word, n: int) -> int:
    return n


def unknown(word: dict[str, int]) -> int:
    return 1


def two(word: str | int) -> int:
    return 1


def silent(word: str):
    return word


def nothing() -> int:
    return 1


def many(*words: str) -> int:
    return len(words)


@pytest.mark.parametrize(
    ("call", "name", "reason"),
    [
        (
            untyped,
            None,
            "function 'untyped': parameter 'word' has no type: annotate it with one of",
        ),
        (unknown, None, "parameter 'word' has the type dict"),
        (two, None, "parameter 'word' has the type str | int"),
        (silent, None, "function 'silent': its result has no type"),
        (nothing, None, "'nothing' must have one parameter at least"),
        (many, None, "positional ones only"),
        (lambda word: 1, None, "cannot be named '<lambda>'"),
        (score, "a b", "cannot be named 'a b'"),
        (partial(score, n=1), "part", "positional ones only"),
    ],
)
def test_a_function_without_a_name_or_types_is_refused(
    call: Callable[..., object], name: str | None, reason: str
):
    with pytest.raises(InvalidConfig) as caught:
        Views("g", ROOT).function(call, name=name)
    assert reason in caught.value.error.str()


def test_a_function_without_source_is_refused():
    there: dict[str, Any] = {}
    exec("def made(n: int) -> int:\n    return n", there)
    with pytest.raises(InvalidConfig, match="function 'made' has no source"):
        Views("g", ROOT).function(there["made"])


def test_the_names_of_functions_differ_by_more_than_case():
    views = scored()
    with pytest.raises(InvalidConfig, match="two functions named 'Score'"):
        views.function(score, name="Score")
    views.function(score, name="Lower")
    with pytest.raises(InvalidConfig, match="DuckDB has a function 'Lower' already"):
        _ = views.program


def test_a_name_that_sqlglot_takes_for_another_function_is_evaluated_in_full():
    views = scored(name="safe_divide", mode="incremental")
    views.view("other", "select k from words", mode="incremental")
    reasons = {found.view: found.refused for found in views.explain()}
    assert reasons == {
        "v": "a function named 'safe_divide', which sqlglot takes for another one",
        "high": "",
        "other": "",
    }


# --- errors of functions ---


@pytest.mark.parametrize("mode", ["full", "incremental"])
def test_an_error_stops_the_tick_and_names_function_view_and_value(mode: Mode):
    def picky(word: str, n: int | None) -> int:
        if word == "bad":
            raise KeyError("no")
        return 1

    views = scored(picky, mode=mode)
    with runner(views) as running:
        write((1, "a", 1))
        running.tick()
        write((2, "bad", 2))
        with pytest.raises(InvalidConfig) as caught:
            running.tick()
    reason = "view 'v': function 'score' fails for ('bad', 2): KeyError: 'no'"
    assert caught.value.error.str() == reason
    assert rows(views, "v") == Counter([(1, 1)])


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (None, "TypeError: it returns None"),
        ("7", "fails for ('a', 1): ArrowInvalid: Could not convert '7'"),
        (2**70, "fails for ('a', 1): OverflowError"),
    ],
)
def test_a_result_of_another_type_is_an_error(result: object, reason: str):
    def careless(word: str, n: int | None) -> int:
        return result  # type: ignore[return-value]

    views = scored(careless)
    write((1, "a", 1))
    with pytest.raises(InvalidConfig) as caught:
        views.run(until="now")
    assert reason in caught.value.error.str()


def test_what_is_wrong_with_other_views_is_no_error_of_a_function():
    views = scored()
    views.view("w", "select missing from words")
    with pytest.raises(InvalidConfig, match="view 'w': DuckDB: Binder Error"):
        views.run(until="now")


def test_an_earlier_failure_is_not_that_of_another_error():
    failures = ["function 'score' fails"]
    with (
        pytest.raises(InvalidConfig, match="another"),
        named_failure(failures, "view 'v': ", "v"),
    ):
        raise InvalidConfig("another", key="w")


# --- programs and other processes ---


def test_the_name_the_types_and_the_source_are_those_of_the_program():
    signature = view_function(score, None).signature
    assert signature == FunctionSignature(
        "score",
        ("VARCHAR", "BIGINT NULL"),
        "BIGINT",
        "def score(word: str, n: int | None) -> int:\n"
        "    return len(word) * 10 + (0 if n is None else n)\n",
    )

    def other(word: str, n: int | None) -> int:
        return 1

    def typed(word: str, n: int | None) -> int | None:
        return 1

    digests = {scored(call).program.digest for call in (score, other, typed)}
    assert len(digests) == 3
    assert scored(score).program.digest == scored(score).program.digest


def test_a_tick_says_its_functions_and_follows_when_one_changes():
    views = scored()
    write((1, "abc", 1))
    first = views.run(until="now")
    assert first is not None
    assert [function.name for function in first.functions] == ["score"]
    assert views.run(until="now") == first

    def doubled(word: str, n: int | None) -> int:
        return 2 * score(word, n)

    views = scored(doubled)
    second = views.run(until="now")
    assert second is not None
    assert second.number == 2
    assert rows(views, "v") == Counter([(1, 62)])
    assert views.check() == []


def test_a_function_that_is_not_deterministic_is_found_by_check():
    calls: list[str] = []

    def counting(word: str, n: int | None) -> int:
        calls.append(word)
        return len(calls)

    views = scored(counting)
    write((1, "abc", 1))
    views.run(until="now")
    assert [found.view for found in views.check()] == ["v"]


def test_another_process_reads_the_rows_and_hears_which_function_it_lacks():
    views = scored()
    write((1, "abc", 1))
    views.run(until="now")
    other = Views("g", ROOT)
    assert rows(other, "v") == Counter([(1, 31)])
    assert other.read().sql("select k from v").num_rows == 1
    reason = r"'g' calls the Python function 'score', which this process does not have: define it"
    with pytest.raises(InvalidConfig, match=f"view 'v': the group {reason}"):
        other.check()
    with pytest.raises(InvalidConfig) as caught:
        other.read().sql("select score(word, n) as s from words")
    assert caught.value.error.str().startswith("the group 'g' calls the Python function 'score'")
    assert views.read().sql("select score(word, 5) as s from words").to_pylist() == [{"s": 35}]

    def another(word: str, n: int | None) -> int:
        return 1

    with pytest.raises(InvalidConfig, match="has with another source or other types"):
        scored(another).check()
