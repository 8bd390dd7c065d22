"""One suite, unchanged, for every store: what `deltaq/store/contract.py` promises."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltaq.store import (
    ObjectExists,
    ObjectMissing,
    ObjectTooLarge,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    open_store,
    probe,
)
from tests.servers.s3_stub import S3Stub

LOG = "topics/orders/_delta_log/"
FALSE_REFUSALS: dict[str, type[StoreError]] = {"minio": StoreRefused, "versitygw": ObjectExists}
"""How servers over a folder refuse a free key now and then, in a folder that is removed with its
last object meanwhile.

Of deltaq's objects, probes, heartbeats and the files of transactions are in such folders. Probes
and heartbeats try again; a transaction whose file was refused is to be aborted, and may be
repeated.
"""
LOSES_OBJECTS = "versitygw"
"""The server that loses an acknowledged object of such a folder, one in 100,000."""
FIVE_MB = random.Random(5).randbytes(5 * 1024 * 1024)


def _keys(store: Store, prefix: str = "", start_after: str = "") -> list[str]:
    return [entry.key for entry in store.list(prefix, start_after)]


# Writing and reading


@pytest.mark.parametrize("write", ["put", "create"])
@pytest.mark.parametrize(
    "content", [b"", b"x", b"\x00\xff\r\n", FIVE_MB], ids=["empty", "x", "binary", "5 MB"]
)
def test_a_put_object_is_read_back_unchanged(store: Store, write: str, content: bytes) -> None:
    getattr(store, write)("a/b", content)
    for read in (store.get("a/b"), store.get_impatient("a/b")):
        assert type(read) is bytes
        assert read == content
    assert [(entry.key, entry.size) for entry in store.list("")] == [("a/b", len(content))]


@pytest.mark.parametrize("write", ["put", "create"])
def test_put_takes_a_memoryview_that_may_change_afterwards(store: Store, write: str) -> None:
    buffer = bytearray(b"0123456789")
    getattr(store, write)("k", memoryview(buffer)[2:6])
    buffer[:] = b"----------"
    assert store.get("k") == b"2345"


def test_a_view_of_signed_bytes_is_taken_as_bytes(store: Store) -> None:
    # Arrow's buffers present themselves so.
    store.put("k", memoryview(b"\xff\x00\x7f").cast("b"))
    assert store.get("k") == b"\xff\x00\x7f"


def test_an_object_larger_than_one_part_is_put_whole(store: Store) -> None:
    content = random.Random(17).randbytes(17 * 1024 * 1024)
    store.put("large", content)
    assert store.get("large") == content


def test_put_replaces_an_object(store: Store) -> None:
    store.put("k", b"a longer first content")
    store.put("k", b"second")
    assert store.get("k") == b"second"
    assert [entry.size for entry in store.list("")] == [6]


def test_put_replaces_an_object_that_was_created(store: Store) -> None:
    store.create("k", b"first")
    store.put("k", b"second")
    assert store.get("k") == b"second"


def test_a_second_create_of_the_same_key_is_refused(store: Store) -> None:
    store.create(f"{LOG}0.json", b"first")
    with pytest.raises(ObjectExists) as caught:
        store.create(f"{LOG}0.json", b"second")
    assert (caught.value.operation, caught.value.key) == ("create", f"{LOG}0.json")
    assert store.get(f"{LOG}0.json") == b"first"


def test_a_create_of_a_key_that_was_put_is_refused(store: Store) -> None:
    store.put("k", b"first")
    with pytest.raises(ObjectExists):
        store.create("k", b"first")


def test_a_deleted_key_can_be_created_again(store: Store) -> None:
    store.create("a/b/c", b"first")
    store.delete("a/b/c")
    with pytest.raises(ObjectMissing):
        store.get("a/b/c")
    store.create("a/b/c", b"second")
    assert store.get("a/b/c") == b"second"


def test_deleting_a_missing_object_succeeds(store: Store) -> None:
    store.delete("nowhere/at/all")
    store.put("k", b"")
    store.delete("k/below")
    assert store.get("k") == b""


def test_an_object_that_is_too_large_is_refused_with_its_size(store: Store) -> None:
    store.put("a/b", b"12345")
    for get in (store.get, store.get_impatient):
        assert get("a/b", 5) == b"12345"
        with pytest.raises(ObjectTooLarge, match="'a/b': it has 5 bytes, more than 4"):
            get("a/b", 4)
        with pytest.raises(ObjectMissing):
            get("a/c", 4)
    assert store.get("a/b") == b"12345"


@pytest.mark.parametrize("key", ["nothing", "no/such/folder/k", "a", "a/b/c/d"])
def test_reading_a_missing_object_raises_object_missing(store: Store, key: str) -> None:
    store.put("a/b/c", b"x")
    with pytest.raises(ObjectMissing) as caught:
        store.get(key)
    assert caught.value.key == key
    with pytest.raises(ObjectMissing) as caught:
        store.get_impatient(key)
    assert caught.value.key == key
    for length in (0, 5):
        with pytest.raises(ObjectMissing):
            store.get_range(key, 0, length)


# Ranges


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=12), start=st.integers(0, 15), length=st.integers(0, 15))
def test_a_range_equals_the_slice_of_the_object(
    store: Store, content: bytes, start: int, length: int
) -> None:
    store.put("k", content)
    assert store.get_range("k", start, length) == content[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(-1, 2), (0, -1)])
def test_a_negative_range_is_a_mistake(store: Store, start: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"start={start} and length={length}"):
        store.get_range("k", start, length)


# Listing


def test_an_empty_store_lists_nothing(store: Store) -> None:
    assert _keys(store) == _keys(store, "no/such/folder/") == []
    assert store.list_folders("") == store.list_folders("no/such/") == []


# Names around the slash in ASCII order, and folders that are prefixes of one another.
MIXED = ["a", "a!b", "a-b", "a.b", "a/b", "a/b/c", "a0", "ab/c", "ab/c0", "b/x/y/z", "b/x-y", "z"]
CLASHING_ON_DISK = {"a", "a/b"}  # an object and a folder of one name: possible in a bucket only
NAMES = [key for key in MIXED if key not in CLASHING_ON_DISK]


PREFIXES = ["", "a", "a/", "a/b", "a/b/", "ab", "b/", "b/x", "b/x/", "c", "z", "zz", "z/"]
STARTS = ["", "a", "a/", "a/b/", "a/b/c", "a.", "ab/c", "b/x/y", "b/x/y/z", "zzz"]


def test_a_listing_is_the_sorted_keys_with_the_prefix_after_the_start(listed: Store) -> None:
    for prefix, start_after in itertools.product(PREFIXES, STARTS):
        expected = sorted(key for key in NAMES if key.startswith(prefix) and key > start_after)
        assert _keys(listed, prefix, start_after) == expected, (
            f"prefix {prefix!r}, start after {start_after!r}"
        )


@pytest.fixture
def listed(store: Store) -> Store:
    for key in random.Random(1).sample(NAMES, len(NAMES)):
        store.put(key, key.encode())
    return store


def test_folders_are_listed_once_sorted_and_without_files(listed: Store) -> None:
    assert listed.list_folders("") == ["a", "ab", "b"]
    assert listed.list_folders("b/") == ["x"]
    assert listed.list_folders("b/x/") == ["y"]
    assert listed.list_folders("b/x/y/") == listed.list_folders("c/") == []


def test_a_folder_is_gone_with_its_last_object(store: Store) -> None:
    store.put("topics/a/x/1", b"")
    store.put("topics/b/1", b"")
    store.delete("topics/a/x/1")
    assert store.list_folders("topics/") == ["b"]
    store.delete("topics/b/1")
    assert store.list_folders("") == []


def test_a_listing_longer_than_a_page_is_complete_and_list_some_returns_part_of_it(
    store: Store,
) -> None:
    keys = [f"log/{number:020d}.json" for number in range(1100)]
    for key in keys:
        store.put(key, b"")
    assert _keys(store) == keys
    assert _keys(store, "log/", start_after=keys[1050]) == keys[1051:]
    assert _keys(store, f"log/{1:017d}") == keys[1000:]
    found = [entry.key for entry in store.list_some("log/", start_after=keys[49])]
    assert found
    assert len(set(found)) == len(found)
    assert set(found) <= set(keys[50:])


def test_list_some_of_few_objects_returns_the_whole_listing(listed: Store) -> None:
    folders = [prefix for prefix in PREFIXES if prefix == "" or prefix.endswith("/")]
    for prefix, start_after in itertools.product([*folders, "c/", "zz/"], STARTS):
        found = sorted(listed.list_some(prefix, start_after), key=lambda entry: entry.key)
        assert found == list(listed.list(prefix, start_after)), (
            f"prefix {prefix!r}, start after {start_after!r}"
        )


def test_list_some_sees_writes_and_deletes_at_once(store: Store) -> None:
    assert store.list_some("") == store.list_some("log/") == []
    store.put("log/1", b"1")
    store.create("log/2", b"22")
    store.put("log/1", b"111")
    assert [(entry.key, entry.size) for entry in store.list_some("log/")] == [
        ("log/1", 3),
        ("log/2", 2),
    ]
    store.delete("log/1")
    assert [(entry.key, entry.size) for entry in store.list_some("")] == [("log/2", 2)]


def test_a_listing_has_size_and_modification_time(store: Store) -> None:
    before_ms = int(time.time() * 1000)
    store.put("k", b"12345")
    after_ms = int(time.time() * 1000)
    (entry,) = store.list("")
    assert entry.size == 5
    # Some stores cut to whole seconds; the clock of a remote one may differ, but not by a day.
    assert before_ms - 86_400_000 <= entry.modified_ms <= after_ms + 86_400_000
    assert abs(entry.modified_ms - before_ms) < 86_400_000


def test_a_key_may_contain_every_printable_character(store: Store) -> None:
    letters = [chr(code) for code in range(32, 127) if chr(code) not in "/\\"]
    keys = sorted(f"c/x{letter}y" for letter in letters)
    if not store.case_sensitive:
        keys = sorted({key.lower() for key in keys})
    for key in keys:
        store.create(key, key.encode())
    assert _keys(store, "c/") == keys
    assert [store.get(key) for key in keys] == [key.encode() for key in keys]


# Keys


BAD_KEYS = [
    "",
    "/",
    "/etc/passwd",
    "a//b",
    "a/",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    "a/..",
    "a\0b",
    "a\\b",
    "..\\a",
    "a\nb",
    "a\x7fb",
    "caf\u00e9",
    "a\u202eb",
    "\ud800",
    ".~unfinished",
    "a/.~unfinished/b",
    "x" * 256,
    "x/" * 500 + "x",
]


@pytest.mark.fault("K2", "K4")
@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_bad_key_is_refused_by_every_operation(store: Store, key: str) -> None:
    operations: list[Callable[[], object]] = [
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.delete(key),
        lambda: store.list_folders(f"{key}/"),
        lambda: store.list_some(f"{key}/"),
        lambda: store.watch().add(f"{key}/"),
    ]
    if key not in {"", "a/"}:
        operations.append(lambda: list(store.list(key)))
    for operation in operations:
        with pytest.raises(StoreRefused, match=r"not a (key|prefix): "):
            operation()
    assert _keys(store) == []


@pytest.mark.parametrize(
    "key", ["...", "a/...b", ".hidden", "-", "a=b/c=%20", "x" * 255, "~", "_delta_log/0.json#1"]
)
def test_unusual_keys_are_accepted(store: Store, key: str) -> None:
    store.create(key, b"content")
    assert store.get(key) == b"content"
    assert _keys(store) == [key]


def test_a_folder_must_be_named_with_its_slash(store: Store) -> None:
    with pytest.raises(StoreRefused, match="must end in '/'"):
        store.list_folders("topics")
    with pytest.raises(StoreRefused, match="must end in '/'"):
        store.list_some("topics")


# Several at once


@pytest.mark.fault("P11")
def test_exactly_one_of_many_racing_creators_wins_each_key(store: Store, in_threads) -> None:
    keys = [f"{LOG}{number:020d}.json" for number in range(50)]
    winners: Counter[str] = Counter()
    lock = threading.Lock()

    def create_all(number: int) -> None:
        for key in keys:
            try:
                store.create(key, b"%d" % number)
            except ObjectExists:
                continue
            with lock:
                winners[key] += 1
                contents[key] = b"%d" % number

    contents: dict[str, bytes] = {}
    in_threads(16, create_all)
    assert winners == dict.fromkeys(keys, 1)
    assert {key: store.get(key) for key in keys} == contents


def test_a_reader_never_sees_a_torn_or_missing_object_while_it_is_replaced(
    store: Store, in_threads
) -> None:
    contents = [bytes([digit]) * size for digit, size in enumerate((10, 70_000, 300_000))]
    store.put("k", contents[0])
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            try:
                for round_ in range(40):
                    store.put("k", contents[round_ % 3])
            finally:
                done.set()
        while not done.is_set():
            assert store.get("k") in contents

    in_threads(4, work)


def test_creating_and_deleting_in_one_folder_do_not_disturb_each_other(
    store: Store, in_threads
) -> None:
    # On a disk the folder comes and goes with its objects.
    def create(key: str) -> None:
        try:
            store.create(key, b"alive")
        except (ObjectExists, StoreRefused) as error:
            server = os.environ.get("DELTAQ_TEST_S3_SERVER")
            if not isinstance(error, FALSE_REFUSALS.get(server or "", ())) or _keys(store, key):
                raise
            create(key)

    def work(number: int) -> None:
        for round_ in range(30):
            key = f"members/of/group/{number}-{round_}"
            create(key)
            try:
                assert store.get(key) == b"alive"
            except ObjectMissing:
                if os.environ.get("DELTAQ_TEST_S3_SERVER") != LOSES_OBJECTS:
                    raise
            store.delete(key)

    in_threads(4, work)
    assert _keys(store) == []


# Watching


def test_wake_ends_the_next_wait_and_only_that(store: Store) -> None:
    watch = store.watch()
    watch.add(LOG)
    watch.wake()
    assert watch.wait(30) is True
    assert watch.wait(0) is False
    watch.close()


def test_wake_ends_a_wait_of_another_thread(store: Store) -> None:
    watch = store.watch()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(watch.wait(30)))
    waiter.start()
    watch.wake()
    waiter.join(20)
    assert answers == [True]
    watch.close()


def test_close_ends_a_wait_and_may_be_repeated(store: Store) -> None:
    watch = store.watch()
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(watch.wait(30)))
    waiter.start()
    watch.close()
    watch.close()
    waiter.join(20)
    assert answers == [True]
    watch.wake()
    watch.add(LOG)
    # It never blocks again: a reader that comes late notices too.
    assert [watch.wait(30), watch.wait(30)] == [True, True]


def test_a_wait_without_changes_ends_at_its_timeout(store: Store) -> None:
    watch = store.watch()
    watch.add(LOG)
    assert watch.wait(0.001) is False
    watch.close()


# Facts about the store


def test_every_store_passes_its_own_probe_and_leaves_nothing_behind(store: Store) -> None:
    probe(store)
    assert _keys(store) == []


def test_a_store_reports_its_poll_interval_url_and_case_sensitivity(store: Store) -> None:
    assert 0 < store.poll_interval.busy_s <= store.poll_interval.idle_s <= 1
    assert store.url.startswith(("file:///", "memory://", "s3://"))
    assert repr(store) == f"<{type(store).__name__} {store.url}>"
    assert store.case_sensitive in {True, False}


# Secrets

PLANTED = [
    "PLANTEDKEY0123456789",
    "planted/secret+abcdefghijklmnopqrstuvwxyz",
    "plantedtokenZZZZZZZZZZ",
]


def _chain(error: BaseException) -> str:
    """Everything that hangs on an exception, suppressed context included."""
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(vars(error))
    below = [linked for linked in (error.__cause__, error.__context__) if linked is not None]
    return shown + "".join(map(_chain, below))


@pytest.mark.fault("K5")
@pytest.mark.s3
@pytest.mark.parametrize("planted_in", ["options", "environment"])
def test_no_secret_shows_in_a_store_or_in_its_errors(
    s3_stub: S3Stub, monkeypatch, planted_in: str
) -> None:
    names = ["access_key_id", "secret_access_key", "session_token"]
    options: dict[str, object] = {"endpoint": s3_stub.endpoint}
    if planted_in == "options":
        options |= zip(names, PLANTED, strict=True)
    else:
        for name, value in zip(names, PLANTED, strict=True):
            monkeypatch.setenv(f"AWS_{name.upper()}", value)
    for bucket, more in [
        ("no-such-bucket", {}),
        ("deltaq", {"endpoint": "http://127.0.0.1:9", "retries": 0}),
    ]:
        store = open_store(f"s3://{bucket}/{planted_in}", options | more)
        shown = repr(store) + store.url + str(vars(store))
        for operation in (
            lambda store=store: store.get("k"),
            lambda store=store: store.get_range("k", 0, 1),
            lambda store=store: store.put("k", b""),
            lambda store=store: store.create("k", b""),
            lambda store=store: list(store.list("")),
            lambda store=store: store.list_folders(""),
            lambda store=store: store.list_some(""),
            lambda store=store: store.delete("k"),
        ):
            with pytest.raises((StoreRefused, StoreUnavailable)) as caught:
                operation()
            shown += _chain(caught.value)
        assert "no-such-bucket" not in shown or "create the bucket first" in shown
        assert [secret for secret in PLANTED if secret in shown] == []


# Links


def test_a_linked_object_has_two_names(store: Store) -> None:
    store.create(f"{LOG}0.json", b"entry")
    if store.is_remote:
        with pytest.raises(StoreRefused, match="no links"):
            store.link(f"{LOG}0.json", "archive/0.json")
        assert _keys(store) == [f"{LOG}0.json"]
        return
    store.link(f"{LOG}0.json", "archive/0.json")
    store.sync("archive/")
    assert _keys(store) == ["archive/0.json", f"{LOG}0.json"]
    store.delete(f"{LOG}0.json")
    assert _keys(store) == ["archive/0.json"]
    assert store.get("archive/0.json") == b"entry"


def test_a_link_replaces_nothing_and_needs_its_object(store: Store) -> None:
    store.create("a/k", b"first")
    store.create("b/k", b"second")
    with pytest.raises(StoreRefused if store.is_remote else ObjectExists):
        store.link("a/k", "b/k")
    for missing in ("a/none", "none/k"):
        with pytest.raises(StoreRefused if store.is_remote else ObjectMissing):
            store.link(missing, "b/new")
    with pytest.raises(StoreRefused):
        store.link("a/k", "../out")
    assert store.get("b/k") == b"second"
    assert _keys(store) == ["a/k", "b/k"]
