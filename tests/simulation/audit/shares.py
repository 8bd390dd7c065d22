"""Checks each entry of a share group's log, record by record, and what its workers saw and decided.

The entries are read as JSON, without the product's code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from deltaq import names
from tests.simulation.actors.workers import ACCEPT, REJECT, RELEASE, RecordDecision, SharedWork
from tests.simulation.audit.oracle import Place, logged_actions, rows_of
from tests.simulation.audit.transactions import LATE_S, Key
from tests.simulation.scenario import COPIES
from tests.simulator.disk import Disk

__all__ = [
    "ARCHIVED",
    "DEAD_LETTERS",
    "PREFIX",
    "DeadLetter",
    "ShareAudit",
    "audit_share_group",
    "copies",
    "dead_letters",
    "logged_records",
]

PREFIX = "deltaq.share."

AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED, PENDING = range(6)

DEAD_LETTERS = "dlq.shared"
"""The topic of the group's dead letters."""


@dataclass(frozen=True)
class LoggedRecord:
    """What the log says of a record. `finished` is below the start, where it does not say how.
    `transaction` and `kind` are of an acknowledgement that waits for its transaction.
    """

    state: int | str
    deliveries: int = 0
    owner: str = ""
    since: int = -1
    transaction: Key | None = None
    kind: int = 0


FINISHED = LoggedRecord("finished")
NEW = LoggedRecord("new")


class DeadLetter(NamedTuple):
    """A dead letter: the record that it is about, when it came to be, and whether it has a copy of
    the record.
    """

    place: Place
    landed: float
    has_record: bool = True


Taken = tuple[Place, int]
"""A record, and the number of its delivery."""


@dataclass
class ShareAudit:
    """A share group entry by entry. A lock lasts `lock_s` seconds; a record is delivered
    `deliveries_max` times at most. `log_starts`: the first offset of a topic id and partition that
    retention has left, if it has removed others.

    `taken`: the owner of each delivery and when it was taken; `ended`: when the log has decided a
    delivery, and what. `failed`: when it has decided that a record needs a dead letter, `archived`
    when it noted that this was written; `dropped` are deliveries that were finished without one.
    `pending` are deliveries that a transaction has acknowledged, and how; `accepted` those that
    were accepted as its transaction was committed. `forgotten` are partitions of deleted topics.
    """

    disk: Disk
    group: str
    lock_s: float
    deliveries_max: int
    problems: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    records: dict[tuple[str, int], dict[int, LoggedRecord]] = field(default_factory=dict)
    landed: list[float] = field(default_factory=list)
    taken: dict[Taken, tuple[str, float]] = field(default_factory=dict)
    ended: dict[Taken, tuple[float, str]] = field(default_factory=dict)
    failed: dict[Place, float] = field(default_factory=dict)
    archived: dict[Place, float] = field(default_factory=dict)
    dropped: set[Taken] = field(default_factory=set)
    pending: dict[Taken, tuple[Key, int]] = field(default_factory=dict)
    accepted: set[Taken] = field(default_factory=set)
    resolved: list[tuple[float, str, Key]] = field(default_factory=list)
    forgotten: set[tuple[str, int]] = field(default_factory=set)

    def read(self) -> None:
        """Check all entries that ever were in the log."""
        entries = logged_actions(self.disk, names.group_folder(self.group))
        for version, (landed, actions) in enumerate(entries):
            self.landed.append(landed)
            operation, by = "", ""
            for action in actions:
                if info := action.get("commitInfo"):
                    operation = info["operation"]
                    by = info["operationParameters"].get("member", "")
                domain = action.get("domainMetadata", {})
                if domain.get("domain", "").startswith(PREFIX):
                    key = _partition(domain["domain"])
                    if domain["removed"]:
                        self.happened["a partition of a share group was forgotten"] += 1
                        self.records.pop(key, None)
                        self.forgotten.add(key)
                        # A worker that has not seen yet that the topic was deleted begins anew.
                        self.starts.pop(key, None)
                    else:
                        self.take(version, operation, by, key, json.loads(domain["configuration"]))

    def take(
        self, version: int, operation: str, by: str, key: tuple[str, int], body: dict[str, Any]
    ) -> None:
        """Check what an entry makes of a partition."""
        before, after = self.records.get(key, {}), dict(logged_records(body))
        start = self.starts.get(key, body["start"])
        if body["start"] < start:
            self._wrong(version, f"moves the start of {key} back from {start}")
        self.starts[key] = body["start"]
        if len(before) != len(before.keys() & (after.keys() | set(range(body["start"])))):
            self._wrong(version, f"leaves out records of {key}")
        for offset in range(start, max([body["start"], *(at + 1 for at in after)])):
            was = before.get(offset, NEW)
            now = after.get(offset, FINISHED)
            if was != now:
                self._change(version, operation, by, Place(*key, offset), was, now)
        self.records[key] = after

    def _change(
        self,
        version: int,
        operation: str,
        by: str,
        place: Place,
        was: LoggedRecord,
        now: LoggedRecord,
    ) -> None:
        """Check what an entry does to one record."""
        what = f"makes {was} of {place} {now}"
        if was.state in (ACKNOWLEDGED, ARCHIVED):
            if now.state != "finished":
                self._wrong(version, f"{what}: it was finished")
            return
        if was.state == ARCHIVING:
            if now.state not in (ARCHIVED, "finished"):
                self._wrong(version, f"{what}: it had failed")
            self.archived[place] = self.landed[version]
            return
        if now.state == ARCHIVING:
            self.failed[place] = self.landed[version]
        if was.state == PENDING:
            self._resolve(version, operation, place, was, now, what)
            return
        if now.state == PENDING:
            self._send(version, operation, by, place, was, now, what)
            return
        is_free = was.state in ("new", AVAILABLE)
        if was.state == ACQUIRED:
            is_free = self._is_given_up(version, by, place, was, now, what)
        if now.state == ACQUIRED:
            self._check_taken(version, operation, by, place, was, now, what, is_free=is_free)
        elif is_free and now.state != AVAILABLE and was.state != ACQUIRED:
            self._wrong(version, f"{what}: no worker held it")
        elif was.state == "new":
            self._wrong(version, f"{what}: it was never taken")

    def _send(
        self,
        version: int,
        operation: str,
        by: str,
        place: Place,
        was: LoggedRecord,
        now: LoggedRecord,
        what: str,
    ) -> None:
        """Check that a worker has acknowledged what it holds in a transaction."""
        held = LoggedRecord(ACQUIRED, now.deliveries, by, now.since)
        if operation != "SEND ACKNOWLEDGEMENTS" or now.owner != by or was != held:
            self._wrong(version, f"{what}: by {by}")
        assert now.transaction is not None
        self.pending[place, now.deliveries] = now.transaction, now.kind

    def _resolve(
        self,
        version: int,
        operation: str,
        place: Place,
        was: LoggedRecord,
        now: LoggedRecord,
        what: str,
    ) -> None:
        """Check that a record is what its transaction has decided, or is given back."""
        assert was.transaction is not None
        is_committed, is_last = operation == "COMMIT TRANSACTION", False
        if not is_committed and operation != "ABORT TRANSACTION":
            self._wrong(version, f"{what}: it waits for its transaction")
        kind = was.kind if is_committed else RELEASE
        wanted: tuple[int | str, ...] = {
            ACCEPT: (ACKNOWLEDGED, "finished"),
            REJECT: (ARCHIVING, ARCHIVED, "finished"),
            RELEASE: (AVAILABLE,),
        }[kind]
        if kind == RELEASE and was.deliveries >= self.deliveries_max:
            wanted, is_last = (ARCHIVING, ARCHIVED, "finished"), True
        if now.state not in wanted:
            self._wrong(version, f"{what}: the transaction has said {kind}")
        if now.state == AVAILABLE and now.deliveries != was.deliveries:
            self._wrong(version, f"{what}: the count is wrong")
        taken = place, was.deliveries
        if kind == ACCEPT:
            self.accepted.add(taken)
        elif now.state in (ARCHIVED, "finished"):
            self.dropped.add(taken)
        ends = "released" if kind == RELEASE and not is_last else "finished"
        self.ended[taken] = self.landed[version], ends
        self.happened["a transaction's acknowledgements were given back"] += not is_committed
        self.resolved.append((self.landed[version], operation, was.transaction))

    def _is_given_up(
        self, version: int, by: str, place: Place, was: LoggedRecord, now: LoggedRecord, what: str
    ) -> bool:
        """Whether a record that was held is free: its worker has written the entry, or its lock was
        over.
        """
        age_s = self.landed[version] - self.landed[was.since]
        ends = "released" if now.state in (AVAILABLE, ACQUIRED) else "finished"
        unseen = now.deliveries == was.deliveries - 1 and by == was.owner
        if now.state == AVAILABLE and now.deliveries != was.deliveries and not unseen:
            self._wrong(version, f"{what}: the count is wrong")
        if now.state in (ARCHIVED, "finished"):
            self.dropped.add((place, was.deliveries))
        if by != was.owner:
            is_archived = now.state in (ARCHIVING, ARCHIVED, "finished")
            if age_s < self.lock_s:
                self._wrong(version, f"{what}: after {age_s:.3f} s, by {by}")
            elif now.state == ACKNOWLEDGED or (
                is_archived and was.deliveries < self.deliveries_max
            ):
                self._wrong(version, f"{what}: by {by}")
            self.happened["a lock ended"] += 1
            ends = "over"
            if is_archived:
                self.happened["a record was delivered too often"] += 1
        self.ended[place, was.deliveries] = self.landed[version], ends
        return True

    def _check_taken(
        self,
        version: int,
        operation: str,
        by: str,
        place: Place,
        was: LoggedRecord,
        now: LoggedRecord,
        what: str,
        *,
        is_free: bool,
    ) -> None:
        if not is_free or operation != "TAKE RECORDS":
            self._wrong(version, f"{what}: it was not free")
        if (now.owner, now.since) != (by, version):
            self._wrong(version, f"{what}: by {by}")
        # A worker that may not deliver a record yet gives it back, and may take it in one entry.
        is_unseen = was.owner == by and now.deliveries == was.deliveries
        if now.deliveries > self.deliveries_max or not (
            now.deliveries == was.deliveries + 1 or is_unseen
        ):
            self._wrong(version, f"{what}: the count is wrong")
        if was.deliveries and not is_unseen:
            self.happened["a record was delivered again"] += 1
        self.taken[place, now.deliveries] = by, self.landed[version]

    def _wrong(self, version: int, what: str) -> None:
        self.problems.append(f"entry {version} of the share group {what}")

    # --- dead letters ---

    def compare_dead_letters(self, work: SharedWork, letters: Iterable[DeadLetter]) -> None:
        """Check that each record that failed has one of the dead letters, written after it failed
        and before it was archived, and that no other record has one.
        """
        accepted = {(each.place, each.deliveries) for each in work.decided if each.kind == ACCEPT}
        for place, deliveries in sorted(self.dropped - accepted, key=repr):
            self.problems.append(f"{place} was given up in delivery {deliveries}, not as a failure")
        written: Counter[Place] = Counter()
        for place, landed, _ in letters:
            written[place] += 1
            if landed < self.failed.get(place, float("inf")):
                self.problems.append(f"{place} has a dead letter, and had not failed")
            if landed > self.archived.get(place, float("inf")):
                self.problems.append(f"{place} was archived before its dead letter was written")
        for place in sorted(self.failed, key=repr):
            if written[place] != 1:
                self.problems.append(f"{place} has {written[place]} dead letters")
        self.happened["a dead letter was written"] += written.total()

    # --- transactions ---

    def compare_transactions(
        self,
        work: SharedWork,
        decided: Mapping[Key, float],
        copied: Iterable[Taken],
    ) -> None:
        """Check that what a transaction has accepted was copied once, that nothing else was, and
        that nothing is delivered after it was accepted by a transaction that is `decided`, at these
        times.
        """
        written = Counter(copied)
        for landed, operation, transaction in self.resolved:
            at = decided.get(transaction, float("inf"))
            if (operation == "COMMIT TRANSACTION") != (at <= landed):
                self.problems.append(f"{operation} of {transaction}, which was decided at {at}")
            self.happened["a transaction's acknowledgements were published late"] += (
                landed - at > LATE_S
            )
        for taken in sorted({*self.accepted, *written}, key=repr):
            place, deliveries = taken
            is_gone = (place.topic_id, place.partition) in self.forgotten
            if written[taken] != (taken in self.accepted) and not (is_gone and written[taken] == 1):
                self.problems.append(
                    f"{place} was copied {written[taken]} times in its delivery {deliveries}, and "
                    f"{'accepted' if taken in self.accepted else 'not accepted'} by a transaction"
                )
        final = {
            place: (deliveries, decided[transaction])
            for (place, deliveries), (transaction, kind) in self.pending.items()
            if kind == ACCEPT and transaction in decided
        }
        for each in work.delivered:
            deliveries, at = final.get(each.place, (each.deliveries, 0.0))
            if each.deliveries > deliveries and each.at > at:
                self.problems.append(f"{each} came after its acceptance was decided at {at}")
            taken = each.place, each.deliveries
            _, ends = self.ended.get(taken, (0.0, ""))
            is_own = each.worker in work.copying and each.deliveries < self.deliveries_max
            if is_own and ends == "finished" and taken not in self.pending:
                self.problems.append(f"{each} was finished outside of a transaction")
        self.happened["a message was accepted by a transaction"] += len(self.accepted)

    # --- what the workers know ---

    def compare(self, work: SharedWork, expected: set[Place], alive: str) -> None:
        """Compare with what the workers saw and decided. `expected` are all records of the topic
        `alive`, which must be finished.
        """
        self._compare_deliveries(work)
        decided = {(each.place, each.deliveries, each.kind): each for each in work.decided}
        for (place, deliveries), (_, ends) in self.ended.items():
            if ends == "finished":
                kinds = [kind for kind in (ACCEPT, REJECT) if (place, deliveries, kind) in decided]
                is_last = deliveries >= self.deliveries_max
                if not kinds and not is_last:
                    self.problems.append(
                        f"{place} was finished in its delivery {deliveries}, and no worker has "
                        "decided so"
                    )
        for each in work.confirmed:
            self._compare_confirmed(each)
        for place in sorted(expected, key=repr):
            if place.offset >= self.starts.get((place.topic_id, place.partition), 0):
                self.problems.append(f"{place} was not finished at the end")
        for (topic_id, partition), records in self.records.items():
            if topic_id == alive and records:
                self.problems.append(f"partition {partition} has unfinished records: {records}")

    def _compare_deliveries(self, work: SharedWork) -> None:
        seen: set[Taken] = set()
        for each in work.delivered:
            key = each.place, each.deliveries
            owner, at = self.taken.get(key, ("", 0.0))
            if owner.rpartition("-")[0] != each.worker:
                self.problems.append(f"{each} was taken by {owner!r}")
            elif each.at >= at + self.lock_s:
                self.problems.append(f"{each} came after its lock, taken at {at}")
            if key in seen:
                self.problems.append(f"{each} came twice")
            seen.add(key)

    def _compare_confirmed(self, each: RecordDecision) -> None:
        """A confirmed decision is final."""
        at, ends = self.ended.get((each.place, each.deliveries), (float("inf"), "not ended"))
        wanted = "finished" if each.kind in (ACCEPT, REJECT) else "released"
        is_last = each.deliveries >= self.deliveries_max
        if ends != wanted and not (each.kind == RELEASE and is_last and ends == "finished"):
            self.problems.append(f"{each} was confirmed, and the record is {ends}")
        elif at > each.at:
            self.problems.append(f"{each} was confirmed before it was written, at {at}")
        self.happened[f"a decision {each.kind} was confirmed"] += 1


def dead_letters(disk: Disk) -> Iterator[DeadLetter]:
    """All dead letters, in the order of the log."""
    folder = names.topic_folder(DEAD_LETTERS)
    for landed, actions in logged_actions(disk, folder):
        for add in (action["add"] for action in actions if "add" in action):
            if add["dataChange"]:
                for row in rows_of(disk.history[folder + add["path"]][0]):
                    about = {each["key"]: bytes(each["value"]).decode() for each in row["_headers"]}
                    topic_id, partition, offset = (
                        about[f"__dlq.errors.{name}"]
                        for name in ("topic.id", "partition", "offset")
                    )
                    place = Place(topic_id, int(partition), int(offset))
                    yield DeadLetter(place, landed, row["value"] is not None)


def copies(disk: Disk) -> Iterator[Taken]:
    """What workers have written for messages that they have accepted, in the order of the log."""
    folder = names.topic_folder(COPIES)
    for _, actions in logged_actions(disk, folder):
        for add in (action["add"] for action in actions if "add" in action):
            if add["dataChange"]:
                for row in rows_of(disk.history[folder + add["path"]][0]):
                    topic_id, *numbers = bytes(row["value"]).decode().split("|")
                    partition, offset, deliveries = map(int, numbers)
                    yield Place(topic_id, partition, offset), deliveries


def _partition(domain: str) -> tuple[str, int]:
    _, topic_id, number = domain.removeprefix(PREFIX).split("/")
    return topic_id, int(number)


def logged_records(body: dict[str, Any]) -> Iterator[tuple[int, LoggedRecord]]:
    """What a partition's state says, by offset."""
    at = body["start"]
    for length, state, *numbers in body["spans"]:
        if state in (ACQUIRED, PENDING):
            record = LoggedRecord(state, numbers[0], body["owners"][numbers[1]], numbers[2])
            if state == PENDING:
                transaction = Key(*body["transactions"][numbers[3]][:3])
                record = replace(record, transaction=transaction, kind=numbers[4])
        else:
            record = LoggedRecord(state, *numbers[:1])
        for offset in range(at, at + length):
            yield offset, record
        at += length


def audit_share_group(disk: Disk, group: str, lock_s: float, deliveries_max: int) -> ShareAudit:
    """Audit the whole log of a share group."""
    audit = ShareAudit(disk, group, lock_s, deliveries_max)
    audit.read()
    return audit
