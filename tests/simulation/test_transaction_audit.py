"""The audit of transactions finds each breach of their rules in hand-made logs and observations,
and no other.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from deltaq import names
from deltaq.testing import ManualClock
from tests.checker.history import Operation, SeenRecord
from tests.simulation.actors.transactions import Attempt, Transactional
from tests.simulation.audit.group import GroupAudit
from tests.simulation.audit.oracle import Place
from tests.simulation.audit.topic import Audit
from tests.simulation.audit.transactions import (
    LATE_S,
    IdAudit,
    Key,
    Publication,
    audit_ids,
    check_attempts,
    check_copies,
    check_cuts,
    check_offsets,
    check_publications,
    events,
    publications,
    recreated_topics,
)
from tests.simulation.scenario import GROUP, OUTPUTS
from tests.simulation.transactions import check_random_programs
from tests.simulator.disk import Disk

# --- the log of an id ---

Log = list[tuple[str, dict[str, Any]]]
"""The operation and the head of each entry. It is written in the second of its version."""


def decision(epoch: int, number: int, version: int) -> dict[str, Any]:
    """A decision with a file for each output, and offsets of the group."""
    topics = {
        topic: {"id": f"{topic}-id", "files": [{"path": staged(epoch, number, topic)}]}
        for topic in OUTPUTS
    }
    return {"number": number, "version": version, "topics": topics, "groups": [GROUP]}


def staged(epoch: int, number: int, topic: str) -> str:
    return f"staged/id/{epoch}-{number}-{topic}.parquet"


def head(epoch: int, number: int, decided: dict[str, Any] | None = None) -> dict[str, Any]:
    found = {"life": "life", "epoch": epoch, "number": number, "timeout": 60_000, "time": 0}
    return found | ({} if decided is None else {"decision": decided})


def clean() -> Log:
    """Two transactions are committed and one is aborted. Then the id has another producer, and
    expires.
    """
    first = decision(0, 1, 1)
    return [
        ("BEGIN EPOCH", head(0, 0)),
        ("COMMIT TRANSACTION", head(0, 1, first)),
        ("ABORT TRANSACTION", head(0, 2, first)),
        ("COMMIT TRANSACTION", head(0, 3, decision(0, 3, 3))),
        ("BEGIN EPOCH", head(1, 0)),
        ("EXPIRE EPOCH", head(2, 0)),
    ]


def entry(operation: str, of_id: dict[str, Any], life: str = "") -> list[dict[str, Any]]:
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"operation": operation}},
        {"domainMetadata": {"domain": "deltaq", "configuration": json.dumps(of_id)}},
    ]
    return [*actions, {"metaData": {"id": life}}] if life else actions


def audited(log: Log) -> IdAudit:
    audit = IdAudit("id")
    for version, (operation, of_id) in enumerate(log):
        life = "" if version else "life"
        audit.take(version, float(version), entry(operation, of_id, life))
    return audit


def test_what_an_id_may_do_is_not_reported():
    audit = audited(clean())
    assert audit.problems == []
    assert [decided.key for decided in audit.decided] == [Key("id", 0, 1), Key("id", 0, 3)]
    assert [(at, of.key.number) for at, of in audit.ended] == [(3.0, 1), (4.0, 3), (5.0, 3)]
    assert {of.app_id for of in audit.decided} == {"id/life"}
    assert +audit.happened == {"another process aborted a transaction": 1, "an id expired": 1}


def put(version: int, operation: str, of_id: dict[str, Any]) -> Callable[[Log], None]:
    def change(log: Log) -> None:
        log[version] = operation, of_id

    return change


def stolen() -> dict[str, Any]:
    """A decision with a file of another transaction."""
    found = decision(0, 1, 1)
    found["topics"]["a"]["files"].append({"path": staged(0, 2, "a")})
    return found


BROKEN: dict[str, tuple[Callable[[Log], None], str]] = {
    "the first epoch is not the time": (put(0, "BEGIN EPOCH", head(1, 0)), "has epoch 1 after {}"),
    "an entry is of another log": (
        put(4, "BEGIN EPOCH", head(1, 0) | {"life": "other"}),
        "is of the life 'other'",
    ),
    "an epoch is skipped": (put(4, "BEGIN EPOCH", head(2, 0)), "has epoch 2 after"),
    "an epoch is taken twice": (put(5, "EXPIRE EPOCH", head(1, 0)), "has epoch 1 after"),
    "an epoch begins in the middle": (put(4, "BEGIN EPOCH", head(1, 1)), "not the begin of an"),
    "an epoch begins with a decision": (
        put(4, "BEGIN EPOCH", head(1, 0, decision(0, 3, 3))),
        "not the begin of an epoch",
    ),
    "nothing has begun": (
        put(0, "COMMIT TRANSACTION", head(0, 1, decision(0, 1, 0))),
        "is not expected after {}",
    ),
    "an abort before anything has begun": (
        put(0, "ABORT TRANSACTION", head(0, 1)),
        "is not expected after {}",
    ),
    "an operation is unknown": (put(4, "WRITE", head(0, 3)), "WRITE, is not expected after"),
    "a commit of a former producer": (
        put(5, "COMMIT TRANSACTION", head(0, 4, decision(0, 4, 5))),
        "has epoch 0 in 1",
    ),
    "an abort of a former producer": (put(5, "ABORT TRANSACTION", head(0, 4)), "has epoch 0 in 1"),
    "what was aborted is committed": (
        put(3, "COMMIT TRANSACTION", head(0, 2, decision(0, 2, 3))),
        "ends 2 after 2",
    ),
    "what was committed is aborted": (
        put(2, "ABORT TRANSACTION", head(0, 1, decision(0, 1, 1))),
        "ends 1 after 1",
    ),
    "a decision names another version": (
        put(1, "COMMIT TRANSACTION", head(0, 1, decision(0, 1, 7))),
        "decides 7",
    ),
    "a decision of another transaction": (
        put(1, "COMMIT TRANSACTION", head(0, 2, decision(0, 1, 1))),
        "decides 1",
    ),
    "a file of another transaction": (
        put(1, "COMMIT TRANSACTION", head(0, 1, stolen())),
        "decides a file of another transaction",
    ),
    "an abort drops the decision": (put(2, "ABORT TRANSACTION", head(0, 2)), "changes the dec"),
}


@pytest.mark.parametrize(("change", "problem"), BROKEN.values(), ids=BROKEN.keys())
def test_a_breach_in_the_log_of_an_id_is_reported(change, problem):
    log = clean()
    change(log)
    problems = audited(log).problems
    assert [found for found in problems if problem in found], problems


def test_entries_of_ids_are_read_from_the_bytes_of_their_logs():
    disk = Disk("audited", ManualClock())
    folder = names.transaction_folder("id") + "_delta_log/"
    for version, (operation, of_id) in enumerate(clean()):
        write(disk, f"{folder}{version:020d}.json", entry(operation, of_id, "life"))
    disk.delete(f"{folder}{0:020d}.json")
    (audit,) = audit_ids(disk).values()
    assert audit.problems == []
    assert [decided.version for decided in audit.decided] == [1, 3]
    assert audit.happened["an entry of an id was cleaned up"] == 1


def write(disk: Disk, key: str, actions: Sequence[dict[str, Any]]) -> None:
    disk.put(key, b"\n".join(json.dumps(action).encode() for action in actions))


# --- what follows from the decisions ---


@dataclass
class World:
    """The clean log, and what follows from it in topics, the group and programs."""

    ids: dict[str, IdAudit] = field(default_factory=lambda: {"id": audited(clean())})
    published: list[Publication] = field(default_factory=list)
    topics: dict[str, Audit] = field(default_factory=dict)
    group: GroupAudit = field(default_factory=lambda: GroupAudit(Disk("", ManualClock())))
    done: Transactional = field(default_factory=Transactional)
    values: list[str] = field(default_factory=lambda: ["0", "1"])
    recreated: list[str] = field(default_factory=list)

    def problems(self) -> list[str]:
        return [
            *check_publications(self.ids, self.published, self.topics),
            *check_offsets(self.ids, self.group),
            *check_attempts(self.done, self.topics, self.recreated),
            *check_cuts(self.done.cuts, self.topics),
            *check_copies(self.values, self.topics, self.recreated),
        ]


def publication(topic: str, number: int, landed: float) -> Publication:
    app_id, files = f"id/life/{topic}-id", (staged(0, number, topic),)
    return Publication(topic, f"{topic}-id", landed, app_id, number, files)


def world() -> World:
    """Both transactions are published before the id goes on; each has one value of the input."""
    found = World()
    found.published = [
        publication(topic, number, number + 0.5) for topic in OUTPUTS for number in (1, 3)
    ]
    for topic in OUTPUTS:
        found.topics[topic] = audit = Audit(topic=topic, topic_id=f"{topic}-id")
        add(audit, "0|0", 0, 1.5)
        add(audit, "1|2", 1, 3.5)
    found.group.resolved = [
        (1.6, ("id", 0, 1), True),
        (2.1, ("id", 0, 2), False),
        (3.6, ("id", 0, 3), True),
    ]
    found.done.attempts = [
        Attempt(0, ["0|0"], "committed", 1.8),
        Attempt(1, ["1|1"], "aborted", 2.5),
        Attempt(2, ["1|2"], "", 0.0),
    ]
    found.done.followed = [("a", Place("a-id", 0, 0), "0|0")]
    found.done.cuts = [{topic: {0: end} for topic in OUTPUTS} for end in range(3)]
    return found


def add(audit: Audit, value: str, offset: int, came: float) -> None:
    place = Place(audit.topic_id, 0, offset)
    audit.places[value].append(place)
    audit.came[place] = came


def test_what_follows_from_the_decisions_is_not_reported():
    assert world().problems() == []


def of_none(of: World) -> None:
    of.published.append(publication("a", 2, 2.5))


def of_another_life(of: World) -> None:
    of.published[0] = replace(of.published[0], app_id="id/other/a-id")


def without_a_transaction(of: World) -> None:
    of.published.append(replace(publication("a", 2, 2.5), app_id="", version=-1))


def published_again(of: World) -> None:
    of.published.append(publication("a", 1, 9.0))


def published_in_part(of: World) -> None:
    of.published[0] = replace(of.published[0], files=())


def published_early(of: World) -> None:
    of.published[0] = publication("a", 1, 0.5)


def published_late(of: World) -> None:
    of.published[0] = publication("a", 1, 3.2)


def missing_in_a_topic(of: World) -> None:
    del of.published[0]


def offsets_of_an_aborted_transaction(of: World) -> None:
    of.group.resolved[1] = 2.1, ("id", 0, 2), True


def offsets_before_the_decision(of: World) -> None:
    of.group.resolved[0] = 0.6, ("id", 0, 1), True


def offsets_dropped(of: World) -> None:
    of.group.resolved[0] = 1.6, ("id", 0, 1), False


def offsets_late(of: World) -> None:
    of.group.resolved[0] = 3.2, ("id", 0, 1), True


def offsets_never(of: World) -> None:
    del of.group.resolved[0]


def offsets_pending(of: World) -> None:
    of.group.pending = {"id": {}}


def reported_as_aborted(of: World) -> None:
    of.done.attempts[0].outcome = "aborted"


def reported_as_refused(of: World) -> None:
    of.done.attempts[0].outcome = "refused"


def reported_as_committed(of: World) -> None:
    of.done.attempts[1].outcome = "committed"


def reported_before_it_was_visible(of: World) -> None:
    of.done.attempts[0].ended = 1.2


def read_from_nowhere(of: World) -> None:
    of.done.followed.append(("a", Place("a-id", 0, 1), "0|0"))


def cut_in_the_middle(of: World) -> None:
    of.done.cuts.append({"a": {0: 1}, "b": {0: 0}})


def copied_twice(of: World) -> None:
    for audit in of.topics.values():
        add(audit, "0|7", 2, 9.0)


def made_up(of: World) -> None:
    for audit in of.topics.values():
        add(audit, "7|7", 2, 9.0)


def never_copied(of: World) -> None:
    of.values.append("2")


def copied_by_different_transactions(of: World) -> None:
    del of.topics["b"].places["1|2"]
    add(of.topics["b"], "1|3", 1, 3.5)


FOLLOWING: list[tuple[Callable[[World], None], str]] = [
    (of_none, "aborted read"),
    (of_another_life, "aborted read"),
    (without_a_transaction, "aborted read"),
    (published_again, "doubled transaction"),
    (published_in_part, "has not all files"),
    (published_early, "is before its decision at 1.0"),
    (published_late, "is in a at 3.2, after the id went on at 3.0"),
    (missing_in_a_topic, "is not in a"),
    (offsets_of_an_aborted_transaction, "offsets without output"),
    (offsets_before_the_decision, "offsets without output"),
    (offsets_dropped, "output without offsets"),
    (offsets_late, "has no offsets in its group when the id went on at 3.0"),
    (offsets_never, "has no offsets in its group when the id went on at 3.0"),
    (offsets_pending, "are pending at the end"),
    (reported_as_aborted, "which was aborted at 1.8"),
    (reported_as_refused, "which was refused at 1.8"),
    (reported_as_committed, "has no '1|1', which was committed"),
    (reported_before_it_was_visible, "after its commit returned at 1.2"),
    (read_from_nowhere, "a reader got '0|0'"),
    (cut_in_the_middle, "splits ['0|0']"),
    (copied_twice, "1 times too often"),
    (made_up, "has '7' of in 1 times too often"),
    (never_copied, "has no '2' of in"),
    (copied_by_different_transactions, "the outputs differ by ['1|2', '1|3']"),
]


@pytest.mark.parametrize(
    ("change", "problem"), FOLLOWING, ids=[change.__name__ for change, _ in FOLLOWING]
)
def test_a_breach_after_a_decision_is_reported(change, problem):
    found = world()
    change(found)
    assert [what for what in found.problems() if problem in what], found.problems()


def test_what_was_in_a_topic_that_was_deleted_may_be_missing():
    found = world()
    found.published = [of for of in found.published if of.topic == "a"]
    found.topics["b"] = Audit(topic="b", topic_id="b-id", is_deleted=True)
    found.recreated, found.done.cuts = ["b"], []
    assert found.problems() == []
    found.topics["b"] = Audit(topic="b", topic_id="of another life")
    assert found.problems() == []
    found.recreated = []
    assert Counter(what[:12] for what in found.problems()) == {
        "b has no '0|": 1,
        "b has no '0'": 1,
        "b has no '1'": 1,
        "torn transac": 1,
    }


def test_a_transaction_without_offsets_needs_none():
    found = world()
    audit = found.ids["id"]
    audit.ended = [(at, replace(of, groups=())) for at, of in audit.ended]
    found.group.resolved = []
    assert found.problems() == []


def test_late_publications_and_unknown_outcomes_are_counted():
    found = world()
    assert events(found.ids, found.published, found.done) == {
        "a transaction was published late": 0,
        "a program did not learn of its transaction": 1,
    }
    found.published[0] = publication("a", 1, 1.1 + LATE_S)
    found.published[2:] = []
    found.done.attempts.pop()
    assert events(found.ids, found.published, found.done) == {
        "a transaction was published late": 1,
        "a program did not learn of its transaction": 0,
    }


def test_publications_are_read_from_the_bytes_of_the_topics():
    disk = Disk("audited", ManualClock())

    def topic(version: int, actions: list[dict[str, Any]], **more: object) -> None:
        state = json.dumps({"topic_id": "a-id"} | more)
        domain = {"domainMetadata": {"domain": "deltaq", "configuration": state}}
        write(disk, f"topics/a/_delta_log/{version:020d}.json", [domain, *actions])

    def add_of(path: str, *, is_new: bool = True) -> dict[str, Any]:
        return {"add": {"path": path, "dataChange": is_new}}

    topic(0, [])
    topic(1, [{"txn": {"appId": "id/life/a-id", "version": 1}}, add_of("p"), add_of("q")])
    topic(2, [add_of("merged", is_new=False)])
    topic(3, [add_of("r")])
    assert publications(disk, ["a"]) == [
        Publication("a", "a-id", 0.0, "id/life/a-id", 1, ("p", "q")),
        Publication("a", "a-id", 0.0, "", -1, ("r",)),
    ]
    assert recreated_topics(disk) == []
    topic(4, [], deleted=True)
    assert recreated_topics(disk) == ["a"]


# --- random transactions ---


def test_an_anomaly_of_random_transactions_is_reported():
    sent = Operation("p", "send", "ok", 1.0, 1.1, (SeenRecord("x", 0, None, "v"),))
    history = [
        Operation("p", "begin", "ok", 0.5, 0.5),
        sent,
        Operation("p", "commit-transaction", "ok", 2.0, 2.1),
        Operation("c", "poll", "ok", 3.0, 3.1, (SeenRecord("x", 0, 0, "v"),)),
    ]
    assert check_random_programs(history) == []
    history[2] = replace(history[2], kind="abort-transaction")
    (found,) = check_random_programs(history)
    assert "aborted-read in x[0]" in found
