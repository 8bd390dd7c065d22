"""All metrics: of clients, which count events, and of roots, which the console reads.

Names follow Kafka's metrics of clients where Kafka has one (`record-send-total`, `records-lag`),
and in OpenTelemetry the conventions for messaging.
"""

from __future__ import annotations

from deltaq.metrics.events import Convention, Counter, Gauge, Histogram, Metric, Total

_SENT = "messaging.client.sent.messages"
_CONSUMED = "messaging.client.consumed.messages"
_DURATION = "messaging.client.operation.duration"


def _operation(name: str, kind: str) -> dict[str, str]:
    return {"messaging.operation.name": name, "messaging.operation.type": kind}


# --- the work of clients ---

RECORDS_SENT = Counter(
    "deltaq_producer_record_send_total",
    "records",
    "Records are committed to a topic.",
    convention=Convention(_SENT, _operation("produce", "send")),
)
BYTES_SENT = Counter(
    "deltaq_producer_byte_total",
    "bytes",
    "Records are committed: the bytes of their keys, values and headers before compression.",
)
RECORD_ERRORS = Counter(
    "deltaq_producer_record_error_total",
    "records",
    "Records are reported as failed. `error` is the name of the error.",
    labels=("topic", "error"),
    convention=Convention(_SENT, _operation("produce", "send")),
)
REQUEST_LATENCY = Histogram(
    "deltaq_producer_request_latency_seconds",
    "seconds",
    "A batch is committed: the time since its records were taken for upload. Its count is the "
    "number of batches.",
    convention=Convention(_DURATION, _operation("produce", "send")),
)
RECORDS_CONSUMED = Counter(
    "deltaq_consumer_records_consumed_total",
    "records",
    "Records are fetched, and ready for `poll`.",
    convention=Convention(_CONSUMED, _operation("consume", "receive")),
)
BYTES_CONSUMED = Counter(
    "deltaq_consumer_bytes_consumed_total", "bytes", "Records are fetched: their bytes in memory."
)
FETCH_LATENCY = Histogram(
    "deltaq_consumer_fetch_latency_seconds",
    "seconds",
    "Files with records are read from the store, decoded, and queued for `poll`: the time that "
    "takes.",
    convention=Convention(_DURATION, _operation("consume", "receive")),
)
OFFSET_COMMIT_LATENCY = Histogram(
    "deltaq_consumer_commit_latency_seconds",
    "seconds",
    "Offsets are committed to the group's log: the time of the commit.",
    labels=("group",),
    convention=Convention(_DURATION, _operation("commit", "settle")),
)
STORE_REQUESTS = Counter(
    "deltaq_store_requests_total",
    "requests",
    "A request is sent to an object store, without the retries of its HTTP client. A large object "
    "is one `put`.",
    labels=("operation",),
)

# --- what goes wrong ---

PIPELINED_BATCHES = Counter(
    "deltaq_producer_pipelined_batches_total",
    "batches",
    "A batch is to be shared with other writers before the batch ahead of it is committed.",
    labels=(),
)
UNKNOWN_OUTCOMES = Counter(
    "deltaq_producer_unknown_outcomes_total",
    "batches",
    "A batch is reported with `OutcomeUnknown`, since another writer may still commit its shared "
    "file.",
)
REVOCATIONS = Counter(
    "deltaq_producer_revocations_total",
    "commits",
    "Shared files of failed batches are revoked. `outcome` is `committed` if another writer had "
    "committed one of them before, otherwise `revoked`.",
    labels=("topic", "outcome"),
)
TRANSACTIONS = Counter(
    "deltaq_producer_transactions_total",
    "transactions",
    "Transactions end. `outcome` is `committed` or `aborted`.",
    labels=("outcome",),
)
TRANSACTIONS_PUBLISHED = Counter(
    "deltaq_transactions_published_by_others_total",
    "transactions",
    "Maintenance or a consumer publishes a decided transaction, since its producer has not done so "
    "everywhere.",
    labels=(),
)
PRODUCERS_FENCED = Counter(
    "deltaq_producer_fenced_total",
    "producers",
    "A transactional producer finds that a newer one has its `transactional.id`, that the id has "
    "expired, or that an operator has aborted it.",
    labels=(),
)
TRANSACTION_LATENCY = Histogram(
    "deltaq_producer_transaction_commit_latency_seconds",
    "seconds",
    "Transactions are committed: from the call to their publication.",
    labels=(),
)
VIEW_TICK_LATENCY = Histogram(
    "deltaq_views_tick_latency_seconds",
    "seconds",
    "A runner publishes a tick of SQL views. `step` is `cut`, `evaluate` or `publish`.",
    labels=("group", "step"),
)
VIEW_ROWS = Counter(
    "deltaq_views_rows_total",
    "rows",
    "Rows of SQL views come, change or go with a tick.",
    labels=("group",),
)
EXPIRED_UPLOADS = Counter(
    "deltaq_producer_expired_uploads_total",
    "files",
    "Uploaded files waited so long for their commit that they may have been removed as orphans; "
    "they are uploaded again.",
)
MISSING_FILES = Counter(
    "deltaq_consumer_missing_files_total",
    "files",
    "A data file is missing when a consumer reads it, usually because it was compacted meanwhile.",
)
STALE_REWRITES = Counter(
    "deltaq_maintenance_stale_rewrites_total",
    "rewrites",
    "Maintenance gives up a rewrite of files, since the topic has changed since it was planned.",
)

JOINS = Counter(
    "deltaq_group_joins_total",
    "members",
    "A consumer joins its group, for the first time or again.",
    labels=("group",),
)
REBALANCES = Counter(
    "deltaq_group_rebalances_total",
    "generations",
    "A member sees that its group has a new generation: members have come or gone, or the "
    "partitions of a topic.",
    labels=("group",),
)
MEMBERS_REMOVED = Counter(
    "deltaq_group_members_removed_total",
    "members",
    "Members are removed from their group because they sent no heartbeat for their "
    "`session.timeout.ms`. Clients that find this out at the same time count it each.",
    labels=("group",),
)
SESSIONS_LOST = Counter(
    "deltaq_group_sessions_lost_total",
    "sessions",
    "A member loses its membership without leaving. `reason` is the name of an error: `_TIMED_OUT` "
    "if it could not send heartbeats, `UNKNOWN_MEMBER_ID` if others have removed it, "
    "`FENCED_INSTANCE_ID` if another consumer has taken its place, `_MAX_POLL_EXCEEDED` if the "
    "application did not poll.",
    labels=("group", "reason"),
)
HEARTBEATS_FAILED = Counter(
    "deltaq_group_heartbeats_failed_total",
    "heartbeats",
    "The store does not accept a heartbeat.",
    labels=("group",),
)
COMMITS_REFUSED = Counter(
    "deltaq_group_commits_refused_total",
    "commits",
    "A group refuses an offset commit. `reason` is the name of the error.",
    labels=("group", "reason"),
)

SHARE_ACKNOWLEDGEMENTS = Counter(
    "deltaq_share_acknowledgements_total",
    "records",
    "A share consumer has written what it decided of records, or a committed transaction has, in "
    "the process that has published it. `type` is `accept`, `release`, "
    "`reject` or `renew`; `refused` if another member or an administrator had taken them away "
    "before, or if their transaction was not committed.",
    labels=("group", "type"),
)
SHARE_LOCKS_ENDED = Counter(
    "deltaq_share_locks_ended_total",
    "locks",
    "A share consumer takes records away from a member whose lock was over.",
    labels=("group",),
)

# --- read when metrics are exported, of consumers ---

RECORDS_LAG = Gauge(
    "deltaq_consumer_records_lag",
    "records",
    "The records of an assigned partition behind the consumer's position, as far as it knows.",
    labels=("group", "topic", "partition"),
)
ASSIGNED_PARTITIONS = Gauge(
    "deltaq_consumer_assigned_partitions",
    "partitions",
    "The partitions that are assigned.",
    labels=("group",),
)
LAST_POLL = Gauge(
    "deltaq_consumer_last_poll_seconds_ago",
    "seconds",
    "The time since the last `poll` or `consume`.",
    ("group",),
)
LAST_HEARTBEAT = Gauge(
    "deltaq_consumer_last_heartbeat_seconds_ago",
    "seconds",
    "The time since the store accepted the last heartbeat.",
    labels=("group",),
)

# --- the same, of groups of SQL views ---

VIEW_BEHIND = Gauge(
    "deltaq_views_behind_seconds",
    "seconds",
    "The time since the views of a group had all records of their inputs.",
    labels=("group",),
)
VIEW_LAG = Gauge(
    "deltaq_views_records_lag",
    "records",
    "The records of an input that the views do not have, as far as the runner has looked.",
    labels=("group", "topic"),
)
VIEW_MODE = Gauge(
    "deltaq_views_mode",
    "mode",
    "1 for a view that is evaluated by rules, 0 for one in full.",
    labels=("group", "view"),
)
VIEW_STATE = Gauge(
    "deltaq_views_state_rows",
    "rows",
    "The rows that the rules of a view keep.",
    labels=("group", "view"),
)

METRICS: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""All metrics of clients, in the order of their definition."""

# --- of roots, read when the console exports metrics ---

_OF_TOPIC = ("root", "topic")
_OF_GROUP = ("root", "group")

TOPIC_PARTITIONS = Gauge(
    "deltaq_topic_partitions", "partitions", "The partitions of a topic.", _OF_TOPIC
)
TOPIC_MESSAGES = Gauge(
    "deltaq_topic_messages",
    "messages",
    "The offsets that a topic holds: end minus start of each partition.",
    _OF_TOPIC,
)
TOPIC_PRODUCED = Total(
    "deltaq_topic_produced_total",
    "messages",
    "The offsets that a topic has given: the end of each partition.",
    _OF_TOPIC,
)
TOPIC_COMMITS = Total(
    "deltaq_topic_commits_total", "commits", "The version of a topic's log.", _OF_TOPIC
)
TOPIC_BYTES = Gauge(
    "deltaq_topic_bytes", "bytes", "The data files that readers of a topic use.", _OF_TOPIC
)
TOPIC_FILES = Gauge("deltaq_topic_files", "files", "How many these are.", _OF_TOPIC)
TOPIC_FILES_TO_COMPACT = Gauge(
    "deltaq_topic_files_to_compact",
    "files",
    "Small files of a topic that wait for compaction.",
    _OF_TOPIC,
)
GROUP_LAG = Gauge(
    "deltaq_group_lag",
    "messages",
    "The lag of a group over all partitions; no sample while that of one is not known.",
    _OF_GROUP,
)
GROUP_TOPIC_LAG = Gauge(
    "deltaq_group_topic_lag",
    "messages",
    "The lag of a group in one topic; no sample while that of a partition is not known.",
    ("root", "group", "topic"),
)
GROUP_MEMBERS = Gauge("deltaq_group_members", "members", "The members of a group.", _OF_GROUP)
SHARE_GROUP_ACQUIRED = Gauge(
    "deltaq_share_group_acquired",
    "messages",
    "The messages that members of a share group hold.",
    _OF_GROUP,
)
SHARE_GROUP_AVAILABLE = Gauge(
    "deltaq_share_group_available",
    "messages",
    "The messages that a share group was given back, and has to deliver again.",
    _OF_GROUP,
)
SHARE_GROUP_OLDEST = Gauge(
    "deltaq_share_group_oldest_seconds",
    "seconds",
    "The age of the first message that a share group has not finished, by its timestamp; no sample "
    "without one.",
    _OF_GROUP,
)
UNREADABLE = Gauge(
    "deltaq_root_unreadable",
    "names",
    "Topics and groups of a root that cannot be read; 1 if the root itself cannot be read. Then its"
    " other values are left out.",
    labels=("root",),
)
COST_PER_DAY = Gauge(
    "deltaq_root_cost_dollars_per_day",
    "dollars",
    "What a root costs a day at its present rates, estimated by the price list of S3 Standard.",
    labels=("root",),
)

ROOT_METRICS: tuple[Metric, ...] = tuple(
    value
    for value in list(globals().values())
    if isinstance(value, Metric) and value not in METRICS
)
"""All metrics of roots, in the order of their definition."""
