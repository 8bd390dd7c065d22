"""Share consumers of a group `g` on one store, whose clock the test moves."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from typing import Any

from deltaq import AcknowledgeType, AdminClient, Message, NewTopic, Producer, ShareConsumer
from deltaq.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.state import SharePartition
from deltaq.store import MemoryStore, Store
from deltaq.testing import ManualClock

__all__ = ["ACCEPT", "LOCK_S", "REJECT", "RELEASE", "RENEW", "ShareWorld", "places", "set_group"]

ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
LOCK_S = 30.0
"""Seconds of a lock."""


@dataclass
class ShareWorld:
    """A topic `t`, and a group that reads it from the beginning."""

    clock: ManualClock = field(default_factory=lambda: ManualClock(auto_advance=True))
    partitions: int = 1
    disk: InitVar[Store | None] = None  # in place of a store in memory
    store: Store = field(init=False)

    def __post_init__(self, disk: Store | None) -> None:
        self.store = disk or MemoryStore("shared", self.clock)
        with self.admin() as admin:
            admin.create_topics([NewTopic("t", self.partitions)])["t"].result(20)
        self.set(share_auto_offset_reset="earliest")

    def admin(self) -> AdminClient:
        return AdminClient(bootstrap_servers="memory://shared", store=self.store, clock=self.clock)

    def set(self, **settings: Any) -> None:
        """Change settings of the group."""
        with self.admin() as admin:
            set_group(admin, **settings)

    def fill(self, count: int, start: int = 0, partition: int = 0, topic: str = "t") -> None:
        """Write messages with the values `v<n>`."""
        producer = Producer(
            bootstrap_servers="memory://shared",
            store=self.store,
            maintenance_enable=False,
            linger_ms=1000,  # one file, however slow the machine is
        )
        with producer:
            for number in range(start, start + count):
                producer.produce(topic, f"v{number}", partition=partition)

    def consumer(
        self,
        *topics: str,
        explicit: bool = False,
        group_id: str = "g",
        store: Store | None = None,
        **conf: Any,
    ) -> ShareConsumer:
        """A share consumer of these topics, of `t` if none are given."""
        mode = "explicit" if explicit else "implicit"
        made = ShareConsumer(
            {
                "bootstrap.servers": "memory://shared",
                "group.id": group_id,
                "share.acknowledgement.mode": mode,
                "maintenance.enable": False,
            },
            store=store or self.store,
            clock=self.clock,
            **conf,
        )
        made.subscribe(list(topics) or ["t"])
        return made

    def read_all(self, topic: str) -> list[Message]:
        """All messages of a topic, in their order; none if it does not exist."""
        group = f"audit-{self.clock.unique_id()}"
        with self.admin() as admin:
            set_group(admin, group, share_auto_offset_reset="earliest")
        with self.consumer(topic, group_id=group) as reader:
            return list(reader.poll(0))

    def log(self) -> ShareLog:
        """A client of the group's log."""
        return ShareLog(self.store, "g", self.clock)

    def states(self) -> list[SharePartition]:
        """The states of the group's partitions, in order."""
        return [state for _, state in sorted(self.log().read().partitions().items())]


def set_group(admin: AdminClient, group: str = "g", **settings: Any) -> None:
    """Change settings of a group; a name has `_` for `.`."""
    entries = [
        ConfigEntry(name.replace("_", "."), str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource("group", group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(20)


def places(messages: Any) -> list[tuple[int | None, int | None]]:
    """The offset of each message, and the number of its delivery."""
    return [(message.offset(), message.delivery_count()) for message in messages]
