"""Being woken when something new arrives: by the store itself in memory, by the kernel on Linux."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from deltaq.clock import Clock, SystemClock
from deltaq.store import LocalStore, MemoryStore, Store, Watch, inotify
from deltaq.store.watch import SignalWatch

LONG_S = 30  # far longer than any event takes: a wait that is over before was woken


@pytest.fixture(params=["memory", pytest.param("local", marks=pytest.mark.inotify)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return (
        MemoryStore("watched") if request.param == "memory" else LocalStore(str(tmp_path / "root"))
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def watch(store: Store) -> Iterator[Watch]:
    watch = store.watch()
    yield watch
    watch.close()


def _calm(watch: Watch) -> None:
    """Take up what is left over from preparing the test."""
    while watch.wait(0):
        pass


def _woken_by(watch: Watch, work: Callable[[], object]) -> bool:
    """Whether `work`, done while another thread waits, ends the wait."""
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(watch.wait(LONG_S)))
    waiter.start()
    work()
    waiter.join(LONG_S - 5)
    return answers == [True]


@pytest.mark.parametrize("write", ["create", "put"])
def test_a_new_object_ends_the_wait(store: Store, watch: Watch, write: str) -> None:
    store.put("log/0", b"")
    watch.add("log/")
    _calm(watch)
    assert _woken_by(watch, lambda: getattr(store, write)("log/1", b"x"))
    _calm(watch)
    assert watch.wait(0) is False


def test_a_replaced_object_ends_the_wait(store: Store, watch: Watch) -> None:
    store.put("log/0", b"")
    watch.add("log/")
    _calm(watch)
    assert _woken_by(watch, lambda: store.put("log/0", b"x"))


def test_an_object_between_add_and_wait_is_not_missed(store: Store, watch: Watch) -> None:
    store.put("log/0", b"")
    watch.add("log/")
    _calm(watch)
    store.create("log/1", b"x")
    assert watch.wait(LONG_S) is True


def test_other_folders_and_refused_creates_do_not_end_the_wait(store: Store, watch: Watch) -> None:
    store.put("log/0", b"")
    store.put("other/0", b"")
    watch.add("log/")
    _calm(watch)
    store.put("other/1", b"x")
    store.put("top", b"x")
    with pytest.raises(Exception, match="taken"):
        store.create("log/0", b"x")
    assert watch.wait(0) is False


@pytest.mark.parametrize("folder", ["", "a/", "b/deep/er/"])
def test_one_watch_serves_several_folders(store: Store, watch: Watch, folder: str) -> None:
    for prefix in ("", "a/", "b/deep/er/"):
        store.put(f"{prefix}old", b"")
        watch.add(prefix)
        watch.add(prefix)
    _calm(watch)
    store.create(f"{folder}new", b"x")
    assert watch.wait(LONG_S) is True


def test_a_folder_that_does_not_exist_yet_is_watched_as_soon_as_it_does(
    store: Store, watch: Watch
) -> None:
    store.put("topics/other/k", b"")
    watch.add("topics/late/_delta_log/")
    _calm(watch)
    assert _woken_by(watch, lambda: store.create("topics/late/_delta_log/0", b"x"))
    _calm(watch)
    assert _woken_by(watch, lambda: store.create("topics/late/_delta_log/1", b"x"))


def test_a_root_that_does_not_exist_yet_is_found_by_the_next_wait(
    store: Store, watch: Watch
) -> None:
    watch.add("log/")
    assert watch.wait(0) is False
    store.create("log/0", b"x")
    assert watch.wait(LONG_S) is True


def test_a_folder_that_was_removed_is_watched_again_when_it_returns(
    store: Store, watch: Watch
) -> None:
    store.put("topics/other/k", b"")
    store.put("topics/a/0", b"")
    watch.add("topics/a/")
    _calm(watch)
    store.delete("topics/a/0")
    _calm(watch)
    assert _woken_by(watch, lambda: store.create("topics/a/1", b"x"))
    _calm(watch)
    assert _woken_by(watch, lambda: store.create("topics/a/2", b"x"))


def test_two_watches_of_one_store_are_both_woken(store: Store, watch: Watch) -> None:
    second = store.watch()
    store.put("log/0", b"")
    for each in (watch, second):
        each.add("log/")
        _calm(each)
    store.create("log/1", b"x")
    assert watch.wait(LONG_S) is second.wait(LONG_S) is True
    second.close()


# inotify only


@pytest.mark.inotify
def test_another_process_wakes_the_reader(root: Path) -> None:
    store = LocalStore(str(root))
    store.put("log/0", b"")
    watch = store.watch()
    watch.add("log/")
    _calm(watch)
    script = (
        "import sys; from deltaq.store import open_store; open_store(sys.argv[1]).create('log/1', "
        "b'x')"
    )
    assert _woken_by(
        watch, lambda: subprocess.run([sys.executable, "-c", script, str(root)], check=True)
    )
    watch.close()


@pytest.mark.inotify
def test_an_unfinished_file_does_not_wake_the_reader(root: Path) -> None:
    store = LocalStore(str(root))
    store.put("log/0", b"")
    watch = store.watch()
    watch.add("log/")
    _calm(watch)
    (root / "log" / ".~0123").write_bytes(b"half")
    assert watch.wait(0) is False
    watch.close()


@pytest.mark.inotify
def test_folders_on_the_way_are_no_longer_watched_once_the_folder_is_there(root: Path) -> None:
    store = LocalStore(str(root))
    store.put("topics/other/k", b"")
    watch = store.watch()
    assert isinstance(watch, inotify.InotifyWatch)
    watch.add("topics/late/")
    store.create("topics/late/0", b"x")
    assert watch.wait(LONG_S) is True
    watched = Path(f"/proc/self/fdinfo/{watch._queue}").read_text().count("inotify wd:")
    assert watched == 1
    watch.close()


@pytest.mark.slow
@pytest.mark.inotify
def test_an_overflowed_queue_counts_as_a_change(root: Path) -> None:
    store = LocalStore(str(root))
    store.put("log/0", b"")
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if limit > 20_000:
        pytest.skip(f"this system queues {limit} events; filling that takes too long")
    watch = store.watch()
    watch.add("log/")
    _calm(watch)
    # Names are the store's own unfinished files, which alone would wake no reader.
    for number in range(limit + 1):
        (root / "log" / f".~{number}").touch()
    assert watch.wait(LONG_S) is True
    watch.close()


@pytest.mark.inotify
def test_a_reader_without_free_inotify_instances_waits_for_its_timeout(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used_up(*_arguments: object) -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1

    monkeypatch.setattr(inotify._libc, "inotify_init1", used_up)
    watch = LocalStore(str(root)).watch()
    assert isinstance(watch, SignalWatch)
    watch.add("log/")
    assert watch.wait(0.001) is False
    watch.close()


@pytest.mark.inotify
def test_closing_a_watch_returns_its_descriptors_also_while_it_waits(root: Path) -> None:
    store = LocalStore(str(root))
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    watch = store.watch()
    watch.add("log/")
    assert _woken_by(watch, watch.close)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_a_clock_other_than_the_systems_owns_all_waiting(root: Path) -> None:
    class OtherClock:
        def __getattr__(self, name: str) -> object:
            return getattr(SystemClock(), name)

    store = LocalStore(str(root), cast(Clock, OtherClock()))
    watch = store.watch()
    assert isinstance(watch, SignalWatch)
    assert (
        store.poll_interval.idle_s < LocalStore(str(root)).poll_interval.idle_s
        or not inotify.is_supported()
    )
    watch.close()


def test_an_event_on_a_closed_descriptor_number_is_not_read(root: Path) -> None:
    watch = LocalStore(str(root)).watch()
    watch.close()
    reused = os.open(os.devnull, os.O_RDONLY)
    assert watch.wait(LONG_S) is True
    watch.wake()
    os.close(reused)
