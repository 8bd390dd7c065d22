"""What the log of a `transactional.id` says, and how each entry changes it. Pure.

The specification is `docs/internals/format.md`, "Transactions". The domain metadata `deltaq` of the
id's table holds the whole state. Each rule sees the state that the entry would follow, so no clock
decides: of a commit and an abort of the same transaction, and of two producers with one id, the one
that takes the next slot wins.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from deltaq import names
from deltaq.delta.actions import DomainMetadata
from deltaq.delta.table_state import DELTAQ_DOMAIN, TableState
from deltaq.errors import Corrupt, Fenced, Incompatible, InvalidConfig
from deltaq.names import TransactionKey, check_group, check_topic
from deltaq.parquet.column_bounds import ColumnStatistics
from deltaq.serde.json_text import compact_json, strict_json
from deltaq.topics.state import PendingSegment

_QUERY = "spark-"

TIMEOUT_MS_MAX = 900_000
"""Longest `transaction.timeout.ms`: Kafka's default of `transaction.max.timeout.ms`."""

QUERY_TIMEOUT_MS = 24 * 3600 * 1000
"""Milliseconds for which orphan removal keeps the files of a Spark micro-batch that is not decided.
No producer has such a time-out: it tells that a query has begun the epoch.
"""

TRANSACTIONS_FORMAT = 1
"""The format of the log of a `transactional.id`."""


@dataclass(frozen=True, slots=True)
class StagedRecords:
    """The files that a transaction adds to the topic `topic_id`, in the order of their records."""

    topic: str
    topic_id: str
    segments: tuple[PendingSegment, ...]


class Application(NamedTuple):
    """What a topic's `txn` says: an application, and the version up to which it has committed."""

    app_id: str
    version: int


def transactional_id_of(app_id: str) -> str:
    """The `transactional.id` of a Spark query with this `txn` app id."""
    name = f"{_QUERY}{app_id.removeprefix('spark:')}"
    if names.is_name(name):
        return name
    return f"{_QUERY}{hashlib.blake2b(app_id.encode(), digest_size=16).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Decision:
    """A committed transaction: its files by topic, the groups that have offsets of it, and the
    share groups that have acknowledgements of it.

    `version` is that of the entry that has decided it, `life` that of its log: both are "" and 0
    before the decision is in the log. `application` is that of a Spark query; otherwise None.
    """

    key: TransactionKey
    version: int
    topics: tuple[StagedRecords, ...]
    groups: tuple[str, ...]
    application: Application | None = None
    life: str = ""
    share_groups: tuple[str, ...] = ()

    @property
    def published_as(self) -> Application:
        """What the publication adds to each topic as `txn`, without the topic's id. That of an id
        names the life of its log, whose versions begin at 0 again if its folder is removed.
        """
        own = f"{names.encoded_id(self.key.transactional_id)}/{self.life}"
        return self.application or Application(own, self.version)


class AbortReason(enum.Enum):
    """Why another process has aborted the open transaction of a producer."""

    OPERATOR = "operator"
    """`deltaq transactions abort`, which fences the producer, too."""
    TIMEOUT = "timeout"
    """It was older than `transaction.timeout.ms`."""
    READER = "reader"
    """A consumer needed the outcome of its offsets, to begin to read there."""
    LOCK = "lock"
    """The lock of messages that it has acknowledged was over, and a member of their share group
    needed its outcome.
    """


@dataclass(frozen=True, slots=True)
class TransactionHead:
    """A `transactional.id` at one version.

    `life` is the id of the log's metadata, which is another one after its folder was removed.
    `epoch` is that of the newest producer, `number` that of its newest transaction that has ended,
    0 before the first one. `decision` is the newest committed transaction of this epoch, which may
    not be published yet; None before the first one. `timeout_ms` is the producer's
    `transaction.timeout.ms`, `time_ms` the time of the entry. `is_expired`: the id was not used for
    so long that maintenance has fenced its last producer; a new one begins as ever.
    `abort_reason` is that of another process, if one has aborted the newest transaction, or has
    begun this epoch for an operator; otherwise None.
    """

    life: str
    epoch: int
    number: int
    timeout_ms: int
    client_id: str
    time_ms: int
    decision: Decision | None = None
    is_expired: bool = False
    abort_reason: AbortReason | None = None

    def has_committed(self, key: TransactionKey) -> bool:
        """Whether this is the newest committed transaction. Earlier ones are published."""
        return self.decision is not None and self.decision.key == key

    def is_open(self, key: TransactionKey) -> bool:
        """Whether the transaction may still be committed."""
        return self.epoch == key.epoch and self.number < key.number

    @property
    def is_of_query(self) -> bool:
        """Whether a Spark query has the id, by its newest decision, or else by its time-out. The
        files of a query keep the epoch 0.
        """
        if self.decision is not None:
            return self.decision.application is not None
        return self.timeout_ms > TIMEOUT_MS_MAX

    def action(self) -> DomainMetadata:
        """This head as domain metadata."""
        body: dict[str, object] = {
            "format": TRANSACTIONS_FORMAT,
            "life": self.life,
            "epoch": self.epoch,
            "number": self.number,
            "timeout": self.timeout_ms,
            "client": self.client_id,
            "time": self.time_ms,
        }
        if self.decision is not None:
            body["decision"] = _decision_body(self.decision)
        if self.is_expired:
            body["expired"] = True
        if self.abort_reason is not None:
            body["aborted"] = self.abort_reason.value
        return DomainMetadata(DELTAQ_DOMAIN, compact_json(body))


# --- changes ---


def begun(
    head: TransactionHead | None,
    new_life: str,
    timeout_ms: int,
    client_id: str,
    now_ms: int,
    abort_reason: AbortReason | None = None,
) -> TransactionHead:
    """A new producer has the id; with an `abort_reason` none. What the one before has not decided
    is aborted, and what it has decided must be published before. `new_life`: of the log that begins
    if the id has none.
    """
    life = new_life if head is None else head.life
    epoch = _first_epoch(timeout_ms, now_ms) if head is None else head.epoch + 1
    return TransactionHead(life, epoch, 0, timeout_ms, client_id, now_ms, abort_reason=abort_reason)


def _first_epoch(timeout_ms: int, now_ms: int) -> int:
    """The epoch with which a log begins: the time, in microseconds. So no producer, file or pending
    offset of a log of the id that was removed has an epoch of this one, however many producers that
    had. The files of a Spark query have the epoch 0 before there is a log.
    """
    return 0 if timeout_ms > TIMEOUT_MS_MAX else 1000 * now_ms


def committed(head: TransactionHead | None, decision: Decision, now_ms: int) -> TransactionHead:
    """The transaction is committed. Raises Fenced for a producer that does not have the id any
    more, and TransactionAborted.
    """
    key = decision.key
    if head is None or head.epoch != key.epoch:
        raise fenced(key.transactional_id, head)
    if head.number >= key.number:
        raise TransactionAborted(head.abort_reason if head.number == key.number else None)
    return replace(
        head,
        number=key.number,
        time_ms=now_ms,
        decision=decision,
        is_expired=False,  # a Spark query goes on in the epoch that it finds
        abort_reason=None,
    )


def aborted(
    head: TransactionHead | None, key: TransactionKey, reason: AbortReason, now_ms: int
) -> TransactionHead | None:
    """The transaction is aborted; None if it has ended already, or never existed."""
    if head is None or not head.is_open(key):
        return None
    return replace(head, number=key.number, time_ms=now_ms, abort_reason=reason)


def expired(head: TransactionHead, now_ms: int) -> TransactionHead:
    """The id has expired. No producer has the new epoch, so a suspended one of the epoch before can
    never commit again. The newest decision must be published before.
    """
    after = begun(head, "", head.timeout_ms, head.client_id, now_ms)
    return replace(after, is_expired=True)


class LogMixed(Corrupt):
    """The newest entry is of another log of the id than the table. A client that has read a log
    which was removed since, and then reads on in the new one, finds this, too.
    """


class TransactionAborted(Exception):
    """Another process has aborted the transaction, for this `reason` if the log says it."""

    def __init__(self, reason: AbortReason | None) -> None:
        super().__init__(reason)
        self.reason = reason


def fenced(transactional_id: str, head: TransactionHead | None) -> Fenced:
    """The error of a producer that does not have the epoch of its id's `head`, which says why."""
    if head is None:
        what = f"the log of transactional.id {transactional_id!r} was removed"
    elif head.is_expired:
        what = (
            f"transactional.id {transactional_id!r} has expired, because it has committed nothing "
            "for transactional.id.expiration.ms"
        )
    elif head.abort_reason is AbortReason.OPERATOR:
        what = (
            f"an operator has aborted the transaction of transactional.id {transactional_id!r} "
            "(deltaq transactions abort)"
        )
    else:
        return Fenced(
            f"a newer producer with transactional.id {transactional_id!r} has fenced this "
            "instance: close it"
        )
    return Fenced(f"{what}, which fences this instance: close it, and make a new producer")


# --- the format ---


def transaction_head(state: TableState, transactional_id: str, path: str) -> TransactionHead | None:
    """The head in a table state; None for an id that no producer has used. Raises Corrupt,
    Incompatible.
    """
    configuration = state.domains.get(DELTAQ_DOMAIN)
    if configuration is None:
        return None
    try:
        found = _parsed(configuration, transactional_id, path)
    except (ValueError, KeyError, TypeError, InvalidConfig) as error:
        raise Corrupt(
            f"the transactions of this id cannot be parsed: {error}",
            path=path,
            version=state.version,
        ) from error
    if state.metadata is not None and found.life != state.metadata.id:
        raise LogMixed(
            "a producer of a log of this id that was removed has written here: stop all producers "
            "of the id and all maintenance programs, and remove its folder again",
            path=path,
            version=state.version,
        )
    return found


def _parsed(configuration: str, transactional_id: str, path: str) -> TransactionHead:
    body = _object(strict_json(configuration))
    if body.get("format") != TRANSACTIONS_FORMAT:
        raise Incompatible(
            f"the transactions at {path!r} have format {body.get('format')!r}; this deltaq reads "
            f"{TRANSACTIONS_FORMAT}. Upgrade deltaq."
        )
    life, epoch, number = str(body["life"]), _whole(body["epoch"]), _whole(body["number"])
    found = body.get("decision")
    return TransactionHead(
        life,
        epoch,
        number,
        _whole(body["timeout"]),
        str(body["client"]),
        _whole(body["time"]),
        None if found is None else _decision(_object(found), transactional_id, epoch, life),
        body.get("expired") is True,
        next((reason for reason in AbortReason if reason.value == body.get("aborted")), None),
    )


def _decision_body(decision: Decision) -> dict[str, object]:
    body: dict[str, object] = {
        "number": decision.key.number,
        "version": decision.version,
        "topics": {
            staged.topic: {
                "id": staged.topic_id,
                "files": [_segment_body(segment) for segment in staged.segments],
            }
            for staged in decision.topics
        },
        "groups": list(decision.groups),
    }
    if decision.share_groups:
        body["shareGroups"] = list(decision.share_groups)
    if decision.application is not None:
        body["txn"] = list(decision.application)
    return body


def _decision(body: dict[str, Any], transactional_id: str, epoch: int, life: str) -> Decision:
    return Decision(
        TransactionKey(transactional_id, epoch, _whole(body["number"])),
        _whole(body["version"]),
        tuple(
            StagedRecords(
                check_topic(topic), str(of["id"]), tuple(map(_segment, _list(of["files"])))
            )
            for topic, of in _object(body["topics"]).items()
        ),
        tuple(check_group(group) for group in _list(body["groups"])),
        _application(body["txn"]) if "txn" in body else None,
        life,
        tuple(check_group(group) for group in _list(body.get("shareGroups", []))),
    )


def _application(found: object) -> Application:
    app_id, version = _list(found)
    return Application(str(app_id), _whole(version))


def _segment_body(segment: PendingSegment) -> dict[str, object]:
    body: dict[str, object] = {
        "path": segment.path,
        "size": segment.size,
        "rows": segment.rows,
        "crc32": segment.crc32,
        "footer": [segment.footer_bytes, segment.footer_crc32],
        "partitions": segment.partition_rows,
        "timestamps": [segment.min_timestamp_ms, segment.max_timestamp_ms],
        "modified": segment.modified_ms,
        "timed": segment.timed,
        "asOf": segment.as_of,
    }
    if segment.statistics:
        body["statistics"] = [
            [column.name, column.nulls, column.low, column.high] for column in segment.statistics
        ]
    return body


def _segment(found: object) -> PendingSegment:
    body = _object(found)
    path = str(body["path"])
    names.data_key("", path)
    partitions = tuple((_whole(number), _whole(rows)) for number, rows in body["partitions"])
    rows = _whole(body["rows"])
    if not rows or sum(count for _, count in partitions) != rows:
        raise ValueError(f"the partitions of {path!r} do not add up to its rows")
    footer_bytes, footer_crc32 = map(_whole, body["footer"])
    low_ms, high_ms = map(_signed, body["timestamps"])
    return PendingSegment(
        path,
        _whole(body["size"]),
        rows,
        _whole(body["crc32"]),
        footer_bytes,
        footer_crc32,
        partitions,
        low_ms,
        high_ms,
        _whole(body["modified"]),
        timed=body["timed"] is True,
        as_of=_signed(body["asOf"]),
        statistics=_statistics(body.get("statistics", [])),
    )


def _statistics(found: Sequence[Any]) -> tuple[ColumnStatistics, ...]:
    return tuple(
        ColumnStatistics(str(name), _whole(nulls), low, high) for name, nulls, low, high in found
    )


def _object(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found


def _list(found: object) -> list[Any]:
    if not isinstance(found, list):
        raise TypeError("not a list")
    return found


def _signed(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r:.40} is not an integer")
    return value


def _whole(value: object) -> int:
    number = _signed(value)
    if number < 0:
        raise ValueError(f"{number} is not a number from 0")
    return number
