"""Promises of the local store alone: durability, containment in its root, and care for foreign
files.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import platform
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from deltaq.clock import SystemClock
from deltaq.store import (
    CreateUnsupported,
    LocalStore,
    ObjectExists,
    ObjectMissing,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnsafe,
    beneath,
    folders,
    local,
    open_store,
    probe,
)


class SkewedClock(SystemClock):
    """The system's clock, a number of hours ahead."""

    def __init__(self, hours: int) -> None:
        self._ahead_ms = hours * 3_600_000

    def time_ms(self) -> int:
        return super().time_ms() + self._ahead_ms


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


# Step by step is the only way where the system has no other.
@pytest.fixture(params=["in one call", "step by step"] if beneath._WORKS else ["step by step"])
def store(
    root: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> LocalStore:
    """A store that goes to a file, and writes one, in either way that this system knows."""
    monkeypatch.setattr(beneath, "_WORKS", request.param == "in one call")
    if request.param == "step by step":
        monkeypatch.setattr(local, "_UNNAMED", 0)
    return LocalStore(str(root))


@pytest.fixture
def staging(root: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A store on a system without files that get their name last."""
    monkeypatch.setattr(local, "_UNNAMED", 0)
    return LocalStore(str(root))


UNNAMED = "a file without a name"


def _files(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix() for path in root.rglob("*") if not path.is_dir()
    )


# Durability


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Paths given to fsync, in order: of each descriptor, what its file or folder is called at that
    moment.
    """
    paths: list[str] = []
    fsync = os.fsync

    def recording(descriptor: int) -> None:
        opened = os.fstat(descriptor)
        named = [
            path
            for path in [root.parent, *root.parent.rglob("*")]
            if os.path.samestat(path.lstat(), opened)
        ]
        paths.append(str(named[0]) if named else UNNAMED)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recording)
    return paths


WRITES: dict[str, Callable[[LocalStore, str, bytes], None]] = {
    "create": LocalStore.create,
    "put": LocalStore.put,
    "put in pieces": lambda store, key, data: [*store.put_in_pieces(key, data)].clear(),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_write_syncs_the_file_its_folder_and_every_new_folder(
    store: LocalStore, root: Path, synced: list[str], write: str
) -> None:
    WRITES[write](store, "topics/a/k", os.urandom(600_000))
    assert synced[:3] == [str(root.parent), str(root), str(root / "topics")]
    staged, folder = synced[3:]
    assert staged == UNNAMED or staged.startswith(str(root / "topics" / "a" / ".~"))
    assert folder == str(root / "topics" / "a")


def test_a_second_write_syncs_the_file_and_its_folder_only(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    store.create("topics/a/1", b"x")
    del synced[:]
    store.create("topics/a/2", b"x")
    staged, folder = synced
    assert staged == UNNAMED or staged.startswith(str(root / "topics" / "a" / ".~"))
    assert folder == str(root / "topics" / "a")


def test_a_folder_that_another_process_made_is_synced_before_the_first_write_returns(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    # It may crash between making the folder and syncing the entry; what we acknowledge must not
    # depend on that.
    (root / "topics" / "a").mkdir(parents=True)
    store.create("topics/a/1", b"x")
    assert {str(root.parent), str(root), str(root / "topics")} <= set(synced)


def test_a_known_folder_recreated_by_another_process_is_synced(
    store: LocalStore, root: Path, synced: list[str]
) -> None:
    store.create("topics/a/1", b"x")
    # Kept, so that its number is not given to the next one.
    (root / "topics" / "a").rename(root / "topics" / "gone")
    (root / "topics" / "a").mkdir()
    del synced[:]
    store.create("topics/a/2", b"x")
    assert str(root / "topics") in synced
    assert (root / "topics" / "a" / "2").exists()


def test_the_file_is_synced_before_it_gets_its_name(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    for name in ("fsync", "link", "rename", "unlink"):
        original = getattr(os, name)

        def step(*args, _name=name, _original=original, **kwargs):
            kind = "file" if _name == "fsync" and stat.S_ISREG(os.fstat(args[0]).st_mode) else ""
            steps.append(f"{_name} {kind}".strip())
            return _original(*args, **kwargs)

        monkeypatch.setattr(os, name, step)
    store.put("a", b"")
    for write in (store.create, store.put):
        del steps[:]
        write(f"{write.__name__}d", b"x")
        steps.remove("unlink") if "unlink" in steps else None  # of the name that it had before
        assert steps in (["fsync file", "link", "fsync"], ["fsync file", "rename", "fsync"])
    del steps[:]
    store.put("a", b"replaced")
    assert [step for step in steps if step not in {"link", "unlink"}] == [
        "fsync file",
        "rename",
        "fsync",
    ]
    assert store.get("a") == b"replaced"
    assert _files(root) == ["a", "created", "putd"]


def test_a_put_in_pieces_yields_after_each_synced_piece(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(1_000_000)
    steps: list[tuple[str, int]] = []
    to_disk = local._sync_content

    def sync(file: int) -> None:
        to_disk(file)
        steps.append(("synced", os.fstat(file).st_size))

    monkeypatch.setattr(local, "_sync_content", sync)
    for _ in store.put_in_pieces("a/k", content):
        assert not (root / "a" / "k").exists()
        steps.append(("yielded", steps[-1][1]))
    assert store.get("a/k") == content
    assert steps == [(what, 262_144 * n) for n in (1, 2, 3) for what in ("synced", "yielded")]


def test_a_put_in_pieces_that_is_closed_early_leaves_the_object_unchanged(
    store: LocalStore, root: Path
) -> None:
    store.put("a/k", b"before")
    with contextlib.closing(store.put_in_pieces("a/k", os.urandom(1_000_000))) as pieces:
        next(pieces)
    assert store.get("a/k") == b"before"
    assert _files(root) == ["a/k"]


@pytest.mark.fault("D1", "S1")
def test_a_failing_sync_of_the_folder_leaves_the_outcome_open(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/first", b"")
    fsync = os.fsync

    def failing(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StoreUnavailable, match="not proven durable"):
        store.create("a/k", b"x")
    assert store.get("a/k") == b"x"


# Failing writes


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG]
)
@pytest.mark.parametrize("write", ["create", "put"])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_refusal_of_the_system_is_definite_and_leaves_no_trace(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, write: str, call: str, code: int
) -> None:
    store.put("a/old", b"old")

    def fail(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StoreRefused, match=errno.errorcode[code]):
        getattr(store, write)("a/k", b"x")
    monkeypatch.undo()
    assert _files(root) == ["a/old"]
    getattr(store, write)("a/k", b"x")
    assert store.get("a/k") == b"x"


@pytest.mark.fault("D1")
def test_a_root_that_is_a_link_to_no_folder_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "unmounted")
    store = LocalStore(str(tmp_path / "data"))
    for write in (store.put, store.create):
        with pytest.raises(StoreRefused, match="is a link to a folder that does not exist"):
            write("a", b"x")
    (tmp_path / "unmounted").mkdir()
    store.put("a", b"x")
    assert store.get("a") == b"x"


def test_an_error_of_the_disk_is_not_taken_for_a_refusal(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreUnavailable, match="the disk reports an error"):
        store.create("k", b"x")


@pytest.mark.fault("D1")
def test_a_file_that_outgrows_the_limit_is_refused_without_a_trace(root: Path) -> None:
    script = """
import resource, sys
from deltaq.store import LocalStore, StoreRefused
store = LocalStore(sys.argv[1])
store.create("a/small", b"x" * 1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
for write in (store.create, store.put):
    try:
        write("a/large", b"x" * 10_000)
    except StoreRefused as error:
        print(error.reason)
print([entry.key for entry in store.list("")])
"""
    ran = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True
    )
    assert ran.stdout.splitlines()[:2] == 2 * [
        "larger than this process or file system allows a file to be (see `ulimit -f`) (EFBIG)"
    ]
    assert ran.stdout.splitlines()[2:] == ["['a/small']"]
    assert _files(root) == ["a/small"]


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP])
def test_a_file_system_without_hard_links_is_named_and_unsafe(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(CreateUnsupported, match=f"the file system of {root} has no hard links"):
        store.create("k", b"x")
    assert _files(root) == []
    with pytest.raises(StoreUnsafe, match="no hard links"):
        probe(store)


@pytest.mark.fault("P1")
@pytest.mark.parametrize("has_unnamed", [True, False])
def test_a_writer_killed_half_way_leaves_nothing_visible(root: Path, *, has_unnamed: bool) -> None:
    script = f"""
import os, signal, sys
from deltaq.store import LocalStore, local
local._UNNAMED = {local._UNNAMED if has_unnamed else 0}
store = LocalStore(sys.argv[1])
store.create("a/done", b"x")
os.link = lambda *args, **kwargs: os.kill(os.getpid(), signal.SIGKILL)
store.create("a/lost", b"x")
"""
    ran = subprocess.run([sys.executable, "-c", script, str(root)], check=False)
    assert ran.returncode == -signal.SIGKILL
    store = LocalStore(str(root))
    left = 1 if has_unnamed and local._UNNAMED else 2
    assert len(_files(root)) == left, "a file with a name is left unfinished"
    assert [entry.key for entry in store.list("")] == ["a/done"]
    store.create("a/lost", b"again")
    assert store.get("a/lost") == b"again"


@pytest.mark.fault("P1")
class _Interrupt:
    """Trace function: raises KeyboardInterrupt at the given step, counted in lines and returns, of
    the store or of what it enters with `with`, as a user's Ctrl-C may.
    """

    FILES = local.__file__, folders.__file__, contextlib.__file__

    def __init__(self, at: int) -> None:
        self._left = at

    def __call__(self, frame: FrameType, event: str, _: object) -> _Interrupt | None:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if event in {"line", "return"}:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("operation", ["create", "put"])
def test_an_interrupt_at_any_step_of_a_write_leaves_all_or_nothing(
    store: LocalStore, root: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A hundred writes; whether they last is no matter here.
    monkeypatch.setattr(os, "fsync", lambda _: None)
    failed_later: list[object] = []
    monkeypatch.setattr(
        sys, "unraisablehook", lambda failure: failed_later.append(failure.exc_value)
    )

    def write(step: int, ended: list[int]) -> None:
        sys.settrace(_Interrupt(step))
        try:
            getattr(store, operation)(f"a/{step}", b"whole")
        except KeyboardInterrupt:
            return
        ended.append(step)

    written, step, ended = 0, 0, list[int]()
    while True:
        # In a thread of its own: what is raised by a trace function stays with its thread as an
        # error being handled.
        thread = threading.Thread(target=write, args=(step, ended))
        thread.start()
        thread.join()
        if ended:
            break
        key = f"a/{step}"
        step += 1
        try:
            assert store.get(key) == b"whole"
            written += 1
        except ObjectMissing:
            pass
    assert step > 20, "a write has more steps than that"
    assert 0 < written < step
    gc.collect()
    assert failed_later == []


# Unfinished files


def _age(path: Path, hours: float) -> None:
    """Make a file older by the clock of the file system."""
    changed_s = path.stat().st_mtime - 3600 * hours
    os.utime(path, (changed_s, changed_s))


def test_an_unfinished_file_is_removed_once_it_is_a_day_older_than_a_new_one(
    store: LocalStore, root: Path
) -> None:
    store.put("a/b/k", b"x")
    for folder, hours in (
        (root, 25),
        (root / "a" / "b", 25),
        (root / "a" / "b", 23),
        (root / "a", 0),
    ):
        (folder / f".~{hours}").write_bytes(b"half")
        _age(folder / f".~{hours}", hours)
    assert sum(store.remove_unfinished()) == 2
    assert _files(root) == ["a/.~0", "a/b/.~23", "a/b/k"]
    assert sum(store.remove_unfinished()) == 0
    assert sum(LocalStore(str(root / "missing")).remove_unfinished()) == 0


def test_an_old_object_is_no_unfinished_file(store: LocalStore, root: Path) -> None:
    store.put("a/k", b"x")
    _age(root / "a" / "k", 24 * 365)
    (root / "a" / ".~folder").mkdir()
    _age(root / "a" / ".~folder", 24 * 365)
    assert sum(store.remove_unfinished()) == 0
    assert store.get("a/k") == b"x"


@pytest.mark.fault("C1")
@pytest.mark.parametrize("hours", [30, -30])
def test_a_client_with_a_wrong_clock_leaves_the_unfinished_files_of_others(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    skewed = LocalStore(str(root), SkewedClock(hours))
    to_disk = local._sync_content

    def meddle(file: int) -> None:
        to_disk(file)
        assert [entry.key for entry in skewed.list("")] == []
        assert sum(skewed.remove_unfinished()) == 0

    monkeypatch.setattr(local, "_sync_content", meddle)
    content = os.urandom(5_000_000)
    store.put("a/k", content)
    assert store.get("a/k") == content
    (root / "a" / ".~left").write_bytes(b"half")
    _age(root / "a" / ".~left", 25)
    assert sum(skewed.remove_unfinished()) == 1, (
        "nor does its clock keep it from removing what is old"
    )


@pytest.mark.parametrize("write", WRITES)
def test_a_write_whose_unfinished_file_is_removed_is_retried_and_then_fails(
    staging: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    staging.put("a/other", b"")
    removals = local.MAKE_ATTEMPTS - 1
    publishing = "link" if write == "create" else "rename"
    publish = getattr(os, publishing)

    def removing(staged: str, *args, **kwargs):
        nonlocal removals
        if removals:
            removals -= 1
            (root / "a" / staged).unlink()
        publish(staged, *args, **kwargs)

    monkeypatch.setattr(os, publishing, removing)
    WRITES[write](staging, "a/k", b"whole")
    assert removals == 0
    assert staging.get("a/k") == b"whole"
    removals = local.MAKE_ATTEMPTS
    with pytest.raises(StoreUnavailable, match="removed repeatedly"):
        WRITES[write](staging, "a/l", b"whole")
    assert _files(root) == ["a/k", "a/other"]


def test_a_folder_with_an_unfinished_file_only_does_not_exist(
    store: LocalStore, root: Path
) -> None:
    (root / "topics" / "a" / "b").mkdir(parents=True)
    (root / "topics" / "a" / "b" / ".~0123").write_bytes(b"half")
    assert store.list_folders("topics/") == []


def test_a_folder_that_may_not_be_read_does_not_hide_the_others(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lost+found` in a root that is a disk of its own, or one topic with the wrong owner."""
    store.put("topics/a/k", b"")
    store.put("topics/locked/k", b"")
    opened_child = beneath.opened_child

    def refusing(folder: int, name: str) -> contextlib.AbstractContextManager[int]:
        if name == "locked":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened_child(folder, name)

    monkeypatch.setattr(folders, "opened_child", refusing)
    assert store.list_folders("topics/") == ["a", "locked"]


def test_deleting_the_last_object_removes_its_empty_folders_but_not_the_root(
    store: LocalStore, root: Path
) -> None:
    store.put("a/b/c/k", b"")
    store.put("a/l", b"")
    store.delete("a/b/c/k")
    assert [path.name for path in sorted(root.rglob("*"))] == ["a", "l"]
    store.delete("a/l")
    assert list(root.iterdir()) == []


# The root


def test_nothing_is_made_before_the_first_write(store: LocalStore, root: Path) -> None:
    with pytest.raises(ObjectMissing):
        store.get("k")
    store.delete("k")
    assert list(store.list("")) == []
    assert store.list_folders("") == []
    assert not root.exists()


def test_a_root_is_made_only_in_a_folder_that_exists(tmp_path: Path) -> None:
    misspelt = tmp_path / "no-such-folder" / "root"
    store = LocalStore(str(misspelt))
    for write in (lambda: store.create("a/k", b"1"), lambda: store.put("k", b"1")):
        with pytest.raises(
            StoreRefused, match=r"root .*no-such-folder/root' cannot be created: .*correct the root"
        ):
            write()
    assert list(tmp_path.iterdir()) == []
    assert list(store.list("")) == []
    misspelt.parent.mkdir()
    store.create("a/k", b"1")
    assert (misspelt / "a" / "k").read_bytes() == b"1"


def test_a_root_that_was_removed_and_made_again_is_used_as_it_is_now(
    store: LocalStore, root: Path
) -> None:
    store.put("a/k", b"old")
    (root / "a" / "k").unlink()
    (root / "a").rmdir()
    root.rmdir()
    with pytest.raises(ObjectMissing):
        store.get("a/k")
    LocalStore(str(root)).put("a/k", b"new")
    assert store.get("a/k") == b"new"
    store.create("a/l", b"x")
    assert _files(root) == ["a/k", "a/l"]


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(str(tmp_path / "file"))
    with pytest.raises(StoreRefused, match="a file exists where a folder is needed"):
        store.create("k", b"")
    with pytest.raises(ObjectMissing):
        store.get("k")


@pytest.mark.fault("K3")
@pytest.mark.parametrize("root", ["link", "link/deeper"])
def test_a_root_may_be_behind_a_link_but_no_object(tmp_path: Path, root: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(str(tmp_path / root))
    for content in (b"x", b"y"):
        store.put("a/k", content)
        assert (
            (tmp_path / "real" / root[5:] / "a" / "k").read_bytes() == store.get("a/k") == content
        )
        (tmp_path / root / "a" / "l").symlink_to(tmp_path / "secret")
        (tmp_path / root / "b").symlink_to(tmp_path)
        _refused(
            lambda: store.get("a/l"), lambda: store.get("b/secret"), lambda: store.put("b/new", b"")
        )
        (tmp_path / root / "a" / "l").unlink()
        (tmp_path / root / "b").unlink()


# Closedness


@pytest.fixture
def outside(tmp_path: Path, root: Path) -> Path:
    """A folder beside the root, with a secret in it."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret").write_bytes(b"secret")
    root.mkdir()
    return folder


def _refused(*operations: Callable[[], object]) -> None:
    for operation in operations:
        with pytest.raises(StoreRefused, match="symbolic link"):
            operation()


@pytest.mark.fault("K3")
def test_a_folder_that_links_to_the_outside_is_not_followed(
    store: LocalStore, root: Path, outside: Path
) -> None:
    (root / "link").symlink_to(outside)
    (root / "a").mkdir()
    (root / "a" / "link").symlink_to("../../outside")

    def refused_in(folder: str) -> None:
        _refused(
            lambda: store.get(f"{folder}/secret"),
            lambda: store.get_range(f"{folder}/secret", 0, 1),
            lambda: store.put(f"{folder}/secret", b"overwritten"),
            lambda: store.create(f"{folder}/new", b"planted"),
            lambda: store.delete(f"{folder}/secret"),
            lambda: list(store.list(f"{folder}/")),
            lambda: store.list_folders(f"{folder}/"),
        )

    refused_in("link")
    refused_in("a/link")
    assert list(store.list("")) == []
    assert store.list_folders("") == []
    assert _files(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.fault("K3")
def test_an_object_that_links_to_the_outside_is_not_followed(
    store: LocalStore, root: Path, outside: Path
) -> None:
    (root / "link").symlink_to(outside / "secret")
    (root / "nowhere").symlink_to(outside / "new")
    _refused(lambda: store.get("link"), lambda: store.get("nowhere"))
    assert list(store.list("")) == []
    with pytest.raises(ObjectExists):
        store.create("nowhere", b"planted")
    store.put("link", b"ours now")
    assert (root / "link").read_bytes() == b"ours now"
    assert not (root / "link").is_symlink()
    assert _files(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.fault("K3")
def test_a_link_that_replaces_a_known_folder_is_not_followed(
    store: LocalStore, root: Path, outside: Path
) -> None:
    store.put("a/secret", b"inside")
    assert store.get("a/secret") == b"inside"
    (root / "a").rename(root / "b")
    (root / "a").symlink_to(outside)
    _refused(lambda: store.get("a/secret"), lambda: store.put("a/secret", b"overwritten"))
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.fault("K3")
def test_special_files_are_neither_listed_nor_waited_for(store: LocalStore, root: Path) -> None:
    root.mkdir()
    os.mkfifo(root / "pipe")
    with pytest.raises(StoreRefused, match="not a file"):
        store.get("pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        cwd = Path.cwd()
        os.chdir(root)  # the name of a socket must be short
        listener.bind("socket")
        os.chdir(cwd)
        with pytest.raises(StoreRefused, match="not a file"):
            store.get("socket")
        assert list(store.list("")) == []


def test_foreign_names_are_left_out_of_listings(store: LocalStore, root: Path) -> None:
    store.put("a/k", b"")
    for name in ("caf\u00e9", "back\\slash", "new\nline"):
        (root / "a" / name).write_bytes(b"")
        (root / f"d{name}").mkdir()
        (root / f"d{name}" / "k").write_bytes(b"")
    assert [entry.key for entry in store.list("")] == ["a/k"]
    assert store.list_folders("") == ["a"]


# Names on this disk


def test_an_object_and_a_folder_of_one_name_exclude_each_other(
    store: LocalStore, root: Path
) -> None:
    store.put("a", b"x")
    with pytest.raises(StoreRefused, match="a file exists where a folder is needed"):
        store.create("a/b", b"x")
    store.put("c/d", b"x")
    with pytest.raises(StoreRefused, match="a folder exists where the object should go"):
        store.put("c", b"x")
    assert sorted(_files(root)) == ["a", "c/d"]


def test_case_sensitivity_is_probed_once_and_leaves_nothing_behind(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store.case_sensitive
    (root / "Upper").write_bytes(b"")
    assert found is not (root / "uPPER").exists()
    assert _files(root) == ["Upper"]
    monkeypatch.setattr(os, "open", None)
    assert store.case_sensitive is found


@pytest.mark.fault("K2")
def test_a_case_folding_disk_is_noticed(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stat_ = os.stat

    def folding(path, **kwargs):
        folded = isinstance(path, str) and path.startswith(".~CASE")
        return stat_(path.lower() if folded else path, **kwargs)

    monkeypatch.setattr(os, "stat", folding)
    assert store.case_sensitive is False


# Processes


def test_a_forked_child_and_its_parent_do_not_disturb_each_other(store: LocalStore) -> None:
    store.create("a/before", b"x")
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.create("a/child", store.get("a/before"))
            store.delete("a/before")
            code = 0
        finally:
            os.write(write_end, b"done")
            os._exit(code)
    os.close(write_end)
    store.create("a/parent", b"x")
    assert os.read(read_end, 4) == b"done"
    os.close(read_end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [entry.key for entry in store.list("")] == ["a/child", "a/parent"]


def test_no_descriptor_stays_open_after_any_outcome(store: LocalStore, root: Path) -> None:
    store.put("a/k", b"x")
    store.put("deep/er/est/k", b"x")
    store.put("moved/k", b"x")
    (root / "moved").rename(root / "away")
    (root / "moved").mkdir()
    (root / "link").symlink_to(root / "a")
    before = sum(1 for _ in Path("/dev/fd").iterdir())
    for operation in (
        lambda: store.get("a/k"),
        lambda: store.get("deep/er/est/k"),
        lambda: store.get("deep/er/missing/k"),
        lambda: store.put("moved/k", b""),
        lambda: store.get("a/missing"),
        lambda: store.get("a"),
        lambda: store.get("link/k"),
        lambda: store.create("a/k", b""),
        lambda: store.create("a/k/below", b""),
        lambda: store.put("a/new/l", b""),
        lambda: store.delete("a/new/l"),
        lambda: store.delete("x/y"),
        lambda: next(store.list("")),
        lambda: list(store.list("")),
        lambda: list(store.list("link/")),
        lambda: store.list_folders(""),
        lambda: store.case_sensitive,
        lambda: store.watch().close(),
    ):
        try:
            operation()
        except StoreError:
            pass
    assert sum(1 for _ in Path("/dev/fd").iterdir()) == before


def test_an_open_failure_names_the_operation_and_key_only(root: Path) -> None:
    store = open_store(str(root))
    store.put("a", b"")
    with pytest.raises(StoreRefused) as caught:
        store.create("a/b", b"")
    assert str(caught.value) == "create of 'a/b': a file exists where a folder is needed (ENOTDIR)"


def test_a_file_leased_by_another_process_is_not_retried_in_a_loop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What openat2 answers is made up here, so it need not be there."""
    store = LocalStore(str(root))
    store.put("a/k", b"x")
    monkeypatch.setattr(beneath, "_WORKS", True)
    answers = [errno.EINTR, errno.EAGAIN]

    def leased(*_: object) -> int:
        ctypes.set_errno(answers.pop(0))
        return -1

    monkeypatch.setattr(beneath, "_syscall", leased)
    with pytest.raises(StoreUnavailable):
        store.get("a/k")
    assert answers == [], "an interrupted call is made again, a refused one is not"


@pytest.mark.parametrize("refusal", [errno.ENOSYS, errno.EPERM, errno.E2BIG])
def test_paths_are_opened_step_by_step_if_openat2_is_refused(
    monkeypatch: pytest.MonkeyPatch, refusal: int
) -> None:
    """Before Linux 5.6 there is no such call; a filter of system calls may answer as it likes."""

    def refused(*_: object) -> int:
        ctypes.set_errno(refusal)
        return -1

    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(beneath, "_syscall", refused)
    assert not beneath._has_openat2()


def test_no_system_call_is_made_on_an_unknown_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "alpha")
    monkeypatch.setattr(
        beneath, "_syscall", lambda *_: pytest.fail("the number is that of other processors")
    )
    assert not beneath._has_openat2()
    monkeypatch.setattr(beneath, "_syscall", None)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert not beneath._has_openat2()


def test_listing_a_root_that_is_a_file_is_refused_and_a_missing_one_is_empty(
    root: Path, store: LocalStore
) -> None:
    assert store.list_folders("") == []
    assert list(store.list("a/")) == []
    root.write_text("x")
    for look in (
        lambda: store.list_folders("a/"),
        lambda: list(store.list("")),
        lambda: store.list_some("a/"),
    ):
        with pytest.raises(StoreRefused, match=r"the root '.*/root' is not a folder"):
            look()


def test_a_file_where_a_folder_could_be_holds_no_objects(root: Path, store: LocalStore) -> None:
    store.create("a", b"x")
    assert store.list_folders("a/") == []
    assert list(store.list("a/")) == []
