"""The errors of a producer whose transaction, or whose id, another process has ended: they say what
has happened, as far as the newest entry of the id shows it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltaq.clock import SYSTEM_CLOCK
from deltaq.delta.actions import DomainMetadata
from deltaq.delta.position import LogCleaned
from deltaq.delta.table_state import TableState, restored_state
from deltaq.errors import Fenced, KafkaError
from deltaq.names import TransactionKey
from deltaq.store import MemoryStore
from deltaq.tools.transactions import abort
from deltaq.transactions.log import TransactionLog
from deltaq.transactions.state import (
    AbortReason,
    Decision,
    TransactionAborted,
    TransactionHead,
    transaction_head,
)

FOREVER = float("inf")


class Id:
    """The id `t`, whose producer has the epoch of `seen`."""

    def __init__(self) -> None:
        self.store = MemoryStore("test")
        self.log = TransactionLog(self.store, "t", SYSTEM_CLOCK)
        self.log.begin(60_000, None, FOREVER)
        self.seen = self.log.begin(60_000, None, FOREVER)

    def commit(self, number: int) -> None:
        self.log.commit(Decision(TransactionKey("t", self.seen.epoch, number), 0, (), ()), FOREVER)

    def abort(self, number: int, reason: AbortReason) -> None:
        self.log.abort(TransactionKey("t", self.seen.epoch, number), reason, FOREVER)

    def head(self) -> TransactionHead:
        found = self.log.head()
        assert found is not None
        return found

    # --- how the producer loses the id ---

    def is_taken(self) -> None:
        self.log.begin(60_000, None, FOREVER)

    def expires(self) -> None:
        assert self.log.expire(self.seen, FOREVER)

    def is_aborted(self) -> None:
        abort(self.store, SYSTEM_CLOCK, "t", FOREVER)

    def is_aborted_and_taken(self) -> None:
        self.is_aborted()
        self.is_taken()

    def is_removed(self) -> None:
        for entry in list(self.store.list("transactions/")):
            self.store.delete(entry.key)
        self.log = TransactionLog(self.store, "t", SYSTEM_CLOCK)


NEWER = "a newer producer with transactional.id 't' has fenced this instance: close it"
GONE = ", which fences this instance: close it, and make a new producer"


@pytest.mark.fault("T3")
@pytest.mark.parametrize(
    ("lose", "text"),
    [
        (Id.is_taken, NEWER),
        (Id.is_aborted_and_taken, NEWER),
        (
            Id.expires,
            "transactional.id 't' has expired, because it has committed nothing for "
            "transactional.id.expiration.ms" + GONE,
        ),
        (
            Id.is_aborted,
            "an operator has aborted the transaction of transactional.id 't' (deltaq transactions "
            "abort)" + GONE,
        ),
        (Id.is_removed, "the log of transactional.id 't' was removed" + GONE),
    ],
)
def test_a_producer_without_its_id_learns_how_it_was_lost(lose: Callable[[Id], None], text: str):
    found = Id()
    lose(found)
    with pytest.raises(Fenced) as raised:
        found.commit(1)
    error = raised.value.error
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)
    assert error.str() == text


@pytest.mark.fault("T3")
def test_a_commit_whose_entry_may_have_been_cleaned_up_says_that_it_may_have_succeeded(
    monkeypatch: pytest.MonkeyPatch,
):
    found = Id()
    TransactionLog(found.store, "t", SYSTEM_CLOCK).begin(60_000, None, FOREVER)

    def cleaned() -> None:
        raise LogCleaned("transactions/t/")

    monkeypatch.setattr(found.log._log, "read_next", cleaned)
    draft = Decision(TransactionKey("t", found.seen.epoch, 1), 0, (), ())
    with pytest.raises(Fenced, match="Whether its last transaction was committed is not known"):
        found.log.commit(draft, FOREVER, may_be_decided=True)
    with pytest.raises(Fenced) as raised:
        found.log.commit(draft, FOREVER)
    assert raised.value.error.str() == NEWER


def test_a_decision_of_a_new_log_is_synced_whatever_the_removed_one_had(
    monkeypatch: pytest.MonkeyPatch,
):
    found = Id()
    reader = found.log
    for number in range(1, 5):
        found.commit(number)
    found.is_removed()
    found.seen = found.log.begin(60_000, None, FOREVER)
    found.commit(1)
    synced: list[str] = []
    monkeypatch.setattr(found.store, "sync", synced.append)
    head = reader.head()
    assert head is not None
    assert head.decision is not None
    reader.sync(head.decision)
    reader.sync(head.decision)
    assert synced == ["transactions/t/_delta_log/"]


@pytest.mark.parametrize("reason", [AbortReason.TIMEOUT, AbortReason.READER])
def test_the_error_of_an_aborted_transaction_has_the_reason(reason: AbortReason):
    found = Id()
    found.abort(1, reason)
    with pytest.raises(TransactionAborted) as raised:
        found.commit(1)
    assert raised.value.reason is reason


def test_the_reason_of_another_abort_is_not_that_of_this_one():
    """A Spark query numbers its transactions by micro-batches, and several drivers may run."""
    found = Id()
    found.abort(2, AbortReason.TIMEOUT)
    with pytest.raises(TransactionAborted) as raised:
        found.commit(1)
    assert raised.value.reason is None


@pytest.mark.parametrize("goes_on", [lambda of: of.commit(2), Id.is_taken, Id.expires])
def test_an_id_that_has_gone_on_does_not_keep_the_reason(goes_on: Callable[[Id], None]):
    found = Id()
    found.abort(1, AbortReason.TIMEOUT)
    assert found.head().abort_reason is AbortReason.TIMEOUT
    found.seen = found.head()
    goes_on(found)
    assert found.head().abort_reason is None


def test_a_reason_of_a_later_version_is_ignored():
    head = TransactionHead("", 1, 1, 60_000, "till", 0, abort_reason=AbortReason.READER)
    for text, reason in (("reader", AbortReason.READER), ("another", None)):
        action = head.action()
        configuration = action.configuration.replace('"reader"', f'"{text}"')
        state: TableState = restored_state(0, [DomainMetadata(action.domain, configuration)])
        found = transaction_head(state, "t", "transactions/t/")
        assert found is not None
        assert found.abort_reason is reason
