"""A server for as long as a command takes, or until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.servers.go_programs import UNAVAILABLE, BuildFailed, CannotBuild
from tests.servers.local_server import LocalServer, ServerFailed

__all__ = ["run"]

LOOK_AGAIN_S = 0.5
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(server: LocalServer, arguments: Sequence[str]) -> int:
    """Start the server; run `-- COMMAND ...` with the server's environment, or wait; stop it. The
    exit status.

    That is the command's own; 69 if this machine cannot build the server; 1 if it does not run.
    """
    command = list(arguments[1:] if arguments[:1] == ["--"] else arguments)
    parent = os.getppid()  # before anything takes time: it may be gone by then
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by a job in the background
    try:
        server.start()
        return _run_command(server, command) if command else _run_alone(server, parent)
    except CannotBuild as error:
        print(f"NOT RUN: {error}", file=sys.stderr)
        return UNAVAILABLE
    except (BuildFailed, ServerFailed) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        server.stop()


def _run_command(server: LocalServer, command: list[str]) -> int:
    # Keys of another account must not be mixed with ours.
    ours = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with subprocess.Popen(command, env=ours | server.environment) as process:
        try:
            status = process.wait()
        except KeyboardInterrupt:
            status = process.wait()  # it got the signal too; the server stays until it is done
        except SystemExit:
            process.terminate()
            raise
    return status if status >= 0 else 128 - status


def _run_alone(server: LocalServer, parent: int) -> int:
    print(f"# {server.program.name} {server.program.version}, until Ctrl-C. For another shell:")
    for name, value in server.environment.items():
        print(f"export {name}={value}", flush=True)
    # An orphaned server could not be stopped any more.
    while os.getppid() == parent:
        if _has_ended(server):
            raise ServerFailed(f"{server.program.name} ended by itself")
        time.sleep(LOOK_AGAIN_S)
    return 0


def _has_ended(server: LocalServer) -> bool:
    """No signal may come in between: it could leave the lock of a `Popen` taken, and to stop would
    wait for ever.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        return server.has_ended()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDINGS)
