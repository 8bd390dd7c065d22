"""Checks that each dead letter was copied back once, by the log of the share group that keeps this.

The entries are read as JSON, without the product's code.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from deltaq import names
from tests.simulation.audit.oracle import Place, logged_actions
from tests.simulation.audit.shares import (
    ARCHIVED,
    DEAD_LETTERS,
    PREFIX,
    DeadLetter,
    logged_records,
)
from tests.simulator.disk import Disk

__all__ = ["check_redrives", "copied_letters"]


def copied_letters(disk: Disk) -> set[int]:
    """The offsets of the dead letters that the log says are copied back; their topic has one
    partition.
    """
    body: dict[str, object] = {"start": 0, "owners": [], "spans": []}
    for _, actions in logged_actions(disk, names.group_folder(f"redrive.{DEAD_LETTERS}")):
        for action in actions:
            domain = action.get("domainMetadata", {})
            if domain.get("domain", "").startswith(PREFIX):
                body = json.loads(domain["configuration"])
    records = dict(logged_records(body))
    archived = {offset for offset, record in records.items() if record.state == ARCHIVED}
    return archived | set(range(body["start"]))  # type: ignore[call-overload] # a number


def check_redrives(
    written: Mapping[str, Sequence[Place]],
    letters: Sequence[DeadLetter],
    copied: set[int],
    last_redrive: float,
    *,
    may_drop: bool,
) -> list[str]:
    """What is wrong with the records of the topic, by value: each was written once, and once more
    for each of its dead letters that is copied. With `may_drop`, the topic was deleted at times,
    and what is copied then is dropped.

    All letters with a record are copied that were written before the last redrive began.
    """
    problems = []
    value_of = {place: value for value, places in written.items() for place in places}
    due = Counter(value_of[letters[offset].place] for offset in copied)
    for value, places in written.items():
        more = len(places) - 1
        if more > due[value] or (more < due[value] and not may_drop):
            problems.append(f"{value} was copied back {more} times, for {due[value]} dead letters")
    for offset, letter in enumerate(letters):
        is_due = letter.landed < last_redrive and letter.has_record and not may_drop
        if is_due and offset not in copied:
            problems.append(f"dead letter {offset} of {letter.place} was not copied back")
    return problems
