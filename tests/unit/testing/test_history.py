"""Recording what clients did, and carrying it through files."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaq.clock import SystemClock
from tests.checker.history import History, Operation, SeenRecord, dump_history, load_history


class StandingClock(SystemClock):
    """Always the same moment."""

    def monotonic(self) -> float:
        return 7.0


def test_an_operation_that_has_begun_stands_there_until_it_ends():
    history = History()
    sending = history.send("p1", "t", "a")
    (begun,) = history.operations
    assert (begun.outcome, begun.completed, begun.records) == (
        "invoke",
        None,
        (SeenRecord("t", None, None, "a"),),
    )
    sending.ok(partition=3, offset=17)
    (ended,) = history.operations
    assert (ended.outcome, ended.records) == ("ok", (SeenRecord("t", 3, 17, "a"),))
    assert ended.completed is not None
    assert ended.completed > ended.invoked == begun.invoked


def test_a_send_keeps_its_requested_partition_by_default():
    history = History()
    history.send("p1", "t", "a", partition=2).info("timed out")
    (sent,) = history.operations
    assert (sent.records, sent.error) == ((SeenRecord("t", 2, None, "a"),), "timed out")


def test_an_operation_that_ends_twice_is_refused():
    history = History()
    sending = history.send("p1", "t", "a")
    sending.fail()
    with pytest.raises(ValueError, match="ended twice"):
        sending.ok(partition=0, offset=0)
    assert history.operations[0].outcome == "fail"


def test_everything_has_an_order_though_the_clock_stands_still():
    history = History(StandingClock())
    first, second = history.poll("c1"), history.poll("c2")
    second.ok()
    first.ok()
    history.crash("c1")
    one, two, crash = history.operations
    assert two.completed is not None
    assert one.completed is not None
    assert one.invoked < two.invoked < two.completed < one.completed < crash.invoked < 7.001


def test_threads_may_record_at_once():
    history = History(StandingClock())

    def sends(name: str) -> None:
        for number in range(200):
            history.send(name, "t", (name, number)).ok(partition=0, offset=0)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(sends, "abcdefgh"))
    operations = history.operations
    assert len(operations) == 1600
    assert (
        len({time for operation in operations for time in (operation.invoked, operation.completed)})
        == 3200
    )
    for name in "abcdefgh":
        values = [
            operation.records[0].value for operation in operations if operation.process == name
        ]
        assert values == [(name, number) for number in range(200)]


def test_a_process_that_is_killed_leaves_all_that_it_began():
    file = io.StringIO()
    history = History(file=file)
    history.send("p1", "t", "a").ok(partition=0, offset=0)
    history.send("p1", "t", "b")
    assert load_history(io.StringIO(file.getvalue())) == history.operations


def test_half_a_last_line_is_left_out_and_any_other_is_refused():
    file = io.StringIO()
    history = History(file=file)
    history.assign("c1", {("t", 0): 5})
    history.crash("c1")
    text = file.getvalue()
    assert load_history(io.StringIO(text[:-20])) == history.operations[:1]
    with pytest.raises(ValueError, match="line 1"):
        load_history(io.StringIO(text[20:]))
    with pytest.raises(ValueError, match="line 2"):
        load_history(io.StringIO(text[:-20] + "\n"))


def test_histories_of_several_processes_become_one_in_the_order_of_time():
    clock = SystemClock()
    histories = [History(clock), History(clock)]
    for number in range(6):
        histories[number % 2].send(f"p{number % 2}", "t", number).ok(partition=0, offset=number)
    files = [[line + "\n" for line in dump_history(history.operations)] for history in histories]
    assert [operation.records[0].value for operation in load_history(*files)] == list(range(6))


def test_an_operation_reads_as_a_line():
    history = History(StandingClock())
    history.poll("c1").ok([("t", 0, offset, b"v") for offset in range(10)], at_tail=[("t", 0)])
    history.commit("c1", "g", {("t", 0): 10}).info("timed out")
    polled, committed = map(str, history.operations)
    assert polled.startswith("7.000000-7.000000 c1: poll ok, b'v' at t[0]@0, ")
    assert polled.endswith("and 2 more records, at the tail of t[0]")
    assert committed == "7.000000-7.000000 c1: commit info, of g, t[0] to 10, timed out"


def test_a_value_that_has_no_form_in_a_file_is_refused():
    history = History()
    history.send("p1", "t", frozenset())
    with pytest.raises(TypeError, match="frozenset"):
        list(dump_history(history.operations))


numbers = st.integers(0, 2**40)
partitions = st.tuples(st.text(), numbers)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=5,
)
operations = st.builds(
    Operation,
    process=st.text(),
    kind=st.sampled_from(["send", "poll", "assign", "commit"]),
    outcome=st.sampled_from(["invoke", "ok", "fail", "info"]),
    invoked=st.floats(0, 1e9),
    completed=st.none() | st.floats(0, 1e9),
    records=st.lists(
        st.builds(SeenRecord, st.text(), st.none() | numbers, st.none() | numbers, values),
        max_size=3,
    ).map(tuple),
    at_tail=st.lists(partitions, max_size=2).map(tuple),
    positions=st.lists(st.tuples(partitions, st.none() | numbers), max_size=2).map(tuple),
    group=st.none() | st.text(),
    is_reset=st.booleans(),
    error=st.text(),
)


@given(operations)
def test_an_operation_comes_back_from_its_line_as_it_was(operation: Operation):
    (line,) = dump_history([operation])
    assert "\n" not in line
    (back,) = load_history([line])
    assert repr(back) == repr(operation)
