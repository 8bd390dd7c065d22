"""Tests of confluent-kafka and kombu that do not pass on deltaq, by the reason."""

from __future__ import annotations

JUSTIFIED: dict[str, tuple[str, ...]] = {
    "no broker is unreachable: `error_cb` hears of a store that does not answer": (
        "test_error_cb",
        "test_error_cb_cross_thread_call_raises_conflict",
        "test_error_cb_disarm_before_close",
        "test_error_cb_dispatches_during_commit_async",
        "test_error_cb_dispatches_during_commit_sync",
        "test_error_cb_exception_propagates",
        "test_error_cb_fires_during_close_without_polling",
        "test_error_cb_raise_propagates_from_commit_async",
        "test_error_cb_raise_propagates_from_commit_sync",
        "test_error_cb_resolve_failure",
        "test_mixed_callbacks_coexist_on_share_consumer",
    ),
    "the log lines are those of librdkafka": (
        "test_log_cb",
        "test_log_cb_close_drains_pending_records",
        "test_log_cb_delivers_always_on_warning_without_debug",
        "test_log_cb_drains_on_commit_async",
        "test_log_cb_drains_on_commit_sync",
        "test_log_cb_record_format_and_fields",
        "test_log_cb_requires_polling",
        "test_log_cb_share_facility_tags_present",
    ),
    "a store has credentials of its own, and no tokens of SASL": (
        "test_oauth_cb_fires_across_client_types[consumer]",
        "test_oauth_cb_fires_across_client_types[producer]",
        "test_oauth_cb_fires_across_client_types[share_consumer]",
        "test_oauth_cb_malformed_return_fails_construction",
        "test_oauth_cb_principal_and_sasl_extensions",
        "test_oauth_cb_token_refresh_failure_and_recovery",
        "test_oauth_cb_token_refresh_success_multiple_calls",
        "test_oauthbearer_token_refresh_cb",
    ),
    "settings of TLS connections have no effect": ("test_construction_failure_raises_cleanly",),
    "a topic of that name cannot exist, and is refused at once": (
        "test_subscribe_accepts_caret_topic_as_literal_name",
    ),
    "`__init__` is not called twice": ("test_double_init_raises",),
    "a lock ends when another member has seen it for its duration": (
        "test_callback_reports_error_during_close",
        "test_callback_reports_invalid_record_state_on_commit_async",
        "test_callback_reports_invalid_record_state_on_commit_sync",
        "test_commit_after_lock_expiry",
        "test_single_consumer_self_redelivery_increments_delivery_count",
    ),
    "members of share groups have no sessions": ("test_max_poll_interval_exceeded_then_rejoins",),
    "`max.poll.records` is exact": ("test_poll_returns_whole_batch_exceeding_max_poll_records",),
    "a transaction leaves no gap in the offsets": (
        "test_read_committed_delivers_committed_transactions_with_marker_gap",
    ),
    "what is not committed is never visible": (
        "test_read_uncommitted_delivers_uncommitted_records",
    ),
    "priorities are separate queues": (
        "TestPriority::test_publish_consume",
        "TestPriority::test_publish_requeue_consume",
        "TestPriority::test_simple_buffer_publish_consume",
        "TestPriority::test_simple_queue_publish_consume",
    ),
    "fails with confluent-kafka 2.16.1, too": (
        "test_value_failure_short_circuits_key[False]",
        "test_value_failure_short_circuits_key[True]",
    ),
    "a share consumer of deltaq returns deltaq's `Messages`": (
        "test_poll_returns_empty_messages_on_timeout",
    ),
}
"""The names of the tests, with their parameters."""
