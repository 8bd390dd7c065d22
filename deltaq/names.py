"""Names of topics, groups, transactional ids and versions, and the store keys built from them. No
other module builds or parses keys.

All keys are relative to the root, `/`-separated; a folder ends in `/`. The functions that build
keys check the names passed to them, so no key can point outside its folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from deltaq.errors import InvalidConfig, KafkaError

TOPICS_FOLDER = "topics/"
GROUPS_FOLDER = "groups/"
TRANSACTIONS_FOLDER = "transactions/"
SCHEMAS_FOLDER = "schemas/"
"""The table of the schema registry, which holds all subjects."""

NAME_CHARS_MAX = 249
"""Maximum name length in characters: Kafka's limit. It leaves room for a suffix in a file name of
255 bytes.
"""

VERSION_MAX = 2**63 - 1
"""Greatest version of a Delta log: the protocol keeps versions in 64-bit signed integers."""

LOG_FOLDER = "_delta_log/"
"""The folder of the log, inside the folder of the table."""

SHARED_FILE_BYTES_MAX = 255
"""Maximum length of a shared file's name: the limit of Linux file systems, in bytes."""

_OURS = "_deltaq/"
_SHARED = "shared/"
_STAGED = "staged/"
_HOLD_SUFFIX = ".json"
_SHARED_FOLDER_VERSIONS = 64
_LOOK_PARTS = 1_000_000
_ESCAPE = "~"
_GRAMMAR = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}")
_STAGED_NAME = re.compile(r"([0-9]{1,18})-([0-9]{1,18})-[A-Za-z0-9._-]+\.parquet")
_UNSAFE = re.compile(r"[\x00-\x1f\\:\x7f]")
# A topic named `_delta_log` would make Delta readers treat the folder of all topics as a table.
_RESERVED = frozenset({".", "..", "_delta_log"})
_RULE = (
    f"use 1 to {NAME_CHARS_MAX} of the characters A-Z a-z 0-9 '.' '_' '-', and not '.', '..' or "
    "'_delta_log'"
)


class TransactionKey(NamedTuple):
    """A transaction: the `number`-th, from 1, of the producer that has this `epoch` of the
    `transactional.id`. Of one id, later transactions have greater keys.
    """

    transactional_id: str
    epoch: int
    number: int


def check_topic(name: object) -> str:
    """Return a valid topic name. InvalidConfig (TOPIC_EXCEPTION) if it is invalid; TypeError if not
    a str.
    """
    return _check(name, "topic name", "topic", KafkaError.TOPIC_EXCEPTION)


def check_group(name: object) -> str:
    """Return a valid group id. InvalidConfig (INVALID_GROUP_ID) if it is invalid; TypeError if not
    a str.
    """
    return _check(name, "group.id", "group.id", KafkaError.INVALID_GROUP_ID)


def check_id(name: object, key: str) -> str:
    """Return a valid id for the setting `key`. InvalidConfig (_INVALID_ARG) if invalid; TypeError
    if not a str.
    """
    return _check(name, key, key, KafkaError._INVALID_ARG)


def check_transactional_id(text: object) -> str:
    """Return a valid `transactional.id`: any text that is not too long as a part of keys.
    InvalidConfig (_INVALID_ARG) if it is invalid; TypeError if not a str.
    """
    key = "transactional.id"
    if not isinstance(text, str):
        raise TypeError(f"{key} must be str, not {type(text).__name__}")
    try:
        length = len(encoded_id(text))
    except UnicodeEncodeError:
        length = 0  # half of a surrogate pair
    if not 1 <= length <= NAME_CHARS_MAX:
        raise InvalidConfig(
            f"invalid {key} {_shown(text)}: use 1 to {NAME_CHARS_MAX} bytes of UTF-8, of which each"
            " counts as 3 that is not one of A-Z a-z 0-9 '.' '_' '-'",
            key=key,
        )
    return text


def encoded_id(transactional_id: str) -> str:
    """A `transactional.id` as a part of keys: itself if it is a name. Otherwise each byte of its
    UTF-8 that no name has is `~` and two hexadecimal digits, and so is a `.` or `_` at its
    beginning: `my:app` is `my~3Aapp`.

    With `%`, the paths of data files would have to be encoded once more in Delta's log.
    """
    if is_name(transactional_id):
        return transactional_id
    parts = []
    for at, byte in enumerate(transactional_id.encode()):
        char = chr(byte)
        is_plain = _GRAMMAR.fullmatch(char) and not (at == 0 and char in "._")
        parts.append(char if is_plain else f"{_ESCAPE}{byte:02X}")
    return "".join(parts)


def decoded_id(part: str) -> str | None:
    """The `transactional.id` that `encoded_id` makes this part of; None if there is none."""
    try:
        found = unquote_to_bytes(part.replace(_ESCAPE, "%")).decode()
        return found if encoded_id(check_transactional_id(found)) == part else None
    except (UnicodeError, InvalidConfig):
        return None


def named(parent: str, folders: Iterable[str]) -> Iterator[str]:
    """The topics, groups or transactional ids that have these folders in `parent`. Other folders
    are foreign.
    """
    if parent == TRANSACTIONS_FOLDER:
        return (found for folder in folders if (found := decoded_id(folder)) is not None)
    return filter(is_name, folders)


def is_name(folder: str) -> bool:
    """Whether a folder may be that of a topic or a group: the rule for both names is the same."""
    return _GRAMMAR.fullmatch(folder) is not None and folder not in _RESERVED


def _check(name: object, what: str, key: str, code: int) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{what} must be str, not {type(name).__name__}")
    if not is_name(name):
        raise InvalidConfig(f"invalid {what} {_shown(name)}: {_RULE}", key=key, code=code)
    return name


def _shown(name: str) -> str:
    """The name for an error text: escaped, and cut to 60 characters."""
    return ascii(name) if len(name) <= 60 else f"{name[:60]!a}... ({len(name)} characters)"


def case_twin(name: str, existing: Iterable[str]) -> str | None:
    """A name in `existing` that differs from `name` only in case. On case-folding stores both are
    the same folder.
    """
    folded = name.lower()
    return next((other for other in existing if other != name and other.lower() == folded), None)


def topic_folder(topic: str) -> str:
    """`topics/<topic>/`, the table of a topic."""
    return f"{TOPICS_FOLDER}{check_topic(topic)}/"


def topic_log(topic: str) -> str:
    """`topics/<topic>/_delta_log/`."""
    return topic_folder(topic) + LOG_FOLDER


def group_folder(group: str) -> str:
    """`groups/<group>/`, the table of a consumer group."""
    return f"{GROUPS_FOLDER}{check_group(group)}/"


def transaction_folder(transactional_id: str) -> str:
    """`transactions/<encoded id>/`, the table of a `transactional.id`."""
    return f"{TRANSACTIONS_FOLDER}{encoded_id(check_transactional_id(transactional_id))}/"


def member_folder(group: str) -> str:
    """`groups/<group>/_members/`, the folder of the heartbeat objects."""
    return group_folder(group) + "_members/"


def member_key(group: str, member_id: str) -> str:
    """`groups/<group>/_members/<member id>`, the heartbeat object of one member."""
    return member_folder(group) + _check(
        member_id, "member id", "member_id", KafkaError.UNKNOWN_MEMBER_ID
    )


def member_id(client_id: str, unique_id: str) -> str:
    """`<client id>-<unique id>`, a new member's id. It names a heartbeat object, so a long client
    id is cut to fit.

    The unique id distinguishes members; the client id is for people.
    """
    return f"{client_id[: NAME_CHARS_MAX - 1 - len(unique_id)] or 'deltaq'}-{unique_id}"


def log_entry(log_folder: str, version: int) -> str:
    """`<log_folder>00000000000000000007.json`, the log entry of `version`. ValueError outside
    0..VERSION_MAX.
    """
    return f"{log_folder}{_digits(version)}.json"


def entry_version(key: str) -> int | None:
    """The version of the log entry that `key` (or a bare file name) names; None if it names no log
    entry.
    """
    return _version(key, ".json")


def checkpoint_file(log_folder: str, version: int) -> str:
    """`<log_folder>00000000000000000100.checkpoint.parquet`. ValueError outside 0..VERSION_MAX."""
    return f"{log_folder}{_digits(version)}.checkpoint.parquet"


def checkpoint_version(key: str) -> int | None:
    """The version of the single-file checkpoint that `key` names; None if it names no such
    checkpoint.
    """
    return _version(key, ".checkpoint.parquet")


def last_checkpoint(log_folder: str) -> str:
    """`<log_folder>_last_checkpoint`, Delta's pointer to the newest checkpoint."""
    return log_folder + "_last_checkpoint"


def log_archive_folder(table_folder: str) -> str:
    """`<table_folder>_deltaq/log/`, the log entries that were moved out of `_delta_log/` on a local
    store.
    """
    return f"{table_folder}{_OURS}log/"


def has_log_archive(table_folder: str) -> bool:
    """Whether the table's log may have an archive: a topic's, since other engines read no other
    tables.
    """
    return table_folder.startswith(TOPICS_FOLDER)


def is_archived(key: str) -> bool:
    """Whether `key` lies directly in a log archive."""
    return key.rpartition("/")[0].endswith(f"{_OURS}log")


def log_start_folder(table_folder: str) -> str:
    """`<table_folder>_deltaq/log_start/`, the folder of the log-start markers."""
    return f"{table_folder}{_OURS}log_start/"


def log_start_marker(table_folder: str, version: int) -> str:
    """The marker that allows removal of log entries below `version`. ValueError outside
    0..VERSION_MAX.
    """
    return log_start_folder(table_folder) + _digits(version)


def log_start_version(key: str) -> int | None:
    """The version of the log-start marker that `key` names; None if it names no such marker."""
    return _version(key, "")


def holds_folder(table_folder: str) -> str:
    """`<table_folder>_deltaq/holds/`, the folder of the holds on a topic."""
    return f"{table_folder}{_OURS}holds/"


def hold_key(topic: str, holder: str) -> str:
    """`topics/<topic>/_deltaq/holds/<holder>.json`, the hold of one holder."""
    return f"{holds_folder(topic_folder(topic))}{check_id(holder, 'holder')}{_HOLD_SUFFIX}"


def hold_holder(key: str) -> str | None:
    """The holder of the hold that `key` (or a bare file name) names; None if it names no hold."""
    name = key.rpartition("/")[2]
    holder = name.removesuffix(_HOLD_SUFFIX)
    return holder if holder != name and is_name(holder) else None


def view_state_folder(table_folder: str) -> str:
    """`<table_folder>_deltaq/view_state/`, the folder of the checkpoint of a group of views, in the
    topic of its ticks.
    """
    return f"{table_folder}{_OURS}view_state/"


def orphan_scans_folder(table_folder: str) -> str:
    """`<table_folder>_deltaq/unreferenced/`, the folder of the orphan scans: lists of files to be
    removed.
    """
    return f"{table_folder}{_OURS}unreferenced/"


def root_claims_folder() -> str:
    """`_deltaq/maintenance/`, the folder of the hourly claims to maintain the root."""
    return f"{_OURS}maintenance/"


def root_claim_key(period: int) -> str:
    """The claim of one period: the process that creates it maintains the root. ValueError outside
    0..VERSION_MAX.
    """
    return root_claims_folder() + _digits(period)


def clock_key() -> str:
    """`_deltaq/clock`, the object that maintenance writes to read the store's clock from its
    modification time.
    """
    return f"{_OURS}clock"


def orphan_scan_key(table_folder: str, version: int, part: int = 0) -> str:
    """One part of an orphan scan: files that the table did not name at `version`. ValueError for a
    version outside 0..VERSION_MAX, or a part outside 0..999,999.
    """
    if not 0 <= part < _LOOK_PARTS:
        raise ValueError(f"part {part} of an orphan scan is outside 0..{_LOOK_PARTS - 1}")
    return f"{orphan_scans_folder(table_folder)}{_digits(version)}-{part:06d}"


def orphan_scan_part(key: str) -> tuple[int, int] | None:
    """Version and part of the orphan scan that `key` names; None if it names no orphan scan."""
    digits, _, part = key.rpartition("/")[2].partition("-")
    version = _version(digits, "")
    is_part = len(part) == 6 and part.isascii() and part.isdigit()
    return (version, int(part)) if version is not None and is_part else None


def _digits(version: int) -> str:
    if not 0 <= version <= VERSION_MAX:
        raise ValueError(f"version {version} is outside 0..{VERSION_MAX}")
    return f"{version:020d}"


def _version(key: str, suffix: str) -> int | None:
    name = key.rpartition("/")[2]
    digits = name.removesuffix(suffix)
    if len(digits) != 20 or digits + suffix != name or not (digits.isascii() and digits.isdigit()):
        return None
    version = int(digits)
    return version if version <= VERSION_MAX else None


def data_file_name(unique_id: str) -> str:
    """`<unique id>.parquet`: the name of a data file in its table's folder, which is also its
    `add.path`.
    """
    return _check(unique_id, "unique id", "unique_id", KafkaError._INVALID_ARG) + ".parquet"


def shared_files_folder(table_folder: str) -> str:
    """`<table_folder>shared/`, the folder of shared files: data files that any writer may
    commit.
    """
    return table_folder + _SHARED


def shared_file(version: int, name: str) -> str:
    """`shared/<20 digits>/<name>`, a shared file relative to the table's folder.

    Each folder holds the files of 64 versions, which keeps its listing short.
    """
    return f"{_SHARED}{_digits(version - version % _SHARED_FOLDER_VERSIONS)}/{name}"


def shared_files_after(table_folder: str, version: int) -> str:
    """The `start_after` of a listing that returns the shared files of `version` and later."""
    return table_folder + shared_file(version, _digits(version))


def staged_file(transaction: TransactionKey, unique_id: str) -> str:
    """`staged/<encoded id>/<epoch>-<number>-<unique id>.parquet`, a file of a transaction, relative
    to the table's folder.
    """
    transactional_id, epoch, number = transaction
    folder = staged_files_folder("", transactional_id)
    return f"{folder}{epoch}-{number}-{data_file_name(unique_id)}"


def staged_files_folder(table_folder: str, transactional_id: str | None = None) -> str:
    """`<table_folder>staged/`, the folder of the files of transactions, or of those of one id."""
    if transactional_id is None:
        return table_folder + _STAGED
    return f"{table_folder}{_STAGED}{encoded_id(check_transactional_id(transactional_id))}/"


def parse_staged_file(path: str) -> TransactionKey | None:
    """The transaction of a file, from its path relative to the table's folder; None if the file is
    of none.
    """
    folder, _, rest = path.partition("/")
    encoded, _, name = rest.partition("/")
    found, transactional_id = _STAGED_NAME.fullmatch(name), decoded_id(encoded)
    if f"{folder}/" != _STAGED or found is None or transactional_id is None:
        return None
    return TransactionKey(transactional_id, int(found[1]), int(found[2]))


def data_key(table_folder: str, add_path: str) -> str:
    """The key of the data file that an `add` or `remove` action of a log names.

    `add_path` is URL-encoded, as the Delta protocol requires, and decoded exactly once. A log may
    be damaged or hostile, and maintenance deletes the files that it names. So ValueError unless the
    path is relative, has no `.`, `..` or empty part, no scheme, backslash or control character, and
    lies outside `_delta_log/` and `_deltaq/`.
    """
    try:
        path = unquote_to_bytes(add_path).decode("utf-8")
    except UnicodeError:
        raise ValueError(f"data file path {_shown(add_path)} is not UTF-8") from None
    if _UNSAFE.search(path) is not None:
        raise ValueError(
            f"data file path {_shown(add_path)} has a scheme, a backslash or a control character"
        )
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"data file path {_shown(add_path)} is not relative and normalised")
    if not holds_data(path):
        raise ValueError(f"data file path {_shown(add_path)} names a folder that holds no data")
    return table_folder + path


def holds_data(path: str) -> bool:
    """Whether a path, relative to a table's folder, lies outside the log and outside deltaq's own
    folder.
    """
    # Compared without case: a case-folding store opens the log under any spelling.
    return f"{path.partition('/')[0].lower()}/" not in (LOG_FOLDER, _OURS)
