"""The log of a `transactional.id`. A new producer, a decision and an abort are one entry each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from deltaq import names
from deltaq.clock import Clock
from deltaq.delta.actions import Action, CommitInfo, Metadata
from deltaq.delta.log import Abandoned, DeltaLog, Draft, LogReplaced
from deltaq.delta.position import LogCleaned
from deltaq.delta.table_state import PROTOCOL, TableState
from deltaq.errors import Fenced
from deltaq.groups.log import LogMaintainer
from deltaq.names import TransactionKey
from deltaq.store import Store
from deltaq.topics.log import ENGINE
from deltaq.transactions.state import (
    AbortReason,
    Decision,
    LogMixed,
    TransactionHead,
    aborted,
    begun,
    committed,
    expired,
    transaction_head,
)

# A Delta table must have a column, though this one never has a row.
_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "transaction", "type": "string", "nullable": True, "metadata": {}}],
    }
)


class DecisionNotPublished(Exception):
    """The newest decision of an id has changed, and has to be published before the id is taken."""


@dataclass(eq=False)
class TransactionLog:
    """A client of the log of one `transactional.id`. Thread-safe: every method runs under one
    lock. Methods that change the log raise what `DeltaLog.commit` raises; each may be repeated
    after OutcomeUnknown.
    """

    _store: Store
    transactional_id: str
    _clock: Clock
    _client_id: str = ""
    _maintenance: LogMaintainer | None = None  # notified of commits

    def __post_init__(self) -> None:
        self._folder = names.transaction_folder(self.transactional_id)
        self._log = DeltaLog(self._store, self._folder, self._clock)
        self._lock = self._clock.lock()
        self._durable = "", -1  # the newest version that is known to be durable, and its life

    def head(self) -> TransactionHead | None:
        """Read the current head; None for an id that no producer has used. Raises Unavailable,
        Corrupt, Incompatible.
        """
        with self._lock:
            self._read()
            return self._head(self._log.state)

    def state(self) -> TableState:
        """Read the current state of the table. Raises as `head`."""
        with self._lock:
            self._read()
            return self._log.state

    def _read(self) -> None:
        """Move to the end of the log that is there now. This can be another one than before when
        the folder was removed and a producer has begun anew.
        """
        if self._log.state.version >= 0 and not self._log.is_in_place():
            self._log.load()
            return
        self._log.catch_up()
        try:
            self._head(self._log.state)
        except LogMixed:
            self._log.load()

    def sync(self, decision: Decision) -> None:
        """Make a decision durable before it is acted on: its writer may have been killed before the
        entry was. Raises Unavailable.
        """
        with self._lock:
            life, version = self._durable
            if life != decision.life or version < decision.version:
                self._log.sync()
                self._durable = decision.life, decision.version

    def begin(
        self,
        timeout_ms: int,
        published: TransactionKey | None,
        deadline: float,
        abort_reason: AbortReason | None = None,
    ) -> TransactionHead:
        """Take the id for a new producer, which fences the one before; with an `abort_reason` for
        none.

        `published` is the newest decision, which the caller has published; None if there is none.
        Raises DecisionNotPublished if there is another one now.
        """
        token, life = self._clock.unique_id(), self._clock.unique_id()

        def plan(head: TransactionHead | None, _: int, now_ms: int) -> TransactionHead:
            decision = None if head is None else head.decision
            if decision is not None and decision.key != published:
                raise DecisionNotPublished
            return begun(head, life, timeout_ms, self._client_id, now_ms, abort_reason)

        return self._change("BEGIN EPOCH", plan, deadline, token)

    def commit(
        self, decision: Decision, deadline: float, *, may_be_decided: bool = False
    ) -> Decision:
        """Decide that a transaction is committed; the decision with its version. Without effect
        if that is decided already. `may_be_decided`: an earlier call had an unknown outcome. Raises
        Fenced, TransactionAborted.
        """
        is_lost = False
        if may_be_decided:
            try:
                if (before := self._decision_before(decision.key)) is not None:
                    return before
            except LogCleaned:
                is_lost = True

        def plan(head: TransactionHead | None, version: int, now_ms: int) -> TransactionHead | None:
            # This can happen when an earlier try, whose outcome was unknown, has succeeded.
            if head is not None and head.has_committed(decision.key):
                return None
            found = replace(decision, version=version)
            return committed(head, found, now_ms)

        try:
            head = self._change("COMMIT TRANSACTION", plan, deadline, self._clock.unique_id())
        except Fenced as error:
            if not is_lost:
                raise
            raise Fenced(
                f"{error.error.str()}. Whether its last transaction was committed is not known any "
                "more, because the log was cleaned up meanwhile: look for its messages"
            ) from error
        if head.decision is None:
            raise RuntimeError("a commit leaves a decision")
        return head.decision

    def expire(self, seen: TransactionHead, deadline: float) -> bool:
        """Expire the id unless it has changed since `seen` was read, whose decision the caller has
        published. Whether it has expired.
        """

        def plan(head: TransactionHead | None, _: int, now_ms: int) -> TransactionHead | None:
            return expired(seen, now_ms) if head == seen else None

        head = self._changed("EXPIRE EPOCH", plan, deadline, self._clock.unique_id())
        return head is not None and head.is_expired

    def _decision_before(self, key: TransactionKey) -> Decision | None:
        """The decision of a transaction, if an entry has it that this client has not read yet. The
        entry of a newer producer may follow, and the head then does not tell any more. Raises
        LogCleaned.
        """
        with self._lock:
            while True:
                head = self._head(self._log.state)
                if head is not None and head.has_committed(key):
                    return head.decision
                if self._log.read_next() is None:
                    return None

    def abort(
        self, key: TransactionKey, reason: AbortReason, deadline: float
    ) -> TransactionHead | None:
        """Decide that a transaction is aborted, unless it has ended; the head afterwards."""

        def plan(head: TransactionHead | None, _: int, now_ms: int) -> TransactionHead | None:
            return aborted(head, key, reason, now_ms)

        with self._lock:
            self._read()
        return self._changed("ABORT TRANSACTION", plan, deadline, self._clock.unique_id())

    def _change(
        self,
        operation: str,
        plan: Callable[[TransactionHead | None, int, int], TransactionHead | None],
        deadline: float,
        token: str,
    ) -> TransactionHead:
        head = self._changed(operation, plan, deadline, token)
        if head is None:
            raise RuntimeError("a change leaves a head")
        return head

    def _changed(
        self,
        operation: str,
        plan: Callable[[TransactionHead | None, int, int], TransactionHead | None],
        deadline: float,
        token: str,
    ) -> TransactionHead | None:
        """Commit the head that `plan(head, version, now_ms)` returns for the slot `version`; None
        changes nothing. Returns the head afterwards.
        """

        def write(state: TableState) -> Draft | Abandoned[None]:
            now_ms = self._clock.time_ms()
            after = plan(self._head(state), state.version + 1, now_ms)
            if after is None:
                return Abandoned(None)
            info = CommitInfo(
                token, now_ms, operation, self._client_id, ENGINE, is_blind_append=False
            )
            return Draft(info, [*self._table(state, after.life, now_ms), after.action()])

        with self._lock:
            try:
                committed = self._log.commit(write, deadline)
            except (LogReplaced, LogMixed):
                # The log that is there now decides, or that there is none.
                self._log.load()
                committed = self._log.commit(write, deadline)
            state = self._log.state
            head = self._head(state)
            if committed is not None and head is not None:
                self._durable = head.life, state.version
                if self._maintenance is not None:
                    self._maintenance.committed(state)
            return head

    def _table(self, state: TableState, life: str, now_ms: int) -> list[Action]:
        """The protocol and metadata actions of the first entry; none for a log that exists."""
        if state.version >= 0:
            return []
        return [PROTOCOL, Metadata(life, _SCHEMA, {}, now_ms, name=self.transactional_id)]

    def _head(self, state: TableState) -> TransactionHead | None:
        return transaction_head(state, self.transactional_id, self._folder)
