"""The commit loop of a Delta table log.

The log orders everything that happens to a table. Entry `v` is the object `_delta_log/<v>.json`. It
is created only if absent, so exactly one writer decides the content of version `v`. These rules
keep that true under crashes, retries and lost answers (`docs/internals/format.md`, "Committing"):

* A client passes a slot only after it has read the entry in it: a delayed write may still fill an
  empty slot.
* After any error the client reads the slot. The token (`txnId`) in the entry identifies its writer.
* A commit counts only while the entry before it is in its slot. Otherwise the log's folder was
  removed or replaced while this client used it, and no reader would find the commit.
* Log clean-up frees old slots, so that they could be created again. It therefore first writes a
  marker to `_deltaq/log_start/`. A client that has not read the log for `HEAD_PROOF_S` looks for a
  marker above the slot before it trusts that slot, whether the slot is filled or empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from deltaq import errors
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.delta.actions import (
    NOTHING_PREPARED,
    Action,
    Add,
    CommitInfo,
    Entry,
    Prepared,
    encode_entry,
    parse_entry,
)
from deltaq.delta.entries import ENTRY_BYTES_MAX
from deltaq.delta.known_log import KnownLog, KnownState, LogState, NoView, V
from deltaq.delta.position import LogCleaned, LogPosition
from deltaq.delta.retry import error_pause_s, race_pause_s
from deltaq.delta.slot_proof import HEAD_PROOF_S
from deltaq.delta.store_errors import unavailable
from deltaq.delta.table_state import TableState
from deltaq.delta.tokens import commit_token
from deltaq.errors import Corrupt, Incompatible, KafkaException, OutcomeUnknown, Unavailable
from deltaq.store import (
    ObjectExists,
    ObjectMissing,
    Store,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    StoreUnsafe,
    probed,
)

_log = logging.getLogger("deltaq.delta")

T = TypeVar("T")

_REPLACED = (
    "the log entry before this commit is gone or another one: the folder was removed or replaced "
    "while this client used it, and what was written there is lost. To delete a topic, call "
    "AdminClient.delete_topics or Topic.delete; remove or restore folders only while no client "
    "runs"
)


class LogReplaced(Corrupt):
    """The log of a position was removed or replaced, and nothing was written. The position goes on
    in the log that is there now, if any.
    """


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of a commit, for the next slot.

    `before` are actions that were encoded in advance and precede `actions`.

    `own` and `may_stand` resolve a commit whose slot was cleaned up before its outcome was known.
    `own` are the paths of files that no other commit can add: if the table has one of them, the
    commit succeeded. None means all files of the draft. `may_stand(state)` returns whether the
    table in `state` may have had the files and lost them since. None means that it may.

    An entry that cannot be read back must not be written, so the encoded entry is parsed first.
    `is_proven` saves that for a draft of which each value is deltaq's own.

    `after(entry)` is the view after the draft once it is in the log as `entry`; None if the log's
    fold makes it, as of any other entry.
    """

    info: CommitInfo
    actions: Sequence[Action]
    may_stand: Callable[[TableState], bool] | None = None
    own: frozenset[str] | None = None
    before: Prepared = NOTHING_PREPARED
    is_proven: bool = False
    after: Callable[[Entry], Any] | None = None

    def entry(self, version: int) -> Entry:
        """The entry that it becomes in the slot `version`."""
        return Entry(version, self.info, (*self.before.actions, *self.actions))

    @property
    def adds(self) -> tuple[Add, ...]:
        """The files that it adds."""
        return tuple(
            action for action in (*self.before.actions, *self.actions) if isinstance(action, Add)
        )


@dataclass(frozen=True, slots=True)
class Abandoned(Generic[T]):
    """In place of a draft: the commit ends with `outcome`, and nothing was or will be written."""

    outcome: T


@dataclass(frozen=True, slots=True)
class Committed:
    """A successful commit.

    `entry` is the entry in the log. `lost_races` counts the slots that other writers took before
    it. `seconds` is the total time in which other writers could take the slot, over all slots
    tried: from the last read of the log to the answer of the store.
    """

    entry: Entry
    lost_races: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _SentEntry:
    """An entry as it is sent to a slot: encoded once, so that a delayed write and its retry have
    the same bytes. `after` is the key of the entry before, empty for the first one.
    """

    entry: Entry
    key: str
    body: bytes
    after: str
    token: str


@dataclass(frozen=True, slots=True)
class _SlotOpen:
    """It is not known which entry the slot will hold, and `cause` is why. `maybe`: a create was
    sent that may have filled it, or may still.
    """

    cause: StoreError
    maybe: bool


@dataclass(frozen=True, slots=True)
class _SlotCleaned:
    """The slot to be filled lies below the log's start. `maybe`: an earlier create may have filled
    it before the clean-up.
    """

    maybe: bool


class DeltaLog(LogPosition[V]):
    """A position in one log that commits entries. Not thread-safe: one owner at a time.

    Positions with the same `known` share what they have read; without one, it shares nothing.
    """

    @overload
    def __init__(
        self: DeltaLog[None], store: Store, folder: str, clock: Clock = SYSTEM_CLOCK
    ) -> None: ...

    @overload
    def __init__(self, store: Store, folder: str, clock: Clock, known: KnownLog[V]) -> None: ...

    def __init__(
        self,
        store: Store,
        folder: str,
        clock: Clock = SYSTEM_CLOCK,
        known: KnownLog[Any] | None = None,
    ) -> None:
        super().__init__(store, folder, clock, known or KnownLog(clock, NoView()))
        self._read_at = 0.0  # start of the last read that found no further entry, `Clock.monotonic`
        # Called before a request is repeated.
        self.store_failed: Callable[[Unavailable], object] = lambda _: None
        # Other writers committed between our last two commits, and probably have again.
        self._contended = False

    def token(self, version: int, txn_id: str) -> str:
        """The token of a commit, for `delta.resolve`."""
        return commit_token(self.folder, version, txn_id)

    def commit(
        self,
        write: Callable[[TableState], Draft | Abandoned[T]],
        deadline: float,
        *,
        takes_turns: bool = False,
    ) -> Committed | T:
        """Append one entry: `write(state)` is called for each slot that is tried, and the last
        draft is committed.

        `write` must use one unique `txn_id` per commit. It may extend the draft from slot to slot.
        It may also abandon the commit, whose outcome is then returned, or raise; none of its drafts
        is in the log in both cases. `deadline` is a time of `clock.monotonic()`. With `takes_turns`
        the writers of this log avoid races by an order of their own, and the next try follows a
        lost race without a pause.

        Raises OutcomeUnknown (the entry may exist now or later; see `delta/resolve.py`),
        Unavailable (it was not and will not be committed), Corrupt, Incompatible.
        """
        self._prove_store()
        self.take_over()
        if self._was_replaced:
            self._was_replaced = False
            raise LogReplaced(_REPLACED, path=self.entries.folder, version=self.state.version)
        if self._is_partial:
            self.load()
        lost_races = 0
        exposed_s = 0.0
        # Under contention, a read of the next slot costs less than a create that will probably
        # fail.
        contended = self._contended and self._catch_up()
        started_at = self._read_at if self._contended else self.clock.monotonic()
        while True:
            draft = write(self.state)
            if isinstance(draft, Abandoned):
                return draft.outcome
            entry = self._fill(draft, deadline)
            # This can happen when the process was suspended, and the log was cleaned up or its
            # folder removed meanwhile.
            if isinstance(entry, _SlotCleaned):
                token = self.token(self.state.version + 1, draft.info.txn_id)
                found = self._resolve_from_snapshot(draft, entry.maybe, deadline)
                if found is not None:
                    return Committed(found, lost_races, exposed_s)
                # Without files, no later state shows whether the entry was in the log.
                if entry.maybe and not draft.adds:
                    return self._commit_again(write, deadline, token)
                continue
            seconds = self.clock.monotonic() - started_at
            exposed_s += seconds
            is_own = entry.txn_id == draft.info.txn_id
            self._apply(entry, draft.after if is_own else None)
            if is_own:
                self._contended = contended or lost_races > 0
                return Committed(entry, lost_races, exposed_s)
            lost_races += 1
            # Without contention, the other writer is most likely maintenance, which rarely wants
            # the next slot too.
            if not takes_turns and (self._contended or lost_races > 1):
                self.clock.sleep(race_pause_s(lost_races, seconds, self.clock.random()))
            self._read_on(lost_races, deadline, at_once=takes_turns and lost_races > 1)
            started_at = self._read_at

    def _commit_again(
        self, write: Callable[[TableState], Draft | Abandoned[T]], deadline: float, token: str
    ) -> Committed | T:
        """Commit a draft without files, whose entry may have been in a slot that was cleaned up.
        Nothing in the table tells whether it was, so a failure is not certain.
        """
        try:
            return self.commit(write, deadline)
        except OutcomeUnknown:
            raise
        except KafkaException as error:
            reason = (
                f"an entry of this commit may have been in {self.folder!r} before the log was "
                "cleaned up"
            )
            raise OutcomeUnknown(
                f"{reason}; tried again, {error.error.str()}", token=token
            ) from error

    def _prove_store(self) -> None:
        """Probe the store, once per process: without create-if-absent, writers would overwrite each
        other's entries.
        """
        try:
            probed(self.store, self.clock)
        except StoreUnsafe as error:
            raise errors.UnsafeStore(str(error)) from error
        except StoreError as error:
            raise unavailable(error) from error

    def _fill(self, draft: Draft, deadline: float) -> Entry | _SlotCleaned:
        """Try to create the next slot until an entry in it is known; returns that entry, ours or
        another writer's.
        """
        sent = self._encoded(draft)
        if not self._is_in_place_before(sent.token):
            return _SlotCleaned(maybe=False)
        first_tried_at = self.clock.uptime()
        outcome = self._try_slot(sent, maybe=False)
        failures = 0
        while isinstance(outcome, _SlotOpen):
            # Nothing was written, and no retry would be.
            if isinstance(outcome.cause, StoreRefused) and not outcome.maybe:
                raise unavailable(outcome.cause) from outcome.cause
            failures += 1
            left = deadline - self.clock.monotonic()
            if left <= 0:
                raise self._gave_up(outcome, sent.token)
            self.store_failed(unavailable(outcome.cause))
            self.clock.sleep(min(left, error_pause_s(failures, self.clock.random())))
            outcome = self._try_slot(sent, maybe=outcome.maybe)
        if isinstance(outcome, Entry) and outcome.txn_id == sent.entry.txn_id:
            self._proof.extend(first_tried_at)
        return outcome

    def _encoded(self, draft: Draft) -> _SentEntry:
        version = self.state.version + 1
        key = self.entries.key(version)
        body = encode_entry(draft.info, draft.actions, draft.before)
        entry = (
            draft.entry(version)
            if draft.is_proven
            else parse_entry(body, version, key, draft.before)
        )
        after = self.entries.key(self.state.version) if version else ""
        return _SentEntry(entry, key, body, after, self.token(version, draft.info.txn_id))

    def _try_slot(self, sent: _SentEntry, *, maybe: bool) -> Entry | _SlotCleaned | _SlotOpen:
        """Try once to create the slot. `maybe`: an earlier create may have filled it, or may
        still.
        """
        version, tried_at = sent.entry.version, self.clock.uptime()
        refusal: StoreError | None = None
        try:
            if len(sent.body) > ENTRY_BYTES_MAX:  # no client would read it: the log would end here
                reason = f"it has {len(sent.body)} bytes, more than {ENTRY_BYTES_MAX}"
                raise StoreRefused("create", sent.key, reason)
            self.store.create(sent.key, sent.body, sent.after)
        except (ObjectExists, ObjectMissing, StoreRefused, StoreUnavailable) as error:
            refusal = error
        except Exception as error:  # noqa: BLE001 - a defect of the store: the write may still happen
            reason = f"unexpected {type(error).__name__}: {error}"
            refusal = StoreUnavailable("create", sent.key, reason)
        maybe = maybe or isinstance(refusal, StoreUnavailable)
        may_exist = maybe or refusal is None
        try:
            if refusal is None and self.entries.is_archived(version):
                # The slot may have been free only because its entry had been archived. Or ours was
                # archived meanwhile.
                refusal = ObjectExists(
                    "create", sent.key, "the entry of this slot is in the log archive"
                )
            entry = sent.entry if refusal is None else self._read_slot(sent, may_exist)
            if not self._proof.holds_for(version):
                # The entry may have been created before the clean-up, and the answer delayed until
                # after it.
                return _SlotCleaned(may_exist)
            # A folder can be removed while this process writes: an entry created after that proves
            # nothing.
            if not self.store.is_remote and not self._is_in_place(sent.token, may_exist):
                return _SlotCleaned(may_exist)
            if entry is not None and entry.txn_id == sent.entry.txn_id and refusal is not None:
                # It exists, but its create did not confirm that it is durable.
                self.store.sync(self.entries.folder)
        except StoreError as error:
            # The slot refused our create and cannot be read. It may hold our own entry: the refusal
            # may be the answer to a retry inside the network.
            return _SlotOpen(error, may_exist or isinstance(refusal, ObjectExists))
        if refusal is None:
            return sent.entry
        if entry is not None:
            return entry
        self._proof.extend(tried_at)
        return _SlotOpen(refusal, maybe)

    def _is_in_place_before(self, token: str) -> bool:
        """`_is_in_place`, before anything is written. Raises Corrupt.

        A remote store, where the check costs a request, is checked at most once per `HEAD_PROOF_S`.
        """
        if self.store.is_remote and self.clock.uptime() - self._proof.in_place_at <= HEAD_PROOF_S:
            self._proof.trust(self.state.version)
            return True
        try:
            return self._is_in_place(token, maybe=False)
        except StoreError:
            return True  # the create that follows handles the error

    def _read_slot(self, sent: _SentEntry, maybe: bool) -> Entry | None:
        """The entry in the slot after an attempt that did not succeed; None if the slot is still
        empty.
        """
        version, token = sent.entry.version, sent.token
        try:
            found = self.entries.fetch(version)
        except (Corrupt, Incompatible) as damage:
            if maybe:  # the unreadable entry may be ours
                raise OutcomeUnknown(damage.error.str(), token=token) from damage
            raise
        if found is None:
            return None
        entry, seen = found
        if maybe and entry.info is None:
            reason = (
                f"the entry in slot {version} of {self.folder!r} has no token, so its writer is "
                "unknown"
            )
            raise OutcomeUnknown(reason, token=token)
        if self.token(version, entry.txn_id or "") == token and seen != sent.body:
            differs = Corrupt(
                "the commit that was read back differs from the one sent",
                path=sent.key,
                version=version,
            )
            raise OutcomeUnknown(differs.error.str(), token=token) from differs
        return entry

    def _gave_up(self, outcome: _SlotOpen, token: str) -> OutcomeUnknown | Unavailable:
        reason = outcome.cause.reason
        if outcome.maybe:
            return OutcomeUnknown(
                f"no answer about the commit to {self.folder!r} before the deadline: {reason}",
                token=token,
            )
        return Unavailable(f"commit to {self.folder!r} not possible before the deadline: {reason}")

    def _resolve_from_snapshot(self, draft: Draft, maybe: bool, deadline: float) -> Entry | None:
        """Resolve a commit whose slot was cleaned up: the commit succeeded if the table has its
        files.

        If the table lacks them, the outcome may still be unknown: the files may have been rewritten
        or expired since.
        """
        slot = self.state.version + 1
        self.load_until(deadline, self.token(slot, draft.info.txn_id), maybe)
        own = [add for add in draft.adds if draft.own is None or add.path in draft.own]
        # Only this commit adds these files, so it has succeeded before the clean-up.
        if any(add.path in self.state.files for add in own):
            self.sync_or_unknown(self.token(slot, draft.info.txn_id))
            return Entry(slot, draft.info, draft.adds)
        if maybe and own and (draft.may_stand is None or draft.may_stand(self.state)):
            raise OutcomeUnknown(
                f"a commit to {self.folder!r} was interrupted for longer than the log is kept",
                token=self.token(slot, draft.info.txn_id),
            )
        return None

    def load_until(self, deadline: float, token: str, maybe: bool) -> None:
        """Load, with retries until the deadline. With `maybe`, a failure means that the outcome of
        a commit is unknown: raises OutcomeUnknown instead of the error.
        """
        failures = 0
        while True:
            try:
                self.load()
            except (Corrupt, Incompatible) as error:
                if maybe:
                    raise OutcomeUnknown(error.error.str(), token=token) from error
                raise
            except Unavailable as error:
                failures += 1
                left = deadline - self.clock.monotonic()
                if left <= 0 and maybe:
                    raise OutcomeUnknown(error.error.str(), token=token) from error
                if left <= 0:
                    raise
                self.store_failed(error)
                self.clock.sleep(min(left, error_pause_s(failures, self.clock.random())))
            else:
                return

    def _read_on(self, lost_races: int, deadline: float, *, at_once: bool) -> None:
        """Catch up, so that the next create is for a slot that is probably free. With `at_once`
        stop after one further entry: the slot after an entry just found is free for longest, and
        one more read would use up that time. Raises Unavailable at the deadline.
        """
        if self.clock.monotonic() >= deadline:
            raise Unavailable(
                f"commit to {self.folder!r} lost {lost_races} races against other writers before "
                "its deadline; raise message.timeout.ms, or linger.ms so that each writer commits "
                "less often"
            )
        if not at_once:
            self._catch_up()
        elif not self._catch_up(entries_max=1):
            self._catch_up(entries_max=1)

    def _catch_up(self, entries_max: float = float("inf")) -> bool:
        """Read to the end of the log, or so many entries; returns whether other writers had
        committed.

        Only an optimisation, so errors are ignored: the create that follows decides the next slot.
        """
        before = self.state.version
        self._read_at = self.clock.monotonic()
        try:
            while self.state.version - before < entries_max and self.read_next() is not None:
                self._read_at = self.clock.monotonic()
        except LogCleaned:
            self.load()
        except Unavailable:
            pass
        return self.state.version > before

    def _is_in_place(self, token: str, maybe: bool) -> bool:
        """Whether the entry before a commit is still in its slot; False if clean-up has freed it.

        If the log was removed or replaced, raises Corrupt, or OutcomeUnknown with `maybe`: the
        commit may have been written already. Also raises StoreError.
        """
        asked_at = self.clock.uptime()
        version = self.state.version
        if version >= 0 and not self._proof.is_in_place(self.state):
            if self.entries.start() > version:
                return False
            path = self.entries.key(version)
            self._is_partial = True  # the next operation loads the log that is there now, if any
            self._restore(None)
            self.known.was_replaced()
            self._life = self.known.life
            _log.warning("log removed or replaced log=%r version=%d", self.folder, version)
            if maybe:
                raise OutcomeUnknown(_REPLACED, token=token)
            raise LogReplaced(_REPLACED, path=path, version=version)
        self._proof.in_place_at = asked_at
        return True

    def sync_or_unknown(self, token: str) -> None:
        """`sync` for a commit that is visible but perhaps not durable: raises OutcomeUnknown if it
        fails.
        """
        try:
            self.sync()
        except Unavailable as error:
            raise OutcomeUnknown(error.error.str(), token=token) from error


def positioned(store: Store, folder: str, clock: Clock, table: TableState) -> DeltaLog[None]:
    """A position at a table that was read before, of which nothing is verified yet."""
    log = DeltaLog(store, folder, clock)
    log.begin_at(KnownState(LogState(table, None), float("-inf"), is_end_open=False))
    return log
