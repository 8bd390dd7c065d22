"""Errors: Kafka's error codes, and the exceptions that a caller handles differently from each
other.

Every exception of deltaq is a `KafkaException` whose `args[0]` is a `KafkaError`, so code written
for confluent-kafka keeps working. The subclasses carry details as attributes; the docstring of each
names the remedy.
"""

from __future__ import annotations

import builtins
import operator
from functools import total_ordering

_TEXTS: dict[int, str] = {}


def printable(text: str) -> str:
    """The text with line breaks and other unprintable characters escaped as in a Python string.

    Use it for text from outside (a name, a file, a server's answer): unescaped, it could forge
    lines of a log file or move the cursor of a terminal.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _code(value: int, text: str, prefix: str | None = None) -> int:
    """Declare an error code with its default text. The text says who found the error: the client,
    by a negative code, or the broker.
    """
    where = "Local: " if value < 0 else "Broker: "
    _TEXTS[value] = (where if prefix is None else prefix) + text
    return value


@total_ordering
class KafkaError:
    """An error as a value: a code, a text and three flags. `KafkaException` is the exception that
    carries it.

    Negative codes arise in the client; positive codes are those of a Kafka broker. Numbers, names
    and texts are those of librdkafka. Compares, orders and hashes like its integer code.
    """

    __slots__ = ("_code", "_fatal", "_reason", "_retriable", "_txn_requires_abort")

    _BAD_MSG = _code(-199, "Bad message format")
    _BAD_COMPRESSION = _code(-198, "Invalid compressed data")
    _DESTROY = _code(-197, "Broker handle destroyed for termination")
    _FAIL = _code(-196, "Communication failure with broker")
    _TRANSPORT = _code(-195, "Broker transport failure")
    _CRIT_SYS_RESOURCE = _code(-194, "Critical system resource failure")
    _RESOLVE = _code(-193, "Host resolution failure")
    _MSG_TIMED_OUT = _code(-192, "Message timed out")
    _PARTITION_EOF = _code(-191, "Broker: No more messages", prefix="")
    _UNKNOWN_PARTITION = _code(-190, "Unknown partition")
    _FS = _code(-189, "File or filesystem error")
    _UNKNOWN_TOPIC = _code(-188, "Unknown topic")
    _ALL_BROKERS_DOWN = _code(-187, "All broker connections are down")
    _INVALID_ARG = _code(-186, "Invalid argument or configuration")
    _TIMED_OUT = _code(-185, "Timed out")
    _QUEUE_FULL = _code(-184, "Queue full")
    _ISR_INSUFF = _code(-183, "ISR count insufficient")
    _NODE_UPDATE = _code(-182, "Broker node update")
    _SSL = _code(-181, "SSL error")
    _WAIT_COORD = _code(-180, "Waiting for coordinator")
    _UNKNOWN_GROUP = _code(-179, "Unknown group")
    _IN_PROGRESS = _code(-178, "Operation in progress")
    _PREV_IN_PROGRESS = _code(-177, "Previous operation in progress")
    _EXISTING_SUBSCRIPTION = _code(-176, "Existing subscription")
    _ASSIGN_PARTITIONS = _code(-175, "Assign partitions")
    _REVOKE_PARTITIONS = _code(-174, "Revoke partitions")
    _CONFLICT = _code(-173, "Conflicting use")
    _STATE = _code(-172, "Erroneous state")
    _UNKNOWN_PROTOCOL = _code(-171, "Unknown protocol")
    _NOT_IMPLEMENTED = _code(-170, "Not implemented")
    _AUTHENTICATION = _code(-169, "Authentication failure")
    _NO_OFFSET = _code(-168, "No offset stored")
    _OUTDATED = _code(-167, "Outdated")
    _TIMED_OUT_QUEUE = _code(-166, "Timed out in queue")
    _UNSUPPORTED_FEATURE = _code(-165, "Required feature not supported by broker")
    _WAIT_CACHE = _code(-164, "Awaiting cache update")
    _INTR = _code(-163, "Operation interrupted")
    _KEY_SERIALIZATION = _code(-162, "Key serialization error")
    _VALUE_SERIALIZATION = _code(-161, "Value serialization error")
    _KEY_DESERIALIZATION = _code(-160, "Key deserialization error")
    _VALUE_DESERIALIZATION = _code(-159, "Value deserialization error")
    _PARTIAL = _code(-158, "Partial response")
    _READ_ONLY = _code(-157, "Read-only object")
    _NOENT = _code(-156, "No such entry")
    _UNDERFLOW = _code(-155, "Read underflow")
    _INVALID_TYPE = _code(-154, "Invalid type")
    _RETRY = _code(-153, "Retry operation")
    _PURGE_QUEUE = _code(-152, "Purged in queue")
    _PURGE_INFLIGHT = _code(-151, "Purged in flight")
    _FATAL = _code(-150, "Fatal error")
    _INCONSISTENT = _code(-149, "Inconsistent state")
    _GAPLESS_GUARANTEE = _code(-148, "Gap-less ordering would not be guaranteed if proceeding")
    _MAX_POLL_EXCEEDED = _code(
        -147, "Maximum application poll interval (max.poll.interval.ms) exceeded"
    )
    _UNKNOWN_BROKER = _code(-146, "Unknown broker")
    _NOT_CONFIGURED = _code(-145, "Functionality not configured")
    _FENCED = _code(-144, "This instance has been fenced by a newer instance")
    _APPLICATION = _code(-143, "Application generated error")
    _ASSIGNMENT_LOST = _code(-142, "Group partition assignment lost")
    _NOOP = _code(-141, "No operation performed")
    _AUTO_OFFSET_RESET = _code(-140, "No offset to automatically reset to")
    _LOG_TRUNCATION = _code(-139, "Partition log truncation detected")
    _INVALID_DIFFERENT_RECORD = _code(
        -138, "an invalid record in the same batch caused the failure of this message too"
    )
    _DESTROY_BROKER = _code(-137, "Broker handle destroyed without termination")
    UNKNOWN = _code(-1, "Unknown broker error", prefix="")
    NO_ERROR = _code(0, "Success", prefix="")
    OFFSET_OUT_OF_RANGE = _code(1, "Offset out of range")
    INVALID_MSG = _code(2, "Invalid message")
    UNKNOWN_TOPIC_OR_PART = _code(3, "Unknown topic or partition")
    INVALID_MSG_SIZE = _code(4, "Invalid message size")
    LEADER_NOT_AVAILABLE = _code(5, "Leader not available")
    NOT_LEADER_FOR_PARTITION = _code(6, "Not leader for partition")
    REQUEST_TIMED_OUT = _code(7, "Request timed out")
    BROKER_NOT_AVAILABLE = _code(8, "Broker not available")
    REPLICA_NOT_AVAILABLE = _code(9, "Replica not available")
    MSG_SIZE_TOO_LARGE = _code(10, "Message size too large")
    STALE_CTRL_EPOCH = _code(11, "StaleControllerEpochCode")
    OFFSET_METADATA_TOO_LARGE = _code(12, "Offset metadata string too large")
    NETWORK_EXCEPTION = _code(13, "Broker disconnected before response received")
    COORDINATOR_LOAD_IN_PROGRESS = _code(14, "Coordinator load in progress")
    COORDINATOR_NOT_AVAILABLE = _code(15, "Coordinator not available")
    NOT_COORDINATOR = _code(16, "Not coordinator")
    TOPIC_EXCEPTION = _code(17, "Invalid topic")
    RECORD_LIST_TOO_LARGE = _code(18, "Message batch larger than configured server segment size")
    NOT_ENOUGH_REPLICAS = _code(19, "Not enough in-sync replicas")
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = _code(
        20, "Message(s) written to insufficient number of in-sync replicas"
    )
    INVALID_REQUIRED_ACKS = _code(21, "Invalid required acks value")
    ILLEGAL_GENERATION = _code(22, "Specified group generation id is not valid")
    INCONSISTENT_GROUP_PROTOCOL = _code(23, "Inconsistent group protocol")
    INVALID_GROUP_ID = _code(24, "Invalid group.id")
    UNKNOWN_MEMBER_ID = _code(25, "Unknown member")
    INVALID_SESSION_TIMEOUT = _code(26, "Invalid session timeout")
    REBALANCE_IN_PROGRESS = _code(27, "Group rebalance in progress")
    INVALID_COMMIT_OFFSET_SIZE = _code(28, "Commit offset data size is not valid")
    TOPIC_AUTHORIZATION_FAILED = _code(29, "Topic authorization failed")
    GROUP_AUTHORIZATION_FAILED = _code(30, "Group authorization failed")
    CLUSTER_AUTHORIZATION_FAILED = _code(31, "Cluster authorization failed")
    INVALID_TIMESTAMP = _code(32, "Invalid timestamp")
    UNSUPPORTED_SASL_MECHANISM = _code(33, "Unsupported SASL mechanism")
    ILLEGAL_SASL_STATE = _code(34, "Request not valid in current SASL state")
    UNSUPPORTED_VERSION = _code(35, "API version not supported")
    TOPIC_ALREADY_EXISTS = _code(36, "Topic already exists")
    INVALID_PARTITIONS = _code(37, "Invalid number of partitions")
    INVALID_REPLICATION_FACTOR = _code(38, "Invalid replication factor")
    INVALID_REPLICA_ASSIGNMENT = _code(39, "Invalid replica assignment")
    INVALID_CONFIG = _code(40, "Configuration is invalid")
    NOT_CONTROLLER = _code(41, "Not controller for cluster")
    INVALID_REQUEST = _code(42, "Invalid request")
    UNSUPPORTED_FOR_MESSAGE_FORMAT = _code(43, "Message format on broker does not support request")
    POLICY_VIOLATION = _code(44, "Policy violation")
    OUT_OF_ORDER_SEQUENCE_NUMBER = _code(45, "Broker received an out of order sequence number")
    DUPLICATE_SEQUENCE_NUMBER = _code(46, "Broker received a duplicate sequence number")
    INVALID_PRODUCER_EPOCH = _code(47, "Producer attempted an operation with an old epoch")
    INVALID_TXN_STATE = _code(
        48, "Producer attempted a transactional operation in an invalid state"
    )
    INVALID_PRODUCER_ID_MAPPING = _code(
        49,
        "Producer attempted to use a producer id which is not currently assigned to its "
        "transactional id",
    )
    INVALID_TRANSACTION_TIMEOUT = _code(
        50,
        "Transaction timeout is larger than the maximum value allowed by the broker's "
        "max.transaction.timeout.ms",
    )
    CONCURRENT_TRANSACTIONS = _code(
        51,
        "Producer attempted to update a transaction while another concurrent operation on the "
        "same transaction was ongoing",
    )
    TRANSACTION_COORDINATOR_FENCED = _code(
        52,
        "Indicates that the transaction coordinator sending a WriteTxnMarker is no longer the "
        "current coordinator for a given producer",
    )
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = _code(53, "Transactional Id authorization failed")
    SECURITY_DISABLED = _code(54, "Security features are disabled")
    OPERATION_NOT_ATTEMPTED = _code(55, "Operation not attempted")
    KAFKA_STORAGE_ERROR = _code(56, "Disk error when trying to access log file on disk")
    LOG_DIR_NOT_FOUND = _code(
        57, "The user-specified log directory is not found in the broker config"
    )
    SASL_AUTHENTICATION_FAILED = _code(58, "SASL Authentication failed")
    UNKNOWN_PRODUCER_ID = _code(59, "Unknown Producer Id")
    REASSIGNMENT_IN_PROGRESS = _code(60, "Partition reassignment is in progress")
    DELEGATION_TOKEN_AUTH_DISABLED = _code(61, "Delegation Token feature is not enabled")
    DELEGATION_TOKEN_NOT_FOUND = _code(62, "Delegation Token is not found on server")
    DELEGATION_TOKEN_OWNER_MISMATCH = _code(63, "Specified Principal is not valid Owner/Renewer")
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = _code(
        64, "Delegation Token requests are not allowed on this connection"
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = _code(65, "Delegation Token authorization failed")
    DELEGATION_TOKEN_EXPIRED = _code(66, "Delegation Token is expired")
    INVALID_PRINCIPAL_TYPE = _code(67, "Supplied principalType is not supported")
    NON_EMPTY_GROUP = _code(68, "The group is not empty")
    GROUP_ID_NOT_FOUND = _code(69, "The group id does not exist")
    FETCH_SESSION_ID_NOT_FOUND = _code(70, "The fetch session ID was not found")
    INVALID_FETCH_SESSION_EPOCH = _code(71, "The fetch session epoch is invalid")
    LISTENER_NOT_FOUND = _code(72, "No matching listener")
    TOPIC_DELETION_DISABLED = _code(73, "Topic deletion is disabled")
    FENCED_LEADER_EPOCH = _code(74, "Leader epoch is older than broker epoch")
    UNKNOWN_LEADER_EPOCH = _code(75, "Leader epoch is newer than broker epoch")
    UNSUPPORTED_COMPRESSION_TYPE = _code(76, "Unsupported compression type")
    STALE_BROKER_EPOCH = _code(77, "Broker epoch has changed")
    OFFSET_NOT_AVAILABLE = _code(78, "Leader high watermark is not caught up")
    MEMBER_ID_REQUIRED = _code(79, "Group member needs a valid member ID")
    PREFERRED_LEADER_NOT_AVAILABLE = _code(80, "Preferred leader was not available")
    GROUP_MAX_SIZE_REACHED = _code(81, "Consumer group has reached maximum size")
    FENCED_INSTANCE_ID = _code(
        82, "Static consumer fenced by other consumer with same group.instance.id"
    )
    ELIGIBLE_LEADERS_NOT_AVAILABLE = _code(83, "Eligible partition leaders are not available")
    ELECTION_NOT_NEEDED = _code(84, "Leader election not needed for topic partition")
    NO_REASSIGNMENT_IN_PROGRESS = _code(85, "No partition reassignment is in progress")
    GROUP_SUBSCRIBED_TO_TOPIC = _code(
        86, "Deleting offsets of a topic while the consumer group is subscribed to it"
    )
    INVALID_RECORD = _code(87, "Broker failed to validate record")
    UNSTABLE_OFFSET_COMMIT = _code(88, "There are unstable offsets that need to be cleared")
    THROTTLING_QUOTA_EXCEEDED = _code(89, "Throttling quota has been exceeded")
    PRODUCER_FENCED = _code(
        90, "There is a newer producer with the same transactionalId which fences the current one"
    )
    RESOURCE_NOT_FOUND = _code(91, "Request illegally referred to resource that does not exist")
    DUPLICATE_RESOURCE = _code(92, "Request illegally referred to the same resource twice")
    UNACCEPTABLE_CREDENTIAL = _code(
        93, "Requested credential would not meet criteria for acceptability"
    )
    INCONSISTENT_VOTER_SET = _code(
        94,
        "Indicates that the either the sender or recipient of a voter-only request is not one of "
        "the expected voters",
    )
    INVALID_UPDATE_VERSION = _code(95, "Invalid update version")
    FEATURE_UPDATE_FAILED = _code(96, "Unable to update finalized features due to server error")
    PRINCIPAL_DESERIALIZATION_FAILURE = _code(
        97, "Request principal deserialization failed during forwarding"
    )
    UNKNOWN_TOPIC_ID = _code(100, "Unknown topic id")
    INCONSISTENT_TOPIC_ID = _code(
        103, "The log's topic ID did not match the topic ID in the request"
    )
    FENCED_MEMBER_EPOCH = _code(110, "The member epoch is fenced by the group coordinator")
    UNRELEASED_INSTANCE_ID = _code(
        111, "The instance ID is still used by another member in the consumer group"
    )
    UNSUPPORTED_ASSIGNOR = _code(
        112, "The assignor or its version range is not supported by the consumer group"
    )
    STALE_MEMBER_EPOCH = _code(113, "The member epoch is stale")
    MISMATCHED_ENDPOINT_TYPE = _code(114, "The request was sent to an endpoint of the wrong type")
    UNSUPPORTED_ENDPOINT_TYPE = _code(115, "This endpoint type is not supported yet")
    UNKNOWN_CONTROLLER_ID = _code(116, "This controller ID is not known")
    UNKNOWN_SUBSCRIPTION_ID = _code(
        117, "Client sent a push telemetry request with an invalid or outdated subscription ID"
    )
    TELEMETRY_TOO_LARGE = _code(
        118,
        "Client sent a push telemetry request larger than the maximum size the broker will accept",
    )
    INVALID_REGISTRATION = _code(
        119, "The controller has considered the broker registration to be invalid"
    )
    TRANSACTION_ABORTABLE = _code(120, "The server encountered an error with the transaction")
    INVALID_RECORD_STATE = _code(121, "The record state is invalid")
    SHARE_SESSION_NOT_FOUND = _code(122, "The share session was not found")
    INVALID_SHARE_SESSION_EPOCH = _code(123, "The share session epoch is invalid")
    FENCED_STATE_EPOCH = _code(124, "The share-group state epoch did not match")
    INVALID_VOTER_KEY = _code(125, "The voter key doesn't match the receiving replica's key")
    DUPLICATE_VOTER = _code(126, "The voter is already part of the set of voters")
    VOTER_NOT_FOUND = _code(127, "The voter is not part of the set of voters")
    INVALID_REGULAR_EXPRESSION = _code(128, "The regular expression is not valid")
    REBOOTSTRAP_REQUIRED = _code(
        129, "Client metadata is stale, client should rebootstrap to obtain new metadata"
    )
    STREAMS_INVALID_TOPOLOGY = _code(130, "The supplied topology is invalid")
    STREAMS_INVALID_TOPOLOGY_EPOCH = _code(131, "The supplied topology epoch is invalid")
    STREAMS_TOPOLOGY_FENCED = _code(132, "The supplied topology epoch is outdated")
    SHARE_SESSION_LIMIT_REACHED = _code(133, "The limit of share sessions has been reached")

    def __init__(
        self,
        error: int,
        reason: builtins.str | None = None,
        fatal: bool = False,
        retriable: bool = False,
        txn_requires_abort: bool = False,
    ) -> None:
        """`reason` replaces the default text of the code."""
        if reason is not None and not isinstance(reason, builtins.str):
            raise TypeError(f"reason must be str or None, not {type(reason).__name__}")
        self._code = operator.index(error)
        self._reason = reason
        self._fatal = bool(fatal)
        self._retriable = bool(retriable)
        self._txn_requires_abort = bool(txn_requires_abort)

    def code(self) -> int:
        """The number, e.g. `KafkaError.UNKNOWN_TOPIC_OR_PART` (3)."""
        return self._code

    def name(self) -> builtins.str:
        """The name of the code, e.g. `"UNKNOWN_TOPIC_OR_PART"`."""
        return _NAMES.get(self._code, f"ERR_{self._code}?")

    def str(self) -> builtins.str:
        """The text: the reason given, or else the default text of the code."""
        return (
            _TEXTS.get(self._code, f"Err-{self._code}?") if self._reason is None else self._reason
        )

    def fatal(self) -> bool:
        """True if this client instance can no longer be used."""
        return self._fatal

    def retriable(self) -> bool:
        """True if the same call may succeed when repeated."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """True if the current transaction must be aborted with `abort_transaction()`."""
        return self._txn_requires_abort

    def __repr__(self) -> builtins.str:
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self.str()}"}}'

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(self._code)

    def __eq__(self, other: object) -> bool:
        # False, not NotImplemented: the reflected comparison of an object that equals everything
        # would be true.
        code = _code_of(other)
        return code is not None and self._code == code

    def __lt__(self, other: object) -> bool:
        code = _code_of(other)
        return NotImplemented if code is None else self._code < code


# Dunder names are left out: newer Python versions add integer attributes to a class
# (`__firstlineno__`).
_NAMES: dict[int, str] = {
    value: name
    for name, value in vars(KafkaError).items()
    if isinstance(value, int) and not name.startswith("__")
}


def _code_of(other: object) -> int | None:
    if isinstance(other, KafkaError):
        return other.code()
    return other if isinstance(other, int) else None


class IllegalStateException(RuntimeError):
    """A share consumer was called in a state in which it cannot answer: see the text. The name is
    that of confluent-kafka.
    """


class ConcurrentModificationException(RuntimeError):
    """A share consumer was called while another thread was inside one of its calls. Use one share
    consumer for each thread. The name is that of confluent-kafka.
    """


class KafkaException(Exception):
    """Base class of every exception about topics, groups and stores; `args[0]` is the
    `KafkaError`.
    """

    @property
    def error(self) -> KafkaError:
        """`args[0]`, typed; UNKNOWN if the exception was built from something other than a
        `KafkaError`.
        """
        first = self.args[0] if self.args else None
        return first if isinstance(first, KafkaError) else KafkaError(KafkaError.UNKNOWN, str(self))

    def __reduce__(self) -> tuple[object, ...]:
        # The constructors of the subclasses do not take `args`, so unpickling must not call them.
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(cls: type[KafkaException], args: tuple[object, ...]) -> KafkaException:
    return cls.__new__(cls, *args)


class InvalidConfig(KafkaException):
    """A setting or an argument is invalid, and the call had no effect. Correct the setting that
    `key` names.
    """

    def __init__(
        self, reason: str, *, key: str | None = None, code: int = KafkaError._INVALID_ARG
    ) -> None:
        super().__init__(KafkaError(code, reason))
        self.key = key


class UnknownTopic(KafkaException):
    """The topic or the partition does not exist. Create it, or correct the topic name or the
    partition number.
    """

    def __init__(
        self,
        topic: str,
        *,
        partition: int | None = None,
        reason: str | None = None,
        code: int = KafkaError.UNKNOWN_TOPIC_OR_PART,
    ) -> None:
        what = (
            f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"
        )
        super().__init__(KafkaError(code, reason or f"{what} does not exist"))
        self.topic = topic
        self.partition = partition


class TopicExists(KafkaException):
    """A topic of this name already exists. Use it, or choose another name."""

    def __init__(self, topic: str, *, reason: str | None = None) -> None:
        super().__init__(
            KafkaError(KafkaError.TOPIC_ALREADY_EXISTS, reason or f"topic {topic!r} already exists")
        )
        self.topic = topic


class QueueFull(KafkaException, BufferError):
    """The producer's queue is full, and the message was not queued. Call `poll()`, then produce the
    message again.
    """

    def __init__(self) -> None:
        super().__init__(KafkaError(KafkaError._QUEUE_FULL, retriable=True))

    def __str__(self) -> str:
        # The text of confluent-kafka's BufferError: programs compare it.
        return self.error.str()


class MessageTooLarge(KafkaException):
    """The message exceeds the size limit and was not queued. Split it, or raise the limits of the
    topic and client.
    """

    def __init__(self, *, size: int, limit: int, topic: str | None = None) -> None:
        where = "" if topic is None else f" of topic {topic!r}"
        reason = f"the message has {size} bytes, more than the limit{where} of {limit} bytes"
        super().__init__(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, reason))
        self.size = size
        self.limit = limit
        self.topic = topic


class InvalidValue(KafkaException):
    """The value does not match the topic's schema and was not queued. Correct the field that
    `field` names.
    """

    def __init__(self, reason: str, *, field: str | None = None, topic: str | None = None) -> None:
        prefix = "" if field is None else f"field {field!r}: "
        super().__init__(KafkaError(KafkaError._VALUE_SERIALIZATION, prefix + reason))
        self.field = field
        self.topic = topic


class Fenced(KafkaException):
    """Another instance has replaced this one, and the refused operation had no effect.

    A consumer has lost the partition or its membership, which is not fatal: discard unfinished
    work, which is delivered again to the new owner. Close a producer: it does not have its
    `transactional.id` any more. A newer one has it, or the id has expired, or an operator has
    aborted what it had open; the error says which.
    """

    def __init__(self, reason: str, *, code: int = KafkaError._FENCED, fatal: bool = True) -> None:
        super().__init__(KafkaError(code, reason, fatal=fatal))


class GroupInUse(KafkaException):
    """The group has a live member, so its committed offsets cannot be deleted. Close its consumers
    first, or wait until their sessions time out.
    """

    def __init__(self, group: str, *, reason: str | None = None) -> None:
        text = reason or f"group {group!r} already has a live member"
        super().__init__(KafkaError(KafkaError.NON_EMPTY_GROUP, text))
        self.group = group


class OutcomeUnknown(KafkaException):
    """The store did not confirm the write: it may have happened, may still happen, or may never
    happen.

    Call `Producer.resolve(topic, token)` to make the outcome final. Producing the messages again
    before that may duplicate them.
    """

    def __init__(self, reason: str, *, token: str, topic: str | None = None) -> None:
        super().__init__(KafkaError(KafkaError._MSG_TIMED_OUT, f"{reason} (token {token})"))
        self.token = token
        self.topic = topic


class OffsetOutOfRange(KafkaException):
    """The requested offset is below the start or above the end of the partition.

    Seek to an offset from `earliest` to `latest`, or set `auto.offset.reset` to `earliest` or
    `latest`.
    """

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        requested: int,
        earliest: int,
        latest: int,
        remedy: str = "",
    ) -> None:
        reason = (
            f"offset {requested} of topic {topic!r} partition {partition} is out of range: "
            f"the topic holds {earliest} up to, not including, {latest}"
        )
        reason = f"{reason}; {remedy}" if remedy else reason
        super().__init__(KafkaError(KafkaError.OFFSET_OUT_OF_RANGE, reason))
        self.topic = topic
        self.partition = partition
        self.requested = requested
        self.earliest = earliest
        self.latest = latest


class Corrupt(KafkaException):
    """Stored data is damaged. Reading stops, because skipping the data would lose records silently.

    Restore `path` from a copy of the storage. If it is a data file, you can also seek past it and
    accept the loss.
    """

    def __init__(self, reason: str, *, path: str, version: int | None = None) -> None:
        where = path if version is None else f"{path} (version {version})"
        # Path and reason may quote the damaged file.
        super().__init__(KafkaError(KafkaError._BAD_MSG, printable(f"{where}: {reason}")))
        self.path = path
        self.version = version


class Incompatible(KafkaException):
    """The table was written by a newer deltaq or by other software. Upgrade deltaq, or use another
    root or topic.
    """

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        text = reason if path is None else f"{path}: {reason}"
        super().__init__(KafkaError(KafkaError.UNSUPPORTED_VERSION, printable(text)))
        self.path = path


class Unavailable(KafkaException):
    """The store did not answer or refused the request. Check address, network and permissions, then
    retry.

    The code is _TRANSPORT, or _TIMED_OUT from calls for which Kafka's clients wait as long as they
    may.
    """

    def __init__(
        self, reason: str, *, retriable: bool = True, code: int = KafkaError._TRANSPORT
    ) -> None:
        super().__init__(KafkaError(code, reason, retriable=retriable))

    def as_timeout(self) -> Unavailable:
        """This error with the code _TIMED_OUT, unless a retry would not help."""
        error = self.error
        return Unavailable(error.str(), code=KafkaError._TIMED_OUT) if error.retriable() else self


class UnsafeStore(KafkaException):
    """The store does not honour create-if-absent, so producers could overwrite each other. Use
    another store.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(KafkaError(KafkaError._UNSUPPORTED_FEATURE, reason))


class WrongState(KafkaException):
    """The call is not allowed in the current state of the client. Correct the order of calls in the
    program.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(KafkaError(KafkaError._STATE, reason))
