"""The servers of the tests: built once, reachable under fresh keys, killed and restarted at will,
never left behind.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deltaq.store import open_store
from tests.children import environment_of_child
from tests.servers import go_programs, java_programs
from tests.servers.go_programs import BuildFailed, CannotBuild, GoProgram
from tests.servers.java_programs import JavaProgram
from tests.servers.local_server import HOST, ServerFailed
from tests.servers.minio import MinioServer
from tests.servers.s3_server import S3Server
from tests.servers.versitygw import VersityServer

REPOSITORY = Path(__file__).resolve().parents[1]

# What a server has to be for `S3Server`: it listens, knows its key, and says that the bucket is
# there.
LISTENER = """
import http.server, os, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self):
        knows = os.environ["KEY"] in self.headers["Authorization"]
        self.send_response(200 if knows else 403)
        self.send_header("Content-Length", "0")
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

# A program that owns such a server, in a process of its own; `{then}` is what it does with it.
OWNER = """
import sys
from tests.servers.command import run
from tests.test_servers import Listener
server = Listener()
{then}
"""


class BuiltAlready(GoProgram):
    """A program that needs no building."""

    @property
    def path(self) -> Path:
        return Path(sys.executable)

    def build(self) -> Path:
        return self.path


class Listener(S3Server):
    """A server that needs no Go."""

    program = BuiltAlready("listener", "", "v1")
    source = LISTENER

    def _command(self, executable: Path) -> list[str]:
        return [str(executable), "-c", self.source, str(self.port)]

    def _environment(self) -> dict[str, str]:
        return {"KEY": self.access_key}


def eventually(look: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait, for a bounded time, until `look` says yes."""
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def server() -> Iterator[Listener]:
    server = Listener()
    server.start()
    yield server
    server.stop()


def test_a_killed_server_comes_back_at_the_same_address_with_the_same_keys(server):
    address, keys, first = server.endpoint, server.options, server.pid
    server.kill()
    assert server.has_ended()
    assert not runs(first)
    server.restart()
    assert not server.has_ended()
    assert server.pid != first
    assert (server.endpoint, server.options) == (address, keys)


def test_a_stopped_server_leaves_no_process_and_no_file():
    server = Listener()
    server.start()
    pid, data = server.pid, server.data
    assert data.is_dir()
    server.stop()
    server.stop()
    assert not runs(pid)
    assert not data.parent.exists()


def test_data_in_a_given_folder_stays_when_the_server_stops(tmp_path):
    server = Listener()
    server.start(data=tmp_path / "data")
    server.stop()
    assert (tmp_path / "data").is_dir()


def test_a_server_that_exits_at_once_is_reported_with_its_last_output():
    server = Listener()
    server.source = "raise SystemExit('no such drive')"
    with pytest.raises(ServerFailed, match="no such drive"):
        server.start()
    assert not server.data.parent.exists()


def test_a_port_in_use_is_reported_when_a_server_starts(server):
    second = Listener()
    with pytest.raises(ServerFailed, match=r"(?i)address already in use"):
        second.start(port=server.port)


def test_a_server_whose_port_is_still_held_waits_for_it_when_it_restarts(server):
    server.kill()
    holder = socket.socket()
    # The killed server's connections hold its port for a minute, except against SO_REUSEADDR.
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((HOST, server.port))
    holder.listen()
    attempts: list[int] = []
    spawn = server._spawn

    def counted(executable: Path) -> None:
        attempts.append(1)
        if len(attempts) == 2:
            holder.close()
        spawn(executable)

    server._spawn = counted
    server.restart()
    assert len(attempts) == 2
    assert not server.has_ended()


@pytest.mark.parametrize("kind", [MinioServer, VersityServer])
def test_every_server_has_keys_of_its_own_and_shows_them_in_no_argument(kind):
    first, second = kind(), kind()
    assert (
        len(
            {first.access_key, second.access_key, first.secret_key, second.secret_key, "minioadmin"}
        )
        == 5
    )
    arguments = " ".join(first._command(Path("server")))
    assert first.access_key not in arguments
    assert first.secret_key not in arguments
    assert {first.access_key, first.secret_key} <= set(first._environment().values())


def test_no_server_listens_on_more_than_this_machine():
    for server in (MinioServer(), VersityServer()):
        server.port = 23456
        assert "127.0.0.1:23456" in server._command(Path("server"))
    assert MinioServer()._environment()["MINIO_BROWSER"] == "off"


# As a command


def owner(then: str, **environment: str) -> subprocess.Popen[str]:
    """A process that does `then` with a server."""
    return subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then)],
        cwd=REPOSITORY,
        env={**environment_of_child(), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_command_gets_the_server_and_no_foreign_keys_and_its_status_is_passed_on():
    show = "import json, os, sys; json.dump(dict(os.environ), sys.stdout); sys.exit(7)"
    process = owner(
        f"sys.exit(run(server, ['--', sys.executable, '-c', {show!r}]))",
        AWS_SESSION_TOKEN="foreign",
        AWS_PROFILE="x",
    )
    said, _ = process.communicate(timeout=60)
    environment = json.loads(said)
    assert process.returncode == 7
    assert environment["AWS_ENDPOINT_URL"] == environment["DELTAQ_TEST_S3_ENDPOINT"]
    assert environment["DELTAQ_TEST_S3_BUCKET"] == "deltaq-test"
    assert {name for name in environment if name.startswith("AWS_")} == {
        "AWS_ENDPOINT_URL",
        "AWS_REGION",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
    }


def started(process: subprocess.Popen[str]) -> tuple[int, Path]:
    """The server's process and its data, as the owner says them in its first line."""
    assert process.stdout is not None
    pid, data = json.loads(process.stdout.readline())
    assert runs(pid)
    assert Path(data).is_dir()
    return pid, Path(data)


def is_gone(pid: int, data: Path) -> bool:
    return not runs(pid) and not data.parent.exists()


SAY = (
    "server.start(); print('[%d, \"%s\"]' % (server.pid, server.data), flush=True); "
    "sys.stdin.read()"
)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_server_and_its_files_are_gone_when_its_owner_ended(how):
    process = owner(SAY)
    pid, data = started(process)
    process.send_signal(how)
    process.communicate(timeout=20)
    eventually(lambda: is_gone(pid, data))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_standalone_server_prints_its_address_and_stops_on_request(how):
    process = owner("sys.exit(run(server, []))")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("# listener v1, until Ctrl-C")
    assert any(line.startswith("export AWS_SECRET_ACCESS_KEY=") for line in process.stdout)
    process.send_signal(how)
    process.communicate(timeout=20)
    assert process.returncode == 128 + how


def test_a_standalone_server_stops_when_its_parent_process_is_gone():
    middle = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {OWNER.format(then="sys.exit(run(server, []))")!r}], stdout=sys.stdout)
print(child.pid, flush=True)
sys.stdin.read()
"""  # noqa: E501
    process = subprocess.Popen(
        [sys.executable, "-c", middle],
        cwd=REPOSITORY,
        env=environment_of_child(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    assert process.stdout.readline().startswith("# listener")
    process.kill()
    process.communicate(timeout=60)  # the end of the output that the child holds too: it has ended
    eventually(lambda: not runs(child))


# Building


@pytest.fixture
def go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Put a `go` of our own first in the path; what it does is shell. It notes each call."""
    monkeypatch.setattr(go_programs, "TOOLS", tmp_path / "tools")

    def install(script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        calls = folder / "calls"
        program = folder / "go"
        program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return calls

    return install


PROGRAM = GoProgram("server", "example.org/server", "v1.2.3")


def test_a_program_is_built_once_from_its_pinned_version_and_again_for_another(go):
    calls = go('echo built >"$GOBIN/server"')
    path = PROGRAM.build()
    assert PROGRAM.build() == path
    assert path.read_text() == "built\n"
    other = GoProgram(PROGRAM.name, PROGRAM.package, "v1.2.4").build()
    assert other != path
    assert calls.read_text().splitlines() == [
        "install example.org/server@v1.2.3",
        "install example.org/server@v1.2.4",
    ]


def test_concurrent_builds_build_once(go):
    calls = go('sleep 0.2; echo built >"$GOBIN/server"')
    threads = [threading.Thread(target=PROGRAM.build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls.read_text().splitlines()) == 1


def test_a_build_that_fails_leaves_nothing_that_could_pass_for_the_program(go):
    go('echo half >"$GOBIN/server"; echo "server.go:1: undefined: x" >&2; exit 1')
    with pytest.raises(BuildFailed, match="undefined: x"):
        PROGRAM.build()
    assert not PROGRAM.path.exists()


def test_a_build_without_network_is_reported_as_a_fault_of_the_machine(go):
    go(
        'echo "Get https://proxy.example.org: dial tcp: lookup proxy.example.org: no such host"'
        " >&2; exit 1"
    )
    with pytest.raises(CannotBuild, match="no such host"):
        PROGRAM.build()


def test_a_build_without_go_fails_and_says_where_to_get_it(go, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"go\.dev/dl"):
        PROGRAM.build()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ('touch "$GOBIN/minio" "$GOBIN/versitygw"', 0),
        ('echo "dial tcp: i/o timeout" >&2; exit 1', 69),
        ('echo "undefined: x" >&2; exit 1', 1),
    ],
    ids=["built", "no network", "broken"],
)
def test_the_exit_status_distinguishes_a_failed_build_from_a_failed_machine(
    go, script, status, monkeypatch
):
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    go(script)
    assert go_programs.main() == status


# The real ones


@pytest.mark.s3_server
@pytest.mark.parametrize("kind", [MinioServer, VersityServer])
def test_acknowledged_objects_survive_a_killed_server(kind):
    if not kind.program.path.exists():
        pytest.skip(f"{kind.program.name} is not built; remedy: make servers")
    with kind() as server:
        options = {name.removeprefix("store."): value for name, value in server.options.items()}
        store = open_store(f"s3://{server.bucket}/root", options)
        for number in range(5):
            store.create(f"k{number}", b"%d" % number)
            server.kill()
            server.restart()
            assert store.get(f"k{number}") == b"%d" % number


# --- servers written in Java
# -----------------------------------------------------------------------------------------

JAVA_PROGRAM = JavaProgram(
    "broker", "org.example", "broker_1", "4.5.6", (("org.example", "unwanted"),)
)


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Installs scripts as `mvn` and `java` for tests of fetching; the folder is where the first
    notes its pom.
    """
    monkeypatch.setattr(java_programs, "TOOLS", tmp_path / ".tools")
    monkeypatch.setattr(go_programs, "TOOLS", tmp_path / ".tools")

    def install(script: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        pom = f'while [ "$1" != "-f" ]; do shift; done; cp "$2" {folder}/pom.xml; cd $(dirname $2)'
        for name, content in (("mvn", f"{pom}\n{script}"), ("java", "true")):
            (folder / name).write_text(f"#!/bin/sh\n{content}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return folder

    return install


def test_only_needed_jars_are_fetched_once_in_their_pinned_version(maven):
    folder = maven("mkdir jars; echo jar >jars/broker.jar")
    path = JAVA_PROGRAM.build()
    assert (path / "broker.jar").read_text() == "jar\n"
    (folder / "mvn").write_text("#!/bin/sh\nexit 1\n")
    assert JAVA_PROGRAM.build() == path
    pom = (folder / "pom.xml").read_text()
    assert "<artifactId>broker_1</artifactId><version>4.5.6</version>" in pom
    assert (
        "<exclusion><groupId>org.example</groupId><artifactId>unwanted</artifactId></exclusion>"
        in pom
    )


@pytest.mark.parametrize(
    ("said", "error"),
    [("Could not transfer artifact from central", CannotBuild), ("no such artifact", BuildFailed)],
)
def test_jars_that_cannot_be_fetched_leave_nothing_behind(maven, said, error):
    maven(f'mkdir jars; echo "{said}" >&2; exit 1')
    with pytest.raises(error, match=said):
        JAVA_PROGRAM.build()
    assert not JAVA_PROGRAM.path.exists()


def test_fetching_jars_without_java_or_maven_fails_with_a_reason(maven, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotBuild, match=r"Maven \(mvn\)"):
        JAVA_PROGRAM.build()
