"""What is free returns to the system, as the system itself reports."""

from __future__ import annotations

import platform
import subprocess
import sys

PROGRAM = """
import os
from pathlib import Path

from deltaq.freed_memory import return_freed_memory

def resident_mb():
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[1]) if statm.exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

blocks = [bytes(1000) for _ in range(100_000)]
blocks = blocks[::1000]  # each holds back what was freed before it
before_mb = resident_mb()
return_freed_memory()
print(before_mb - resident_mb(), len(blocks))
"""

PROMISED_MB = 60 if platform.libc_ver()[0] == "glibc" else -1
"""Of the 100 MB. Other C libraries have no function for it: there it must only do no harm."""


def test_memory_between_blocks_in_use_returns_to_the_system() -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    returned_mb, kept = said.split()
    assert float(returned_mb) > PROMISED_MB
    assert kept == "100"
