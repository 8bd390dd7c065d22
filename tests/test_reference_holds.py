"""What the pages of docs/reference/ say, tried on clients: the pages are read as a user reads them,
not the code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deltaq import (
    AdminClient,
    Consumer,
    InvalidConfig,
    InvalidValue,
    KafkaError,
    KafkaException,
    Producer,
    Topic,
    TopicPartition,
    metrics,
)
from deltaq.admin import ConfigResource, NewPartitions, NewTopic, OffsetSpec
from deltaq.names import log_entry, topic_folder, topic_log
from deltaq.store import StoreRefused, open_store
from deltaq.testing import Fault, FaultyStore, Rule

REFERENCE = Path(__file__).resolve().parent.parent / "docs/reference"


def rows_of(page: str, section: str = "") -> list[list[str]]:
    """The rows of the table in a section of a page, as lists of cells."""
    text = (REFERENCE / page).read_text()
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [
        line.strip("| ").split(" | ")
        for line in text.splitlines()
        if line.startswith("| `") or "` |" in line
    ]
    return [[cell.strip() for cell in row] for row in rows]


# --- configuration ---


@dataclass(frozen=True)
class SettingRow:
    """A line of the configuration page."""

    names: list[str]
    default: str
    allowed: str
    meaning: str

    @property
    def name(self) -> str:
        """The name without aliases."""
        return self.names[0]

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The range of a number."""
        found = re.fullmatch(r"(-?\d+)\.\.(-?\d+)", self.allowed)
        return (int(found[1]), int(found[2])) if found else None

    def values(self) -> tuple[list[Any], list[Any]]:
        """Values that the page allows, and values that it does not."""
        if self.bounds is not None:
            low, high = self.bounds
            return [low, high, str(high)], [low - 1, high + 1, "many", []]
        if self.allowed == "a callable":
            return [print], ["print", 5]
        if self.names[0] == "bootstrap.servers":
            return ["./x"], ["x", []]
        if self.allowed == "text":
            return ["x"], [[], object()]
        if self.allowed == "a logger":
            return [], ["x"]
        words = self.allowed.split(", ")
        # A topic without a clean-up policy keeps all messages.
        return [*words, words[0].upper()], [
            "no-such-word",
            *([] if self.names[0] == "cleanup.policy" else [""]),
        ]


def settings_of(section: str) -> list[SettingRow]:
    """The settings of a client, or of topics, those without effect last."""
    rows = rows_of("config.md", section)
    rows += [
        [*row[:3], row[4]] for row in rows_of("config.md", "Without effect") if section in row[3]
    ]
    return [
        SettingRow(re.findall("`([^`]+)`", row[0]), row[1].strip("`"), row[2], row[3])
        for row in rows
    ]


CLIENTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Producer": lambda conf: Producer({"bootstrap.servers": "memory://page", **conf}),
    "Consumer": lambda conf: Consumer(
        {"bootstrap.servers": "memory://page", "group.id": "g", **conf}
    ),
    "AdminClient and Topic": lambda conf: AdminClient(
        {"bootstrap.servers": "memory://page", **conf}
    ),
    "Topics": lambda config: (
        Topic("t", partitions=config["partitions"])
        if "partitions" in config
        else Topic("t", config=config)
    ),
}


def refusal(section: str, conf: dict[str, Any]) -> str:
    """The text with which a client refuses a configuration; empty if it takes it."""
    try:
        CLIENTS[section](conf)
    except (KafkaException, TypeError, ValueError) as error:
        return str(error)
    return ""


def rows_that_do_not_hold(section: str) -> Iterator[str]:
    """The settings that a client takes or refuses against the page, with the value and what the
    client says.
    """
    for setting in settings_of(section):
        if setting.meaning.startswith("Refused:"):
            assert refusal(section, {setting.name: "x"})
            continue
        allowed, refused = setting.values()
        for value in allowed:
            for name in setting.names:
                said = refusal(section, {name: value})
                # Two settings can contradict each other, but the page must name the other one.
                related = re.findall("`([^`]+)`", setting.meaning)
                if said and not any(other in said for other in related):
                    yield f"{name}={value!r} is refused: {said}"
        for value in refused:
            if not refusal(section, {setting.name: value}):
                yield f"{setting.name}={value!r} is taken"
        if setting.default and refusal(section, {setting.name: setting.default}):
            yield f"{setting.name}: the default {setting.default!r} is refused"


@pytest.mark.parametrize("section", CLIENTS)
def test_clients_take_and_refuse_the_values_that_the_page_says(section: str) -> None:
    assert len(settings_of(section)) > 30
    assert list(rows_that_do_not_hold(section)) == []


@pytest.mark.parametrize("section", ["Producer", "Consumer", "AdminClient and Topic"])
def test_a_client_that_sets_nothing_has_the_defaults_of_the_page(section: str) -> None:
    config = CLIENTS[section]({})._config
    attributes = {setting.name.replace(".", "_"): setting for setting in settings_of(section)}
    used = {name: setting for name, setting in attributes.items() if hasattr(config, name)}
    assert len(used) >= 5
    for name, setting in used.items():
        if name not in ("bootstrap_servers", "group_id"):
            assert as_on_the_page(getattr(config, name)) == setting.default, name


def as_on_the_page(value: object) -> str:
    """A default as the page shows it."""
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: ""}[value]
    return (
        ",".join(value)
        if isinstance(value, tuple)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def test_a_topic_that_sets_nothing_has_the_defaults_of_the_page(memory_root: str) -> None:
    Topic("t", bootstrap_servers=memory_root).create()
    resource = ConfigResource("topic", "t")
    found = (
        AdminClient(bootstrap_servers=memory_root).describe_configs([resource])[resource].result()
    )
    assert {name: entry.value for name, entry in found.items()} == {
        setting.name: setting.default for setting in settings_of("Topics") if setting.name in found
    }


# --- errors ---


class Trial:
    """A root with a topic `t` of one record, on a store whose operations can fail."""

    def __init__(self, root: str, store: FaultyStore) -> None:
        self.root = root
        self.store = store
        self.topic = Topic("t", store=store)
        self.topic.create()
        with self.producer() as producer:
            producer.produce("t", b"x")

    def producer(self, **conf: Any) -> Producer:
        """A producer on the store."""
        return Producer(bootstrap_servers=self.root, store=self.store, **conf)

    def consumer(self, **conf: Any) -> Consumer:
        """A consumer on the store."""
        return Consumer(bootstrap_servers=self.root, store=self.store, group_id="g", **conf)

    def member(self, **conf: Any) -> Consumer:
        """A consumer that is the member of its group."""
        member = self.consumer(auto_offset_reset="earliest", **conf)
        member.subscribe(["t"])
        assert member.poll(30) is not None
        return member

    def break_store(self, operation: str, key: str, fault: Fault) -> None:
        """Let every such operation fail from now on."""
        self.store.add(Rule(operation, key, fault, times=None))

    def invalid_config(self) -> None:
        """A number below the range."""
        self.producer(linger_ms=-1)

    def unknown_topic(self) -> None:
        """A topic that was never created."""
        Topic("other", store=self.store).describe()

    def topic_exists(self) -> None:
        """The same topic twice."""
        self.topic.create()

    def queue_full(self) -> None:
        """More messages than the queue holds."""
        with self.producer(queue_buffering_max_messages=1, linger_ms=60_000) as producer:
            for _ in range(3):
                producer.produce("t", b"x")

    def message_too_large(self) -> None:
        """More than `message.max.bytes`."""
        with self.producer() as producer:
            producer.produce("t", bytes(2_000_000))

    def invalid_value(self) -> None:
        """A string in a column of numbers."""
        with self.producer() as producer:
            producer.produce(Topic("typed", pa.schema({"x": pa.int64()})), {"x": "7"})

    def offset_out_of_range(self) -> None:
        """An offset beyond the end."""
        self.topic.to_arrow(start=5)

    def group_in_use(self) -> None:
        """Deleting the committed offsets of a living member."""
        with (
            self.member(heartbeat_interval_ms=50),
            AdminClient(bootstrap_servers=self.root) as admin,
        ):
            admin.delete_consumer_groups(["g"])["g"].result(30)

    def fenced(self) -> None:
        """A commit to the group of a living member."""
        with self.member(), self.consumer() as other:
            other.assign([TopicPartition("t", 0, 0)])
            other.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)

    def outcome_unknown(self) -> None:
        """An answer that is lost, on a store that then does not answer."""
        self.break_store("create", "*_delta_log*", Fault.error_after())
        self.store.add(
            Rule("get", log_entry("*_delta_log/", 2), Fault.error_before(), times=None, nth=2)
        )
        self.topic.delete(timeout=1.0)

    def corrupt(self) -> None:
        """A log entry that is not JSON."""
        self.store.put(log_entry(topic_log("t"), 1), b"{")
        Topic("t", store=self.store).describe()

    def incompatible(self) -> None:
        """A table that needs a newer reader."""
        entry = b'{"protocol":{"minReaderVersion":99,"minWriterVersion":99}}'
        self.store.put(log_entry(topic_log("foreign"), 0), entry)
        Topic("foreign", store=self.store).describe()

    def unavailable(self) -> None:
        """A store that does not answer."""
        self.break_store("*", "*", Fault.error_before())
        self.topic.describe()

    def unsafe_store(self) -> None:
        """A store that overwrites."""
        unproven = FaultyStore(self.store)
        unproven.add(Rule("create", "*", Fault.ignored_condition(), times=None))
        Topic("new", store=unproven).create()

    def wrong_state(self) -> None:
        """A seek in a partition that is not assigned."""
        with self.consumer() as consumer:
            consumer.seek(TopicPartition("t", 0, 0))


def errors_of_the_page() -> dict[str, tuple[list[str], str]]:
    """Codes and flags by the name of the exception."""
    rows = rows_of("errors.md")
    return {row[0].split("`")[1]: (re.findall("`([^`]+)`", row[1]), row[1]) for row in rows}


@pytest.mark.parametrize(
    "name", [name for name in errors_of_the_page() if name != "KafkaException"]
)
def test_an_exception_has_the_code_and_the_flags_of_the_page(
    name: str, deltaq_root: str, deltaq_faults: FaultyStore
) -> None:
    codes, text = errors_of_the_page()[name]
    trial = getattr(
        Trial(deltaq_root, deltaq_faults), re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower()
    )
    with pytest.raises(KafkaException) as caught:
        trial()
    assert type(caught.value).__name__ == name
    error = caught.value.args[0]
    assert isinstance(error, KafkaError)
    assert error.name() in codes
    assert error.retriable() == ("retriable" in text)
    assert not error.fatal()


# --- limits ---


def limit(constant: str) -> int:
    """The value of a limit on the page, in its unit; KiB and MiB in bytes."""
    shown = next(row[1] for row in rows_of("limits.md") if row[2] == f"`{constant}`")
    number, _, unit = shown.replace(",", "").partition(" ")
    return int(number) * {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}.get(unit, 1)


def test_names_may_be_as_long_as_the_page_says(memory_root: str) -> None:
    longest = limit("names.NAME_CHARS_MAX")
    for taken in (Topic, lambda name: Consumer(bootstrap_servers=memory_root, group_id=name)):
        taken("n" * longest)
        with pytest.raises(InvalidConfig):
            taken("n" * (longest + 1))
    longest = limit("serde.columns.NAME_CHARS_MAX")
    Topic("t", pa.schema({"n" * longest: pa.int64()}))
    with pytest.raises(InvalidConfig):
        Topic("t", pa.schema({"n" * (longest + 1): pa.int64()}))


def test_a_topic_may_have_as_many_partitions_as_the_page_says(memory_root: str) -> None:
    most = limit("config.client_table.PARTITIONS_MAX")
    Topic("t", partitions=most, bootstrap_servers=memory_root).create()
    admin = AdminClient(bootstrap_servers=memory_root)
    with pytest.raises(ValueError, match="10001"):
        admin.create_partitions([NewPartitions("t", most + 1)])
    with pytest.raises(InvalidConfig):
        Topic("u", partitions=most + 1)


def test_a_message_may_be_as_late_as_the_page_says(memory_root: str) -> None:
    latest = limit("message.TIMESTAMP_MS_MAX")
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce("t", b"x", timestamp=latest)
        with pytest.raises(InvalidValue, match="timestamp"):
            producer.produce("t", b"x", timestamp=latest + 1)
    moment = {TopicPartition("t", 0): OffsetSpec.max_timestamp()}
    (found,) = AdminClient(bootstrap_servers=memory_root).list_offsets(moment).values()
    assert found.result().timestamp == latest


def test_keys_may_be_as_long_as_the_page_says(memory_root: str) -> None:
    store = open_store(memory_root)
    whole, part = limit("store.keys.KEY_LENGTH_MAX"), limit("store.keys.PART_LENGTH_MAX")
    store.put("/".join(["k" * 199] * 3), b"x")
    store.put("k" * part, b"x")
    for key in ("/".join(["k" * 199, "k" * 199, "k" * (whole - 399)]), "k" * (part + 1)):
        with pytest.raises(StoreRefused):
            store.put(key, b"x")


def test_a_root_may_have_as_long_a_prefix_as_the_page_says() -> None:
    longest = limit("store.keys.PREFIX_LENGTH_MAX")
    credentials = {
        "store.access_key_id": "a",
        "store.secret_access_key": "b",
        "store.region": "us-east-1",
    }

    def opened(length: int) -> AdminClient:
        prefix = ("p" * 99 + "/") * (length // 100) + "p" * (length % 100)
        return AdminClient({"bootstrap.servers": f"s3://bucket/{prefix}", **credentials})

    opened(longest)
    with pytest.raises(InvalidConfig, match="prefix"):
        opened(longest + 1)


def test_a_call_of_the_admin_client_may_take_as_long_as_the_page_says(memory_root: str) -> None:
    admin = AdminClient(bootstrap_servers=memory_root)
    longest = limit("admin.calls.TIMEOUT_S_MAX")
    assert admin.create_topics([NewTopic("t")], request_timeout=longest)["t"].result() is None
    with pytest.raises(ValueError, match="timeout"):
        admin.create_topics([NewTopic("t")], request_timeout=longest + 1)


def test_as_many_columns_have_statistics_as_the_page_says(memory_root: str) -> None:
    most, chars = (
        limit("parquet.file_statistics.INDEXED_COLUMNS_MAX"),
        limit("parquet.file_statistics.TEXT_CHARS_MAX"),
    )
    schema = pa.schema({f"c{number}": pa.string() for number in range(most + 5)})
    with Producer(bootstrap_servers=memory_root) as producer:
        producer.produce(Topic("t", schema), dict.fromkeys(schema.names, "a" * (chars + 9)))
    entry = open_store(memory_root).get(log_entry(topic_log("t"), 1))
    (stats,) = [
        json.loads(line["add"]["stats"])
        for line in map(json.loads, entry.splitlines())
        if "add" in line
    ]
    texts = [value for value in stats["minValues"].values() if str(value).startswith("aa")]
    # `_offset` is known to the log only.
    assert len(stats["minValues"]) <= most < len(stats["minValues"]) + 2
    assert {len(text) for text in texts} == {chars}


# --- metrics ---


def read_a_missing_file(root: str) -> None:
    """A consumer reads a topic whose only data file is gone."""
    with Producer(bootstrap_servers=root) as producer:
        producer.produce("t", b"x")
    store = open_store(root)
    for entry in store.list(topic_folder("t")):
        if entry.key.endswith(".parquet"):
            store.delete(entry.key)
    with Consumer(bootstrap_servers=root, group_id="g") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is not None


def join(root: str) -> None:
    """A consumer becomes the only member of its group."""
    Topic("t", bootstrap_servers=root).create()
    with Consumer(bootstrap_servers=root, group_id="g") as consumer:
        consumer.subscribe(["t"])
        while not consumer.assignment():
            consumer.poll(0.01)


@pytest.mark.parametrize(
    ("program", "counted"),
    [
        (read_a_missing_file, {"A data file is missing when a consumer reads it": {"topic": "t"}}),
        (
            join,
            {
                "A consumer joins its group": {"group": "g"},
                "A member sees that its group has a new generation": {"group": "g"},
            },
        ),
    ],
)
def test_clients_count_what_the_page_says_under_the_names_of_the_page(
    program: Callable[[str], None], counted: dict[str, dict[str, str]], memory_root: str
) -> None:
    rows = rows_of("metrics.md")
    expected = []
    for when, labels in counted.items():
        ((name, _, _, label_cell, *_, _),) = [row for row in rows if row[-1].startswith(when)]
        assert re.findall("`([^`]+)`", label_cell) == list(labels)
        expected.append((name.strip("`"), labels))
    events: list[metrics.Event] = []
    with metrics.listening(events.append):
        program(memory_root)
    usual = "send_total", "byte_total", "consumed_total", "seconds"  # of any client that works
    seen = [event for event in events if not event.metric.name.endswith(usual)]
    assert [(event.metric.name, dict(event.labels)) for event in seen] == expected
    assert {event.amount for event in seen} == {1}
