"""A PostgreSQL server in a temporary folder, reachable only through a socket in that folder.

    with Postgres(sessions_max=4) as server:
        print(server.url)

`python -m examples.replicas.postgres` runs one until its standard input ends. `Postgres` starts
that program, so the server and its files are removed when the process that started it has ended, in
whatever way.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TypedDict

import psycopg

REPOSITORY = Path(__file__).resolve().parents[2]
PLACES = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "opt/homebrew/opt/postgresql*/bin",
    "usr/local/opt/postgresql*/bin",
)
WITHOUT_RIGHTS = 65_534
"""The user and group of programs that own no files, on Linux."""

ROLE, SUPERUSER = "replicas", "postgres"
# Access is limited by the folder, which only its owner can enter.
INITDB = ("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions")
# Small, without TCP, and not durable: the data is thrown away with the server.
SERVER = (
    "-c",
    "listen_addresses=",
    "-c",
    "shared_buffers=16MB",
    "-c",
    "fsync=off",
    "-c",
    "full_page_writes=off",
)
START_S = 60.0
STOP_S = 15.0


class NoPostgres(Exception):
    """No PostgreSQL server is installed, or it does not start."""


def find_programs() -> Path:
    """The folder with `initdb` and `postgres`, of the newest version that is installed. Raises
    NoPostgres.
    """
    found = [
        folder
        for pattern in PLACES
        for folder in Path("/").glob(pattern)
        if (folder / "initdb").exists()
    ]
    if found:
        return max(
            found, key=lambda folder: [int(number) for number in re.findall(r"\d+", str(folder))]
        )
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    raise NoPostgres(
        "no PostgreSQL server is installed. Debian, Ubuntu: apt-get install postgresql; or set "
        "DATABASE_URL"
    )


class Postgres:
    """A running server. `url` is that of the role `replicas`, which may have `sessions_max`
    sessions at a time; `admin_url` is the superuser's.
    """

    def __init__(self, sessions_max: int) -> None:
        find_programs()
        self._process = subprocess.Popen(  # noqa: S603  # our own program
            [sys.executable, "-m", "examples.replicas.postgres", str(sessions_max)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C must not end the server before its clients
        )
        assert self._process.stdout is not None
        try:
            self.folder = self._process.stdout.readline().strip()
        except BaseException:
            # Without a reader, the server could not report its folder, and would print a traceback.
            self.stop()
            raise
        if not self.folder:
            self.stop()
            raise NoPostgres("PostgreSQL does not start: see above")
        self.url = f"postgresql://{ROLE}@/{ROLE}?host={self.folder}"
        self.admin_url = f"postgresql://postgres@/{ROLE}?host={self.folder}"

    def stop(self) -> None:
        """Stop the server and remove its files."""
        self._process.communicate()

    def __enter__(self) -> Postgres:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class _Account(TypedDict, total=False):
    """Arguments of Popen."""

    user: int
    group: int
    extra_groups: list[int]


def _account() -> _Account:
    """The account to run the server as: PostgreSQL refuses to run as root."""
    if os.getuid():
        return {}
    try:
        entry = pwd.getpwnam("postgres")
        user, group = entry.pw_uid, entry.pw_gid
    except KeyError:
        user = group = WITHOUT_RIGHTS
    return {"user": user, "group": group, "extra_groups": []}


def serve(sessions_max: int) -> None:
    """Run a server until standard input ends. Prints its folder once it answers. Raises
    NoPostgres.
    """
    programs, account = find_programs(), _account()
    folder = Path(tempfile.mkdtemp(prefix="deltaq-postgres-"))
    log = folder / "log"
    server = None
    try:
        if account:
            shutil.chown(folder, account["user"], account["group"])
        with log.open("w") as output:
            start = partial(
                subprocess.Popen[str],
                cwd=folder,  # the account may not enter the current folder
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                **account,
            )
            if start([programs / "initdb", "-D", "data", "-U", SUPERUSER, *INITDB]).wait() == 0:
                server = start([programs / "postgres", "-D", "data", "-k", folder, *SERVER])
        if server is None or not _create_role(folder, server, sessions_max):
            raise NoPostgres(f"PostgreSQL does not start:\n{log.read_text()}")
        print(folder, flush=True)
        sys.stdin.read()
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # "fast shutdown": ends the sessions
            try:
                server.wait(STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _create_role(folder: Path, server: subprocess.Popen[str], sessions_max: int) -> bool:
    """Create the role and its database as soon as the server answers. False if it does not."""
    deadline = time.monotonic() + START_S
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with psycopg.connect(
                f"postgresql://{SUPERUSER}@/postgres?host={folder}", autocommit=True
            ) as connection:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN CONNECTION LIMIT {sessions_max}")
                connection.execute(f"CREATE DATABASE {ROLE} OWNER {ROLE}")
            return True
        except psycopg.OperationalError:
            time.sleep(0.02)
    return False


def main() -> None:
    """Run the program."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        serve(int(sys.argv[1]))
    except NoPostgres as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
