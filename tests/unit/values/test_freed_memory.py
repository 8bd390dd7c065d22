"""What is free returns to the system, as the system itself reports."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
from deltaq.freed_memory import return_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * {page}

blocks = [bytes(1000) for _ in range(100_000)]
blocks = blocks[::1000]  # each holds back what was freed before it
before = resident()
return_freed_memory()
print((before - resident()) // 1_000_000, len(blocks))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not Path("/proc/self/statm").exists(),
    reason="only glibc returns memory on request, and only Linux reports it so",
)
def test_memory_between_blocks_in_use_returns_to_the_system() -> None:
    program = PROGRAM.format(page=os.sysconf("SC_PAGE_SIZE"))
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    returned_mb, kept = map(int, said.split())
    assert returned_mb > 60
    assert kept == 100
