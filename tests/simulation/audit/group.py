"""Checks each entry of the group's log: who owns each partition, and which offset commits are accepted.

The entries are read as JSON, without the product's code.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from deltaq.testing.simulation.disk import Disk
from tests.simulation.scenario import GROUP

__all__ = ["GroupAudit", "audit_group"]

LOG = f"groups/{GROUP}/_delta_log/"
Owners = dict[tuple[str, int], tuple[str, int]]


@dataclass
class GroupAudit:
    """The group entry by entry. `owners`: member and generation by partition; `offsets`: those committed."""

    problems: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    generation: int = 0
    members: dict[str, Any] = field(default_factory=dict)
    owners: Owners = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)

    def take(self, version: int, actions: list[dict[str, Any]]) -> None:
        """Check the next entry."""
        (info,) = (action["commitInfo"] for action in actions if "commitInfo" in action)
        operation, by = info["operation"], info["operationParameters"]
        where = f"group entry {version}, {operation} by {by}"
        self._commit(where, by, [action["txn"] for action in actions if "txn" in action])
        for action in actions:
            if "domainMetadata" in action and action["domainMetadata"]["domain"] == "deltaq":
                self._change(where, operation, by, json.loads(action["domainMetadata"]["configuration"]))

    def _commit(self, where: str, by: dict[str, str], txns: list[dict[str, Any]]) -> None:
        for txn in txns:
            app_id, offset = txn["appId"], txn["version"]
            topic, _, partition = app_id.split("/")
            if offset < 0:  # forgotten: the topic was deleted
                self.offsets.pop(app_id, None)
                continue
            owner = self.owners.get((topic, int(partition)))
            if owner is not None and (owner[0] != by.get("member") or int(by["generation"]) < owner[1]):
                self.problems.append(f"{where} commits {app_id}, which {owner} owns")
            if offset < self.offsets.get(app_id, -1):
                self.problems.append(f"{where} moves {app_id} back from {self.offsets[app_id]} to {offset}")
            self.offsets[app_id] = offset

    def _change(self, where: str, operation: str, by: dict[str, str], head: dict[str, Any]) -> None:
        members = head["members"]
        owners: Owners = {
            (topic, partition): (member, since)
            for member, body in members.items()
            for topic, numbers in body["owned"].items()
            for partition, since in numbers
        }
        assigned = [
            (topic, partition)
            for body in members.values()
            for topic, numbers in body["assigned"].items()
            for partition in numbers
        ]
        if head["generation"] < self.generation:
            self.problems.append(f"{where} has generation {head['generation']} after {self.generation}")
        if len(set(assigned)) != len(assigned):
            self.problems.append(f"{where} assigns a partition to two members")
        if unowned := [partition for partition in assigned if partition not in owners]:
            self.problems.append(f"{where} leaves {unowned} without an owner")
        partitions = {(topic, number) for topic, count in head["partitions"].items() for number in range(count)}
        if members and partitions - owners.keys():
            self.problems.append(f"{where} leaves {sorted(partitions - owners.keys())} without an owner")
        for partition, (owner, since) in self.owners.items():
            after = owners.get(partition)
            moved = after is not None and after[0] != owner
            if moved and owner in members and (operation != "RELEASE" and by.get("member") != owner):
                self.problems.append(f"{where} takes {partition} from {owner} of generation {since}, a member")
        self._count(operation, by, members, owners)
        self.generation, self.members, self.owners = head["generation"], members, owners

    def _count(self, operation: str, by: dict[str, str], members: dict[str, Any], owners: Owners) -> None:
        gone = self.members.keys() - members.keys()
        was_moving = any(
            [partition, number] not in [[t, p] for t, p in self.owners if self.owners[t, p][0] == member]
            for member, body in self.members.items()
            for partition, numbers in body["assigned"].items()
            for number in numbers
        )
        self.happened["a dead member was removed"] += operation == "LEAVE" and bool(gone - {by.get("member")})
        self.happened["a dead member lost its partitions"] += any(
            owner in gone - {by.get("member")} for owner, _ in self.owners.values()
        )
        self.happened["a member left"] += operation == "LEAVE" and by.get("member") in gone
        self.happened["a partition was released"] += operation == "RELEASE"
        self.happened["a rebalance began during another"] += operation in ("JOIN", "LEAVE") and was_moving
        self.happened["a member joined a group of several"] += operation == "JOIN" and len(members) > 2


def audit_group(disk: Disk) -> GroupAudit:
    """Check all entries that ever were."""
    audit = GroupAudit()
    keys = sorted(key for key in disk.history if key.startswith(LOG) and key.removeprefix(LOG)[:-5].isdigit())
    for version, key in enumerate(keys):
        audit.take(version, [json.loads(line) for line in disk.history[key][0].decode().splitlines()])
    return audit
