"""The commit loop: whatever the store answers, an entry stands exactly once, or is known not to
stand.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltaq import errors
from deltaq.delta.actions import CommitInfo, Txn, encode_entry, parse_entry
from deltaq.delta.log import DeltaLog, Draft
from deltaq.delta.position import LogCleaned
from deltaq.delta.resolve import resolve_commit
from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.names import checkpoint_file, log_entry, log_start_folder, log_start_marker
from deltaq.store import MemoryStore, ObjectEntry, Store
from deltaq.testing import Effect, Fault, FaultyStore, ManualClock, Rule

FOLDER = "topics/t/"
ENTRY = "*_delta_log/*"


def commit(log: DeltaLog[None], value: int, timeout: float = 60.0):
    """Commit one `txn` action that carries `value`."""
    token = uuid.uuid4().hex

    def write(state: TableState) -> Draft:
        return Draft(
            CommitInfo(token, 0, "TEST"),
            [*([PROTOCOL] if state.version < 0 else []), Txn("app", value)],
        )

    return log.commit(write, log.clock.monotonic() + timeout)


def values(store: Store) -> list[int]:
    """What the log says, read entry by entry without the code under test's loop."""
    found: list[int] = []
    for entry in store.list(FOLDER + "_delta_log/"):
        parsed = parse_entry(store.get(entry.key), len(found), entry.key)
        found += [action.version for action in parsed.actions if isinstance(action, Txn)]
    return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(auto_advance=True)


def opened(store: Store, clock: ManualClock) -> DeltaLog[None]:
    log = DeltaLog(store, FOLDER, clock)
    log.load()
    return log


@pytest.mark.fault("P5", "P6", "P8")
@pytest.mark.parametrize(
    ("fault", "effect"),
    [
        (Fault.error_before(), Effect.ERROR_BEFORE),
        (Fault.error_after(), Effect.ANSWER_LOST),
        (Fault.conflict(), Effect.FALSE_CONFLICT),
        (Fault.late_apply(), Effect.LATE_WRITE_REFUSED),
    ],
)
def test_a_commit_whose_answer_is_wrong_stands_exactly_once(fault, effect, clock):
    store = FaultyStore(MemoryStore("test"), Rule("create", ENTRY, fault))
    log = opened(store, clock)
    commit(log, 1)
    assert not any(store.land_late())
    commit(log, 2)
    assert store.effects[effect] == 1
    assert values(store.inner) == [1, 2]


@pytest.mark.fault("P6", "P7")
def test_a_late_write_that_lands_before_the_retry_is_recognised_as_ours(clock):
    store = FaultyStore(MemoryStore("test"), Rule("create", ENTRY, Fault.late_apply()))
    # The late write arrives while we look whether the slot is filled.
    real_get = store.get

    def get(key: str, size_max: int | None = None) -> bytes:
        store.land_late()
        return real_get(key, size_max)

    log = opened(store, clock)
    store.get = get  # type: ignore[method-assign]
    commit(log, 1)
    assert values(store.inner) == [1]
    assert store.operations["create"] == 2 + 1, "the probe's two, and one for the commit"


@pytest.mark.fault("P7")
def test_a_write_that_lands_after_another_writer_took_the_slot_changes_nothing(clock):
    inner = MemoryStore("test")
    slow = FaultyStore(inner, Rule("create", ENTRY, Fault.late_apply(), times=100))
    log = opened(slow, clock)
    with pytest.raises(errors.OutcomeUnknown):
        commit(log, 1, timeout=1.0)
    commit(opened(inner, clock), 2)
    assert set(slow.land_late()) == {False}
    assert values(inner) == [2]


@pytest.mark.fault("P7", "P9")
def test_an_outcome_resolved_as_not_done_is_fenced_against_a_late_write(clock):
    inner = MemoryStore("test")
    slow = FaultyStore(inner, Rule("create", ENTRY, Fault.late_apply(), times=100))
    with pytest.raises(errors.OutcomeUnknown) as caught:
        commit(opened(slow, clock), 1, timeout=1.0)
    resolver = DeltaLog(inner, FOLDER, clock)
    commit(opened(inner, clock), 0)

    def nothing(state: TableState) -> Draft:
        return Draft(CommitInfo(uuid.uuid4().hex, 0, "FENCE"), [])

    assert resolve_commit(resolver, caught.value.token, nothing, clock.monotonic() + 60) is None
    assert set(slow.land_late()) == {False}
    assert values(inner) == [0]


@pytest.mark.fault("P9", "P10")
def test_an_unknown_outcome_is_resolved_as_done_if_the_entry_exists(clock):
    inner = MemoryStore("test")
    store = FaultyStore(
        inner,
        Rule("create", ENTRY, Fault.error_after()),
        Rule("get", ENTRY, Fault.error_before(), times=None),
    )
    log = DeltaLog(store, FOLDER, clock)
    with pytest.raises(errors.OutcomeUnknown) as caught:
        commit(log, 1, timeout=1.0)

    def nothing(state: TableState) -> Draft:
        raise AssertionError("the slot is filled; nothing needs to be written")

    entry = resolve_commit(
        DeltaLog(inner, FOLDER, clock), caught.value.token, nothing, clock.monotonic() + 60
    )
    assert entry is not None
    assert entry.actions[-1] == Txn("app", 1)


def test_resolving_an_invalid_token_is_refused(clock):
    log = DeltaLog(MemoryStore("test"), FOLDER, clock)
    with pytest.raises(ValueError, match="not the token"):
        resolve_commit(log, "nonsense", lambda state: Draft(CommitInfo("x", 0, ""), []), 0.0)


def test_a_definite_refusal_of_the_store_is_no_unknown_outcome(clock):
    store = FaultyStore(MemoryStore("test"), Rule("create", ENTRY, Fault.refused(), times=None))
    with pytest.raises(errors.Unavailable, match="access denied") as caught:
        commit(opened(store, clock), 1)
    assert not caught.value.args[0].retriable()
    assert values(store.inner) == []


@pytest.mark.fault("P9")
def test_a_store_that_never_answers_leaves_the_outcome_unknown_at_the_deadline(clock):
    store = FaultyStore(
        MemoryStore("test"), Rule("create", ENTRY, Fault.error_before(), times=None)
    )
    log = opened(store, clock)
    started_at = clock.monotonic()
    with pytest.raises(errors.OutcomeUnknown):
        commit(log, 1, timeout=5.0)
    assert 5.0 <= clock.monotonic() - started_at < 5.1
    assert store.effects[Effect.ERROR_BEFORE] >= 5


@pytest.mark.fault("P9")
def test_after_an_unknown_outcome_the_same_log_goes_on_in_the_same_slot(clock):
    store = FaultyStore(MemoryStore("test"), Rule("create", ENTRY, Fault.error_before(), times=20))
    log = opened(store, clock)
    with pytest.raises(errors.OutcomeUnknown):
        commit(log, 1, timeout=2.0)
    store.clear()
    commit(log, 2)
    assert values(store.inner) == [2]


@pytest.mark.fault("P11")
def test_each_lost_race_moves_to_the_next_slot_with_a_new_draft(clock):
    store = MemoryStore("test")
    late = opened(store, clock)
    early = opened(store, clock)
    for value in range(3):
        commit(early, value)
    slots = []

    def write(state: TableState) -> Draft:
        slots.append(state.version + 1)
        return Draft(CommitInfo("mine", 0, "TEST"), [Txn("app", 100)])

    committed = late.commit(write, clock.monotonic() + 60)
    assert committed.lost_races == 1, (
        "after a lost race it catches up with the log before it tries again"
    )
    assert slots == [0, 3]
    assert values(store) == [0, 1, 2, 100]


def test_a_contended_writer_reads_before_create_and_does_not_race_old_entries(clock):
    store = FaultyStore(MemoryStore("test"))
    ours, theirs = opened(store, clock), opened(store.inner, clock)
    commit(theirs, 0)
    assert commit(ours, 1).lost_races == 1
    for value in (2, 4, 6):
        commit(theirs, value)
        creates = store.operations["create"]
        assert commit(ours, value + 1).lost_races == 0
        assert store.operations["create"] == creates + 1
    assert values(store.inner) == list(range(8))


def test_a_sole_writer_does_not_pause_for_an_occasional_writer(clock):
    store = MemoryStore("test")
    ours, theirs = opened(store, clock), opened(store, clock)
    commit(theirs, 0)
    before = clock.monotonic()
    assert commit(ours, 1).lost_races == 1
    assert clock.monotonic() == before
    assert values(store) == [0, 1]


def test_a_contended_writer_that_stood_still_does_not_pause_in_proportion(clock):
    inner = MemoryStore("test")
    theirs = opened(inner, clock)

    def meanwhile() -> None:
        commit(theirs, 2)
        clock.advance(20)

    ours = opened(Interrupted(inner, "create", slot(2), meanwhile), clock)
    commit(theirs, 0)
    assert commit(ours, 1).lost_races == 1
    before = clock.monotonic()
    assert commit(ours, 3).lost_races == 1
    assert clock.monotonic() - before < 25
    assert values(inner) == [0, 1, 2, 3]


def test_a_sole_writer_creates_without_a_read_before(clock):
    store = FaultyStore(MemoryStore("test"))
    ours, theirs = opened(store, clock), opened(store.inner, clock)
    commit(theirs, 0)
    commit(ours, 1)  # lost a race
    commit(ours, 2)  # has read the log and found nothing
    gets = store.operations["get"]
    for value in range(3, 6):
        commit(ours, value)
    assert store.operations["get"] == gets + 3, "one look into the log archive after each create"


def test_a_failed_read_before_create_does_not_fail_the_commit(clock):
    store = FaultyStore(MemoryStore("test"))
    ours, theirs = opened(store, clock), opened(store.inner, clock)
    commit(theirs, 0)
    commit(ours, 1)
    commit(theirs, 2)
    store.add(Rule("get", ENTRY, Fault.error_before()))
    assert commit(ours, 3).lost_races == 1
    assert store.effects[Effect.ERROR_BEFORE] == 1
    assert values(store.inner) == [0, 1, 2, 3]


def test_a_writer_that_gives_up_in_a_later_slot_leaves_nothing_behind(clock):
    store = MemoryStore("test")
    late = opened(store, clock)
    commit(opened(store, clock), 1)

    def write(state: TableState) -> Draft:
        if state.version >= 0:
            raise errors.TopicExists("t")
        return Draft(CommitInfo("mine", 0, "TEST"), [PROTOCOL, Txn("app", 100)])

    with pytest.raises(errors.TopicExists):
        late.commit(write, clock.monotonic() + 60)
    assert values(store) == [1]


@pytest.mark.fault("P15")
def test_a_commit_that_reads_back_differently_is_not_called_failed(clock):
    store = FaultyStore(MemoryStore("test"))
    log = opened(store, clock)

    def resealed(data: bytes) -> bytes:
        entry = parse_entry(data, 0, "")
        assert entry.info is not None
        return encode_entry(entry.info, [*entry.actions[:-1], Txn("app", 7)])

    store.add(
        Rule("create", ENTRY, Fault.error_after()),
        Rule("get", ENTRY, Fault.damage(resealed), times=None),
    )
    with pytest.raises(errors.OutcomeUnknown, match="differs from the one sent"):
        commit(log, 1)


@pytest.mark.fault("P5", "B4", "P15")
@pytest.mark.parametrize("times", [1, None], ids=["once", "for ever"])
def test_no_damage_of_what_is_read_back_makes_a_lost_answer_a_second_commit_or_a_failure(
    times, clock
):
    store = FaultyStore(MemoryStore("test"))
    commit(opened(store, clock), 0)
    whole = store.inner.get(slot(0))
    outcomes = Counter[str]()
    for place in range(len(whole)):
        store = FaultyStore(MemoryStore("test"))
        log = opened(store, clock)

        def flipped(data: bytes, at: int = place) -> bytes:
            # Another token has another checksum, perhaps of fewer digits.
            at = min(at, len(data) - 1)
            return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

        store.add(
            Rule("create", ENTRY, Fault.error_after()),
            Rule("get", ENTRY, Fault.damage(flipped), times=times),
        )
        try:
            commit(log, 1, timeout=1)
            outcomes["stands"] += 1
        except errors.OutcomeUnknown:
            outcomes["unknown"] += 1
        assert values(store.inner) == [1]
    if times == 1:
        assert set(outcomes) == {"stands"}
    else:
        assert set(outcomes) == {"unknown"}


@pytest.mark.fault("P5", "P9")
def test_a_refusal_with_unreadable_slot_leaves_the_outcome_unknown(clock):
    class Retrying(FaultyStore):
        """Something below the client sends a create again whose answer it has lost."""

        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            super().create(key, data, after)
            if key == slot(0):
                super().create(key, data, after)

    store = Retrying(MemoryStore("test"))
    log = opened(store, clock)
    store.add(Rule("get", slot(0), Fault.error_before(), times=None))
    with pytest.raises(errors.OutcomeUnknown):
        commit(log, 1, timeout=1)
    assert values(store.inner) == [1]


def test_an_unexpected_error_does_not_fail_a_commit_that_stands(clock):
    class Broken(FaultyStore):
        def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
            super().create(key, data, after)
            if key == slot(1):
                raise ZeroDivisionError("deep below")

    store = Broken(MemoryStore("test"))
    log = opened(store, clock)
    commit(log, 1)
    commit(log, 2)
    assert values(store.inner) == [1, 2]


def test_an_entry_that_could_not_be_read_back_is_not_written(clock):
    store = MemoryStore("test")
    log = opened(store, clock)
    commit(log, 1)
    with pytest.raises(errors.Corrupt, match="64 bits"):
        commit(log, 2**63)
    assert values(store) == [1]


@pytest.mark.parametrize(
    "token", ["", "1", "1:x", "٣:abc:00000000", f"{'9' * 30}:abc:00000000", "1:a b:00000000"]
)
def test_an_invalid_token_is_refused_before_any_read(token, clock):
    store = FaultyStore(MemoryStore("test"))
    with pytest.raises(ValueError, match="is not the token"):
        resolve_commit(
            DeltaLog(store, FOLDER, clock),
            token,
            lambda _: Draft(CommitInfo("x", 0, "FENCE"), []),
            0,
        )
    assert not store.operations


def test_the_token_of_one_log_says_nothing_about_another(clock):
    store = FaultyStore(MemoryStore("test"))
    log = opened(store, clock)
    store.add(Rule("*", slot(0), Fault.error_after(), times=None))
    with pytest.raises(errors.OutcomeUnknown) as caught:
        commit(log, 1, timeout=1)
    other = DeltaLog(store.inner, "topics/other/", clock)
    with pytest.raises(ValueError, match="another topic"):
        resolve_commit(
            other, caught.value.token, lambda _: Draft(CommitInfo("x", 0, "FENCE"), []), 0
        )


@pytest.mark.fault("W1")
def test_a_foreign_entry_stops_the_writer(clock):
    store = MemoryStore("test")
    log = opened(store, clock)
    commit(log, 1)
    store.create(log_entry(FOLDER + "_delta_log/", 1), b'{"commitInfo":{"operation":"WRITE"}}\n')
    with pytest.raises(errors.Incompatible, match="not written by deltaq"):
        commit(log, 2)


# --- slots that log clean-up has re-opened
# ---------------------------------------------------------------------------


def cleaned_log(store: Store, clock: ManualClock, entries: int) -> DeltaLog[None]:
    """A writer positioned after the first entry of a log whose first entries were then cleaned
    up.
    """
    paused = opened(store, clock)
    commit(paused, 0)
    other = opened(store, clock)
    for value in range(1, entries):
        commit(other, value)
    return paused


def clean_up(store: Store, below: int) -> None:
    """What maintenance does: the marker first, then the entries go. A checkpoint keeps what they
    said.
    """
    store.create(log_start_marker(FOLDER, below), b"")
    for version in range(below):
        store.delete(log_entry(FOLDER + "_delta_log/", version))


def checkpoint_of(store: Store, version: int, app_version: int) -> None:
    """A checkpoint written with pyarrow alone."""
    rows: list[dict[str, object]] = [
        {
            "protocol": {
                "minReaderVersion": 1,
                "minWriterVersion": 7,
                "readerFeatures": None,
                "writerFeatures": ["deltaq", "domainMetadata"],
            }
        },
        {
            "metaData": {
                "id": "x",
                "schemaString": "{}",
                "partitionColumns": [],
                "configuration": [],
                "createdTime": 0,
            }
        },
        {"txn": {"appId": "app", "version": app_version, "lastUpdated": None}},
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_pylist(
            [dict.fromkeys(("protocol", "metaData", "txn")) | row for row in rows]
        ),
        sink,
    )
    store.put(f"{FOLDER}_delta_log/{version:020d}.checkpoint.parquet", sink.getvalue().to_pybytes())
    store.put(
        f"{FOLDER}_delta_log/_last_checkpoint", json.dumps({"version": version, "size": 3}).encode()
    )


@pytest.mark.fault("C2", "C4")
def test_a_writer_whose_slot_was_cleaned_up_commits_at_the_head(clock):
    store = MemoryStore("test")
    paused = cleaned_log(store, clock, 6)
    checkpoint_of(store, 4, 4)
    clean_up(store, 4)
    clock.advance(HEAD_PROOF_S + 1)
    committed = commit(paused, 100)
    assert committed.entry.version == 6
    reader = opened(store, clock)
    assert (reader.state.version, reader.state.txns["app"].version) == (6, 100)


GOING_ON: dict[str, Callable[[DeltaLog[None]], object]] = {
    "entry by entry": lambda log: log.read_next(),
    "several at once": lambda log: log.read_following(3),
}


@pytest.mark.fault("C4")
@pytest.mark.parametrize("how", GOING_ON)
def test_a_reader_whose_position_was_cleaned_up_gets_an_error(clock, how):
    store = MemoryStore("test")
    paused = cleaned_log(store, clock, 6)
    checkpoint_of(store, 4, 4)
    clean_up(store, 4)
    clock.advance(HEAD_PROOF_S + 1)
    with pytest.raises(LogCleaned):
        GOING_ON[how](paused)
    paused.load()
    assert paused.state.version == 5


def ghost(store: Store, clock: ManualClock, version: int) -> None:
    """What a writer that was paused leaves in a slot that clean-up has re-opened: an entry that
    does not count.
    """
    info = CommitInfo(clock.unique_id(), 0, "GHOST")
    store.create(log_entry(FOLDER + "_delta_log/", version), encode_entry(info, [Txn("app", 666)]))


class Interrupted(FaultyStore):
    """The process stands still just before it sends the `nth` `operation` on `key`; meanwhile the
    world goes on.
    """

    def __init__(
        self, inner: Store, operation: str, key: str, meanwhile: Callable[[], None], nth: int = 1
    ) -> None:
        super().__init__(inner)
        self._at = operation, key
        self._meanwhile = meanwhile
        self._left = nth

    def _interrupt(self, operation: str, key: str) -> None:
        if (operation, key) == self._at:
            self._left -= 1
            if self._left == 0:
                self._meanwhile()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        self._interrupt("get", key)
        return super().get(key, size_max)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        self._interrupt("create", key)
        super().create(key, data, after)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        self._interrupt("list", prefix)
        return super().list(prefix, start_after)


class Suspended(FaultyStore):
    """A remote store. The process stands still once that has done the `nth` `operation` on `key`,
    before it has its answer.
    """

    is_remote = True

    def __init__(
        self, inner: Store, operation: str, key: str, meanwhile: Callable[[], None], nth: int = 1
    ) -> None:
        super().__init__(inner)
        self._at = operation, key
        self._meanwhile = meanwhile
        self._left = nth

    def _suspend(self, operation: str, key: str) -> None:
        if (operation, key) == self._at:
            self._left -= 1
            if self._left == 0:
                self._meanwhile()

    def get(self, key: str, size_max: int | None = None) -> bytes:
        try:
            return super().get(key, size_max)
        finally:
            self._suspend("get", key)

    def create(self, key: str, data: bytes | memoryview, after: str = "") -> None:
        try:
            super().create(key, data)
        finally:
            self._suspend("create", key)

    def list(self, prefix: str, start_after: str = "") -> Iterator[ObjectEntry]:
        found = list(super().list(prefix, start_after))
        self._suspend("list", prefix)
        return iter(found)


def slot(version: int) -> str:
    return log_entry(FOLDER + "_delta_log/", version)


@pytest.mark.fault("C4")
@pytest.mark.parametrize("how", GOING_ON)
def test_a_reader_paused_during_a_read_does_not_accept_a_reopened_slot(clock, how):
    store = MemoryStore("test")

    def meanwhile() -> None:
        clock.advance(HEAD_PROOF_S + 1)
        clean_up(store, 4)
        ghost(store, clock, 1)

    writer = opened(store, clock)
    commit(writer, 0)
    paused = opened(store, clock)
    paused.entries.store = Interrupted(store, "get", slot(1), meanwhile)
    for value in range(1, 6):
        commit(writer, value)
    checkpoint_of(store, 4, 4)
    with pytest.raises(LogCleaned):
        GOING_ON[how](paused)
    paused.load()
    assert (paused.state.version, paused.state.txns["app"].version) == (5, 5)


def test_a_snapshot_ignores_an_entry_put_into_a_cleaned_up_slot(clock):
    store = MemoryStore("test")
    writer = opened(store, clock)
    for value in range(6):
        commit(writer, value)
    checkpoint_of(store, 1, 1)

    def meanwhile() -> None:
        checkpoint_of(store, 3, 3)
        clean_up(store, 3)
        for version in (3, 4, 5):
            store.delete(slot(version))
        ghost(store, clock, 2)

    reader = DeltaLog(Interrupted(store, "get", slot(2), meanwhile), FOLDER, clock)
    reader.load()
    assert (reader.state.version, reader.state.txns["app"].version) == (3, 3)


def test_a_log_that_is_cleaned_up_before_its_first_entry_is_read_is_opened_at_its_checkpoint(clock):
    store = MemoryStore("test")
    writer = opened(store, clock)
    for value in range(6):
        commit(writer, value)

    def meanwhile() -> None:
        checkpoint_of(store, 4, 4)
        clean_up(store, 4)

    # At its first look there is no checkpoint, but entry 0; at its second, that is gone.
    reader = DeltaLog(Interrupted(store, "get", slot(0), meanwhile, nth=2), FOLDER, clock)
    reader.load()
    assert (reader.state.version, reader.state.txns["app"].version) == (5, 5)


def test_an_entry_cleaned_up_after_the_end_was_found_is_not_reported_lost(clock):
    store = MemoryStore("test")
    writer = opened(store, clock)
    commit(writer, 0)

    def meanwhile() -> None:
        for value in range(1, 6):
            commit(writer, value)
        checkpoint_of(store, 4, 4)
        clean_up(store, 4)

    reader = DeltaLog(Interrupted(store, "list", FOLDER + "_delta_log/", meanwhile), FOLDER, clock)
    reader.load()
    assert (reader.state.version, reader.state.txns["app"].version) == (5, 5)


@pytest.mark.fault("C4")
def test_a_snapshot_ignores_an_entry_put_into_a_reopened_slot_during_the_end_check(clock):
    store = MemoryStore("test")
    writer = opened(store, clock)
    commit(writer, 0)

    def meanwhile() -> None:
        clock.suspend(HEAD_PROOF_S + 1)
        for value in range(1, 6):
            commit(writer, value)
        checkpoint_of(store, 3, 3)
        clean_up(store, 2)
        info = CommitInfo(clock.unique_id(), 0, "GHOST")
        store.create(slot(1), encode_entry(info, [Txn("of a writer that was paused", 1)]))

    reader = DeltaLog(Interrupted(store, "list", FOLDER + "_delta_log/", meanwhile), FOLDER, clock)
    reader.load()
    assert reader.state.version == 5
    assert {app: txn.version for app, txn in reader.state.txns.items()} == {"app": 5}


@pytest.mark.fault("C4")
def test_a_slot_taken_by_another_writer_does_not_prove_the_next_one_valid(clock):
    store = MemoryStore("test")
    paused = cleaned_log(store, clock, 6)
    clock.advance(HEAD_PROOF_S - 1)
    assert paused.read_next() is not None  # an old entry; so may be the one in the next slot
    checkpoint_of(store, 4, 4)
    clean_up(store, 4)
    clock.advance(HEAD_PROOF_S - 1)
    committed = commit(paused, 100)
    assert committed.entry.version == 6


# A proof counts from before the look. In these tests a look takes 25 s, and 10 s after its end the
# slot is used that it was about: a proof that counted from its end would be believed.

LOOK_S, REST_S = HEAD_PROOF_S - 5, 10.0


def others_go_on(store: Store, clock: ManualClock, first: int = 1) -> None:
    """Others fill five slots from `first` on, and all but the last two are cleaned up."""
    other = opened(store, clock)
    for value in range(first, first + 5):
        commit(other, value)
    checkpoint_of(store, first + 3, first + 3)
    clean_up(store, first + 3)


@pytest.mark.fault("C4")
@pytest.mark.parametrize("how", GOING_ON)
@pytest.mark.parametrize("what", ["the slot", "the markers"])
def test_a_read_proves_the_log_start_only_up_to_its_begin(clock, how, what):
    store = MemoryStore("test")
    commit(opened(store, clock), 0)
    paused = opened(store, clock)
    if what == "the slot":
        paused.entries.store = Suspended(store, "get", slot(1), lambda: clock.advance(LOOK_S))
    else:
        clock.advance(HEAD_PROOF_S + 1)
        paused.entries.store = Suspended(
            store, "list", log_start_folder(FOLDER), lambda: clock.advance(LOOK_S)
        )
    assert not GOING_ON[how](paused), "nothing is there yet"
    others_go_on(store, clock)
    ghost(store, clock, 1)
    clock.advance(REST_S)
    with pytest.raises(LogCleaned):
        GOING_ON[how](paused)


@pytest.mark.fault("C2", "C4")
def test_an_empty_slot_proves_the_log_start_only_up_to_the_create(clock):
    store = MemoryStore("test")
    commit(opened(store, clock), 0)
    paused = opened(store, clock)

    def meanwhile() -> None:
        clock.advance(LOOK_S)
        others_go_on(store, clock)

    refusing = FaultyStore(store, Rule("create", slot(1), Fault.error_before()))
    looking = Suspended(refusing, "get", slot(1), meanwhile)
    paused.entries.store = Suspended(
        looking, "create", slot(1), lambda: clock.advance(REST_S), nth=2
    )
    assert commit(paused, 100).entry.version == 6


@pytest.mark.fault("C2", "C4")
@pytest.mark.parametrize("answer", ["late", "lost"])
def test_a_writers_own_entry_proves_the_log_start_only_up_to_its_first_create(clock, answer):
    store = MemoryStore("test")
    commit(opened(store, clock), 0)
    paused = opened(store, clock)
    if answer == "late":
        paused.entries.store = Suspended(store, "create", slot(1), lambda: clock.advance(LOOK_S))
    else:
        lossy = FaultyStore(
            store,
            Rule("create", slot(1), Fault.error_after()),
            Rule("get", slot(1), Fault.error_before()),
        )
        paused.entries.store = Suspended(lossy, "get", slot(1), lambda: clock.advance(LOOK_S))
    assert commit(paused, 1).entry.version == 1
    others_go_on(store, clock, first=2)
    ghost(store, clock, 2)
    clock.advance(REST_S)
    with pytest.raises(LogCleaned):
        paused.read_next()


@pytest.mark.fault("C2", "C4")
def test_a_commit_that_may_stand_in_a_cleaned_up_slot_does_not_fail_for_certain(clock):
    """Its second try is refused, as that of a member that was removed meanwhile."""
    store = MemoryStore("test")
    commit(opened(store, clock), 0)

    def meanwhile() -> None:
        clock.advance(HEAD_PROOF_S + 1)
        others_go_on(store, clock, first=2)

    paused = opened(Suspended(store, "create", slot(1), meanwhile), clock)
    info, tries = CommitInfo(uuid.uuid4().hex, 0, "TEST"), iter([[Txn("group", 7)]])

    def write(_: TableState) -> Draft:
        for actions in tries:
            return Draft(info, actions)
        raise errors.Fenced("removed from the group")

    with pytest.raises(
        errors.OutcomeUnknown, match=r"may have been in .* removed from the group"
    ) as caught:
        paused.commit(write, clock.monotonic() + 60)
    assert caught.value.token == paused.token(1, info.txn_id)
    with pytest.raises(errors.Fenced):  # nothing of the next commit was sent
        paused.commit(write, clock.monotonic() + 60)


@pytest.mark.parametrize(("start", "is_believed"), [(1, True), (2, False), (4, False)])
def test_an_outcome_is_not_resolved_by_an_entry_in_a_cleaned_up_slot(clock, start, is_believed):
    store = FaultyStore(MemoryStore("test"), Rule("*", slot(1), Fault.error_after(), times=None))
    log = opened(store, clock)
    commit(log, 0)
    with pytest.raises(errors.OutcomeUnknown) as caught:
        commit(log, 1, timeout=1)
    other = opened(store.inner, clock)
    for value in range(2, 6):
        commit(other, value)
    checkpoint_of(store.inner, 4, 4)
    clean_up(store.inner, start)
    if not is_believed:
        ghost(store.inner, clock, 1)
    late = opened(store.inner, clock)
    resolved: list[object] = []
    with nullcontext() if is_believed else pytest.raises(errors.OutcomeUnknown, match="cleaned up"):
        resolved.append(
            resolve_commit(
                late, caught.value.token, lambda _: Draft(CommitInfo("x", 0, "FENCE"), []), 1e9
            )
        )
    assert len(resolved) == is_believed


@pytest.mark.parametrize("how", GOING_ON)
def test_a_reader_does_not_continue_from_an_incomplete_snapshot(clock, how):
    store = FaultyStore(MemoryStore("test"))
    writer = opened(store.inner, clock)
    for value in range(6):
        commit(writer, value)
    log = opened(store, clock)
    store.add(Rule("get", slot(3), Fault.error_before()))
    with pytest.raises(errors.Unavailable):
        log.load()
    with pytest.raises(LogCleaned):
        GOING_ON[how](log)
    committed = commit(log, 100)
    assert committed.entry.version == 6


@pytest.mark.fault("C4")
def test_a_writer_does_not_commit_after_a_snapshot_with_unverified_log_start(clock):
    store = FaultyStore(MemoryStore("test"))
    cleaned_log(store.inner, clock, 6)
    checkpoint_of(store.inner, 1, 1)  # an old one that clean-up has not come to yet
    checkpoint_of(store.inner, 4, 4)
    clean_up(store.inner, 4)
    log = DeltaLog(store, FOLDER, clock)
    store.add(
        Rule("get", checkpoint_file(FOLDER + "_delta_log/", 4), Fault.missing()),
        Rule("list", "*log_start*", Fault.error_before()),
    )
    with pytest.raises(errors.Unavailable):
        log.load()
    assert log.state.version == 1
    assert commit(log, 100).entry.version == 6


def test_concurrently_read_entries_after_an_empty_slot_are_ignored(clock):
    """The empty one was looked at a moment earlier, and what was being written there has come
    since.
    """
    store = FaultyStore(MemoryStore("test"), Rule("get", slot(2), Fault.missing()))
    writer = opened(store.inner, clock)
    commit(writer, 0)
    log = opened(store, clock)
    for value in range(1, 5):
        commit(writer, value)
    assert log.read_following(4) == 1
    assert (log.state.version, log.state.txns["app"].version) == (1, 1)
    assert log.read_following(4) == 3
    assert (log.state.version, log.state.txns["app"].version) == (4, 4)


def test_a_writer_that_follows_the_log_reads_no_log_start_markers(clock):
    store = FaultyStore(MemoryStore("test"))
    log = opened(store, clock)
    commit(log, 1)
    before = store.operations["list"]
    for value in range(5):
        clock.advance(HEAD_PROOF_S - 1)
        commit(log, value)
    assert store.operations["list"] == before
    clock.advance(HEAD_PROOF_S + 1)
    commit(log, 9)
    assert store.operations["list"] == before + 1


@pytest.mark.fault("S2")
def test_a_store_that_ignores_the_create_condition_is_refused_by_name(clock):
    store = FaultyStore(
        MemoryStore("test"), Rule("create", "*", Fault.ignored_condition(), times=None)
    )
    with pytest.raises(errors.UnsafeStore, match=r"memory://.*ignores create-if-absent"):
        commit(DeltaLog(store, FOLDER, clock), 1)
    assert values(store.inner) == []
    assert store.struck["ignored_condition"] == 2
    assert store.effects[Effect.CONDITION_IGNORED] == 1, (
        "the second create of the probe replaced the first"
    )
