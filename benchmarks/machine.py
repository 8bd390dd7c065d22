"""What the figures were measured on, and how much of it others were using meanwhile."""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from time import monotonic, perf_counter

import pyarrow as pa

from deltaq.version import __version__

STORE_SERVER = "DELTAQ_BENCH_STORE"
"""Variable that says what serves the object store: name and version."""

KAFKA_VERSION = "DELTAQ_BENCH_KAFKA_VERSION"

_CREATED = 200

_IDLE = (3, 4)  # idle, iowait: fields of the line `cpu` of /proc/stat
_GUEST = 8  # what guests take is counted as user time already


def describe(root: str) -> dict[str, str]:
    """The machine in words: what a reader needs in order to compare, and nothing that names it."""
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": _memory(),
        "store": root.split("://", maxsplit=1)[0]
        if "://" in root
        else f"local {_file_system(Path(root))}",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "deltaq": __version__,
    }


def spread_folders(root: str) -> dict[str, str]:
    """Prepare a local root, and say how long it takes there to create a file: the median in
    microseconds.

    Without a journal ext4 looks one by one past the inodes that were freed in the last minutes, so
    creating a file may take a millisecond where a benchmark has just deleted its own. `chattr +T`
    has ext4 spread the folders below over the disk; other file systems do not know it.
    """
    if "://" in root:
        return {}
    with suppress(OSError):
        subprocess.run(["chattr", "+T", root], check=False, stderr=subprocess.DEVNULL)
    folder = Path(root, "created")
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    for number in range(_CREATED):
        began = perf_counter()
        os.close(os.open(folder / str(number), os.O_WRONLY | os.O_CREAT))
        taken.append(perf_counter() - began)
    return {"us to create a file": f"{1e6 * statistics.median(taken):.0f}"}


def store_version(root: str) -> dict[str, str]:
    """The server behind an object store and its version, if the command that started it has set
    them.
    """
    name, _, release = os.environ.get(STORE_SERVER, "").partition(" ")
    return {name: release} if name and root.startswith("s3://") else {}


def kafka_versions() -> dict[str, str]:
    """Kafka's client and the C library that it wraps; and the broker, if the command that started
    it has set it.
    """
    return {
        "Kafka": os.environ.get(KAFKA_VERSION, "of unknown version"),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": import_module("confluent_kafka").libversion()[0],
    }


def delta_rs_version() -> dict[str, str]:
    """The Python package of delta-rs."""
    return {"deltalake": version("deltalake")}


def _processor() -> str:
    """The model, "unknown" if the system does not say."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "unknown"


def _memory() -> str:
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return "unknown"
    return f"{total / 2**30:.1f} GiB"


def _file_system(folder: Path) -> str:
    """Type of the file system that holds a folder, "disk" if the system does not say. On `tmpfs`
    syncing is free.
    """
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "disk"
    place = folder.resolve()
    over = [(len(mount[1]), mount[2]) for mount in mounts if place.is_relative_to(mount[1])]
    return max(over)[1] if over else "disk"


def drop_from_page_cache(folder: Path) -> None:
    """Let the next reader of each file in a folder, those below left out, take it from the disk;
    nothing where the system cannot.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for path in filter(Path.is_file, folder.iterdir()):
        # What is looked after in the background may be gone by now.
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class OthersLoad:
    """How many cores were, on average, busy with something else than this benchmark since this
    object was made.
    """

    def __init__(self) -> None:
        self._start = monotonic()
        self._others = _others_cpu_s()

    def cores(self) -> float | None:
        """None where the system does not say. Children count as ours once they have ended."""
        now = _others_cpu_s()
        if now is None or self._others is None:
            return None
        return max(0.0, now - self._others) / max(1e-3, monotonic() - self._start)


def _others_cpu_s() -> float | None:
    """CPU seconds since the start of the machine that neither this process nor its ended children
    took.
    """
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1 : 1 + _GUEST]
    except OSError:
        return None
    ticks = sum(int(count) for field, count in enumerate(fields) if field not in _IDLE)
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return ticks / os.sysconf("SC_CLK_TCK") - sum(usage.ru_utime + usage.ru_stime for usage in used)
