"""A modelled S3 that counts the requests of one group member by the object that they are for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from benchmarks.modelled.store import ModelledStore

__all__ = ["LABELS", "GroupStore", "by_label", "label_of"]

LABELS = (
    "heartbeat put",
    "heartbeat get",
    "group log get",
    "group log create",
    "group log create refused",
    "topic log get",
    "data get",
    "other",
)
"""What a member's requests are for."""


def label_of(operation: str, key: str, outcome: str) -> str:
    """The label of one request. Pure."""
    is_log = "/_delta_log/" in key
    if key.startswith("groups/"):
        of = "heartbeat" if "/_members/" in key else "group log" if is_log else ""
    elif key.startswith("topics/"):
        of = "topic log" if is_log else "data"
    else:
        of = ""
    label = f"{of} {operation}" + (
        " refused" if operation == "create" and outcome == "exists" else ""
    )
    return label if label in LABELS else "other"


def by_label(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    """The requests between two counts, for each label. Pure."""
    return {label: after.get(label, 0) - before.get(label, 0) for label in LABELS}


class GroupStore(ModelledStore):
    """`counts` has the requests by label."""

    def _count(self, operation: str, key: str, outcome: str) -> None:
        with self._lock:
            self.counts[label_of(operation, key, outcome)] += 1

    def counted(self) -> Counter[str]:
        """The counts at this moment."""
        with self._lock:
            return self.counts.copy()
