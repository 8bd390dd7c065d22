"""The state of a deltaq table at one version: the result of its log entries.

Source: the Delta protocol, "Action reconciliation". The newest protocol, metadata, domain and
transaction of a key apply; a file is in the table from its `add` until its `remove`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from deltaq.delta.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    Entry,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from deltaq.delta.persistent_map import PersistentMap
from deltaq.errors import Corrupt, Incompatible

DELTAQ_DOMAIN = "deltaq"

FORGOTTEN_VERSION = -1
"""A `txn` of this version deletes the application's transaction: the application has committed
nothing.
"""

PROTOCOL = Protocol(1, 7, writer_features=("domainMetadata", "deltaq"))
"""Every Delta reader can read the table; a writer that does not know the feature `deltaq` must
refuse to write.
"""

_KNOWN_WRITER_FEATURES = {"appendOnly", "invariants", "domainMetadata", "deltaq"}


@dataclass(slots=True)
class TableState:
    """A table at `version`, which is -1 before the first entry. Files are in the order in which
    they were added. `txn_id` is the token of entry `version`; None if the state comes from a
    checkpoint. `txn_slots` has the version of each application's last transaction, if that is newer
    than the checkpoint of `restored_version` from which the state was read: a checkpoint does not
    say it.

    A value: never changed. It is not frozen, because each entry makes one, and that would take ten
    times as long.
    """

    version: int = -1
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    domains: PersistentMap[str] = field(default_factory=PersistentMap)
    txns: PersistentMap[Txn] = field(default_factory=PersistentMap)
    files: PersistentMap[Add] = field(default_factory=PersistentMap)
    txn_id: str | None = field(default=None, compare=False)
    txn_slots: PersistentMap[int] = field(default_factory=PersistentMap, compare=False)
    restored_version: int = field(default=-1, compare=False)

    def txn_slot_max(self, app_id: str) -> int:
        """The version of the last entry with a transaction of this application, or a later one; -1
        if there is none.
        """
        return self.txn_slots.get(app_id, self.restored_version)

    def actions(self) -> list[Action]:
        """The minimal actions that produce this state: the content of a checkpoint."""
        table = (self.protocol, self.metadata)
        return [
            *(action for action in table if action is not None),
            *(
                DomainMetadata(domain, configuration)
                for domain, configuration in self.domains.items()
            ),
            *self.txns.values(),
            *self.files.values(),
        ]

    def check(self, entry: Entry, path: str) -> None:
        """Raises Corrupt for an entry that is not the next version, Incompatible for one that
        deltaq did not write, or with a protocol that deltaq does not support.
        """
        if entry.version != self.version + 1:
            raise Corrupt(
                f"expected version {self.version + 1} next", path=path, version=entry.version
            )
        if entry.info is None:
            raise Incompatible(_foreign(entry.version, path))
        for action in entry.actions:
            if isinstance(action, Protocol):
                _checked(action, entry.version)

    def after(self, entry: Entry) -> TableState:
        """The state after a checked entry."""
        change = _TableChange(self)
        for action in entry.actions:
            change.apply(action, entry.version)
            if isinstance(action, Txn):
                change.map("txn_slots").put(action.app_id, entry.version, change.owner)
        return change.state(entry.version, entry.txn_id, self.restored_version)


def restored_state(version: int, actions: Iterable[Action]) -> TableState:
    """The state that the actions of the checkpoint of `version` describe. Raises Incompatible."""
    change = _TableChange(TableState())
    for action in actions:
        change.apply(action, version)
    return change.state(version, None, version)


class _TableChange:
    """The state after some actions, while they are applied."""

    def __init__(self, before: TableState) -> None:
        self._before = before
        # Of the parts of maps that it makes, which must not keep the state before alive.
        self.owner = object()
        self._protocol = before.protocol
        self._metadata = before.metadata
        self._maps: dict[str, PersistentMap[Any]] = {}  # those that an action changes

    def map(self, name: str) -> PersistentMap[Any]:
        """A map of the state, to be changed."""
        found = self._maps.get(name)
        if found is None:
            found = self._maps[name] = getattr(self._before, name).copy()
        return found

    def state(self, version: int, txn_id: str | None, restored_version: int) -> TableState:
        before, changed = self._before, self._maps.get
        return TableState(
            version,
            self._protocol,
            self._metadata,
            changed("domains", before.domains),
            changed("txns", before.txns),
            changed("files", before.files),
            txn_id,
            changed("txn_slots", before.txn_slots),
            restored_version,
        )

    def apply(self, action: Action, version: int) -> None:
        match action:
            case Add():
                self.map("files").put(action.path, action, self.owner)
            case Remove():
                self.map("files").pop(action.path, self.owner)
            case Txn(version=committed) if committed == FORGOTTEN_VERSION:
                self.map("txns").pop(action.app_id, self.owner)
            case Txn():
                self.map("txns").put(action.app_id, action, self.owner)
            case DomainMetadata(removed=True):
                self.map("domains").pop(action.domain, self.owner)
            case DomainMetadata():
                self.map("domains").put(action.domain, action.configuration, self.owner)
            case Metadata():
                self._metadata = action
            case Protocol():
                self._protocol = _checked(action, version)
            case CommitInfo():
                pass


def _foreign(version: int, path: str) -> str:
    if version == 0:
        return (
            f"the Delta table that begins with {path!r} was made by another program, and deltaq "
            "leaves it alone. Choose another name, or move that table elsewhere."
        )
    return (
        f"log entry {version} at {path!r} was not written by deltaq. Only deltaq may write this "
        "table: stop the other writer, and restore the table's log from before that entry."
    )


def _checked(protocol: Protocol, version: int) -> Protocol:
    unknown = sorted(set(protocol.writer_features) - _KNOWN_WRITER_FEATURES)
    if protocol.min_reader_version > 1 or unknown:
        raise Incompatible(
            f"version {version} of the table asks for Delta reader version "
            f"{protocol.min_reader_version} and writer features {unknown or 'as known'}; this "
            f"deltaq supports reader version 1 and {sorted(_KNOWN_WRITER_FEATURES)}. Upgrade "
            "deltaq, or undo the other tool's protocol change."
        )
    if "deltaq" not in protocol.writer_features:
        raise Incompatible(
            f"version {version} of the table lacks the writer feature 'deltaq': "
            "it is a plain Delta table, not a topic. Point deltaq at a folder of its own."
        )
    return protocol
