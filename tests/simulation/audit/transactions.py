"""Checks the logs of each `transactional.id`, and that topics and groups have what these logs have
decided, and nothing else. Reads the entries as JSON, without the product's code.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from tests.simulation.actors.transactions import Attempt, Transactional
from tests.simulation.audit.group import GroupAudit
from tests.simulation.audit.oracle import logged_actions
from tests.simulation.audit.topic import Audit
from tests.simulation.scenario import INPUT, OUTPUTS
from tests.simulator.disk import Disk

__all__ = [
    "LATE_S",
    "Decided",
    "IdAudit",
    "Key",
    "Publication",
    "audit_ids",
    "check_attempts",
    "check_copies",
    "check_cuts",
    "check_offsets",
    "check_publications",
    "events",
    "publications",
    "recreated_topics",
]


LATE_S = 5.0
"""A program that is not interrupted publishes within fewer seconds."""


class Key(NamedTuple):
    """A transaction."""

    id: str
    epoch: int
    number: int


@dataclass(frozen=True)
class Decided:
    """A committed transaction: by topic the topic id and the files. `app_id` is that of its `txn`
    actions, but for the topic id.
    """

    key: Key
    landed: float
    version: int
    app_id: str
    topics: Mapping[str, tuple[str, tuple[str, ...]]]
    groups: tuple[str, ...]

    def __str__(self) -> str:
        return f"transaction {'/'.join(map(str, self.key))}, decided at {self.landed:.3f},"


@dataclass(frozen=True)
class Publication:
    """An entry that appends to a topic. `app_id` is empty if it belongs to no
    transaction.
    """

    topic: str
    topic_id: str
    landed: float
    app_id: str
    version: int
    files: tuple[str, ...]


@dataclass
class IdAudit:
    """The log of one `transactional.id` entry by entry. `ended`: when the id went on after each
    decision, which must be published by then. `life`: the id of the table.
    """

    id: str
    problems: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    decided: list[Decided] = field(default_factory=list)
    ended: list[tuple[float, Decided]] = field(default_factory=list)
    life: str = ""
    head: Mapping[str, Any] = field(default_factory=dict)

    def take(self, version: int, landed: float, actions: Sequence[Mapping[str, Any]]) -> None:
        """Check the next entry."""
        (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
        (domain,) = (action["domainMetadata"] for action in actions if "domainMetadata" in action)
        for action in actions:
            self.life = action["metaData"]["id"] if "metaData" in action else self.life
        before, head = self.head, json.loads(domain["configuration"])
        operation, what = info["operation"], f"entry {version} of {self.id}, {info['operation']},"
        self._claim(head["life"] == self.life, f"{what} is of the life {head['life']!r}")
        if operation in ("BEGIN EPOCH", "EXPIRE EPOCH"):
            first = 0 if head["timeout"] > 900_000 else 1000 * head["time"]
            follows = head["epoch"] == (before["epoch"] + 1 if before else first)
            self._claim(follows, f"{what} has epoch {head['epoch']} after {before}")
            is_new = head["number"] == 0 and "decision" not in head
            self._claim(is_new, f"{what} is not the begin of an epoch: {head}")
            self._note_ended(landed)
            self.happened["an id expired"] += operation == "EXPIRE EPOCH"
            is_taken = operation == "BEGIN EPOCH" and before.get("expired") is True
            self.happened["an expired id was taken again"] += is_taken
        elif before and operation == "COMMIT TRANSACTION":
            self._advance(what, head)
            self._note_ended(landed)
            self._decide(what, version, landed, head)
        elif before and operation == "ABORT TRANSACTION":
            self._advance(what, head)
            kept = head.get("decision") == before.get("decision")
            self._claim(kept, f"{what} changes the decision")
            self.happened["another process aborted a transaction"] += 1
        else:
            self.problems.append(f"{what} is not expected after {before}")
        self.head = head

    def _advance(self, what: str, head: Mapping[str, Any]) -> None:
        same = head["epoch"] == self.head["epoch"]
        self._claim(same, f"{what} has epoch {head['epoch']} in {self.head['epoch']}")
        later = head["number"] > self.head["number"]
        self._claim(later, f"{what} ends {head['number']} after {self.head['number']}")

    def _note_ended(self, landed: float) -> None:
        """The transaction before must be published everywhere by now."""
        if self.decided:
            self.ended.append((landed, self.decided[-1]))

    def _decide(self, what: str, version: int, landed: float, head: Mapping[str, Any]) -> None:
        decision = head["decision"]
        self._claim(decision["version"] == version, f"{what} decides {decision['version']}")
        self._claim(decision["number"] == head["number"], f"{what} decides {decision['number']}")
        key = Key(self.id, head["epoch"], head["number"])
        topics = {
            topic: (part["id"], tuple(file["path"] for file in part["files"]))
            for topic, part in decision["topics"].items()
        }
        for path in chain.from_iterable(files for _, files in topics.values()):
            staged = path.startswith(f"staged/{self.id}/{key.epoch}-{key.number}-")
            self._claim(staged, f"{what} decides a file of another transaction than {key}: {path}")
        app_id = f"{self.id}/{self.life}"
        groups = tuple(decision["groups"])
        self.decided.append(Decided(key, landed, version, app_id, topics, groups))

    def _claim(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)


def audit_ids(disk: Disk) -> dict[str, IdAudit]:
    """Audit the log of each `transactional.id`."""
    found = {name for key in disk.history if (name := _id_of(key))}
    audits = {id_: IdAudit(id_) for id_ in sorted(found)}
    for id_, audit in audits.items():
        for version, entry in enumerate(logged_actions(disk, f"transactions/{id_}/")):
            audit.take(version, *entry)
        log = f"transactions/{id_}/_delta_log/"
        removed = sum(key.startswith(log) and key.endswith(".json") for key in disk.deleted)
        audit.happened["an entry of an id was cleaned up"] += removed
    return audits


def _id_of(key: str) -> str:
    found = re.fullmatch(r"transactions/([^/]+)/_delta_log/[0-9]{20}\.json", key)
    return found[1] if found else ""


def events(
    ids: Mapping[str, IdAudit], published: Sequence[Publication], done: Transactional
) -> Counter[str]:
    """What has happened to transactions after their decision."""
    decided = {(of.app_id, of.version): of for audit in ids.values() for of in audit.decided}
    at = {(entry.app_id.rpartition("/")[0], entry.version): entry.landed for entry in published}
    waited = [at[of] - found.landed for of, found in decided.items() if of in at]
    unsure = {value for attempt in done.attempts if not attempt.outcome for value in attempt.values}
    return Counter(
        {
            "a transaction was published late": sum(seconds > LATE_S for seconds in waited),
            "a program did not learn of its transaction": bool(unsure),
        }
    )


# --- topics ---


def publications(disk: Disk, topics: Iterable[str]) -> list[Publication]:
    """The appends to topics that transactions write, in the order of each log."""
    found = []
    for topic in topics:
        topic_id = ""
        for landed, actions in logged_actions(disk, f"topics/{topic}/"):
            for action in actions:
                if "domainMetadata" in action:
                    head = json.loads(action["domainMetadata"]["configuration"])
                    topic_id = head["topic_id"]
            adds = (action["add"] for action in actions if "add" in action)
            files = tuple(add["path"] for add in adds if add["dataChange"])
            if files:
                txn: dict[str, Any] = next(
                    (action["txn"] for action in actions if "txn" in action), {}
                )
                app_id, version = txn.get("appId", ""), txn.get("version", -1)
                found.append(Publication(topic, topic_id, landed, app_id, version, files))
    return found


def recreated_topics(disk: Disk) -> list[str]:
    """The output topics that were deleted. The program that deletes one may be killed before it
    creates it again.
    """
    return [topic for topic in OUTPUTS if _was_deleted(disk, topic)]


def _was_deleted(disk: Disk, topic: str) -> bool:
    return any(
        json.loads(action["domainMetadata"]["configuration"]).get("deleted") is True
        for _, actions in logged_actions(disk, f"topics/{topic}/")
        for action in actions
        if "domainMetadata" in action
    )


def check_publications(
    ids: Mapping[str, IdAudit], published: Sequence[Publication], topics: Mapping[str, Audit]
) -> Iterator[str]:
    """Each append is that of one decision, and each decision is in all of its topics that were not
    deleted, before the id goes on.
    """
    expected = {
        (topic, f"{decided.app_id}/{topic_id}", decided.version): (decided, files)
        for audit in ids.values()
        for decided in audit.decided
        for topic, (topic_id, files) in decided.topics.items()
    }
    landed: dict[tuple[str, str, int], float] = {}
    for entry in published:
        place = entry.topic, entry.app_id, entry.version
        decided, files = expected.get(place, (None, ()))
        if decided is None:
            yield f"aborted read: {entry} is of no committed transaction"
        elif place in landed:
            yield f"doubled transaction: {entry} is published again, first at {landed[place]}"
        elif entry.files != files:
            yield f"torn transaction: {entry} has not all files of {decided}"
        elif entry.landed < decided.landed:
            yield f"{entry} is before its decision at {decided.landed}"
        landed[place] = entry.landed
    by = {decided.key: at for audit in ids.values() for at, decided in audit.ended}
    for (topic, app_id, version), (decided, _) in expected.items():
        if topics[topic].is_deleted or topics[topic].topic_id != decided.topics[topic][0]:
            continue  # it was deleted, and perhaps created again
        at = landed.get((topic, app_id, version))
        if at is None:
            yield f"torn transaction: {decided} is not in {topic}"
        elif at > by.get(decided.key, at):
            yield f"{decided} is in {topic} at {at}, after the id went on at {by[decided.key]}"


# --- groups ---


def check_offsets(ids: Mapping[str, IdAudit], group: GroupAudit) -> Iterator[str]:
    """Offsets of a group are committed of decided transactions, and dropped of others."""
    decided = {of.key: of for audit in ids.values() for of in audit.decided}
    at = dict[Key, float]()
    for landed, key, is_committed in group.resolved:
        of = decided.get(Key(*key))
        if is_committed and (of is None or landed < of.landed):
            yield f"offsets without output: those of {key} were committed at {landed}: {of}"
        elif of is not None and not is_committed:
            yield f"output without offsets: those of {key} were dropped at {landed}: {of}"
        at[Key(*key)] = landed
    for audit in ids.values():
        for ended, of in audit.ended:
            if group.group in of.groups and at.get(of.key, ended + 1) > ended:
                yield f"{of} has no offsets in its group when the id went on at {ended}"
    if group.pending:
        yield f"offsets of transactions of {group.group} are pending at the end: {group.pending}"


# --- what programs have seen ---


def check_attempts(
    done: Transactional, topics: Mapping[str, Audit], recreated: Collection[str]
) -> Iterator[str]:
    """What programs have been told of their transactions is true. What was in topics that were
    `recreated` may be lost.
    """
    for attempt in done.attempts:
        for topic, audit in topics.items():
            yield from _check_attempt(attempt, topic, audit, is_recreated=topic in recreated)
    for topic, place, value in done.followed:
        if place not in topics[topic].places.get(value, []):
            yield f"a reader got {value!r} at {place} of {topic}, which is not in the log"


def _check_attempt(
    attempt: Attempt, topic: str, audit: Audit, *, is_recreated: bool
) -> Iterator[str]:
    for value in attempt.values:
        came = [audit.came[place] for place in audit.places.get(value, ())]
        if attempt.outcome in ("aborted", "refused") and came:
            yield f"{topic} has {value!r} at {came}, which was {attempt.outcome} at {attempt.ended}"
        elif attempt.outcome == "committed" and not came and not is_recreated:
            yield f"{topic} has no {value!r}, which was committed at {attempt.ended}"
        elif attempt.outcome == "committed" and came and came[0] > attempt.ended:
            yield f"{topic} has {value!r} at {came}, after its commit returned at {attempt.ended}"


def check_cuts(
    cuts: Sequence[Mapping[str, Mapping[int, int]]], topics: Mapping[str, Audit]
) -> Iterator[str]:
    """Each cut has the same transactions of all topics."""
    for cut in cuts:
        first, *others = (
            {
                value
                for value, places in audit.places.items()
                if any(place.offset < cut[topic][place.partition] for place in places)
            }
            for topic, audit in topics.items()
        )
        for other in others:
            if other != first:
                yield f"torn transaction: {cut} splits {sorted(other ^ first)}"


def check_copies(
    values: Sequence[str], topics: Mapping[str, Audit], recreated: Collection[str]
) -> Iterator[str]:
    """Both outputs have each value of the input once, after all of it was processed."""
    attempts = {}
    for topic, audit in topics.items():
        is_recreated = topic in recreated
        found = Counter(
            value.partition("|")[0] for value, places in audit.places.items() for _ in places
        )
        for value, count in (found - Counter(values)).items():
            yield f"{topic} has {value!r} of {INPUT} {count} times too often"
        for value in (Counter(values) - found) if not is_recreated else ():
            yield f"{topic} has no {value!r} of {INPUT}"
        if not is_recreated:
            attempts[topic] = set(audit.places)
    first, *others = attempts.values() or [set[str]()]
    for other in others:
        if other != first:
            yield f"torn transactions: the outputs differ by {sorted(other ^ first)}"
