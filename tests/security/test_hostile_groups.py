"""A group whose objects are made to do harm by a client that may write the bucket: the error says
where they are, nothing outside the group and its topics is touched, and no code is run.
"""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deltaq import Consumer, Corrupt, KafkaError, KafkaException, Topic
from deltaq.admin import AdminClient
from deltaq.delta.actions import DomainMetadata, encode_entry, parse_entry
from deltaq.groups.heartbeat import HEARTBEAT_BYTES_MAX, Liveness, LivenessCheck
from deltaq.groups.log import GroupLog
from deltaq.maintenance.groups import GroupPass
from deltaq.maintenance.settings import DEFAULT_SETTINGS
from deltaq.names import group_folder, log_entry, member_folder, member_key
from deltaq.store import LocalStore, MemoryStore, Store
from deltaq.testing import ManualClock
from tests.doubles.groups import join, new_member
from tests.doubles.reading import next_message

pytestmark = pytest.mark.fault("K8")

CONF = {"bootstrap.servers": "memory://unused"}
DEEP = "[" * 100_000
OUTSIDE = [
    "../../topics/t/_delta_log/00000000000000000000.json",
    "..",
    "/etc/passwd",
    "%2e%2e",
    "a/b",
    "a\\b",
    "a\0",
    "a\n",
    "\ud800",
    "file:///etc/passwd",
    "x" * 250,
]


class NotedStore(MemoryStore):
    """Notes the keys and prefixes that are asked for."""

    def __init__(self) -> None:
        super().__init__("hostile")
        self.asked: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in (
            "get",
            "get_range",
            "put",
            "create",
            "list",
            "list_some",
            "list_folders",
            "delete",
        ):
            return found

        def noted(key: str, *arguments: Any) -> Any:
            self.asked.add(key)
            return found(key, *arguments)

        return noted


@pytest.fixture
def store() -> NotedStore:
    """A store with topic `t` and group `g`, whose one member has died."""
    made = NotedStore()
    Topic("t", store=made).create()
    join(GroupLog(made, "g"), "m")
    made.put(member_key("g", "m"), b"1")
    return made


def forge(store: Store, change: Callable[[str], str]) -> None:
    """Change what the log says about the members, and seal the entry again."""
    key = log_entry(f"{group_folder('g')}_delta_log/", 0)
    entry = parse_entry(store.get(key), 0, key)
    assert entry.info is not None
    actions = [
        replace(action, configuration=change(action.configuration))
        if isinstance(action, DomainMetadata)
        else action
        for action in entry.actions
    ]
    assert actions != list(entry.actions)
    store.put(key, encode_entry(entry.info, actions))


def in_body(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """Change the head as an object."""

    def changed(configuration: str) -> str:
        body = json.loads(configuration)
        change(body)
        return json.dumps(body)

    return changed


def refusals(store: Store) -> list[KafkaException]:
    """What a consumer that joins, an administrator and maintenance get."""
    with Consumer(CONF, group_id="g", store=store) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(KafkaException) as of_member:
            next_message(consumer)
    with pytest.raises(KafkaException) as of_admin:
        AdminClient(CONF, store=store).describe_consumer_groups(["g"])["g"].result(20)
    with pytest.raises(KafkaException) as of_maintenance:
        GroupPass(store, "g", ManualClock(), DEFAULT_SETTINGS, 1).run()
    return [of_member.value, of_admin.value, of_maintenance.value]


def add_member(name: str) -> Callable[[str], str]:
    return in_body(
        lambda body: body["members"].update(
            {name: body["members"]["m"] | {"assigned": {}, "owned": {}}}
        )
    )


def move_heartbeat(name: object) -> Callable[[str], str]:
    return in_body(lambda body: body["members"]["m"].update(heartbeat=name))


def add_topic(name: str) -> Callable[[str], str]:
    return in_body(lambda body: body["partitions"].update({name: [1, 0, 0]}))


FORGERIES: dict[str, Callable[[str], str]] = {
    **{f"a member named {name[:60]!a}": add_member(name) for name in OUTSIDE},
    **{f"a heartbeat in {name[:60]!a}": move_heartbeat(name) for name in OUTSIDE},
    **{f"a topic {name[:60]!a}": add_topic(name) for name in OUTSIDE},
    "an assigned topic outside": in_body(
        lambda body: body["members"]["m"]["assigned"].update({"../t": [0]})
    ),
    "an owned topic outside": in_body(
        lambda body: body["members"]["m"]["owned"].update({"../t": [[0, 1]]})
    ),
    "a heartbeat that is no text": move_heartbeat(7),
    "a head nested without end": lambda _: DEEP,
    "a member nested without end": lambda head: head.replace('["t"]', DEEP),
    "a generation of 5000 digits": lambda head: head.replace(
        '"generation":1', f'"generation":{"9" * 5000}'
    ),
    "more partitions than a topic can have": lambda head: head.replace(
        '{"t":[1,0,0]}', '{"t":[1000000000,0,0]}'
    ),
    "a member twice": lambda head: head.replace('{"m":', '{"m":{},"m":'),
}


def test_a_member_with_a_usual_name_is_no_breach(store):
    forge(store, add_member("n"))
    assert GroupLog(store, "g").head().members.keys() == {"m", "n"}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES.keys())
def test_a_forged_membership_is_corrupt_and_nothing_outside_is_asked_for(store, forgery):
    forge(store, forgery)
    store.asked.clear()
    for error in refusals(store):
        assert error.args[0].code() == KafkaError._BAD_MSG
        assert "groups/g/" in str(error)
        assert str(error).isprintable(), "what the entry holds is escaped"
    assert store.asked
    assert [
        key for key in store.asked if not key.startswith(("groups/g/", "topics/t/", "_deltaq/"))
    ] == []


@pytest.mark.parametrize(
    "content",
    [b"cos\nabort\n(tR.", b"", b"\xff" * 100, b"__import__('os').abort()", DEEP.encode()],
    ids=["a pickle", "nothing", "no text", "a program", "deep"],
)
def test_the_content_of_a_heartbeat_is_compared_and_not_interpreted(store, content):
    clock, member = ManualClock(), new_member("m", 1_000)
    watch = LivenessCheck(store, "g", clock)
    store.put(member_key("g", "m"), content)
    assert watch.check({"m": member}) == Liveness(frozenset(), frozenset())
    clock.advance(1)
    assert watch.check({"m": member}).dead == {"m"}
    store.put(member_key("g", "m"), b"2")
    assert watch.check({"m": member}).alive == {"m"}


def test_a_huge_heartbeat_takes_no_memory(tmp_path: Path):
    """It is a sparse file of 1 TB: to read the whole of it would fail."""
    store, member = LocalStore(str(tmp_path)), new_member("m")
    store.put(member_key("g", "m"), b"1")
    with (tmp_path / member_key("g", "m")).open("wb") as huge:
        huge.truncate(10**12)
    watch = LivenessCheck(store, "g", ManualClock())
    tracemalloc.start()
    try:
        watch.check({"m": member})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert HEARTBEAT_BYTES_MAX < most < 1_000_000


def test_a_heartbeat_object_in_a_folder_of_its_own_stays_in_the_group(store):
    """Such an object is no member's; maintenance removes it, and nothing else."""
    clock = ManualClock()
    store.put(f"{member_folder('g')}a/b", b"1")
    before = {entry.key for entry in store.list("")}
    rounds = GroupPass(store, "g", clock, DEFAULT_SETTINGS, 10**12)
    rounds.run()
    clock.advance(DEFAULT_SETTINGS.clean_up_grace_s)
    rounds.run()
    after = {entry.key for entry in store.list("")}
    assert before - after == {f"{member_folder('g')}a/b"}


def test_a_forged_group_is_among_the_errors_of_a_listing_and_hides_no_other(store):
    join(GroupLog(store, "h"), "m")
    forge(store, FORGERIES["a head nested without end"])
    listed = AdminClient(CONF, store=store).list_consumer_groups().result(20)
    assert [group.group_id for group in listed.valid] == ["h"]
    (error,) = listed.errors
    assert isinstance(error, Corrupt)
