"""Errors behave as Kafka users expect, carry their facts, and survive a trip to another process."""

from __future__ import annotations

import copy
import inspect
import pickle

import confluent_kafka
import pytest

from deltaq import errors
from deltaq.errors import KafkaError, KafkaException

EXAMPLES: list[KafkaException] = [
    errors.InvalidConfig("linger.ms is -1", key="linger.ms"),
    errors.InvalidConfig("no", key="topic", code=KafkaError.TOPIC_EXCEPTION),
    errors.UnknownTopic("orders", partition=7),
    errors.TopicExists("orders"),
    errors.QueueFull(),
    errors.MessageTooLarge(size=11, limit=10, topic="orders"),
    errors.InvalidValue("expected int64, got str", field="a.b", topic="orders"),
    errors.Fenced("epoch 3 was replaced by epoch 4"),
    errors.Fenced("generation 3 is over", code=KafkaError.ILLEGAL_GENERATION, fatal=False),
    errors.GroupInUse("billing"),
    errors.OutcomeUnknown("no answer for 30 s", token="0123", topic="orders"),
    errors.OffsetOutOfRange(topic="orders", partition=1, requested=5, earliest=10, latest=20),
    errors.Corrupt("bad checksum", path="topics/orders/x.parquet", version=12),
    errors.Incompatible("format 9", path="topics/orders/"),
    errors.Unavailable("timed out"),
    errors.UnsafeStore("a second create succeeded"),
    errors.WrongState("producer is closed"),
]

PEER_CODES = {
    name: value
    for name, value in vars(confluent_kafka.KafkaError).items()
    if isinstance(value, int) and not name.startswith("__")
}


def test_the_real_client_has_codes_to_compare_with() -> None:
    assert len(PEER_CODES) > 150


def test_every_code_of_the_real_client_has_the_same_number_name_and_text() -> None:
    for name, code in PEER_CODES.items():
        peer = confluent_kafka.KafkaError(code)
        mine = KafkaError(getattr(KafkaError, name))
        assert (mine.code(), mine.name(), mine.str()) == (peer.code(), peer.name(), peer.str())
        assert str(mine) == str(peer)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            KafkaError(3),
            'KafkaError{code=UNKNOWN_TOPIC_OR_PART,val=3,str="Broker: Unknown topic or partition"}',
        ),
        (KafkaError(-184, "full"), 'KafkaError{code=_QUEUE_FULL,val=-184,str="full"}'),
        (KafkaError(-144, "x", fatal=True), 'KafkaError{FATAL,code=_FENCED,val=-144,str="x"}'),
        (KafkaError(3, ""), 'KafkaError{code=UNKNOWN_TOPIC_OR_PART,val=3,str=""}'),
        (KafkaError(5000), 'KafkaError{code=ERR_5000?,val=5000,str="Err-5000?"}'),
    ],
)
def test_an_error_prints_as_the_real_client_prints_it(error: KafkaError, text: str) -> None:
    assert str(error) == repr(error) == text


def test_the_flags_are_what_the_constructor_was_given() -> None:
    plain = KafkaError(3)
    assert (plain.fatal(), plain.retriable(), plain.txn_requires_abort()) == (False, False, False)
    flagged = KafkaError(3, "r", fatal=True, retriable=True, txn_requires_abort=True)
    assert (flagged.fatal(), flagged.retriable(), flagged.txn_requires_abort()) == (
        True,
        True,
        True,
    )


def test_an_error_equals_its_code_and_nothing_else() -> None:
    error = KafkaError(KafkaError._PARTITION_EOF, "any text")
    assert error == KafkaError._PARTITION_EOF
    assert error == KafkaError(-191)
    assert error == -191
    assert error != KafkaError._FAIL
    assert error != "_PARTITION_EOF"
    assert error != None  # noqa: E711 - the comparison itself is under test
    assert error != -191.0
    assert hash(error) == hash(-191)
    assert error in {-191}


def test_errors_are_ordered_by_code() -> None:
    assert sorted([KafkaError(3), KafkaError(-1), KafkaError(1)]) == [-1, 1, 3]
    assert KafkaError(3) < 4 <= KafkaError(4) <= 4
    assert KafkaError(3) > 2
    assert KafkaError(3) >= KafkaError(3)
    with pytest.raises(TypeError):
        assert KafkaError(3) < "4"


def test_an_error_is_not_an_exception() -> None:
    assert not isinstance(KafkaError(3), BaseException)


@pytest.mark.parametrize("arguments", [("3",), (3.5,), (None,), (3, 5), (3, b"text")])
def test_an_error_of_the_wrong_types_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises(TypeError):
        KafkaError(*arguments)  # type: ignore[arg-type] # the wrong types are the point


def test_an_error_survives_pickle_and_copy() -> None:
    error = KafkaError(-144, "gone", fatal=True, txn_requires_abort=True)
    for twin in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error)):
        assert str(twin) == str(error)
        assert (twin.fatal(), twin.retriable(), twin.txn_requires_abort()) == (True, False, True)


@pytest.mark.parametrize(
    "exception", EXAMPLES, ids=lambda e: f"{type(e).__name__}-{e.error.name()}"
)
def test_every_named_error_survives_pickle_with_its_facts(exception: KafkaException) -> None:
    for twin in (pickle.loads(pickle.dumps(exception)), copy.copy(exception)):
        assert type(twin) is type(exception)
        assert str(twin) == str(exception)
        assert vars(twin) == vars(exception)
        assert str(twin.args[0]) == str(exception.args[0])


def test_there_is_an_example_of_every_named_error() -> None:
    classes = set(filter(inspect.isclass, vars(errors).values()))
    named = {each for each in classes if issubclass(each, KafkaException)} - {KafkaException}
    assert {type(e) for e in EXAMPLES} == named


@pytest.mark.parametrize(
    "exception", EXAMPLES, ids=lambda e: f"{type(e).__name__}-{e.error.name()}"
)
def test_every_named_error_says_what_to_do(exception: KafkaException) -> None:
    assert isinstance(exception.args[0], KafkaError)
    assert len(exception.args) == 1
    documentation = type(exception).__doc__
    assert documentation is not None
    assert documentation.count(".") >= 2


def test_a_full_queue_is_a_buffer_error_with_the_usual_text() -> None:
    with pytest.raises(BufferError, match=r"^Local: Queue full$"):
        raise errors.QueueFull
    assert errors.QueueFull().args[0] == KafkaError._QUEUE_FULL


def test_the_facts_are_attributes_and_stand_in_the_text() -> None:
    out = errors.OffsetOutOfRange(topic="orders", partition=1, requested=5, earliest=10, latest=20)
    assert (out.topic, out.partition, out.requested, out.earliest, out.latest) == (
        "orders",
        1,
        5,
        10,
        20,
    )
    for fact in ("orders", "5", "10", "20"):
        assert fact in out.error.str()
    assert "field 'a.b': " in errors.InvalidValue("bad", field="a.b").error.str()
    assert errors.Corrupt("bad", path="p", version=3).error.str() == "p (version 3): bad"
    assert errors.Incompatible("format 9").error.str() == "format 9"
    assert errors.UnknownTopic("t").error.str() == "topic 't' does not exist"


def test_only_client_ending_errors_are_fatal_and_only_transient_ones_retriable() -> None:
    assert {type(e).__name__ for e in EXAMPLES if e.error.fatal()} == {"Fenced"}
    assert {type(e).__name__ for e in EXAMPLES if e.error.retriable()} == {
        "QueueFull",
        "Unavailable",
    }


def test_a_general_exception_need_not_hold_an_error() -> None:
    assert KafkaException().args == ()
    assert KafkaException("text").error == KafkaError.UNKNOWN
    assert KafkaException("text").error.str() == "text"
