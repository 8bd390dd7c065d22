"""A page of messages: its memory is bounded whatever they are, and a value that cannot be decoded
is one line.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from deltaq import Producer, Topic
from deltaq.clock import SYSTEM_CLOCK
from deltaq.console import decoding, messages
from deltaq.console.app import WAITING_MAX, Console
from deltaq.console.decoding import FAILURES_MAX, DecoderProcess, ProcessFailed
from deltaq.console.messages import Found, Wanted, find
from deltaq.schema_registry import Schema, SchemaRegistryClient
from deltaq.store import open_store
from tests.children import environment_of_child
from tests.unit.console.test_pages import texts

MIB = 2**20
OLDEST = Wanted(start=0, is_newest=False)
WAYS = [Wanted(), OLDEST, Wanted(pattern="x"), Wanted(start=0, is_newest=False, pattern="x")]
NAMES = ["newest", "from the start", "search", "search from the start"]


def produce(root: str, *values: object, topic: str | Topic = "t", **settings: Any) -> None:
    """Each value in a file of its own."""
    with Producer(bootstrap_servers=root, maintenance_enable=False, **settings) as producer:
        for value in values:
            producer.produce(topic, value)
            producer.flush()


def found(root: str, wanted: Wanted) -> Found:
    """What a page of the topic shows."""
    return find(open_store(root), SYSTEM_CLOCK, "t", wanted)


# --- memory ---

_PEAK = """
import resource, sys
from deltaq.clock import SYSTEM_CLOCK
from deltaq.console.messages import Wanted, find
from deltaq.store import open_store

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

store, before = open_store(sys.argv[1]), peak()
for start in (None, 0):
    for pattern in ("", "x"):
        found = find(store, SYSTEM_CLOCK, "t", Wanted(None, start, start is None, pattern))
        assert len(found.rows) == 24, found
print(peak() - before)
"""


def test_a_page_of_large_messages_takes_the_memory_of_one_of_them(tmp_path: Path) -> None:
    Topic("t", config={"max.message.bytes": 20 * MIB}, bootstrap_servers=str(tmp_path)).create()
    produce(
        str(tmp_path), *[b"x" * 10 * MIB] * 24, message_max_bytes=20 * MIB, compression_type="none"
    )
    command = [sys.executable, "-c", _PEAK, str(tmp_path)]
    child = subprocess.run(
        command, env=environment_of_child(), capture_output=True, text=True, timeout=120, check=True
    )
    assert int(child.stdout) < 120, "MiB; all messages together have 240"


@pytest.mark.parametrize("wanted", WAYS, ids=NAMES)
def test_what_takes_too_much_memory_is_passed_over_before_it_is_decoded(
    memory_root: str, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    monkeypatch.setattr(messages, "PIECE_BYTES_MAX", 2 * MIB)
    Topic("t", config={"max.message.bytes": 20 * MIB}, bootstrap_servers=memory_root).create()
    # Compressed, the second one is small.
    produce(
        memory_root,
        b"ax",
        b"x" * 10 * MIB,
        b"bx",
        message_max_bytes=20 * MIB,
        compression_type="zstd",
    )
    page = found(memory_root, wanted)
    assert sorted(row.value.text for row in page.rows) == ["ax", "bx"]
    ((partition, start, end, size),) = [
        (of.partition, of.start, of.end, of.bytes) for of in page.left_out
    ]
    assert (partition, start, end) == (0, 1, 2)
    assert size > 10 * MIB


def test_records_that_are_passed_over_are_named_on_the_page(
    memory_root: str, asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "PIECE_BYTES_MAX", 100_000)
    produce(memory_root, b"small", b"x" * 500_000)
    text = texts(asked.get("/roots/0/topics/t/messages").text)
    assert (
        "Partition 0, offsets 1 to 1: not read, since they take 488 KiB of memory together"
        in text.replace("489", "488")
    )
    assert "1 shown" in text


@pytest.mark.parametrize("wanted", WAYS, ids=NAMES)
def test_a_page_ends_when_its_time_is_over(
    memory_root: str, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
) -> None:
    produce(memory_root, *[b"%dx" % number for number in range(5)])
    monkeypatch.setattr(messages, "READ_S", -1.0)
    page = found(memory_root, wanted)
    assert (page.is_late, len(page.rows), page.is_all) == (True, 1, False)


def test_a_typed_row_that_is_too_large_is_not_made_an_object(
    memory_root: str, asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "VALUE_BYTES_MAX", 10_000)
    monkeypatch.setattr(messages, "_SEARCHED_BYTES", 10_000)
    topic = Topic(
        "t", pa.schema({"numbers": pa.list_(pa.int64())}), bootstrap_servers=memory_root
    ).create()
    produce(memory_root, {"numbers": [1, 2]}, {"numbers": [7] * 20_000}, topic=topic)
    page = asked.get("/roots/0/topics/t/messages").text
    assert "{&#34;numbers&#34;: [1, 2]}" in page
    assert "too large to be shown here" in page
    searched = found(memory_root, Wanted(pattern="1|7"))
    assert [row.offset for row in searched.rows] == [0]
    assert [(of.start, of.end) for of in searched.left_out] == [(1, 2)]


# --- decoding ---


def registered(root: str, schema: object, payload: bytes) -> bytes:
    """A message with an Avro schema that is registered."""
    client, text = SchemaRegistryClient({"url": root}), json.dumps(schema)
    number = client.register_schema(f"of {zlib.crc32(text.encode())}", Schema(text, "AVRO"))
    return b"\0" + number.to_bytes(4, "big") + payload


def varint(number: int) -> bytes:
    """A number of Avro: zigzag, seven bits in each byte."""
    number, parts = 2 * number, bytearray()
    while number >= 128:
        parts.append(number % 128 + 128)
        number //= 128
    return bytes([*parts, number])


COMMENT = {
    "type": "record",
    "name": "Comment",
    "fields": [{"name": "reply", "type": ["null", "Comment"]}],
}


@pytest.mark.parametrize(
    ("schema", "payload"),
    [
        (COMMENT, b"\x02" * 200_000 + b"\0"),
        ({"type": "array", "items": "null"}, varint(2**62) + b"\0"),
        ({"type": "array", "items": "null"}, varint(30_000_000) + b"\0"),
    ],
    ids=["depth", "items", "memory"],
)
def test_a_value_that_ends_its_decoder_is_one_line_of_the_page(
    memory_root: str,
    asked: TestClient,
    monkeypatch: pytest.MonkeyPatch,
    schema: object,
    payload: bytes,
) -> None:
    monkeypatch.setattr(decoding, "VALUE_S", 2.0)
    hostile = registered(memory_root, schema, payload)
    harmless = registered(memory_root, "string", b"\x06tea")
    produce(memory_root, harmless, hostile, harmless)
    page = asked.get("/roots/0/topics/t/messages?from=beginning").text
    assert page.count("&#34;tea&#34;</pre>") == 2
    assert page.count("cannot be decoded: ") == 1


def process_of(code: str, monkeypatch: pytest.MonkeyPatch) -> DecoderProcess:
    """A decoding process that runs this code once it has said that it is ready."""
    code = "import sys, os; print('{}', flush=True); sys.stdin.buffer.readline(); " + code
    monkeypatch.setattr(decoding, "_COMMAND", (sys.executable, "-c", code))
    monkeypatch.setattr(decoding, "VALUE_S", 0.2)
    return DecoderProcess(SYSTEM_CLOCK)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("os.abort()", "crashed"),
        ("os._exit(0)", "crashed"),
        ("sys.stdin.buffer.read()", "takes more than 0.2 s"),
        ("print('x', end='', flush=True); sys.stdin.buffer.read()", "takes more than 0.2 s"),
        ("[sys.stdout.write('x' * 65536) for _ in range(10 ** 9)]", "crashed|takes more"),
    ],
)
def test_a_process_that_fails_is_ended_and_replaced(
    monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    process = process_of(code, monkeypatch)
    for _ in range(2):
        with pytest.raises(ProcessFailed, match=reason):
            process.ask(
                1, {"type": "AVRO", "schema": '"string"', "references": []}, b"\0\0\0\0\1\0", 100
            )
        assert process._process is None


def test_a_page_starts_no_more_processes_than_a_few(
    memory_root: str, asked: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, str]] = []
    process_of("os.abort()", monkeypatch)
    popen = subprocess.Popen

    def counted(*arguments: Any, **options: Any) -> Any:
        started.append(options["env"])
        return popen(*arguments, **options)

    monkeypatch.setattr("deltaq.console.decoding.subprocess.Popen", counted)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    produce(memory_root, *[registered(memory_root, "string", b"\x06tea")] * 8)
    assert asked.get("/roots/0/topics/t/messages").text.count("cannot be decoded: ") == 8
    assert len(started) == FAILURES_MAX
    assert all("AWS_SECRET_ACCESS_KEY" not in env for env in started)


def test_a_value_that_is_too_large_is_not_decoded(
    memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = registered(memory_root, "bytes", varint(100_000) + b"x" * 100_000)
    large = registered(memory_root, "bytes", varint(300_000) + b"x" * 300_000)
    produce(memory_root, small, large)
    kinds = {row.offset: row.value.kind for row in found(memory_root, OLDEST).rows}
    assert kinds == {0: "Avro schema 1", 1: "bytes"}


def test_the_schemas_that_a_schema_refers_to_are_sent_along(memory_root: str) -> None:
    client = SchemaRegistryClient({"url": memory_root})
    inner = {"type": "record", "name": "Item", "fields": [{"name": "name", "type": "string"}]}
    client.register_schema("item", Schema(json.dumps(inner), "AVRO"))
    outer = {"type": "record", "name": "Order", "fields": [{"name": "item", "type": "Item"}]}
    references = [{"name": "Item", "subject": "item", "version": 1}]
    schema = Schema.from_dict(
        {"schema": json.dumps(outer), "schemaType": "AVRO", "references": references}
    )
    number = client.register_schema("t-value", schema)
    produce(memory_root, b"\0" + number.to_bytes(4, "big") + b"\x06tea")
    (row,) = found(memory_root, OLDEST).rows
    assert row.value.text == '{"item": {"name": "tea"}}'


# --- how many at a time ---


def test_pages_that_read_wait_for_each_other_and_not_too_many_of_them(
    memory_root: str, console: Console
) -> None:
    async def ask() -> tuple[int, int]:
        active = most = refused = 0
        go_on = asyncio.Event()

        async def read() -> None:
            nonlocal active, most, refused
            try:
                async with console.reading():
                    active += 1
                    most = max(most, active)
                    await go_on.wait()
                    active -= 1
            except HTTPException:
                refused += 1

        tasks = [asyncio.ensure_future(read()) for _ in range(WAITING_MAX + 5)]
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*tasks)
        await read()  # there is room again
        return most, refused

    assert asyncio.run(ask()) == (2, 5)
