"""The checker of share groups finds each defect in a history that has no other one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK
from tests.simulation.actors.workers import (
    ACCEPT,
    REJECT,
    RELEASE,
    Delivered,
    RecordDecision,
    SharedWork,
)
from tests.simulation.audit.oracle import Place
from tests.simulation.audit.redrives import check_redrives, copied_letters
from tests.simulation.audit.shares import DeadLetter, ShareAudit
from tests.simulation.audit.transactions import Key
from tests.simulator.disk import Disk

KEY = ("id", 0)
TAKE, ACKNOWLEDGE = "TAKE RECORDS", "ACKNOWLEDGE RECORDS"
ONE, TWO = "w1-x", "w2-x"

Step = tuple[str, str, float, dict[str, Any]]


def audit(*steps: Step) -> ShareAudit:
    """The audit after entries: their operation, writer, time and state of the partition."""
    made = ShareAudit(Disk("d", SYSTEM_CLOCK), "g", lock_s=10, deliveries_max=3)
    for version, (operation, by, landed, body) in enumerate(steps):
        made.landed.append(landed)
        made.take(version, operation, by, KEY, body)
    return made


def state(start: int, *spans: list[int], owners: tuple[str, ...] = (ONE, TWO)) -> dict[str, Any]:
    return {"start": start, "owners": list(owners), "spans": list(spans)}


FIRST: Step = (TAKE, ONE, 1.0, state(0, [2, 1, 1, 0, 0]))
RELEASED: Step = (ACKNOWLEDGE, ONE, 2.0, state(0, [2, 0, 1]))


@pytest.mark.parametrize(
    "steps",
    [
        [FIRST, (ACKNOWLEDGE, ONE, 2.0, state(2))],
        [FIRST, (ACKNOWLEDGE, ONE, 2.0, state(0, [1, 1, 1, 0, 0], [1, 4]))],
        [FIRST, RELEASED, (TAKE, TWO, 3.0, state(0, [2, 1, 2, 1, 2]))],
        [FIRST, (TAKE, TWO, 11.0, state(0, [2, 1, 2, 1, 1]))],
        [FIRST, (TAKE, ONE, 2.0, state(2, [1, 1, 1, 0, 1]))],
        [FIRST, (ACKNOWLEDGE, ONE, 2.0, state(0, [2, 0, 0, 5000]))],
        [FIRST, (TAKE, ONE, 2.0, state(0, [2, 1, 1, 0, 1]))],
    ],
    ids=["accepted", "rejected", "released", "lock over", "again", "not seen", "again, not seen"],
)
def test_a_sound_history_has_no_problems(steps: list[Step]) -> None:
    assert audit(*steps).problems == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([FIRST, (TAKE, TWO, 3.0, state(0, [2, 1, 2, 1, 1]))], "after 2.000 s"),
        ([FIRST, (ACKNOWLEDGE, TWO, 3.0, state(2))], "after 2.000 s"),
        ([FIRST, (ACKNOWLEDGE, TWO, 12.0, state(0, [1, 2], [1, 1, 1, 0, 0]))], "by w2-x"),
        ([FIRST, RELEASED, (TAKE, TWO, 3.0, state(0, [2, 1, 1, 1, 2]))], "count is wrong"),
        ([FIRST, RELEASED, (TAKE, TWO, 3.0, state(0, [2, 1, 3, 1, 2]))], "count is wrong"),
        ([FIRST, (ACKNOWLEDGE, ONE, 2.0, state(0, [2, 0, 2]))], "count is wrong"),
        ([FIRST, (TAKE, TWO, 12.0, state(0, [2, 0, 0], [1, 1, 1, 1, 1]))], "count is wrong"),
        ([FIRST, RELEASED, (ACKNOWLEDGE, TWO, 3.0, state(2))], "no worker held it"),
        ([FIRST, (ACKNOWLEDGE, ONE, 2.0, state(2)), FIRST], "moves the start"),
        ([FIRST, (ACKNOWLEDGE, ONE, 2.0, state(3))], "no worker held it"),
        ([FIRST, (ACKNOWLEDGE, ONE, 2.0, state(0, [1, 1, 1, 0, 0]))], "leaves out"),
        ([(ACKNOWLEDGE, ONE, 1.0, state(0, [1, 1, 1, 0, 0]))], "it was not free"),
        ([(TAKE, TWO, 1.0, state(0, [1, 1, 1, 0, 0]))], "by w2-x"),
        ([(TAKE, ONE, 1.0, state(0, [1, 0, 1]))], "never taken"),
        (
            [
                FIRST,
                (ACKNOWLEDGE, ONE, 2.0, state(0, [1, 1, 1, 0, 0], [1, 2])),
                (TAKE, TWO, 20.0, state(0, [2, 1, 2, 1, 2])),
            ],
            "it was finished",
        ),
    ],
)
def test_a_defect_in_the_log_is_found(steps: list[Step], expected: str) -> None:
    assert expected in "\n".join(audit(*steps).problems)


PLACE = Place("id", 0, 0)


def compared(work: SharedWork, *steps: Step, expected: set[Place] | None = None) -> str:
    made = audit(*steps)
    made.compare(work, expected or set(), "id" if expected else "")
    return "\n".join(made.problems)


def decision(kind: int, at: float = 5.0) -> RecordDecision:
    return RecordDecision("w1", PLACE, 1, kind, at)


ACCEPTED: Step = (ACKNOWLEDGE, ONE, 2.0, state(1, [1, 1, 1, 0, 0]))


def test_what_workers_know_agrees_with_the_log() -> None:
    work = SharedWork([Delivered("w1", PLACE, 1, 1.5)], [decision(ACCEPT, 1.6)], [decision(ACCEPT)])
    assert compared(work, FIRST, ACCEPTED) == ""


@pytest.mark.parametrize(
    ("work", "steps", "expected"),
    [
        (SharedWork(delivered=[Delivered("w2", PLACE, 1, 1.5)]), [FIRST], "was taken by"),
        (SharedWork(delivered=[Delivered("w1", PLACE, 1, 11.0)]), [FIRST], "after its lock"),
        (SharedWork(delivered=2 * [Delivered("w1", PLACE, 1, 1.5)]), [FIRST], "came twice"),
        (SharedWork(), [FIRST, ACCEPTED], "no worker has decided so"),
        (SharedWork(confirmed=[decision(ACCEPT)]), [FIRST], "is not ended"),
        (SharedWork(confirmed=[decision(REJECT)]), [FIRST, RELEASED], "is released"),
        (SharedWork(confirmed=[decision(RELEASE)]), [FIRST, ACCEPTED], "is finished"),
        (
            SharedWork(decided=[decision(ACCEPT)], confirmed=[decision(ACCEPT, 1.9)]),
            [FIRST, ACCEPTED],
            "before it was written",
        ),
    ],
)
def test_a_defect_in_what_workers_know_is_found(
    work: SharedWork, steps: list[Step], expected: str
) -> None:
    assert expected in compared(work, *steps)


FAILED: Step = (ACKNOWLEDGE, ONE, 2.0, state(0, [1, 3, 1, 1, 1], [1, 1, 1, 0, 0]))
WRITTEN: Step = (ACKNOWLEDGE, ONE, 4.0, state(1, [1, 1, 1, 0, 0]))


def lettered(*steps: Step, letters: tuple[float, ...], decided: tuple[int, ...] = ()) -> str:
    """What is wrong with dead letters of one record, written at these times."""
    made = audit(*steps)
    work = SharedWork(decided=[decision(kind) for kind in decided])
    made.compare_dead_letters(work, [DeadLetter(PLACE, landed) for landed in letters])
    return "\n".join(made.problems)


def test_one_dead_letter_between_failure_and_archive_is_right() -> None:
    assert lettered(FIRST, FAILED, WRITTEN, letters=(3.0,)) == ""
    assert lettered(FIRST, ACCEPTED, letters=(), decided=(ACCEPT,)) == ""


@pytest.mark.parametrize(
    ("steps", "letters", "expected"),
    [
        ([FIRST, FAILED], (), "has 0 dead letters"),
        ([FIRST, FAILED, WRITTEN], (3.0, 3.5), "has 2 dead letters"),
        ([FIRST, FAILED, WRITTEN], (1.5,), "had not failed"),
        ([FIRST], (3.0,), "had not failed"),
        ([FIRST, FAILED, WRITTEN], (5.0,), "was archived before"),
        ([FIRST, ACCEPTED], (), "not as a failure"),
        ([FIRST, FAILED, (TAKE, TWO, 20.0, state(0, [1, 1, 2, 1, 2]))], (3.0,), "it had failed"),
    ],
)
def test_a_defect_in_dead_letters_is_found(
    steps: list[Step], letters: tuple[float, ...], expected: str
) -> None:
    assert expected in lettered(*steps, letters=letters, decided=(REJECT,))


def test_a_record_that_is_left_is_found() -> None:
    assert "was not finished at the end" in compared(SharedWork(), FIRST, expected={PLACE})


def test_the_last_delivery_may_end_without_a_decision() -> None:
    steps = [
        (TAKE, ONE, 1.0, state(0, [1, 1, 1, 0, 0])),
        (TAKE, TWO, 20.0, state(0, [1, 1, 2, 1, 1])),
        (TAKE, ONE, 40.0, state(0, [1, 1, 3, 0, 2])),
        (TAKE, TWO, 60.0, state(1, [1, 1, 1, 1, 3])),
    ]
    made = audit(*steps)
    made.compare(SharedWork(), set(), "")
    assert made.problems == []
    assert made.happened == {
        "a lock ended": 3,
        "a record was delivered again": 2,
        "a record was delivered too often": 1,
    }


AGAIN = Place("id", 0, 1)
LATER = Place("id", 0, 2)


def redriven(
    *places: Place,
    letters: tuple[DeadLetter, ...] = (DeadLetter(PLACE, 3.0),),
    copied: tuple[int, ...] = (),
    may_drop: bool = False,
) -> str:
    """What is wrong with a record at these places, after a last redrive at 5 s."""
    found = check_redrives({"m": places}, letters, {*copied}, 5.0, may_drop=may_drop)
    return "\n".join(found)


def test_one_more_record_for_each_dead_letter_is_right() -> None:
    assert redriven(PLACE, AGAIN, copied=(0,)) == ""
    both = DeadLetter(PLACE, 1.0), DeadLetter(AGAIN, 2.0)
    assert redriven(PLACE, AGAIN, LATER, letters=both, copied=(0, 1)) == ""
    assert redriven(PLACE, copied=(0,), may_drop=True) == ""
    for letter in (DeadLetter(PLACE, 6.0), DeadLetter(PLACE, 3.0, has_record=False)):
        assert redriven(PLACE, letters=(letter,)) == ""


@pytest.mark.parametrize(
    ("places", "copied", "expected"),
    [
        ((PLACE, AGAIN, LATER), (0,), "m was copied back 2 times, for 1 dead letters"),
        ((PLACE, AGAIN), (), "m was copied back 1 times, for 0 dead letters"),
        ((PLACE,), (0,), "m was copied back 0 times, for 1 dead letters"),
        ((PLACE,), (), "dead letter 0 of Place(topic_id='id', partition=0, offset=0) was not"),
    ],
)
def test_a_record_that_was_redriven_twice_or_lost_is_found(
    places: tuple[Place, ...], copied: tuple[int, ...], expected: str
) -> None:
    assert expected in redriven(*places, copied=copied)


def test_a_record_that_was_redriven_twice_is_found_though_others_may_be_dropped() -> None:
    assert "2 times" in redriven(PLACE, AGAIN, LATER, copied=(0,), may_drop=True)


def test_the_letters_that_are_copied_are_read_from_the_log() -> None:
    disk = Disk("d", SYSTEM_CLOCK)
    folder = names.group_folder("redrive.dlq.shared")
    archiving, archived = [1, 3, 0, 1, 0], [2, 4]
    for version, body in enumerate((state(0, archiving), state(1, archiving, archived))):
        action = {"domain": "deltaq.share.dlq.shared/id/0", "configuration": json.dumps(body)}
        entry = json.dumps({"domainMetadata": action | {"removed": False}}).encode()
        disk.create(f"{folder}_delta_log/{version:020}.json", entry)
    assert copied_letters(disk) == {0, 2, 3}


# --- transactions ---

KEY_1 = Key("id-0", 7, 1)
TAKEN = PLACE, 1
TRANSACTION = ["id-0", 7, 1, 1_000]
COMMIT, ABORT, SEND = "COMMIT TRANSACTION", "ABORT TRANSACTION", "SEND ACKNOWLEDGEMENTS"


def waiting(kind: int, number: int = 2, since: int = 0, owner: int = 0) -> dict[str, Any]:
    """A partition with records that a transaction is to decide."""
    body = state(0, [number, 5, 1, owner, since, 0, kind, 0])
    return {**body, "transactions": [TRANSACTION]}


SENT: Step = (SEND, ONE, 2.0, waiting(ACCEPT))


@pytest.mark.parametrize(
    "steps",
    [
        [FIRST, SENT, (COMMIT, "", 3.0, state(2))],
        [FIRST, (SEND, ONE, 2.0, waiting(REJECT)), (COMMIT, "", 3.0, state(2))],
        [FIRST, (SEND, ONE, 2.0, waiting(RELEASE)), (COMMIT, "", 3.0, state(0, [2, 0, 1]))],
        [FIRST, SENT, (ABORT, "", 3.0, state(0, [2, 0, 1]))],
    ],
    ids=["accepted", "rejected", "released", "aborted"],
)
def test_a_sound_transaction_has_no_problems(steps: list[Step]) -> None:
    assert audit(*steps).problems == []


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([(SEND, ONE, 1.0, waiting(ACCEPT))], "by w1-x"),
        ([FIRST, (SEND, TWO, 2.0, waiting(ACCEPT))], "by w2-x"),
        ([FIRST, (ACKNOWLEDGE, ONE, 2.0, waiting(ACCEPT))], "by w1-x"),
        ([FIRST, (SEND, ONE, 2.0, waiting(ACCEPT, since=1))], "by w1-x"),
        ([FIRST, SENT, (ACKNOWLEDGE, ONE, 3.0, state(2))], "waits for its transaction"),
        (
            [FIRST, SENT, (TAKE, TWO, 20.0, state(0, [2, 1, 2, 1, 2]))],
            "waits for its transaction",
        ),
        ([FIRST, SENT, (COMMIT, "", 3.0, state(0, [2, 0, 1]))], "has said 1"),
        ([FIRST, SENT, (ABORT, "", 3.0, state(2))], "has said 2"),
        ([FIRST, SENT, (ABORT, "", 3.0, state(0, [2, 0, 2]))], "count is wrong"),
    ],
)
def test_a_defect_of_a_transaction_in_the_log_is_found(steps: list[Step], expected: str) -> None:
    assert expected in "\n".join(audit(*steps).problems)


ONE_SENT: Step = (SEND, ONE, 2.0, waiting(ACCEPT, 1))
ONE_TAKEN: Step = (TAKE, ONE, 1.0, state(0, [1, 1, 1, 0, 0]))
COMMITTED: Step = (COMMIT, "", 4.0, state(1))
ABORTED: Step = (ABORT, "", 4.0, state(0, [1, 0, 1]))


def transactional(
    *steps: Step,
    decided: dict[Key, float],
    copied: int,
    delivered: tuple[Delivered, ...] = (),
) -> str:
    """What is wrong with transactions about one record, which was copied so many times."""
    made = audit(*steps)
    work = SharedWork(delivered=[*delivered], copying={"w1"})
    made.compare_transactions(work, decided, copied * [TAKEN])
    return "\n".join(made.problems)


def test_a_copy_for_each_acceptance_is_right() -> None:
    own = (Delivered("w1", PLACE, 1, 1.5),)
    again = (Delivered("w1", PLACE, 2, 5.0),)
    sent = ONE_TAKEN, ONE_SENT
    assert transactional(*sent, COMMITTED, decided={KEY_1: 3.0}, copied=1, delivered=own) == ""
    assert transactional(*sent, ABORTED, decided={}, copied=0, delivered=own + again) == ""
    # That of a topic that was deleted meanwhile.
    gone = audit(*sent)
    gone.forgotten.add(KEY)
    gone.compare_transactions(SharedWork(), {KEY_1: 3.0}, [TAKEN])
    assert gone.problems == []


@pytest.mark.parametrize(
    ("steps", "decided", "copied", "delivered", "expected"),
    [
        ([COMMITTED], {KEY_1: 3.0}, 0, (), "copied 0 times in its delivery 1, and accepted"),
        ([COMMITTED], {KEY_1: 3.0}, 2, (), "copied 2 times"),
        ([ABORTED], {}, 1, (), "copied 1 times in its delivery 1, and not accepted"),
        ([COMMITTED], {}, 1, (), "which was decided at inf"),
        ([COMMITTED], {KEY_1: 5.0}, 1, (), "which was decided at 5.0"),
        ([ABORTED], {KEY_1: 3.0}, 0, (), "ABORT TRANSACTION of"),
        (
            [],
            {KEY_1: 3.0},
            0,
            (Delivered("w2", PLACE, 2, 3.5),),
            "came after its acceptance was decided at 3.0",
        ),
    ],
)
def test_a_defect_of_transactions_is_found(
    steps: list[Step],
    decided: dict[Key, float],
    copied: int,
    delivered: tuple[Delivered, ...],
    expected: str,
) -> None:
    found = transactional(
        ONE_TAKEN, ONE_SENT, *steps, decided=decided, copied=copied, delivered=delivered
    )
    assert expected in found


def test_an_acceptance_outside_of_a_transaction_is_found() -> None:
    own = (Delivered("w1", PLACE, 1, 1.5),)
    accepted: Step = (ACKNOWLEDGE, ONE, 2.0, state(1))
    found = transactional(ONE_TAKEN, accepted, decided={}, copied=0, delivered=own)
    assert "finished outside of a transaction" in found
