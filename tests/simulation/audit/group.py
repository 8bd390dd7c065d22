"""Checks each entry of the group's log: who owns each partition, which commits are accepted, and
who is removed.

The entries are read as JSON, without the product's code.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from deltaq import names
from tests.simulation.audit.oracle import logged_actions
from tests.simulation.scenario import GROUP
from tests.simulator.disk import Disk

__all__ = ["MOVE_S", "GroupAudit", "audit_group"]

MOVE_S = 20.0
"""Simulated seconds within which a living owner releases a partition that is assigned to another
member.
"""

IN_FLIGHT_S = 10.0
"""Simulated seconds for which heartbeats of an ended session may still arrive: requests are late by
up to 4 s.
"""

RESOLUTIONS = "COMMIT TRANSACTION", "ABORT TRANSACTION"

Partition = tuple[str, int]


@dataclass(frozen=True)
class OwnerSince:
    """A member, and the generation since which it owns a partition."""

    member: str
    since: int


@dataclass(frozen=True)
class GroupEntry:
    """An entry of the group's log; `landed` is when it came to be, `by` on whose behalf it was
    written. With `is_combined` that is a leader, and the offsets are those of the owners of the
    partitions. `pending`: the offsets of transactions after it, by `transactional.id`; None if it
    does not change them.
    """

    version: int
    landed: float
    operation: str
    by: str
    by_generation: int
    offsets: dict[str, int]
    head: dict[str, Any] | None
    is_combined: bool = False
    pending: dict[str, Any] | None = None

    def __str__(self) -> str:
        who = f" by {self.by} of generation {self.by_generation}" if self.by else ""
        return f"group entry {self.version} at {self.landed:.3f}, {self.operation}{who},"


@dataclass
class GroupAudit:
    """The group entry by entry.

    `pending`: the offsets of transactions by `transactional.id`, and `resolved` those that were
    committed or dropped: (when, epoch, number and id of the transaction, whether committed).
    `group`: its name; `is_recreated`: whether the topic is deleted and created again at times;
    `move_s`: within how many seconds a living owner releases a partition. `owners`: by partition;
    `offsets`: those committed, and `slots`: the version of the last commit, by app id. `clients`:
    the client id of each member that ever was. `committed`: the committed offsets by app id,
    `moves`: the clients that got a partition or None, and `left_out`: the clients that have left
    its topic out of their subscriptions, all with their times.
    """

    disk: Disk
    group: str = GROUP
    is_recreated: bool = False
    move_s: float = MOVE_S
    problems: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    generation: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    owners: dict[Partition, OwnerSince] = field(default_factory=dict)
    assigned: dict[Partition, str] = field(default_factory=dict)
    clients: dict[str, str] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    slots: dict[str, int] = field(default_factory=dict)
    committed: dict[str, list[tuple[float, int, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    moves: dict[Partition, list[tuple[float, str | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    left_out: dict[Partition, list[tuple[float, str]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    moving_since: dict[Partition, float] = field(default_factory=dict)
    pending: dict[str, Any] = field(default_factory=dict)
    resolved: list[tuple[float, tuple[str, int, int], bool]] = field(default_factory=list)
    # By member: when it joined, its time-out.
    sessions: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, entry: GroupEntry) -> None:
        """Check the next entry."""
        if entry.operation in RESOLUTIONS:
            self._resolve(entry)
        else:
            self._send(entry)
            self._commit(entry)
        if entry.head is not None:
            self._change(entry, entry.head)

    def _commit(self, entry: GroupEntry) -> None:
        for app_id, offset in entry.offsets.items():
            if offset < 0:  # forgotten: the topic was deleted
                self.offsets.pop(app_id, None)
                self.committed[app_id].append((entry.landed, 0, ""))
                self.slots[app_id] = entry.version
                continue
            topic, _, partition = app_id.split("/")
            owner = self.owners.get((topic, int(partition)))
            by = entry.by
            if entry.is_combined and owner is not None and owner.member != entry.by:
                by = owner.member
                self._check_shown(entry, app_id, offset, by)
                self.happened["the leader committed an offset of another member"] += 1
            else:
                is_fenced = owner is not None and (
                    owner.member != by or entry.by_generation < owner.since
                )
                self._claim(entry, not is_fenced, f"commits {app_id}, which {owner} owns")
            is_member = by in self.members or not (self.members or by)
            self._claim(entry, is_member, f"commits {app_id}, and is no member")
            is_known = entry.by_generation <= self.generation
            self._claim(
                entry, is_known, f"commits {app_id} in a generation after {self.generation}"
            )
            before = self.offsets.get(app_id, -1)
            self._claim(entry, offset >= before, f"moves {app_id} back from {before} to {offset}")
            self.offsets[app_id], self.slots[app_id] = offset, entry.version
            self.committed[app_id].append((entry.landed, offset, self.clients.get(by, "")))

    # --- the offsets of transactions ---

    def _send(self, entry: GroupEntry) -> None:
        """Check that pending offsets are of partitions that their sender may commit."""
        after = self.pending if entry.pending is None else entry.pending
        lost = self.pending.keys() - after.keys()
        self._claim(entry, not lost, f"drops offsets of transactions of {sorted(lost)}")
        for id_, body in after.items():
            before = self.pending.get(id_, {"epoch": -1, "number": -1, "offsets": {}})
            if body == before:
                continue
            key, old = (body["epoch"], body["number"]), (before["epoch"], before["number"])
            self._claim(entry, key >= old, f"has offsets of {id_} {key} after those of {old}")
            held = before["offsets"] if key == old else {}
            missing = held.keys() - body["offsets"].keys()
            self._claim(entry, not missing, f"drops offsets of {id_} {key}: {sorted(missing)}")
            is_member = entry.by in self.members and body.get("member") == entry.by
            self._claim(entry, is_member, f"has offsets of {body.get('member')}, no member")
            for app_id, sent in body["offsets"].items():
                if held.get(app_id) == sent:
                    continue
                topic, _, partition = app_id.split("/")
                owner = self.owners.get((topic, int(partition)))
                is_of_owner = owner is not None and (
                    owner.member == entry.by and entry.by_generation >= owner.since
                )
                self._claim(
                    entry,
                    owner is None or is_of_owner,
                    f"has offsets of {app_id}, which {owner} owns",
                )
        self.pending = after

    def _resolve(self, entry: GroupEntry) -> None:
        """Check that the offsets of one transaction are committed or dropped, and no others."""
        after = self.pending if entry.pending is None else entry.pending
        ended = [id_ for id_ in self.pending if id_ not in after]
        kept = {id_: body for id_, body in self.pending.items() if id_ in after}
        self._claim(entry, len(ended) == 1 and kept == after, f"ends the transactions {ended}")
        is_committed = entry.operation == RESOLUTIONS[0]
        offsets = {
            app_id: sent[0]
            for id_ in ended
            if is_committed
            for app_id, sent in self.pending[id_]["offsets"].items()
        }
        self._claim(entry, entry.offsets == offsets, f"commits {entry.offsets}, not {offsets}")
        for app_id, offset in offsets.items():
            before = self.offsets.get(app_id, -1)
            self._claim(entry, offset >= before, f"moves {app_id} back from {before} to {offset}")
            self.offsets[app_id], self.slots[app_id] = offset, entry.version
        for id_ in ended:
            body = self.pending[id_]
            transaction = id_, body["epoch"], body["number"]
            self.resolved.append((entry.landed, transaction, is_committed))
            self.happened["offsets of a transaction were dropped"] += not is_committed
        self.pending = after

    def _check_shown(self, entry: GroupEntry, app_id: str, offset: int, owner: str) -> None:
        """Check that a heartbeat of the owner has shown the offset, in this generation, and after
        it knew of the last commit of the partition.
        """
        key = names.member_key(self.group, owner)
        heard = zip(self.disk.history.get(key, ()), self.disk.written.get(key, ()), strict=True)
        parts = [content.split(b" ", 2) for content, at in heard if at < entry.landed]
        shown = [json.loads(of[2]) for of in parts if len(of) == 3]
        is_shown = any(
            of["generation"] == self.generation
            and of["after"] >= self.slots.get(app_id, -1)
            and of["offsets"].get(app_id, [None])[0] == offset
            for content in shown
            if (of := content.get(owner)) is not None
        )
        self._claim(entry, is_shown, f"commits {offset} of {app_id}, which {owner} does not show")

    # --- membership ---

    def _change(self, entry: GroupEntry, head: dict[str, Any]) -> None:
        members: dict[str, Any] = head["members"]
        self.clients |= {member: body["client"] for member, body in members.items()}
        for member in members.keys() - self.members.keys():
            self.sessions[member] = entry.landed, members[member]["session"] / 1000
        owned = [
            ((topic, partition), OwnerSince(member, since))
            for member, body in members.items()
            for topic, numbers in body["owned"].items()
            for partition, since in numbers
        ]
        owners = dict(owned)
        self._claim(entry, len(owners) == len(owned), "gives a partition two owners")
        listed = [
            ((topic, partition), member)
            for member, body in members.items()
            for topic, numbers in body["assigned"].items()
            for partition in numbers
        ]
        assigned = dict(listed)
        self._claim(entry, len(assigned) == len(listed), "assigns a partition to two members")
        partitions = {
            (topic, number)
            for topic, (count, *_) in head["partitions"].items()
            for number in range(count)
        }
        lonely = sorted((partitions | assigned.keys()) - owners.keys()) if members else []
        self._claim(entry, not lonely, f"leaves {lonely} without an owner")
        renamed = self._renamed(members)
        self._check_generation(entry, head["generation"], members, assigned, renamed)
        for partition, owner in self.owners.items():
            after = owners.get(partition)
            kept = after == owner or owner.member not in members or entry.by == owner.member
            kept = kept or (after is None and self.is_recreated)
            self._claim(entry, kept, f"takes {partition} from {owner}, a member, for {after}")
        for partition, owner in owners.items():
            before = self.owners.get(partition)
            is_old = owner == before or (
                before is not None and renamed.get(before.member) == owner.member
            )
            is_new = owner.since == head["generation"]
            self._claim(
                entry,
                is_old or is_new,
                f"gives {partition} to {owner} in generation {head['generation']}",
            )
        for member in self.members.keys() - members.keys() - renamed.keys():
            self._check_removed(entry, member)
        self._note_subscriptions(entry, members)
        self._note_moves(entry, owners, assigned)
        self._count(entry, members)
        self.generation, self.members, self.owners, self.assigned = (
            head["generation"],
            members,
            owners,
            assigned,
        )

    def _renamed(self, members: dict[str, Any]) -> dict[str, str]:
        """The members whose `group.instance.id` another one has taken over."""
        instances = {
            body["instance"]: member
            for member, body in members.items()
            if body["instance"] is not None
        }
        return {
            member: instances[body["instance"]]
            for member, body in self.members.items()
            if member not in members and body["instance"] in instances
        }

    def _check_generation(
        self,
        entry: GroupEntry,
        generation: int,
        members: dict[str, Any],
        assigned: dict[Partition, str],
        renamed: dict[str, str],
    ) -> None:
        before = {
            partition: renamed.get(member, member) for partition, member in self.assigned.items()
        }
        is_same = (
            before == assigned
            and {renamed.get(member, member) for member in self.members} == members.keys()
        )
        follows = generation == self.generation + 1 or (is_same and generation == self.generation)
        self._claim(entry, follows, f"has generation {generation} after {self.generation}")

    def _check_removed(self, entry: GroupEntry, member: str) -> None:
        """Check that a member that did not leave itself was silent for its session time-out."""
        if _client(entry.by) == self.clients[member]:
            return  # it left, or its session ended and it joins again
        _, session_s = self.sessions[member]
        silent_s = self._silent_s(member, entry.landed)
        self._claim(
            entry,
            silent_s >= session_s,
            f"removes {member}, which was silent for {silent_s:.3f} s at most",
        )

    def _silent_s(self, member: str, until: float) -> float:
        """The longest time without a heartbeat of a member."""
        heard = [
            at
            for at in self.disk.written.get(names.member_key(self.group, member), [])
            if at < until
        ]
        return max((after - before for before, after in pairwise([*heard, until])), default=0.0)

    def check_sessions(self) -> None:
        """Check that no session goes on after a silence of its time-out, in which others may remove
        the member.
        """
        for member, (joined, session_s) in self.sessions.items():
            heard = self.disk.written.get(names.member_key(self.group, member), [])
            for before, after in pairwise(heard):
                if (
                    before >= joined
                    and after - before >= session_s
                    and heard[-1] > after + IN_FLIGHT_S
                ):
                    what = (
                        f"{member} was silent from {before:.3f} to {after:.3f}, and sends "
                        f"heartbeats at {heard[-1]:.3f}"
                    )
                    self.problems.append(what)
                    break

    def _note_subscriptions(self, entry: GroupEntry, members: dict[str, Any]) -> None:
        for member in self.members.keys() & members.keys():
            before, after = self.members[member]["topics"], members[member]["topics"]
            if before == after:
                continue
            self._claim(entry, entry.by == member, f"changes the subscription of {member}")
            self.happened["a member changed its subscription"] += 1
            for topic, numbers in self.members[member]["owned"].items():
                if not any(
                    re.search(name, topic) if name.startswith("^") else name == topic
                    for name in after
                ):
                    self.happened["a member left a topic out of its subscription"] += 1
                    for number, _ in numbers:
                        self.left_out[topic, number].append((entry.landed, self.clients[member]))

    # --- time ---

    def _note_moves(
        self, entry: GroupEntry, owners: dict[Partition, OwnerSince], assigned: dict[Partition, str]
    ) -> None:
        for partition in self.owners.keys() | owners.keys():
            before, after = self.owners.get(partition), owners.get(partition)
            if before is None or after is None or before.member != after.member:
                client = None if after is None else self.clients[after.member]
                self.moves[partition].append((entry.landed, client))
                took_s = entry.landed - self.moving_since.pop(partition, entry.landed)
                if before is not None and took_s > self.move_s:
                    _, session_s = self.sessions[before.member]
                    is_dead = self._silent_s(before.member, entry.landed) >= session_s
                    self._claim(
                        entry, is_dead, f"takes {partition} from {before} after {took_s:.3f} s"
                    )
            if after is not None and assigned.get(partition) != after.member:
                self.moving_since.setdefault(partition, entry.landed)
            else:
                self.moving_since.pop(partition, None)

    # --- events ---

    def _count(self, entry: GroupEntry, members: dict[str, Any]) -> None:
        gone = self.members.keys() - members.keys()
        others = gone - {entry.by}
        owned = {partition: owner.member for partition, owner in self.owners.items()}
        was_moving = any(
            owned.get(partition) != member for partition, member in self.assigned.items()
        )
        is_join = entry.operation == "JOIN"
        client = _client(entry.by)
        self.happened["a dead member was removed"] += entry.operation == "LEAVE" and bool(others)
        self.happened["a dead member lost its partitions"] += any(
            owner.member in others for owner in self.owners.values()
        )
        self.happened["a member left"] += entry.operation == "LEAVE" and entry.by in gone
        self.happened["a member joined again"] += is_join and any(
            self.clients[member] == client for member in gone
        )
        self.happened["a partition was released"] += entry.operation == "RELEASE"
        self.happened["final offsets were committed with a release"] += (
            entry.operation == "RELEASE" and bool(entry.offsets)
        )
        self.happened["a rebalance began during another"] += (
            entry.operation in ("JOIN", "LEAVE") and was_moving
        )
        self.happened["a member joined a group of several"] += is_join and len(members) > 2
        self.happened["a static member was replaced"] += bool(self._renamed(members))

    def _claim(self, entry: GroupEntry, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(f"{entry} {what}")


def _client(member: str) -> str:
    """The client id that a member id begins with, also if the member was never in the log."""
    return member.rpartition("-")[0]


def read_group(disk: Disk, group: str) -> list[GroupEntry]:
    """All entries that ever were."""
    entries = logged_actions(disk, names.group_folder(group))
    return [_entry(version, *found) for version, found in enumerate(entries)]


def _entry(version: int, landed: float, actions: list[dict[str, Any]]) -> GroupEntry:
    (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
    by = info["operationParameters"]
    domains = {
        action["domainMetadata"]["domain"]: json.loads(action["domainMetadata"]["configuration"])
        for action in actions
        if "domainMetadata" in action
    }
    return GroupEntry(
        version,
        landed,
        info["operation"],
        by.get("member", ""),
        int(by.get("generation", -1)),
        {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action},
        domains.get("deltaq"),
        "pending" in by,
        domains.get("deltaq.transactions"),
    )


def audit_group(
    disk: Disk, group: str = GROUP, *, is_recreated: bool = False, move_s: float = MOVE_S
) -> GroupAudit:
    """Audit the whole log of a group."""
    audit = GroupAudit(disk, group, is_recreated, move_s)
    for entry in read_group(disk, group):
        audit.take(entry)
    audit.check_sessions()
    return audit
