"""The topics and the group of the example."""

from __future__ import annotations

from pydantic import BaseModel

from deltaq import AdminClient, Topic
from deltaq.admin import AlterConfigOpType, ConfigEntry, ConfigResource

PARTITIONS = 2
GROUP = "mailers"

BACK_OFF_S = 0.2
"""Seconds until a mail is tried again after the first failure; twice as many after each other."""

SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": 5_000,
    "share.delivery.count.limit": 8,
    "errors.deadletterqueue.topic.name": "dead-mails",
}


class Mail(BaseModel):
    """A mail that is to be sent."""

    number: int
    to: str


class SentMail(BaseModel):
    """A mail that was sent, in its delivery of this number."""

    number: int
    delivery: int


def mails(root: str) -> Topic:
    """The work queue."""
    return Topic("mails", Mail, partitions=PARTITIONS, bootstrap_servers=root)


def sent_mails(root: str) -> Topic:
    """What has been sent."""
    return Topic("sent", SentMail, bootstrap_servers=root)


def dead_mails(root: str) -> Topic:
    """Why mails were given up."""
    return Topic("dead-mails", bootstrap_servers=root)


def back_off_s(deliveries: int) -> float:
    """Seconds until a mail is tried again that was delivered so often."""
    return BACK_OFF_S * (1 << (deliveries - 1))


def create(root: str) -> None:
    """Create the topics, and set up the group."""
    mails(root).create(exist_ok=True)
    sent_mails(root).create(exist_ok=True)
    dead_mails(root).create(exist_ok=True)
    entries = [
        ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
        for name, value in SETTINGS.items()
    ]
    resource = ConfigResource("group", GROUP, incremental_configs=entries)
    with AdminClient(bootstrap_servers=root) as admin:
        admin.incremental_alter_configs([resource])[resource].result()
