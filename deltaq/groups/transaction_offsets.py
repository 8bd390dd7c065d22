"""Offsets that belong to a transaction: a group's log holds them as pending until the transaction
is decided. Pure.

The domain metadata `deltaq.transactions` of the group's table has those of each `transactional.id`,
with the member on whose behalf they were sent. They are checked as any commit when they are sent. A
member that has lost a partition is refused, so the next owner sees all that there ever will be.

Of a transaction and another commit of the same partition, the offset that was written later counts,
as in Kafka. An offset that is deleted is deleted from transactions, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from deltaq.delta.actions import Action, DomainMetadata
from deltaq.delta.table_state import TableState
from deltaq.errors import Corrupt, Fenced, InvalidConfig
from deltaq.groups.offsets import CommittedOffset, offset_actions, parsed_offset
from deltaq.groups.state import TRANSACTIONS_DOMAIN, Key, MemberIdentity
from deltaq.names import TransactionKey, check_transactional_id
from deltaq.serde.json_text import compact_json, strict_json


class LaterOffsets(Fenced):
    """The group has pending offsets of a later transaction of the id."""

    def __init__(self, transaction: TransactionKey) -> None:
        super().__init__(
            "the group has offsets of a later transaction of transactional.id "
            f"{transaction.transactional_id!r}, which another instance uses: close this one"
        )
        self.transaction = transaction


@dataclass(frozen=True, slots=True)
class TransactionOffsets:
    """The pending offsets of a transaction. `identity`: on whose behalf they are committed; None
    for a consumer that is no member. `time_ms`: when the first of them were sent.
    """

    transaction: TransactionKey
    identity: MemberIdentity | None
    offsets: tuple[CommittedOffset, ...]
    time_ms: int = 0

    @property
    def keys(self) -> frozenset[Key]:
        """Their partitions."""
        return frozenset((offset.topic, offset.partition) for offset in self.offsets)


def transaction_offsets(state: TableState, path: str) -> dict[str, TransactionOffsets]:
    """The pending offsets of a group by `transactional.id`. Raises Corrupt."""
    try:
        body = strict_json(state.domains.get(TRANSACTIONS_DOMAIN, "{}"))
        if not isinstance(body, dict):
            raise TypeError("not an object")
        return {id_: _parsed(check_transactional_id(id_), of) for id_, of in body.items()}
    except (ValueError, KeyError, TypeError, InvalidConfig) as error:
        raise Corrupt(
            f"the offsets of transactions cannot be parsed: {error}",
            path=path,
            version=state.version,
        ) from error


def sent_actions(
    pending: Mapping[str, TransactionOffsets], sent: TransactionOffsets, now_ms: int
) -> list[Action]:
    """Add offsets to a transaction; later ones replace earlier ones of the same partition. Those of
    an earlier transaction of the id, which has ended, are dropped. Raises LaterOffsets.
    """
    transaction = sent.transaction
    before = pending.get(transaction.transactional_id)
    if before is not None and before.transaction > transaction:
        raise LaterOffsets(before.transaction)
    if before is not None and before.transaction == transaction:
        merged = {offset.app_id: offset for offset in (*before.offsets, *sent.offsets)}
        sent = TransactionOffsets(
            transaction,
            _earliest(before.identity, sent.identity),
            tuple(merged.values()),
            before.time_ms,
        )
    else:
        sent = replace(sent, time_ms=now_ms)
    after = {**pending, transaction.transactional_id: sent}
    return [_domain(after)] if after != pending else []


def _earliest(before: MemberIdentity | None, after: MemberIdentity | None) -> MemberIdentity | None:
    """On whose behalf both count. In a later generation the member may have lost partitions of the
    earlier one, and got them back: their records are read again, so they must not seem owned.
    """
    if before is None or after is None:
        return None
    return replace(after, generation=min(before.generation, after.generation))


def resolved_actions(
    state: TableState,
    pending: Mapping[str, TransactionOffsets],
    transaction: TransactionKey,
    now_ms: int,
    *,
    is_committed: bool,
) -> list[Action]:
    """End a transaction: its offsets are committed, or dropped. No action if there are none."""
    found = pending.get(transaction.transactional_id)
    # This can happen when another process has resolved it.
    if found is None or found.transaction != transaction:
        return []
    after = {id_: of for id_, of in pending.items() if id_ != transaction.transactional_id}
    offsets = offset_actions(state, found.offsets, now_ms) if is_committed else []
    return [*offsets, _domain(after)]


def replaced_actions(
    pending: Mapping[str, TransactionOffsets], committed: Sequence[CommittedOffset]
) -> list[Action]:
    """Offsets are committed outside of transactions: they take the place of those that were sent
    before. The partitions stay pending, so their next owner still needs the outcome.
    """
    new = {offset.app_id: offset for offset in committed}
    after = {
        id_: replace(of, offsets=tuple(new.get(offset.app_id, offset) for offset in of.offsets))
        for id_, of in pending.items()
    }
    return [_domain(after)] if after != pending else []


def deleted_actions(
    pending: Mapping[str, TransactionOffsets], app_ids: Collection[str] | None
) -> list[Action]:
    """Offsets with these app ids are deleted; all for None."""
    kept: dict[str, TransactionOffsets] = {}
    if app_ids is not None:
        for id_, of in pending.items():
            if offsets := tuple(offset for offset in of.offsets if offset.app_id not in app_ids):
                kept[id_] = replace(of, offsets=offsets)
    return [_domain(kept)] if kept != pending else []


def _domain(pending: Mapping[str, TransactionOffsets]) -> DomainMetadata:
    body = {id_: _body(of) for id_, of in sorted(pending.items())}
    return DomainMetadata(TRANSACTIONS_DOMAIN, compact_json(body))


def _body(of: TransactionOffsets) -> dict[str, object]:
    body: dict[str, object] = {
        "epoch": of.transaction.epoch,
        "number": of.transaction.number,
        "time": of.time_ms,
        "offsets": {offset.app_id: [offset.offset, offset.metadata] for offset in of.offsets},
    }
    if of.identity is not None:
        body |= {
            "member": of.identity.member_id,
            "generation": of.identity.generation,
            "instance": of.identity.instance_id,
        }
    return body


def _parsed(transactional_id: str, body: object) -> TransactionOffsets:
    if not isinstance(body, dict) or not isinstance(body.get("offsets"), dict):
        raise TypeError("not an object")
    epoch, number, time_ms = body["epoch"], body["number"], body["time"]
    if type(epoch) is not int or type(number) is not int or type(time_ms) is not int:
        raise TypeError("a transaction is known by two numbers and a time")
    identity = None
    if "member" in body:
        instance = body.get("instance")
        identity = MemberIdentity(
            str(body["member"]),
            int(body["generation"]),
            None if instance is None else str(instance),
        )
    offsets: Iterable[tuple[str, list[object]]] = body["offsets"].items()
    return TransactionOffsets(
        TransactionKey(transactional_id, epoch, number),
        identity,
        tuple(parsed_offset(app_id, *entry) for app_id, entry in offsets),
        time_ms,
    )
