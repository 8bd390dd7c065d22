"""What signed-in people may change: create, alter and delete topics, reset the offsets of groups,
and copy dead letters back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from deltaq.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from deltaq.console.visits import Moved, Visit
from deltaq.errors import InvalidConfig, printable
from deltaq.tools.offset_resets import Shift, commit_resets, committed_offsets, plan_resets
from deltaq.tools.positions import parse_place
from deltaq.tools.redrive import Redrive
from deltaq.units import counted


def create_topic(visit: Visit) -> Moved:
    """Create a topic of bytes. Raises as `AdminClient.create_topics`."""
    name = visit.given.get("topic", "").strip()
    partitions = _whole(visit.given.get("partitions", "1"), "partitions")
    config = _settings(visit.given.get("settings", ""))
    visit.root.admin.create_topics([NewTopic(name, partitions, config=config)])[name].result()
    return Moved(
        f"{visit.root.home}/topics/{name}",
        f"Topic {name} was created with {counted(partitions, 'partition')}.",
    )


def alter_topic(visit: Visit) -> Moved:
    """Set a setting of a topic, return it to its default, or add partitions."""
    name, admin = visit.names["topic"], visit.root.admin
    setting = visit.given.get("setting", "").strip()
    partitions = visit.given.get("partitions", "").strip()
    if not setting and not partitions:
        raise InvalidConfig(
            "nothing to change: choose a setting or a number of partitions", key="setting"
        )
    if setting:
        value = visit.given.get("value", "").strip()
        operation = AlterConfigOpType.SET if value else AlterConfigOpType.DELETE
        resource = ConfigResource(ResourceType.TOPIC, name)
        resource.add_incremental_config(
            ConfigEntry(setting, value or None, incremental_operation=operation)
        )
        admin.incremental_alter_configs([resource])[resource].result()
    if partitions:
        more = NewPartitions(name, _whole(partitions, "partitions"))
        admin.create_partitions([more])[name].result()
    return Moved(f"{visit.root.home}/topics/{name}", f"Topic {name} was altered.")


def delete_topic(visit: Visit) -> Moved:
    """Delete a topic whose name was typed again."""
    name = visit.names["topic"]
    if visit.given.get("confirm", "") != name:
        raise InvalidConfig("type the name of the topic to delete it", key="confirm")
    visit.root.admin.delete_topics([name])[name].result()
    return Moved(visit.root.home, f"Topic {name} was deleted.")


def reset_offsets(visit: Visit) -> Moved:
    """Set the committed offsets of a group without members to a place, or by a shift."""
    group, root = visit.names["group"], visit.root
    text = visit.given.get("to", "").strip()
    shift = visit.given.get("shift", "").strip()
    topic = visit.given.get("topic", "").strip()
    if bool(text) == bool(shift):
        raise InvalidConfig("say where to: a place or a shift", key="to")
    to = (
        Shift(_whole(shift, "shift", signed=True))
        if shift
        else parse_place(text, root.clock.time_ms())
    )
    resets = plan_resets(
        root.store, root.clock, committed_offsets(root.admin, group), to, [topic] if topic else ()
    )
    if not resets:
        raise InvalidConfig(f"group {group!r} has no committed offsets: name a topic", key="topic")
    commit_resets(root.admin, group, resets)
    done = (
        f"{counted(len(resets), 'offset')} of group {group} were reset."
        if len(resets) > 1
        else (f"The offset of group {group} was reset.")
    )
    return Moved(f"{root.home}/groups/{group}", done)


def redrive(visit: Visit) -> Moved:
    """Copy the dead letters of a share group back to their topics, each once. Raises as
    `Redrive`.
    """
    group, root = visit.names["group"], visit.root
    copied = Redrive(root.store, group, root.clock).run()
    done = f"{counted(copied, 'dead letter')} of {group} {'was' if copied == 1 else 'were'} copied"
    return Moved(f"{root.home}/queues/{group}", f"{done} back.")


def _whole(text: str, name: str, *, signed: bool = False) -> int:
    digits = text.strip().removeprefix("-") if signed else text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise InvalidConfig(
            f"{name} must be a whole number, not {printable(text[:20])!r}", key=name
        )
    return int(text)


def _settings(text: str) -> dict[str, str]:
    found = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, separator, value = line.partition("=")
        if not separator:
            raise InvalidConfig(f"{printable(line[:40])!r} is not NAME=VALUE", key="settings")
        found[name.strip()] = value.strip()
    return found


CHANGES: Mapping[str, Callable[[Visit], Moved]] = {
    "/topics": create_topic,
    "/topics/{topic}/alter": alter_topic,
    "/topics/{topic}/delete": delete_topic,
    "/groups/{group}/reset": reset_offsets,
    "/queues/{group}/redrive": redrive,
}
"""The changes of a root by their addresses below it."""
