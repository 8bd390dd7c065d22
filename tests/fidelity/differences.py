"""Where deltaq differs on purpose, by the row of docs/guides/migrate-from-kafka.md that gives the
reason.
"""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["DIFFERENCES", "justification", "rows_of_guide"]

_GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "migrate-from-kafka.md"

_LEVELS = ("read_committed", "read_uncommitted")


def _ends(path: str) -> tuple[str, ...]:
    """Where readers of both isolation levels find the end of a partition."""
    return tuple(
        f"{path}/{level}/{end}" for level in _LEVELS for end in ("position", "watermarks/1")
    )


DIFFERENCES: dict[str, tuple[str, ...]] = {
    "`bootstrap.servers` is missing": (
        "closed_and_misuse/no_bootstrap_consumer",
        "producer_configurations/nothing",
    ),
    "Settings as keywords, `on_delivery` that is None": (
        "producer_configurations/keywords",
        "producer_on_delivery_of_the_configuration/none",
    ),
    "Arguments of a wrong type": (
        *(
            f"admin_calls_check_their_arguments/{call}"
            for call in ("create_texts", "delete_numbers")
        ),
        "admin_calls_check_their_arguments/describe_configs_texts",
        *(f"consumer_subscribe_arguments/{name}" for name in ("nothing_in_it", "numbers")),
        "offset_specs_are_values/text",
        *(
            f"producer_batches_of_other_types/{name}/raised"
            for name in ("headers_text", "timestamp_text")
        ),
        "producer_callbacks_are_callable/throttle_cb/raised",
        "producer_partitions_and_timestamps_of_other_types/partition_large",
    ),
    "A misspelt server": ("producer_of_a_misspelt_server",),
    "A setting twice in one request, a topic twice in one deletion": (
        "admin_changes_one_key_twice/code",
        "admin_changes_one_key_twice/err",
        "admin_deletes_one_topic_twice/0",
    ),
    "`list_offsets`, `delete_records` of a topic or partition that does not exist": (
        *(
            f"admin_deletes_records/unknown_{of}/{part}"
            for of in ("partition", "topic")
            for part in ("code", "err")
        ),
        *(
            f"admin_lists_offsets_of_what_is_not_there/{of}/{part}"
            for of in ("partition", "topic")
            for part in ("code", "err")
        ),
    ),
    "`bool()` of an admin client": ("admin_configurations/true",),
    "`assign` of a negative partition": (
        "consumer_assign_takes_a_list_of_places/negative_partition",
    ),
    "`offsets_for_times([])`": ("consumer_times_and_watermarks_arguments/no_times",),
    "`DeserializingConsumer.consume`": ("serializing_consumers_do_not_consume",),
    "`StringSerializer` of what is no text": ("strings_are_serialized/int",),
    "`TopicPartition`: `metadata=None`; assignment to `topic`; comparison with another type": (
        "consumer_metadata_of_offsets/none",
        "topic_partition_arguments/assigned/1",
        "topic_partition_compares_topic_and_partition/other_type",
    ),
    "`==` of `OffsetSpec.for_timestamp` and `ConsumerGroupTopicPartitions`": (
        "offset_specs_are_values/time",
        "requests_for_groups_are_values/equal",
    ),
    "`file.delete.delay.ms` of a topic": (
        "admin_describes_the_defaults_of_topics/file.delete.delay.ms",
    ),
    "A store that does not answer, for calls that ask it": (
        "consumer_errors_of_the_connection/committed/retriable",
        "consumer_errors_of_the_connection/list_topics/retriable",
    ),
    "What `poll` returns": ("producer_poll_serves_callbacks/served",),
    "`produce_batch`: `partition` of a message; a tuple of messages": (
        "producer_batches_of_other_types/tuple",
        "producer_batches_with_their_own_partition/written/1/1",
    ),
    "`_error` of a message that a further `produce_batch` has queued": (
        "producer_batches_that_are_queued_again/error",
    ),
    "`produce_batch`: `headers`; `timestamp`": (
        "producer_batches_with_headers_and_timestamps/timestamp",
        "producer_batches_with_headers_and_timestamps/written",
    ),
    "`produce_batch`: text that UTF-8 cannot hold": (
        "producer_batches_with_text_that_is_no_utf_8/answer",
        "producer_batches_with_text_that_is_no_utf_8/errors/1",
    ),
    "A replication factor above the number of brokers": ("create_topics/rf_3",),
    "A topic `a_b` beside `a.b`": ("create_topics/a_b_collides",),
    '`list_topics("missing")` of an admin client or a producer': (
        "list_topics_unknown/created_by_admin",
        "list_topics_unknown/created_by_producer_list",
    ),
    "Internal topics": ("list_topics/internal_listed",),
    "`segment.bytes`, `min.insync.replicas` of a topic": (
        "topic_configs/before/min.insync.replicas/1",
        "topic_configs/before/min.insync.replicas/2",
        "topic_configs/before/segment.bytes/0",
    ),
    "`acks=0`": ("acks_0/0/1",),
    "Headers in a delivery report": ("produce_reports/report/0/7",),
    "Header names of type `bytes`": ("headers/errors/bytes_key", "headers/read/x"),
    "A negative timestamp": ("produce_reports/negative_ts",),
    "A timestamp more than an hour ahead": (
        "timestamps/two_hours_ahead/0/0",
        "timestamps/two_hours_ahead/0/1",
    ),
    "A message without a key among others for a compacted topic": ("compacted/mixed_batch/1",),
    "`message.max.bytes`": ("too_large/client_small_2000",),
    "`max.message.bytes` of a topic": (
        "too_large/compressed_fits/0/0",
        "too_large/compressed_fits/0/1",
    ),
    "Messages without a key, `sticky.partitioning.linger.ms` = 5,000": (
        "null_key_sticky/consistent_random_5000ms",
        "null_key_sticky/murmur2_random_5000ms",
        "null_key_sticky/random_5000ms",
    ),
    "`if message:`": tuple(f"produce_none_and_empty/{at}/bool" for at in (0, 1, 3)),
    "`seek` in a topic of which nothing is assigned": (
        "seek/unassigned/code",
        "seek/unassigned/err",
    ),
    "`seek` to a negative number that means nothing": ("seek/negative",),
    "The value of an event of `_PARTITION_EOF`": ("partition_eof/event_fields/value",),
    "The partition of an event about a topic": (
        "subscribe_patterns/unknown_topic/0/p",
        "subscribe_patterns/unmatched_pattern/0/p",
    ),
    "`purge` while the store does not answer": tuple(
        f"queue_full_and_purge/after_purge/1/{at}" for at in range(3)
    ),
    "`_MSG_TIMED_OUT`, `_QUEUE_FULL`": (
        "queue_full_and_purge/message_timeout/0/retriable",
        *(f"producer_batches_into_a_full_queue/errors/{at}/retriable" for at in (3, 4)),
    ),
    "`host` of a member": ("group_description/member/host",),
    "`AdminClient.delete_consumer_group_offsets`": (
        "group_offsets/has_delete_consumer_group_offsets",
    ),
    "A commit for a partition that another member owns": tuple(
        f"transactions_offsets_after_a_rebalance/moved_partition/{call}"
        for call in ("abort", "commit", "produce", "send")
    ),
    "A commit of an older generation": tuple(
        f"transactions_offsets_after_a_rebalance/kept_partition_old_generation/{call}"
        for call in ("abort", "commit", "produce", "send")
    ),
    "Readers with `read_uncommitted`": (
        *(f"txn_fencing/{when}/read_uncommitted/seen" for when in ("after_new_init", "end")),
        "txn_list_offsets_isolation/uncommitted",
        "txn_timeout/read/read_uncommitted/seen",
        *(f"txn_visibility/{when}/read_uncommitted/seen" for when in ("aborted", "final", "open")),
        "txn_visibility/open/read_uncommitted/position",
        "txn_visibility/open/read_uncommitted/watermarks/1",
    ),
    "Offsets of a topic with transactions": (
        *_ends("txn_fencing/after_new_init"),
        "txn_fencing/after_new_init/read_committed/seen/0/1",
        *_ends("txn_fencing/end"),
        "txn_fencing/end/read_committed/seen/0/0",
        "txn_fencing/end/read_committed/seen/1/1",
        *_ends("txn_interleaved_with_plain/done"),
        *(f"txn_interleaved_with_plain/done/{level}/seen/3/1" for level in _LEVELS),
        "txn_list_offsets_isolation/after_abort/0",
        "txn_list_offsets_isolation/after_abort/1",
        *_ends("txn_timeout/read"),
        "txn_timeout/read/read_committed/seen/0/1",
        *(f"txn_two_partitions_and_topics/{place}/1" for place in ("t0", "t1", "u0")),
        *_ends("txn_visibility/aborted"),
        "txn_visibility/aborted/read_committed/seen/3/1",
        *_ends("txn_visibility/committed"),
        *(f"txn_visibility/committed/{level}/seen/3/1" for level in _LEVELS),
        "txn_visibility/empty_commit_watermarks/1",
        *_ends("txn_visibility/final"),
        "txn_visibility/final/read_committed/seen/3/0",
        "txn_visibility/final/read_committed/seen/4/1",
    ),
    "Order of messages in a partition": (
        *(
            f"txn_interleaved_with_plain/done/{level}/seen/{at}/1"
            for level in _LEVELS
            for at in (1, 2)
        ),
        *_ends("txn_interleaved_with_plain/open"),
        *(f"txn_interleaved_with_plain/open/{level}/seen" for level in _LEVELS),
    ),
    "Delivery reports before the commit": tuple(
        f"transactions_flush_and_reports/before/{at}/4" for at in (0, 1)
    ),
    "When a fenced producer hears of it": (
        "transactions_fenced_without_messages/abort",
        "transactions_fenced_without_messages/send",
        "transactions_take_their_id_in_turns/first_abort",
        "txn_fencing/old_flush",
        "txn_fencing/old_reports/0",
        "txn_fencing_idle_old/reports",
    ),
    "A transaction that lasts longer than `transaction.timeout.ms`": (
        *(f"transactions_aborted_after_the_time_out/{call}" for call in ("abort", "begin")),
        *(f"txn_timeout/{call}" for call in ("abort", "begin")),
        *(f"txn_timeout/commit/{part}" for part in ("code", "err", "fatal", "txn_requires_abort")),
    ),
    "Committed offsets beside those of an open transaction": (
        "transactions_offsets_of_a_consumer_that_waits/stable",
        "txn_send_offsets/admin_list_require_stable/0/err",
        "txn_send_offsets/admin_list_require_stable/0/o",
        *(
            f"txn_send_offsets/open_read_committed/{part}"
            for part in ("code", "err", "o", "p", "t")
        ),
    ),
    "The next owner of a partition whose offsets an open transaction has": tuple(
        f"transactions_whose_consumer_is_replaced/{part}"
        for part in ("commit", "reads_while_open", "then_reads")
    ),
    "`send_offsets_to_transaction` of a consumer with `assign`, while its group has members": (
        "transactions_offsets_of_a_consumer_that_assigns/beside_a_member",
    ),
    "The commit of a transaction one of whose messages was not written": (
        *(
            f"transactions_purged/{call}/{part}"
            for call in ("commit", "commit_again")
            for part in ("code", "err")
        ),
        *(
            f"transactions_with_messages_that_the_broker_refuses/{topic}/{call}/{part}"
            for topic in ("name", "unknown")
            for call in ("commit", "commit_again")
            for part in ("code", "err")
        ),
    ),
    "`begin_transaction` and `produce` after a message that was refused": (
        *(
            f"transactions_with_messages_that_the_broker_refuses/no_key/begin/{part}"
            for part in ("code", "err", "txn_requires_abort")
        ),
        "transactions_with_messages_that_the_broker_refuses/no_key/produce_more",
    ),
    "The transaction after one that was aborted because of a message": (
        "transactions_purged/next_commit",
        "transactions_purged/read",
        "txn_produce_error_then_abort/next_commit",
        *(f"txn_produce_error_then_abort/read/{level}/seen" for level in _LEVELS),
    ),
    "`poll` of a producer after a fatal error": ("transactions_whose_errors_error_cb_hears/poll",),
    "`init_transactions(0)`": tuple(
        f"transactions_init_again_and_without_waiting/{call}"
        for call in ("again", "at_once", "begin")
    ),
    "`transactional.id`": ("transactions_ids/long",),
    "`AcknowledgeType.RENEW`": (
        "share_arguments_of_other_types/type_4/raised",
        "share_explicit_decisions/kinds",
    ),
}
"""Places in the answers of programs, `program/key/...`, as `paths_that_differ` names them."""


def justification(path: str) -> str | None:
    """The row that justifies a difference at this place; None if there is none."""
    return next((row for row, paths in DIFFERENCES.items() if path in paths), None)


def rows_of_guide(heading: str) -> list[str]:
    """The first cells of the table under a heading of the guide to migration."""
    _, _, section = _GUIDE.read_text().partition(f"\n## {heading}\n")
    table = section.partition("\n## ")[0]
    return re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)
