"""A replica that sends itself a signal at one of its points. `replica_harness.Victim` starts it."""

from __future__ import annotations

import json
import os
import signal
import sys

from examples.replicas.layout import ReplicaSettings
from examples.replicas.service import Replica


def main() -> None:
    """Run the replica."""
    arguments = json.loads(sys.argv[1])
    left = arguments["nth"]

    def reached(point: str) -> None:
        nonlocal left
        print(point, flush=True)
        if point == arguments["point"]:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), arguments["signal"])

    replica = Replica(ReplicaSettings(**arguments["settings"]), reached)
    signal.signal(signal.SIGTERM, lambda *_: replica.stop())
    replica.run()


if __name__ == "__main__":
    main()
