"""Readers and writers on a bucket whose listings lie, whose answers are damaged, and whose
credentials expire.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from deltaq import KafkaError, KafkaException, Producer, TopicPartition
from tests.doubles.reading import eventually, next_message
from tests.doubles.s3_root import DATA, ENTRY, Reports, S3Root, produce, values_read
from tests.servers.s3_stub import Effect, HttpRule, S3Stub

pytestmark = pytest.mark.s3

PAGE = "<html><head><title>Sign in</title></head><body/></html>"


@pytest.fixture(scope="module")
def stub() -> Iterator[S3Stub]:
    with S3Stub(page_keys=3) as stub:
        yield stub


@pytest.fixture
def root(stub: S3Stub) -> Iterator[S3Root]:
    yield S3Root(stub)
    stub.set_rules()


# --- lists and reads that lie ---


@pytest.fixture
def filled(root: S3Root) -> S3Root:
    """Ten commits of one record each, values `0` to `9`, in partition 0, unknown to any client."""
    with root.producer("filler") as producer:
        for number in range(10):
            produce(producer, f"{number}")
    root.stub.requests(clear=True)
    root.stub.effects(clear=True)
    return root


TEN = [f"{number}" for number in range(10)]
LISTS_THAT_LIE = {
    "the newest key left out": HttpRule(fault="stale_list", keys=1),
    "the five newest keys left out": HttpRule(fault="stale_list", keys=5),
    "pages twice, now and then": HttpRule(fault="repeated_page", probability=0.4),
    "a page that is none, once": HttpRule(
        fault="error_before", status=200, body=PAGE, operation="list*", times=1
    ),
    "pages that are none, now and then": HttpRule(
        fault="error_before", status=200, body=PAGE, operation="list*", probability=0.2
    ),
    "a page that breaks off": HttpRule(fault="short_body", operation="list*", times=2),
    "XML that breaks off": HttpRule(fault="truncate", operation="list*", times=2),
}


@pytest.mark.fault("S3")
@pytest.mark.parametrize("kind", LISTS_THAT_LIE)
def test_a_wrong_listing_neither_hides_nor_doubles_a_record(filled: S3Root, kind: str) -> None:
    filled.stub.set_rules(LISTS_THAT_LIE[kind])
    with filled.consumer("reader") as consumer, filled.producer("newcomer") as producer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert values_read(consumer, 10)[0] == TEN
        assert produce(producer, "10").values(acknowledged=True) == ["10"]
        assert values_read(consumer, 1)[0] == ["10"]
    assert sum(filled.stub.effects().values()) >= 1
    assert filled.stored() == {0: [*TEN, "10"], 1: []}
    assert sorted(filled.entries()) == list(range(12))


@pytest.mark.fault("S3")
def test_an_invalid_listing_is_not_taken_for_a_missing_topic(filled: S3Root) -> None:
    page = HttpRule(fault="error_before", status=200, body=PAGE, operation="list*")
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        values_read(consumer, 10)
        assert list(consumer.list_topics(timeout=10).topics) == ["t"]
        filled.stub.set_rules(page)
        with pytest.raises(KafkaException, match="which exists") as caught:
            consumer.list_topics(timeout=2)
        assert caught.value.args[0].code() in {KafkaError._TRANSPORT, KafkaError._TIMED_OUT}
    assert filled.stub.effects()[Effect.ERROR_BEFORE] >= 1


@pytest.mark.fault("S4")
@pytest.mark.parametrize("key", [ENTRY, DATA])
@pytest.mark.parametrize("nth", [1, 4])
def test_an_existing_object_that_is_denied_once_is_still_read(
    filled: S3Root, key: str, nth: int
) -> None:
    filled.stub.set_rules(
        HttpRule(
            fault="error_before",
            status=404,
            code="NoSuchKey",
            operation="get*",
            key=key,
            nth=nth,
            times=1,
        )
    )
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert values_read(consumer, 10)[0] == TEN
    assert filled.stub.effects() == {Effect.ERROR_BEFORE: 1}


@pytest.mark.fault("S4")
@pytest.mark.parametrize("key", ["*/_delta_log/*4.json", DATA])
def test_a_listed_object_that_stays_denied_is_reported_and_never_skipped(
    filled: S3Root, key: str
) -> None:
    filled.stub.set_rules(
        HttpRule(fault="error_before", status=404, code="NoSuchKey", operation="get*", key=key)
    )
    errors: list[KafkaError] = []
    with filled.consumer("reader", error_cb=errors.append) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])

        def is_reported() -> bool:
            message = consumer.poll(0.01)
            error = None if message is None else message.error()
            assert message is None or error == KafkaError._BAD_MSG
            if error is not None:
                errors.append(error)
            return bool(errors)

        eventually(is_reported, "an error")
        # A log entry is retried until it can be read; a data file is reported as damaged.
        assert (
            "4.json' and does not find it" in errors[0].str()
            if key != DATA
            else ".parquet" in errors[0].str()
        )
        filled.stub.set_rules()
        consumer.seek(TopicPartition("t", 0, 0))
        assert values_read(consumer, 10)[0] == TEN


# --- damage on the way ---

DAMAGE: list[Any] = ["truncate", "flip_bit", "short_body", "garbage"]


def damaging(kind: Any, **when: Any) -> HttpRule:
    if kind == "garbage":
        return HttpRule(fault="error_before", status=200, body=PAGE, operation="get*", **when)
    return HttpRule(fault=kind, operation="get*", **when)


@pytest.mark.fault("B1", "B2", "B4")
@pytest.mark.parametrize("key", [ENTRY, DATA])
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_read_damaged_in_transit_is_repeated(filled: S3Root, kind: Any, key: str) -> None:
    filled.stub.set_rules(damaging(kind, key=key, nth=3, times=1))
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert values_read(consumer, 10) == (TEN, [])
    assert sum(filled.stub.effects().values()) == 1


@pytest.mark.fault("B1", "B2")
@pytest.mark.parametrize("kind", ["truncate", "flip_bit", "garbage"])
@pytest.mark.parametrize("key", ["*/_delta_log/*4.json", DATA])
def test_permanent_damage_is_reported_and_not_delivered(
    filled: S3Root, kind: Any, key: str
) -> None:
    filled.stub.set_rules(damaging(kind, key=key))
    with filled.consumer("reader") as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        error = next_message(consumer).error()
        assert error is not None
        assert error.code() == KafkaError._BAD_MSG
        assert ".parquet" in error.str() if key == DATA else "4.json" in error.str()
        filled.stub.set_rules()
        consumer.seek(TopicPartition("t", 0, 0))
        assert values_read(consumer, 10)[0] == TEN


@pytest.mark.fault("P6", "P15")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_commit_with_lost_answer_and_one_damaged_read_is_acknowledged(
    root: S3Root, kind: Any
) -> None:
    with root.producer() as producer:
        produce(producer, "first")
        root.stub.set_rules(
            HttpRule(fault="reset_after", times=1, operation="create", key=ENTRY),
            damaging(kind, key="*/topics/t/_delta_log/*2.json", times=1),
        )
        assert produce(producer, "second").values(acknowledged=True) == ["second"]
    assert sum(root.stub.effects().values()) == 2
    assert root.stored() == {0: ["first", "second"], 1: []}


# --- credentials ---


@pytest.mark.fault("S5")
def test_expired_credentials_are_reported_and_renewed_ones_lose_nothing(root: S3Root) -> None:
    expired = HttpRule(fault="error_before", status=403, code="ExpiredToken")
    with root.producer() as producer, root.consumer() as consumer:
        consumer.subscribe(["t"])
        produce(producer, "0", "1")
        assert values_read(consumer, 2)[0] == ["0", "1"]
        root.stub.set_rules(expired)
        refused = produce(producer, "2", "3")
        assert [error.code() for error, _ in refused] == [KafkaError._TRANSPORT] * 2
        assert all(
            "ExpiredToken" in error.str() and "check the credentials" in error.str()
            for error, _ in refused
        )
        error = next_message(consumer).error()
        assert error is not None
        assert error.code() in {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}
        assert root.stub.effects()[Effect.ERROR_BEFORE] >= 2
        root.stub.set_rules()
        assert produce(producer, *refused.values(acknowledged=False)).values(acknowledged=True) == [
            "2",
            "3",
        ]
        assert values_read(consumer, 2)[0] == ["2", "3"]
        consumer.commit(asynchronous=False)
    assert root.stored() == {0: ["0", "1", "2", "3"], 1: []}
    with root.consumer() as consumer:
        assert consumer.committed([TopicPartition("t", 0)], 20)[0].offset == 4


@pytest.mark.fault("S5")
def test_credentials_renewed_by_a_container_are_used_without_failure(
    root: S3Root, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    token = tmp_path / "token"
    token.write_text("client-token")
    soon = "2026-01-01T00:00:00Z"  # over: so they are asked for again and again
    address = root.stub.give_credentials("FIRST", soon)
    conf = {key: value for key, value in root.conf("renewing").items() if "access_key" not in key}
    conf["store.container_credentials_full_uri"] = address
    conf["store.container_authorization_token_file"] = str(token)
    reports = Reports()
    with Producer({**conf, "linger.ms": 0}) as producer:

        def signed_by(access_key: str) -> bool:
            producer.produce("t", f"{len(reports)}", partition=0, on_delivery=reports)
            assert producer.flush(20) == 0
            return f"Credential={access_key}/" in root.stub.requests()[-1].headers["authorization"]

        eventually(lambda: signed_by("FIRST"), "a request with the first key")
        root.stub.give_credentials("SECOND", soon)
        eventually(lambda: signed_by("SECOND"), "a request with the second key")
        root.stub.set_rules(
            HttpRule(fault="error_before", status=403, code="ExpiredToken", access_key="FIRST")
        )
        assert signed_by("SECOND")
    assert root.stub.effects() == {}
    assert reports.values(acknowledged=False) == []
    assert root.stored() == {0: [f"{number}" for number in range(len(reports))], 1: []}
