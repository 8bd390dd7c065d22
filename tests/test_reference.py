"""The pages of docs/reference/ are generated from the code and up to date. `make docs` regenerates
them.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest

from deltaq import Producer, Topic, errors, metrics
from deltaq.config import CLIENT_SETTINGS, TOPIC_SETTINGS, Setting
from deltaq.config.group import GROUP_SETTINGS
from deltaq.maintenance import run
from deltaq.metrics import catalogue
from deltaq.telemetry import otel_name

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
GENERATED = "Generated from the code by `make docs`; do not edit.\n"


# --- configuration ---

CONFIG = """\
Clients take a dict with these names, keywords with `_` for `.` (`linger_ms=20`), or both; keywords
take precedence. An unknown name is refused, and the error names the nearest known one. Options of
object stores begin with `store.`: see [object stores](../guides/object-stores.md). What exists only
because Kafka has brokers is accepted, [without effect](#without-effect), so that one configuration
works for both.
"""

CONFIG_OF_TOPICS = """\
These settings are given when a topic is created (with the argument `config` of `Topic`
or `NewTopic`), changed through `AdminClient`, and stored as properties of the table with the
prefix `deltaq.`. **Records are removed by default:** with `cleanup.policy=delete`,
[maintenance](../guides/maintenance.md) removes records older than `retention.ms`, and the oldest
records of a partition beyond `retention.bytes`. With `cleanup.policy=compact` it removes all but
the newest record of each key, and every message must have a key.
"""

CONFIG_OF_SHARE_CONSUMERS = """\
A share consumer has `group.id`, `fetch.wait.max.ms`, the settings that all clients have, and these.
Those of its group [are stored](#groups) with it. `stats_cb` is not called, and
`large.message.enabled` does not join pieces.
"""

CONFIG_OF_GROUPS = """\
These settings are changed through `AdminClient.incremental_alter_configs`, with a resource of the
type `GROUP`, also before there is such a group. The group's log stores them.
"""

CONFIG_WITHOUT_EFFECT = """\
These settings of Kafka are accepted and checked, and do nothing. A client names those that it was
given in a warning, with the reason.
"""

WITHOUT_EFFECT_IN = {
    "producer": "Producer",
    "consumer": "Consumer",
    "both": "Producer, Consumer, AdminClient and Topic",
    "topic": "Topics",
}
"""Where a setting is accepted, by its `clients`: the titles of the sections of the page."""


def config_page() -> str:
    """All settings of clients and topics."""
    parts = ["# Configuration\n", GENERATED, CONFIG]
    parts += ["## Producer\n", config_table("producer"), "## Consumer\n", config_table("consumer")]
    parts += ["## ShareConsumer\n", CONFIG_OF_SHARE_CONSUMERS, config_table("share consumer")]
    parts += ["## AdminClient and Topic\n", config_table("admin")]
    parts += ["## Topics\n", CONFIG_OF_TOPICS, config_table("topic")]
    parts += ["## Groups\n", CONFIG_OF_GROUPS, config_table("group")]
    parts += ["## Without effect\n", CONFIG_WITHOUT_EFFECT, table_without_effect()]
    return "\n".join(parts)


def config_table(kind: str) -> str:
    """The settings of a client or of topics that have an effect, as a Markdown table, sorted by
    name.
    """
    source = {"topic": TOPIC_SETTINGS, "group": GROUP_SETTINGS}.get(kind, CLIENT_SETTINGS)
    of = (kind,) if kind == "share consumer" else (kind, "both")
    rows = [s for s in source.values() if s.clients in of and s.effect != "none"]
    lines = ["| Setting | Default | Allowed | Meaning |", "|---|---|---|---|"]
    for setting in sorted(rows, key=lambda s: s.name):
        fixed = "*Fixed.* " if setting.effect == "always" else ""
        lines.append(f"| {_setting_cells(setting)} | {fixed}{setting.doc} |")
    return "\n".join(lines) + "\n"


def table_without_effect() -> str:
    """The settings of clients and of topics that do nothing, as a Markdown table, those of topics
    last.
    """
    lines = ["| Setting | Default | Allowed | Of | Reason |", "|---|---|---|---|---|"]
    for source in (CLIENT_SETTINGS, TOPIC_SETTINGS):
        rows = sorted((s for s in source.values() if s.effect == "none"), key=lambda s: s.name)
        lines += [
            f"| {_setting_cells(s)} | {WITHOUT_EFFECT_IN[s.clients]} | {s.doc} |" for s in rows
        ]
    return "\n".join(lines) + "\n"


def _setting_cells(setting: Setting) -> str:
    """Names, default, and allowed values."""
    names = ", ".join(f"`{name}`" for name in (setting.name, *setting.aliases))
    allowed = (
        setting.range
        or {"string": "text", "callable": "a callable", "logger": "a logger"}[setting.kind]
    )
    return f"{names} | {_default_text(setting)} | {allowed}"


def _default_text(setting: Setting) -> str:
    default = setting.default
    if default is None or default == "":
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple):
        return f"`{','.join(map(str, default))}`"
    return (
        f"`{default:g}`"
        if isinstance(default, float) and not math.isinf(default)
        else f"`{default}`"
    )


# --- errors ---

ERRORS = """\
Every exception is a `KafkaException` whose `args[0]` is a `KafkaError` with `code()`, `name()`,
`str()`, `fatal()` and `retriable()`, so that code written for `confluent_kafka` keeps working. Each
class below stands for a case that a program would handle differently; all are in `deltaq.errors`
and can be imported from `deltaq`. Arguments of a wrong type raise `TypeError`, numbers out of range
raise `ValueError`, and a client that is used after `close()` raises `RuntimeError`.

| Exception | Code | Meaning and remedy |
|---|---|---|
"""


def exceptions() -> list[type[errors.KafkaException]]:
    """The exceptions of deltaq, the common base first."""
    classes = [
        c
        for c in vars(errors).values()
        if inspect.isclass(c) and issubclass(c, errors.KafkaException)
    ]
    return sorted(classes, key=lambda c: (c is not errors.KafkaException, c.__name__))


def errors_page() -> str:
    """All exceptions, with their remedies."""
    return (
        "\n".join(["# Errors\n", GENERATED, ERRORS + "\n".join(map(_error_row, exceptions()))])
        + "\n"
    )


def _error_row(exception: type[errors.KafkaException]) -> str:
    text = " ".join((inspect.getdoc(exception) or "").split())
    # The code is in the constructor of the exception, as `KafkaError.<NAME>`, or where the
    # exception is created.
    own = inspect.getsource(exception) if exception is not errors.KafkaException else ""
    codes = dict.fromkeys(
        [*re.findall(r"KafkaError\.(_?[A-Z][A-Z_]+)", own), *_codes_given(exception.__name__)]
    )
    names = ", ".join(f"`{code}`" for code in codes)
    flags = " ".join(
        flag for flag in ("retriable", "fatal") if re.search(rf"\b{flag}\b[^,)]*=\s*True", own)
    )
    names += f" ({flags})" if flags else ""
    others = [
        base.__name__ for base in exception.__bases__ if not issubclass(base, errors.KafkaException)
    ]
    kinds = "".join(f" (also a `{base}`)" for base in others if base != "Exception")
    return f"| `{exception.__name__}`{kinds} | {names or 'any'} | {text} |"


# Functions that create an InvalidConfig with the code that they are given.
REFUSALS = {"parse", "unknown_setting", "_check"}


def _codes_given(exception: str) -> list[str]:
    """The codes with which deltaq creates the exception, other than that of its constructor."""
    functions = {exception} | (REFUSALS if exception == "InvalidConfig" else set())
    return sorted({code for function, code in _calls_with_codes() if function in functions})


@cache
def _calls_with_codes() -> set[tuple[str, str]]:
    """(function, code) of all calls in deltaq that name a code of Kafka's."""
    found = set()
    for path in (ROOT / "deltaq").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                given = [
                    *node.args,
                    *(keyword.value for keyword in node.keywords if keyword.arg == "code"),
                ]
                codes = [
                    re.fullmatch(r"KafkaError\.(\w+)", ast.unparse(v))
                    for v in given
                    if isinstance(v, ast.Attribute)
                ]
                found |= {
                    (ast.unparse(node.func).rpartition(".")[2], code[1]) for code in codes if code
                }
    return found


# --- limits ---


@dataclass(frozen=True)
class LimitRow:
    """A constant that is a limit: `module.NAME`, its unit, and what it limits."""

    where: str
    unit: str
    meaning: str

    def row(self) -> str:
        """The constant as a line of a Markdown table."""
        module, names = _module_of(self.where)
        value: Any = reduce(getattr, names, importlib.import_module(module))
        return f"| {self.meaning} | {_shown(value, self.unit)} | `{self.where}` |"


def _module_of(where: str) -> tuple[str, list[str]]:
    """`names.VERSION_MAX` -> the module deltaq.names and the names to look up in it, in order."""
    parts = where.split(".")
    count = next(at for at, part in enumerate(parts) if part.isupper())
    return ".".join(["deltaq", *parts[:count]]), parts[count:]


LIMITS = {
    "Names and numbers": (
        LimitRow(
            "names.NAME_CHARS_MAX",
            "characters",
            "Name of a topic, group or client; `transactional.id` as a part of keys",
        ),
        LimitRow("config.client_table.PARTITIONS_MAX", "", "Partitions of a topic"),
        LimitRow(
            "schema_registry.changes.SUBJECT_CHARS_MAX",
            "characters",
            "Name of a subject of the schema registry",
        ),
        LimitRow(
            "schema_registry.changes.SCHEMA_CHARS_MAX",
            "characters",
            "Text of a schema of the schema registry",
        ),
        LimitRow("serde.columns.NAME_CHARS_MAX", "characters", "Name of a column of a typed topic"),
        LimitRow(
            "message.TIMESTAMP_MS_MAX", "ms", "Latest timestamp (2262); the earliest is 0 (1970)"
        ),
        LimitRow(
            "groups.offsets.METADATA_CHARS_MAX", "characters", "Metadata of a committed offset"
        ),
        LimitRow(
            "share_groups.state.ERROR_CHARS_MAX",
            "characters",
            "Text of an exception in a dead letter",
        ),
        LimitRow("names.VERSION_MAX", "", "Version of a log"),
        LimitRow("store.keys.KEY_LENGTH_MAX", "characters", "Key of an object below the root"),
        LimitRow("store.keys.PREFIX_LENGTH_MAX", "characters", "Prefix of a root in a bucket"),
        LimitRow("store.keys.PART_LENGTH_MAX", "characters", "Part of a key between two slashes"),
    ),
    "Schemas, and values with a schema": (
        LimitRow(
            "serde.columns.NESTING_MAX", "", "Types within each other in a column of a typed topic"
        ),
        LimitRow(
            "schema_registry.work.SCHEMA_DEPTH_MAX", "levels", "Nesting of the JSON of a schema"
        ),
        LimitRow(
            "schema_registry.work.SCHEMA_PARTS_MAX",
            "",
            "Objects and arrays in the JSON of a schema",
        ),
        LimitRow(
            "schema_registry.json_format.ARRAY_PARTS_MAX",
            "",
            "Objects and arrays in one array of a JSON schema",
        ),
        LimitRow(
            "schema_registry.json_patterns.PATTERN_CHARS_MAX",
            "characters",
            "A regular expression in a JSON schema",
        ),
        LimitRow(
            "schema_registry.json_patterns.PATTERNS_WORK_MAX",
            "",
            "All of these in a schema: 25 for each character, and the code of the last character "
            "of each range, up to 65,536",
        ),
        LimitRow(
            "schema_registry.protobuf_text.TOKENS_MAX", "", "Words and signs of a `.proto` file"
        ),
        LimitRow(
            "schema_registry.protobuf_text.NESTING_MAX", "levels", "Nesting of a `.proto` file"
        ),
        LimitRow(
            "schema_registry.state.REFERENCES_MAX",
            "",
            "Schemas that a schema refers to, directly or not",
        ),
        LimitRow(
            "schema_registry.state.REFERENCES_CHARS_MAX", "characters", "Text of these schemas"
        ),
        LimitRow(
            "tools.registry_values.UNKNOWN_MAX",
            "",
            "Unknown ids of schemas after which a command takes values for other bytes",
        ),
        LimitRow(
            "schema_registry.work.VALUE_DEPTH_MAX",
            "levels",
            "Nesting of a value of Avro or JSON, as of Protobuf",
        ),
        LimitRow(
            "schema_registry.avro_bounds.FREE_VALUES_MAX",
            "",
            "Values of an Avro payload that take no byte in it, such as nulls and the reader's "
            "defaults; 64 characters of a default count as one",
        ),
        LimitRow(
            "schema_registry.avro_bounds.CHECKED_VALUES_MAX",
            "",
            "Values of an Avro payload that has to be checked first",
        ),
        LimitRow("schema_registry.avro_bounds.DECIMAL_DIGITS_MAX", "digits", "A decimal of Avro"),
        LimitRow(
            "schema_registry.json_format.CHECK_STEPS_MAX",
            "",
            "Keywords of a JSON schema that are judged for a value",
        ),
        LimitRow(
            "schema_registry.json_format.CHECK_STEPS_PER_VALUE",
            "",
            "More of these for each object, array and scalar in the value",
        ),
        LimitRow(
            "schema_registry.json_validators.UNEVALUATED_NAME_CHARS_MAX",
            "characters",
            "Name of a property beside `unevaluatedProperties`",
        ),
        LimitRow(
            "schema_registry.protobuf_bounds.MESSAGE_BYTES_MAX",
            "bytes",
            "Memory of the messages in a Protobuf payload, approximately",
        ),
        LimitRow(
            "schema_registry.protobuf_bounds.CHECKED_FIELDS_MAX",
            "",
            "Fields of a Protobuf payload that is long enough to take so much memory, in messages "
            "that can have others in them",
        ),
    ),
    "Writing": (
        LimitRow("producer.batches.BATCH_ROWS_MAX", "records", "Records of one produce batch"),
        LimitRow(
            "producer.batches.BATCH_BYTES_MAX", "bytes", "Size of one produce batch, approximately"
        ),
        LimitRow(
            "producer.batch_upload.SEGMENT_BYTES_MAX",
            "bytes",
            "Size of a data file before encoding; larger batches are split into several files",
        ),
        LimitRow(
            "producer.encoding.PLAIN_BYTES_MAX",
            "bytes",
            "Size up to which untyped batches are encoded without Arrow",
        ),
        LimitRow(
            "producer.encoding.LARGE_MESSAGE_BYTES_MAX",
            "bytes",
            "Size of a value that is written in pieces",
        ),
        LimitRow(
            "producer.uploader.BATCHES_AHEAD_MAX",
            "",
            "Produce batches of a topic that are being uploaded or wait for a commit",
        ),
        LimitRow(
            "producer.uploader.UPLOADS_MAX",
            "",
            "Concurrent uploads of full produce batches of a topic by one process",
        ),
        LimitRow("names.SHARED_FILE_BYTES_MAX", "bytes", "Name of a shared file"),
        LimitRow(
            "topics.log.SHARED_FILES_MAX", "", "Shared files of other processes in one commit"
        ),
        LimitRow(
            "topics.shared_files.WRITERS_MAX",
            "",
            "Other processes whose shared files a process keeps track of",
        ),
        LimitRow(
            "producer.committer.GIVE_WAY_MAX",
            "",
            "Lost races after which a process still waits for the group-commit leader",
        ),
        LimitRow(
            "producer.committer.RESHARE_BYTES_MAX",
            "bytes",
            "Size up to which a file is uploaded again as a shared file",
        ),
        LimitRow(
            "producer.committer.REVOKE_S",
            "s",
            "Time to revoke a shared file before its outcome is reported as unknown",
        ),
        LimitRow("parquet.segment.ROW_GROUP_ROWS_MAX", "records", "Records of a row group"),
        LimitRow(
            "parquet.file_statistics.INDEXED_COLUMNS_MAX",
            "",
            "Columns with statistics, by which other engines skip files",
        ),
        LimitRow(
            "parquet.file_statistics.TEXT_CHARS_MAX",
            "characters",
            "Length of a string in the statistics",
        ),
        LimitRow(
            "parquet.segment.COMPACTED_ROW_GROUP_BYTES",
            "bytes",
            "Decoded size of a row group in a compacted file, approximately",
        ),
        LimitRow(
            "parquet.segment.ROW_GROUP_PARTITION_BYTES",
            "bytes",
            "Size from which the rows of a partition in a file have separate row groups",
        ),
        LimitRow(
            "producer.linger.COMMITS_MAX",
            "times",
            "Commits on local disk, relative to one per `linger.ms`",
        ),
        LimitRow(
            "producer.linger.EXTRA_S_MAX",
            "s",
            "Extension of `linger.ms` while a process loses races for the log",
        ),
        LimitRow(
            "delta.slot_proof.HEAD_PROOF_S",
            "s",
            "Time for which a client relies on its head without checking for log-start markers",
        ),
        LimitRow("groups.offset_commits.COMMIT_TIMEOUT_S", "s", "Time for one offset commit"),
        LimitRow("transactions.state.TIMEOUT_MS_MAX", "ms", "Highest `transaction.timeout.ms`"),
    ),
    "Reading": (
        LimitRow(
            "parquet.segment_file.WHOLE_FILE_BYTES",
            "bytes",
            "Size up to which a data file is fetched in one request",
        ),
        LimitRow("parquet.segment_file.DECODED_BYTES_MAX", "bytes", "Decoded size of a data file"),
        LimitRow(
            "consumer.offset_reset.FIRST_READ_BYTES",
            "bytes",
            "First read of a large file; each further read doubles it",
        ),
        LimitRow("delta.entries.ENTRY_BYTES_MAX", "bytes", "A log entry, also one that is written"),
        LimitRow(
            "delta.checkpoint.CHECKPOINT_BYTES_MAX",
            "bytes",
            "A checkpoint; larger ones are passed over",
        ),
        LimitRow(
            "delta.checkpoint.POINTER_BYTES_MAX",
            "bytes",
            "`_last_checkpoint`; a larger one is ignored",
        ),
        LimitRow(
            "delta.position.READ_AHEAD_MAX",
            "entries",
            "Concurrent requests for log entries while catching up",
        ),
        LimitRow(
            "consumer.tail.ENTRIES_AT_ONCE",
            "entries",
            "Log entries read before records are fetched again",
        ),
        LimitRow("groups.offsets.PENDING_BYTES_MAX", "bytes", "Offsets in one heartbeat object"),
        LimitRow(
            "groups.heartbeat.HEARTBEAT_BYTES_MAX",
            "bytes",
            "Part of a heartbeat object that is read",
        ),
    ),
    "Stores": (
        LimitRow(
            "store.parallel.REQUESTS_MAX",
            "",
            "Concurrent requests of one call that reads many topics",
        ),
        LimitRow(
            "store.objects.PART_BYTES", "bytes", "Size from which an object is uploaded in parts"
        ),
        LimitRow("store.objects.PARTS_IN_FLIGHT", "", "Concurrent uploads of parts"),
        LimitRow(
            "store.object_options.RETRIES",
            "",
            "Retries of a failed request (none for a conditional create)",
        ),
        LimitRow(
            "store.object_options.RETRY_TIMEOUT_MS",
            "ms",
            "Time for a request including its retries",
        ),
        LimitRow(
            "store.probe.PROBE_ATTEMPTS",
            "",
            "Attempts to verify that a store honours create-if-absent",
        ),
        LimitRow(
            "store.folders.UNFINISHED_AGE_MS",
            "ms",
            "Age at which maintenance removes the temporary file of a killed process",
        ),
    ),
    "Maintenance": (
        LimitRow(
            "tools.doctor.RECORDS_BYTES_MAX",
            "bytes",
            "Data files whose records `deltaq doctor` reads, the newest of each topic",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.checkpoint_interval",
            "commits",
            "Commits between two checkpoints",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.keep_entries_min",
            "entries",
            "Newest log entries that are always kept",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.keep_entries_max",
            "entries",
            "Log entries that are kept at most, approximately",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.merge_files",
            "files",
            "Adjacent small files that start a merge",
        ),
        LimitRow(
            "maintenance.file_compaction.MERGED_TARGETS_MAX",
            "files",
            "Output of one merge, in files of `segment.bytes`",
        ),
        LimitRow(
            "maintenance.file_compaction.MERGED_FILES_MAX", "files", "Input files of one merge"
        ),
        LimitRow(
            "maintenance.excluded_files.UNREAD_MAX",
            "files",
            "Unreadable files of a topic in one round of maintenance, beyond which the store counts"
            " as unavailable",
        ),
        LimitRow(
            "maintenance.retention.EXPIRED_FILES_MAX",
            "files",
            "Files that one log entry of retention removes, approximately",
        ),
        LimitRow(
            "maintenance.row_cache.BYTES_MAX",
            "bytes",
            "Row cache of a topic, used by the next merge",
        ),
        LimitRow(
            "maintenance.row_cache.FILE_BYTES_MAX",
            "bytes",
            "Size of a file whose rows are kept in the row cache",
        ),
        LimitRow(
            "topics.maintenance_log.LOCK_HOLD_MAX_S",
            "s",
            "Time for which maintenance can block the producer of the same process",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.checkpoint_rest_s",
            "s",
            "Minimum time between two checkpoints by one writer",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.listed_bytes_max",
            "bytes",
            "Names in the `_delta_log` of a topic on local disk, beyond which its oldest entries "
            "are archived",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.listed_bytes_limit",
            "bytes",
            "The same, from which a producer archives before its next commit",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.archive_interval",
            "commits",
            "Commits between two looks at the size of `_delta_log`",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.dirty_bytes_max",
            "bytes",
            "Uncompacted files in one round of key compaction",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.clean_up_grace_s",
            "s",
            "Time from a log-start marker to the clean-up",
        ),
        LimitRow(
            "maintenance.settings.DEFAULT_SETTINGS.scan_interval_ms",
            "ms",
            "Time between two scans for orphan files",
        ),
        LimitRow(
            "topics.holds.HOLD_MAX_MS", "ms", "Age without renewal at which a hold becomes void"
        ),
        LimitRow("topics.holds.HOLD_BYTES_MAX", "bytes", "A hold; a larger object is none"),
        LimitRow(
            "maintenance.orphan_files.NAMES_OF_NOTE_MAX",
            "files",
            "Files in one list of files to be removed",
        ),
        LimitRow(
            "maintenance.orphan_files.NOTE_BYTES_MAX",
            "bytes",
            "Such a list; a larger one is dropped",
        ),
        LimitRow(
            "maintenance.log_maintenance.REMOVALS_MAX",
            "objects",
            "Log objects that the background maintenance of a consumer removes in one step",
        ),
        LimitRow(
            "maintenance.clock_check.CLOCK_TOLERANCE_S",
            "s",
            "Difference between the machine's clock and the store's clock beyond which nothing is "
            "removed for its age",
        ),
        LimitRow(
            "maintenance.topic_pass.STALE_PLANS_MAX",
            "",
            "Plans of one round that may conflict with other writers",
        ),
        LimitRow(
            "maintenance.throttle.PAUSE_S_MAX",
            "s",
            "Pause of background maintenance between two steps",
        ),
    ),
    "Administration": (
        LimitRow("admin.calls.TIMEOUT_S_MAX", "s", "`request_timeout` of a call"),
        LimitRow(
            "admin.calls.ERRORS_MAX",
            "",
            "Errors that wait for `AdminClient.poll`; older ones are dropped",
        ),
    ),
    "Tools": (
        LimitRow("tools.workbook_limits.ROWS_MAX", "", "Rows of a spreadsheet, with its heading"),
        LimitRow(
            "tools.spreadsheets.CELL_CHARS_MAX",
            "characters",
            "A cell of a spreadsheet that is written",
        ),
        LimitRow(
            "tools.workbook_limits.UNPACKED_BYTES_MAX",
            "bytes",
            "All parts of a spreadsheet that is loaded, unpacked",
        ),
        LimitRow(
            "tools.workbook_limits.ROW_CHARS_MAX",
            "characters",
            "A row of a spreadsheet that is loaded, or all of a part of it that is no row and no "
            "text",
        ),
        LimitRow(
            "tools.workbook_limits.ELEMENTS_MAX",
            "",
            "XML elements of a row of a spreadsheet that is loaded, or of a part without its rows "
            "and texts",
        ),
        LimitRow(
            "tools.workbook_limits.TEXTS_MAX",
            "",
            "Texts that the cells of a spreadsheet that is loaded share",
        ),
        LimitRow(
            "tools.workbook_limits.DEPTH_MAX",
            "levels",
            "Nesting of the XML of a spreadsheet that is loaded",
        ),
        LimitRow(
            "tools.workbook_limits.TOKEN_BYTES_MAX",
            "bytes",
            "A tag in a spreadsheet that is loaded",
        ),
        LimitRow(
            "tools.workbook_limits.DIRECTORY_BYTES_MAX",
            "bytes",
            "The list of the parts of a spreadsheet that is loaded",
        ),
        LimitRow(
            "tools.file_rows.COLUMNS_MAX",
            "columns",
            "Columns of a file that is loaded, or names of a line of JSON",
        ),
        LimitRow(
            "tools.files.ROW_BYTES_MAX",
            "bytes",
            "A row of a CSV file, or a line of JSON, that is loaded",
        ),
        LimitRow(
            "tools.csv_files.HEADING_BYTES_MAX",
            "bytes",
            "The first row of a CSV file that is loaded",
        ),
        LimitRow(
            "parquet.segment_file.DECODED_BYTES_MAX",
            "bytes",
            "Decoded size of a row group of a Parquet file that is loaded",
        ),
        LimitRow(
            "tools.speed.MESSAGES_MAX", "", "Messages that `deltaq bench` writes at full speed"
        ),
    ),
    "The console": (
        LimitRow("console.messages.MESSAGES_MAX", "", "Messages on one page"),
        LimitRow("console.messages.SEARCHED_MAX", "", "Messages that one search reads"),
        LimitRow(
            "console.messages.PIECE_BYTES_MAX",
            "bytes",
            "Decoded size of a row group that a page reads; the records of larger ones are passed "
            "over",
        ),
        LimitRow(
            "console.messages.VALUE_BYTES_MAX",
            "bytes",
            "A value that is decoded, or a row that is shown",
        ),
        LimitRow("console.messages.READ_S", "s", "Time after which a page shows what it has found"),
        LimitRow(
            "console.app.READING_MAX",
            "",
            "Pages that read, such as messages and views, at the same time",
        ),
        LimitRow("console.app.WAITING_MAX", "", "Pages that read, or wait for that"),
        LimitRow("console.view_groups.ROWS_MAX", "", "Rows of a view on one page"),
        LimitRow(
            "console.view_groups.DIFFERENCES_MAX",
            "",
            "Rows on one page that a view lacks, or has too much, of each",
        ),
        LimitRow(
            "console.view_groups.STORED_BYTES_MAX",
            "bytes",
            "Stored size of the topics that a page of views reads for rows, or for a check",
        ),
        LimitRow("console.decoding.VALUE_S", "s", "Time to decode one value with a schema"),
        LimitRow(
            "console.decoding.FAILURES_MAX",
            "",
            "Values of a page that may end the process that decodes them",
        ),
        LimitRow(
            "console.decoding.SCHEMA_CHARS_MAX", "characters", "A schema with all that it refers to"
        ),
        LimitRow(
            "console.decoder_process.MEMORY_BYTES",
            "bytes",
            "Memory of the process that decodes values",
        ),
        LimitRow(
            "console.decoder_process.CPU_S",
            "s",
            "Processor time of that process, which serves one page",
        ),
        LimitRow("console.app.STREAMS_MAX", "", "Live pages that are open at the same time"),
        LimitRow(
            "console.connections.CONNECTIONS_MAX",
            "",
            "Connections at the same time; fewer where the process may open fewer than twice as "
            "many files",
        ),
        LimitRow(
            "console.connections.REQUEST_S", "s", "Time in which a connection sends a whole request"
        ),
        LimitRow(
            "console.connections.ANSWER_S", "s", "Time in which a client takes what was sent to it"
        ),
        LimitRow("console.security.BODY_MAX", "bytes", "A form"),
        LimitRow("console.security.QUERY_MAX", "bytes", "The query of an address"),
        LimitRow("console.security.SESSIONS_MAX", "", "Browsers that are signed in"),
    ),
}


LIMITS_ARE = """\
Limits of sizes, counts and times that are not [settings](config.md). Every queue and every retry is
bounded by a limit or a setting.
"""


def limits_page() -> str:
    """All limits that are not settings."""
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


# --- metrics ---

METRICS = """\
What clients count about themselves, and gauges that are read when metrics are exported: see
[Metrics](../guides/metrics.md). The names follow those of Kafka's clients, and in OpenTelemetry its
conventions for messaging. Nothing is counted while no function listens.

| Metric in Prometheus | Kind | Unit | Labels | In OpenTelemetry | Counted when |
|---|---|---|---|---|---|
"""

METRICS_OF_ROOTS = """

## Of roots

The [console](../guides/console.md) exports these at `/metrics`, in place of an exporter.

| Metric in Prometheus | Kind | Unit | Labels | Is |
|---|---|---|---|---|
"""


def metrics_page() -> str:
    """All metrics."""

    def row(metric: metrics.Metric, *more: str) -> str:
        labels = " ".join(f"`{label}`" for label in metric.labels)
        return (
            "| "
            + " | ".join([f"`{metric.name}`", metric.kind, metric.unit, labels, *more, metric.when])
            + " |"
        )

    of_clients = "\n".join(row(metric, f"`{otel_name(metric)}`") for metric in metrics.METRICS)
    of_roots = "\n".join(map(row, metrics.ROOT_METRICS))
    return (
        "\n".join(["# Metrics\n", GENERATED, METRICS + of_clients])
        + METRICS_OF_ROOTS
        + of_roots
        + "\n"
    )


def test_every_metric_is_on_the_page_and_has_values() -> None:
    defined = {
        name: value for name, value in vars(catalogue).items() if isinstance(value, metrics.Metric)
    }
    modules = [
        path
        for path in (ROOT / "deltaq").rglob("*.py")
        if path.name not in ("__init__.py", "catalogue.py")
    ]
    # A call may be broken after its bracket.
    code = re.sub(r"\(\s+", "(", "".join(path.read_text() for path in modules))
    assert tuple(defined.values()) == metrics.METRICS + metrics.ROOT_METRICS
    values = {
        metrics.Counter: "metrics.{}.add(",
        metrics.Histogram: "metrics.{}.observe(",
        metrics.Gauge: "({}, ",
        metrics.Total: "({}, ",
    }
    assert [
        name for name, metric in defined.items() if values[type(metric)].format(name) not in code
    ] == []


# --- the pages ---

PAGES: dict[str, Callable[[], str]] = {
    "config.md": config_page,
    "errors.md": errors_page,
    "limits.md": limits_page,
    "metrics.md": metrics_page,
}


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_matches_the_code(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name](), "run `make docs`"


@pytest.mark.parametrize(
    ("setting", "value", "left"),
    [
        ("retention.ms", 0, 0),
        ("retention.ms", -1, 4),
        ("retention.bytes", 0, 0),
        ("cleanup.policy", "compact", 1),
    ],
)
def test_maintenance_removes_the_records_listed_on_the_page(
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


def test_the_tables_for_the_documentation_have_a_row_for_every_setting() -> None:
    tables = [
        *map(config_table, ("producer", "consumer", "share consumer", "admin", "topic", "group")),
        table_without_effect(),
    ]
    lines = [table.splitlines() for table in tables]
    assert {line.split("`")[1] for table in lines for line in table[2:]} == {
        *CLIENT_SETTINGS,
        *TOPIC_SETTINGS,
        *GROUP_SETTINGS,
    }
    assert [len({line.count("|") for line in table}) for table in lines] == [1] * len(tables)


def test_every_exception_says_what_happened_and_what_to_do() -> None:
    named = [exception for exception in exceptions() if exception is not errors.KafkaException]
    sentences = {e.__name__: re.findall(r"[.?!](?:\s|$)", inspect.getdoc(e) or "") for e in named}
    assert [name for name, found in sentences.items() if len(found) < 2] == []


def bounds_in_code() -> Iterator[str]:
    """The constants of the package whose names mark them as limits: `..._MAX`."""
    for path in sorted((ROOT / "deltaq").rglob("*.py")):
        where = ".".join(path.relative_to(ROOT / "deltaq").with_suffix("").parts)
        for name in re.findall(r"^([A-Z][A-Z_]*_MAX) = ", path.read_text(), re.MULTILINE):
            yield f"{where}.{name}"


def test_every_bound_in_the_code_is_on_the_page() -> None:
    listed = {limit.where for limits in LIMITS.values() for limit in limits}
    elsewhere = {
        "admin.topics.REPLICATION_FACTOR_MAX",  # has no effect
        # Rates that were measured, by which costs are estimated.
        "tools.cost.COMMITS_PER_S_MAX",
        "tools.cost.SHARED_COMMITS_PER_S_MAX",
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


def write_pages() -> None:
    """Write all pages from the current code."""
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page())


if __name__ == "__main__":
    write_pages()
