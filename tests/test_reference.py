"""The pages of docs/reference/ say what the code says. `make docs` writes them anew."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from deltaq import Producer, Topic, errors
from deltaq.config import config_table
from deltaq.maintenance import run

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
GENERATED = "Generated from the code by `make docs`; do not edit.\n"


# --- configuration ---

CONFIG = """\
Clients take a dict with these names, keywords with `_` for `.` (`linger_ms=20`), or both; keywords win. An unknown name
is refused with the nearest known one. What exists only because Kafka has brokers is accepted, so that one configuration
serves both, and marked *no effect*. Options of object stores stand behind `store.`: see
[object stores](../guides/object-stores.md).
"""

CONFIG_OF_TOPICS = """\
Given when a topic is created (`Topic(..., config={...})`, `NewTopic(..., config={...})`) or changed through
`AdminClient`, and kept as properties of its table behind `deltaq.`. **Records are removed by default:** with
`cleanup.policy=delete`, [maintenance](../guides/maintenance.md) removes records older than `retention.ms`, and the
oldest records of a partition beyond `retention.bytes`. With `cleanup.policy=compact` it removes all but the newest
record of each key, and every message must have a key.
"""


def config_page() -> str:
    """All settings of clients and topics."""
    parts = ["# Configuration\n", GENERATED, CONFIG]
    parts += ["## Producer\n", config_table("producer"), "## Consumer\n", config_table("consumer")]
    parts += ["## AdminClient and Topic\n", config_table("admin")]
    parts += ["## Topics\n", CONFIG_OF_TOPICS, config_table("topic")]
    return "\n".join(parts)


# --- errors ---

ERRORS = """\
Every exception is a `KafkaException` whose `args[0]` is a `KafkaError` with `code()`, `name()`, `str()`, `fatal()` and
`retriable()`, so that code written for `confluent_kafka` keeps working. The classes below exist because a program would
handle each of them differently; all are in `deltaq.errors` and importable from `deltaq`. Wrong types raise `TypeError`,
wrong numbers of a call `ValueError`, and a client used after `close()` `RuntimeError`.

| Exception | Code | What happened, and what to do |
|---|---|---|
"""


def exceptions() -> list[type[errors.KafkaException]]:
    """The exceptions of deltaq, the common base first."""
    found = [getattr(errors, name) for name in errors.__all__]
    classes = [c for c in found if inspect.isclass(c) and issubclass(c, errors.KafkaException)]
    return sorted(classes, key=lambda c: (c is not errors.KafkaException, c.__name__))


def errors_page() -> str:
    """Every exception, with what to do about it."""
    return "\n".join(["# Errors\n", GENERATED, ERRORS + "\n".join(map(_error_row, exceptions()))]) + "\n"


def _error_row(exception: type[errors.KafkaException]) -> str:
    text = " ".join((inspect.getdoc(exception) or "").split())
    # The code stands where the exception is made: in its constructor, as `KafkaError.<NAME>`.
    own = inspect.getsource(exception) if exception is not errors.KafkaException else ""
    codes = dict.fromkeys(re.findall(r"KafkaError\.(_?[A-Z][A-Z_]+)", own))
    names = ", ".join(f"`{code}`" for code in codes)
    others = [base.__name__ for base in exception.__bases__ if not issubclass(base, errors.KafkaException)]
    kinds = "".join(f" (a `{base}` too)" for base in others if base != "Exception")
    return f"| `{exception.__name__}`{kinds} | {names or 'any'} | {text} |"


# --- limits ---


@dataclass(frozen=True)
class Limit:
    """A constant that bounds something: `module.NAME`, its unit, and what it bounds."""

    where: str
    unit: str
    meaning: str

    def row(self) -> str:
        """The constant as a line of a Markdown table."""
        module, names = _module_of(self.where)
        value: Any = reduce(getattr, names, importlib.import_module(module))
        return f"| {self.meaning} | {_shown(value, self.unit)} | `{self.where}` |"


def _module_of(where: str) -> tuple[str, list[str]]:
    """`names.VERSION_MAX` -> the module deltaq.names and what to look up there, one after the other."""
    parts = where.split(".")
    count = next(at for at, part in enumerate(parts) if part.isupper())
    return ".".join(["deltaq", *parts[:count]]), parts[count:]


LIMITS = {
    "Names and numbers": (
        Limit("names.NAME_CHARS_MAX", "characters", "Name of a topic, group, client or transaction"),
        Limit("config.table.PARTITIONS_MAX", "", "Partitions of a topic"),
        Limit("serde.columns.NAME_CHARS_MAX", "characters", "Name of a column of a typed topic"),
        Limit("topics.columns.TIMESTAMP_MS_MAX", "ms", "Latest timestamp (2262); the earliest is 0 (1970)"),
        Limit("names.VERSION_MAX", "", "Version of a log"),
        Limit("store.keys.KEY_LENGTH_MAX", "characters", "Key of an object below the root"),
        Limit("store.keys.PREFIX_LENGTH_MAX", "characters", "Prefix of a root in a bucket"),
        Limit("store.keys.PART_LENGTH_MAX", "characters", "Part of a key between two slashes"),
    ),
    "Writing": (
        Limit("producer.batches.BATCH_ROWS_MAX", "records", "Records that one process uploads together"),
        Limit("producer.batches.BATCH_BYTES_MAX", "bytes", "Bytes that one process uploads together, about"),
        Limit(
            "producer.batch_upload.SEGMENT_BYTES_MAX",
            "bytes",
            "Size of a data file before encoding; more makes another file",
        ),
        Limit("producer.uploader.BATCHES_AHEAD_MAX", "", "Uploads that may be under way or wait for their commit"),
        Limit("producer.uploader.UPLOADS_MAX", "", "Whole batches of a topic that one process uploads at once"),
        Limit("names.OFFER_FILE_BYTES_MAX", "bytes", "Name of a data file that other processes may commit"),
        Limit("topics.log.SHARED_FILES_MAX", "", "Files of other processes that one commit takes along"),
        Limit("topics.shared_files.WRITERS_MAX", "", "Other processes of which is remembered what they have offered"),
        Limit("producer.committer.GIVE_WAY_MAX", "", "Lost races after which a process waits for others once more"),
        Limit("producer.committer.OFFER_AGAIN_BYTES_MAX", "bytes", "Size of a file that is uploaded again as an offer"),
        Limit("producer.committer.WITHDRAW_S", "s", "Time to withdraw what others may commit, before it is unknown"),
        Limit("parquet.segment.ROW_GROUP_ROWS_MAX", "records", "Records of a row group"),
        Limit("parquet.file_statistics.INDEXED_COLUMNS_MAX", "", "Columns by which other engines skip files"),
        Limit(
            "parquet.file_statistics.TEXT_CHARS_MAX", "characters", "Beginning of a string that files are skipped by"
        ),
        Limit(
            "parquet.segment.COMPACTED_ROW_GROUP_BYTES",
            "bytes",
            "What a row group of a compacted file decodes to, about",
        ),
        Limit("parquet.segment.ROW_GROUP_SHARE_BYTES", "bytes", "Share of a partition that gets row groups of its own"),
        Limit("producer.linger.COMMITS_MAX", "times", "Commits on local disk, against one each `linger.ms`"),
        Limit("producer.linger.EXTRA_S_MAX", "s", "Wait added to `linger.ms` while races for the log are lost"),
        Limit("delta.log.HEAD_PROOF_S", "s", "Trust in a position at the head without looking for log-start markers"),
        Limit("groups.offset_commits.COMMIT_TIMEOUT_S", "s", "Time for one commit of offsets"),
    ),
    "Reading": (
        Limit("parquet.segment.WHOLE_FILE_BYTES", "bytes", "Size up to which a data file is fetched in one request"),
        Limit("parquet.segment.DECODED_BYTES_MAX", "bytes", "What a data file may decode to"),
        Limit("consumer.fetcher.FIRST_READ_BYTES", "bytes", "What is fetched of a large file at first; it doubles"),
        Limit("delta.log.READ_AHEAD_MAX", "entries", "Log entries asked for at once when catching up"),
        Limit("consumer.fetcher.ENTRIES_AT_ONCE", "entries", "Log entries read before records are fetched again"),
    ),
    "Stores": (
        Limit("store.parallel.REQUESTS_MAX", "", "Requests at once of one call that looks at many topics"),
        Limit("store.objects.PART_BYTES", "bytes", "Size from which an object is sent in parts"),
        Limit("store.objects.PARTS_IN_FLIGHT", "", "Parts sent at once"),
        Limit("store.object_options.RETRIES", "", "Repetitions of a failed request (never of a conditional create)"),
        Limit("store.object_options.RETRY_TIMEOUT_MS", "ms", "Time for a request with its repetitions"),
        Limit("store.probe.PROBE_ATTEMPTS", "", "Attempts to prove that a store honours create-if-absent"),
        Limit("store.local.UNFINISHED_AGE_MS", "ms", "Age at which maintenance removes an unfinished file of a crash"),
    ),
    "Maintenance": (
        Limit(
            "maintenance.settings.DEFAULT_SETTINGS.checkpoint_interval", "commits", "Commits between two checkpoints"
        ),
        Limit(
            "maintenance.settings.DEFAULT_SETTINGS.keep_entries_min", "entries", "Newest log entries that always stay"
        ),
        Limit(
            "maintenance.settings.DEFAULT_SETTINGS.keep_entries_max", "entries", "Log entries that stay at most, about"
        ),
        Limit("maintenance.settings.DEFAULT_SETTINGS.merge_files", "files", "Small neighbours that are merged"),
        Limit(
            "maintenance.file_compaction.MERGED_TARGETS_MAX", "files", "Files of `segment.bytes` that one merge makes"
        ),
        Limit("maintenance.file_compaction.MERGED_FILES_MAX", "files", "Files that one merge takes at most"),
        Limit(
            "maintenance.topic_pass.UNREAD_MAX",
            "files",
            "Files that a store may fail to hand out in one round of a topic's maintenance before it counts as away",
        ),
        Limit(
            "maintenance.retention.EXPIRED_FILES_MAX",
            "files",
            "Files that one entry of retention removes at most, about",
        ),
        Limit(
            "maintenance.row_cache.BYTES_MAX",
            "bytes",
            "Just written records kept for the next merge beside a writer, of one topic",
        ),
        Limit("maintenance.row_cache.FILE_BYTES_MAX", "bytes", "The same, of one file"),
        Limit("topics.log.TURN_TIMEOUT_S", "s", "Time that maintenance keeps the writer beside it waiting"),
        Limit(
            "maintenance.settings.DEFAULT_SETTINGS.checkpoint_rest_s", "s", "Time between two checkpoints by one writer"
        ),
        Limit("maintenance.settings.DEFAULT_SETTINGS.dirty_bytes_max", "bytes", "Dirty files of one key compaction"),
        Limit(
            "maintenance.settings.DEFAULT_SETTINGS.clean_up_grace_s", "s", "Time from a log-start marker to clean-up"
        ),
        Limit(
            "maintenance.settings.DEFAULT_SETTINGS.look_interval_ms", "ms", "Time between two looks for files to remove"
        ),
        Limit("maintenance.orphan_files.NAMES_OF_NOTE_MAX", "files", "Files in one note of what is to be removed"),
        Limit(
            "maintenance.groups.SWEEP_MAX", "objects", "Log objects that a consumer's own maintenance removes at once"
        ),
        Limit(
            "maintenance.clock_check.CLOCK_TOLERANCE_S",
            "s",
            "Difference between a machine's clock and the store's, beyond which it removes nothing because of its age",
        ),
        Limit("maintenance.topic_pass.OVERTAKEN_MAX", "", "Plans that others may thwart in one round"),
        Limit("maintenance.throttle.PAUSE_S_MAX", "s", "Pause of background maintenance between two steps"),
    ),
    "Administration": (Limit("admin.client.TIMEOUT_S_MAX", "s", "`request_timeout` of a call"),),
}


LIMITS_ARE = """\
What bounds sizes, counts and times, and is not a [setting](config.md). Everything that queues or repeats is bounded by
one or the other.
"""


def limits_page() -> str:
    """Every bound that is not a setting."""
    parts = ["# Limits\n", GENERATED, LIMITS_ARE]
    for title, limits in LIMITS.items():
        parts += [f"## {title}\n", "| Limit | Value | Constant in `deltaq` |\n|---|---|---|"]
        parts += [*(limit.row() for limit in limits), ""]
    return "\n".join(parts)


def _shown(value: int | float, unit: str) -> str:
    if unit == "bytes":
        for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value % (1 << power) == 0:
                return f"{value // (1 << power):,} {name}"
    return f"{value:,g} {unit}" if isinstance(value, float) else f"{value:,} {unit}".strip()


# --- the pages ---

PAGES: dict[str, Callable[[], str]] = {"config.md": config_page, "errors.md": errors_page, "limits.md": limits_page}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize(
    ("setting", "value", "left"),
    [("retention.ms", 0, 0), ("retention.ms", -1, 4), ("retention.bytes", 0, 0), ("cleanup.policy", "compact", 1)],
)
def test_maintenance_removes_the_records_that_the_page_says(
    memory_root: str, setting: str, value: object, left: int
) -> None:
    assert f"`{setting}" in CONFIG_OF_TOPICS
    config = {"min.cleanable.dirty.ratio": 0, setting: value}
    topic = Topic("t", bootstrap_servers=memory_root, config=config)
    topic.create()
    with Producer(bootstrap_servers=memory_root, maintenance_enable=False) as producer:
        for number in range(4):
            producer.produce("t", f"{number}", key="k")
            producer.flush()
    run(memory_root, once=True)
    assert topic.to_arrow().num_rows == left


def test_every_exception_says_what_happened_and_what_to_do() -> None:
    named = [exception for exception in exceptions() if exception is not errors.KafkaException]
    sentences = {e.__name__: re.findall(r"[.?!](?:\s|$)", inspect.getdoc(e) or "") for e in named}
    assert [name for name, found in sentences.items() if len(found) < 2] == []


def bounds_in_code() -> Iterator[str]:
    """The constants of the package whose names say that they bound something."""
    for path in sorted((ROOT / "deltaq").rglob("*.py")):
        where = ".".join(path.relative_to(ROOT / "deltaq").with_suffix("").parts)
        for name in re.findall(r"^([A-Z][A-Z_]*_MAX) = ", path.read_text(), re.MULTILINE):
            yield f"{where}.{name}"


def test_every_bound_in_the_code_is_on_the_page() -> None:
    listed = {limit.where for limits in LIMITS.values() for limit in limits}
    elsewhere = {
        "admin.topics.REPLICATION_FACTOR_MAX",  # has no effect
        "spark.sink.SEGMENT_BYTES_MAX",  # the same as that of other writers
        "testing.simulation.scheduler.STEPS_MAX",  # bounds a simulation, not deltaq
    }
    assert [where for where in bounds_in_code() if where not in listed | elsewhere] == []


def test_decisions_are_numbered_without_gaps_and_all_in_the_index() -> None:
    folder = ROOT / "docs/decisions"
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [name[:4] for name in pages] == [f"{number:04d}" for number in range(1, len(pages) + 1)]
    index = (folder / "README.md").read_text()
    assert [name for name in pages if f"({name})" not in index] == []


def test_every_module_is_on_the_map() -> None:
    """docs/internals/architecture.md names each module, or the folder of those that are described as one."""
    page = (ROOT / "docs/internals/architecture.md").read_text()
    named = set(re.findall(r"`([a-z0-9_/]+)`", page))
    modules = (path.relative_to(ROOT / "deltaq").with_suffix("") for path in (ROOT / "deltaq").rglob("*.py"))
    names = sorted(module.as_posix() for module in modules if module.name != "__init__")
    assert [name for name in names if not {name, f"{name.rpartition('/')[0]}/"} & named] == []


def write_pages() -> None:
    """Write every page as the code has it now."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())


if __name__ == "__main__":
    write_pages()
