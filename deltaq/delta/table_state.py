"""The state of a deltaq table at one version: the result of its log entries.

Source: the Delta protocol, "Action reconciliation". The newest protocol, metadata, domain and transaction of a key
apply; a file is in the table from its `add` until its `remove`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from deltaq.delta.actions import Action, Add, CommitInfo, DomainMetadata, Entry, Metadata, Protocol, Remove, Txn
from deltaq.errors import Corrupt, Incompatible

DELTAQ_DOMAIN = "deltaq"

FORGOTTEN_VERSION = -1
"""A `txn` of this version deletes the application's transaction: the application has committed nothing."""

PROTOCOL = Protocol(1, 7, writer_features=("domainMetadata", "deltaq"))
"""Every Delta reader can read the table; a writer that does not know the feature `deltaq` must refuse to write."""

_KNOWN_WRITER_FEATURES = {"appendOnly", "invariants", "domainMetadata", "deltaq"}


@dataclass(slots=True)
class TableState:
    """A table at `version`, which is -1 before the first entry. Files are in the order in which they were added.
    `txn_id` is the token of entry `version`; None if the state comes from a checkpoint. `txn_slots` has the version of
    each application's last transaction, if that is newer than the checkpoint of `restored_version` from which the state
    was read: a checkpoint does not say it."""

    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    domains: dict[str, str] = field(default_factory=dict)
    txns: dict[str, Txn] = field(default_factory=dict)
    files: dict[str, Add] = field(default_factory=dict)
    txn_id: str | None = field(default=None, compare=False)
    txn_slots: dict[str, int] = field(default_factory=dict, compare=False)
    restored_version: int = field(default=-1, compare=False)

    def copy(self) -> TableState:
        """An independent copy of the state."""
        return TableState(
            self.version,
            self.protocol,
            self.metadata,
            dict(self.domains),
            dict(self.txns),
            dict(self.files),
            self.txn_id,
            dict(self.txn_slots),
            self.restored_version,
        )

    def txn_slot_max(self, app_id: str) -> int:
        """The version of the last entry with a transaction of this application, or a later one; -1 if there is none."""
        return self.txn_slots.get(app_id, self.restored_version)

    def actions(self) -> list[Action]:
        """The minimal actions that produce this state: the content of a checkpoint."""
        table = (self.protocol, self.metadata)
        return [
            *(action for action in table if action is not None),
            *(DomainMetadata(domain, configuration) for domain, configuration in self.domains.items()),
            *self.txns.values(),
            *self.files.values(),
        ]

    def restore(self, version: int, actions: Iterable[Action]) -> None:
        """Fill this empty state with the actions of the checkpoint of `version`."""
        for action in actions:
            self._apply(action, version)
        self.version = self.restored_version = version

    def check(self, entry: Entry, path: str) -> None:
        """Raises Corrupt for an entry that is not the next version, Incompatible for one that deltaq did not write, or
        with a protocol that deltaq does not support."""
        if entry.version != self.version + 1:
            raise Corrupt(f"expected version {self.version + 1} next", path=path, version=entry.version)
        if entry.info is None:
            raise Incompatible(_foreign(entry.version, path))
        for action in entry.actions:
            if isinstance(action, Protocol):
                _checked(action, entry.version)

    def apply(self, entry: Entry) -> None:
        """Advance by a checked entry."""
        for action in entry.actions:
            self._apply(action, entry.version)
            if isinstance(action, Txn):
                self.txn_slots[action.app_id] = entry.version
        self.version, self.txn_id = entry.version, entry.txn_id

    def _apply(self, action: Action, version: int) -> None:
        match action:
            case Add():
                self.files[action.path] = action
            case Remove():
                self.files.pop(action.path, None)
            case Txn(version=committed) if committed == FORGOTTEN_VERSION:
                self.txns.pop(action.app_id, None)
            case Txn():
                self.txns[action.app_id] = action
            case DomainMetadata(removed=True):
                self.domains.pop(action.domain, None)
            case DomainMetadata():
                self.domains[action.domain] = action.configuration
            case Metadata():
                self.metadata = action
            case Protocol():
                self.protocol = _checked(action, version)
            case CommitInfo():
                pass


def _foreign(version: int, path: str) -> str:
    if version == 0:
        return (
            f"the Delta table that begins with {path!r} was made by another program, and deltaq leaves it alone. "
            "Choose another name, or move that table elsewhere."
        )
    return (
        f"log entry {version} at {path!r} was not written by deltaq. Only deltaq may write this table: "
        "stop the other writer, and restore the table's log from before that entry."
    )


def _checked(protocol: Protocol, version: int) -> Protocol:
    unknown = sorted(set(protocol.writer_features) - _KNOWN_WRITER_FEATURES)
    if protocol.min_reader_version > 1 or unknown:
        raise Incompatible(
            f"version {version} of the table asks for Delta reader version {protocol.min_reader_version} "
            f"and writer features {unknown or 'as known'}; "
            f"this deltaq supports reader version 1 and {sorted(_KNOWN_WRITER_FEATURES)}. "
            "Upgrade deltaq, or undo the other tool's protocol change."
        )
    if "deltaq" not in protocol.writer_features:
        raise Incompatible(
            f"version {version} of the table lacks the writer feature 'deltaq': "
            "it is a plain Delta table, not a topic. Point deltaq at a folder of its own."
        )
    return protocol
