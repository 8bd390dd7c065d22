"""Clients on a full disk: an error at once, nothing half written, and progress once there is room
again.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltaq.store import open_store
from deltaq.testing import messages_of

# What a process may write into one file is limited, as a full disk limits it, and no user needs
# rights for that.
PROGRAM = """
import resource, sys
from deltaq import Producer, Topic

root, partitions, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Topic("t", partitions=partitions, bootstrap_servers=root).create()
reports = []

def produce(producer, value):
    producer.produce("t", value, partition=0, on_delivery=lambda error, message: reports.append((error, message)))
    assert producer.flush(60) == 0

hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
with Producer({"bootstrap.servers": root, "linger.ms": 0, "compression.type": "none"}) as producer:
    produce(producer, b"before")
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    for _ in range(2):
        produce(producer, b"x" * size)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    produce(producer, b"after")
for error, message in reports:
    print("written" if error is None else f"{error.name()} {error.retriable()} {error.str()}")
"""  # noqa: E501


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    ("what", "partitions", "size"),
    [(".parquet", 1, 10_000), ("_delta_log/00000000000000000002.json", 2000, 10)],
)
def test_a_file_refused_by_a_full_disk_fails_only_its_messages(
    tmp_path: Path, what, partitions, size
):
    root = tmp_path / "root"
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root), str(partitions), str(size)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    first, *refused, last = ran.stdout.splitlines()
    assert (first, last) == ("written", "written")
    assert len(refused) == 2
    for line in refused:
        assert line.startswith("_TRANSPORT False ")
        assert what in line
        assert "(EFBIG)" in line
    assert [message.value() for message in messages_of(str(root), "t")] == [b"before", b"after"]
    files = [path for path in root.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".parquet", ".json"}, "nothing half written is left"
    assert sorted(path.relative_to(root).as_posix() for path in files) == [
        entry.key for entry in open_store(str(root)).list("")
    ]
