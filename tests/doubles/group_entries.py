"""What the log of a group says, entry by entry, read as JSON without the product's code."""

from __future__ import annotations

import json
from typing import Any, NamedTuple, TypeAlias

from deltaq.store import open_store

__all__ = ["GroupEntry", "Owners", "group_entries", "moved"]

Owners: TypeAlias = "dict[tuple[str, int], str]"
"""The owner's `client.id` by partition."""


class GroupEntry(NamedTuple):
    """One entry of a group's log. `owners` and `clients` are those after it."""

    operation: str
    actions: list[dict[str, Any]]
    generation: int
    clients: tuple[str, ...]
    owners: Owners
    is_stable: bool
    """Whether each partition is with the member that it is assigned to."""


def group_entries(root: str, group: str = "g") -> list[GroupEntry]:
    """All entries of a group's log."""
    store, folder = open_store(root), f"groups/{group}/_delta_log/"
    keys = sorted(
        entry.key for entry in store.list(folder) if entry.key[len(folder) :][:-5].isdigit()
    )
    found: list[GroupEntry] = []
    for key in keys:
        actions = [json.loads(line) for line in store.get(key).decode().splitlines()]
        (operation,) = (
            action["commitInfo"]["operation"] for action in actions if "commitInfo" in action
        )
        changes = [
            json.loads(action["domainMetadata"]["configuration"])
            for action in actions
            if action.get("domainMetadata", {}).get("domain") == "deltaq"
        ]
        if changes:
            found.append(GroupEntry(operation, actions, *_head(changes[-1])))
        else:
            found.append(GroupEntry(operation, actions, *found[-1][2:]))
    return found


def _head(head: dict[str, Any]) -> tuple[int, tuple[str, ...], Owners, bool]:
    members = head["members"].values()
    owners = {
        (topic, partition): member["client"]
        for member in members
        for topic, numbers in member["owned"].items()
        for partition, _ in numbers
    }
    assigned = {
        (topic, partition): member["client"]
        for member in members
        for topic, numbers in member["assigned"].items()
        for partition in numbers
    }
    return (
        head["generation"],
        tuple(member["client"] for member in members),
        owners,
        owners == assigned,
    )


def moved(before: Owners, after: Owners) -> set[tuple[str, int]]:
    """The partitions that have another owner."""
    return {partition for partition, owner in after.items() if before.get(partition) != owner}
