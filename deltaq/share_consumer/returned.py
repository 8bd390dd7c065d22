"""What a share consumer has returned, and what the application decides of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from deltaq.message import AcknowledgeType
from deltaq.share_groups.exchange import PartitionId
from deltaq.share_groups.state import Acknowledgement, TakenRange, error_text


@dataclass(slots=True)
class ReturnedRecord:
    """A record in its delivery of this number, and what is decided of it; None as long as nothing
    is. `visible_ms`, `error` and `unseen` are those of the acknowledgement. If it `is_waiting`,
    the application has not got it yet: a loop yields it later.
    """

    deliveries: int
    type: AcknowledgeType | None = None
    visible_ms: int = 0
    error: str = ""
    unseen: bool = False
    is_waiting: bool = False
    poll: int = field(default=0, compare=False)
    """The number of the call that has taken it."""

    @property
    def is_decided(self) -> bool:
        """Whether the application has ended its delivery."""
        return self.type not in (None, AcknowledgeType.RENEW) and not self.unseen

    def decide(
        self,
        decided: AcknowledgeType,
        visible_ms: int = 0,
        error: BaseException | str | None = None,
        *,
        unseen: bool = False,
    ) -> None:
        """Decide it, in place of what was decided before. Raises TypeError, and decides nothing."""
        self.error = error_text(error)
        self.type, self.visible_ms, self.unseen = decided, visible_ms, unseen


@dataclass(frozen=True, slots=True)
class DecidedRecords:
    """What is to be acknowledged, and the offsets about which the application hears the result.

    The others are offsets without a record, records that could not be read, and `unseen` ones,
    which the application did not get. `renewed` are those of `offsets` that are decided later.
    """

    acknowledgements: Mapping[PartitionId, Sequence[Acknowledgement]]
    offsets: Mapping[PartitionId, frozenset[int]]
    renewed: Mapping[PartitionId, frozenset[int]]
    unseen: Mapping[PartitionId, frozenset[int]]


@dataclass(eq=False)
class ReturnedRecords:
    """The records that calls have returned and that are not acknowledged. Not thread-safe."""

    _records: dict[PartitionId, dict[int, ReturnedRecord]] = field(default_factory=dict)
    _unreadable: dict[PartitionId, list[Acknowledgement]] = field(default_factory=dict)
    _poll: int = 1
    _returned_polls: int = 0

    def begin_poll(self) -> None:
        """The records that are added from now on wait for `return_all`."""
        self._poll = self._returned_polls + 1

    def add(
        self, partition: PartitionId, deliveries: Mapping[int, int], *, is_waiting: bool
    ) -> None:
        """Note records that are about to be returned: their offsets, each with the number of the
        delivery. Until `return_all` they wait for that, and those of a loop after it.
        """
        records = self._records.setdefault(partition, {})
        records |= {
            offset: ReturnedRecord(number, is_waiting=is_waiting, poll=self._poll)
            for offset, number in deliveries.items()
        }

    def give_back(self, partition: PartitionId, taken: Sequence[TakenRange]) -> None:
        """Have records delivered again that were taken and cannot be returned, also those of them
        that were added. This delivery does not count.
        """
        records = self._records.get(partition, {})
        for each in taken:
            for offset in range(each.first, each.end):
                records.pop(offset, None)
        others = [each for each in self._unreadable.get(partition, ()) if not _is_in(each, taken)]
        self._unreadable[partition] = others + given_back(taken)

    def return_all(self) -> None:
        """The records that were added are returned: in one step, as a signal handler may raise
        between two.
        """
        self._returned_polls = self._poll

    def add_unreadable(self, partition: PartitionId, decided: Iterable[Acknowledgement]) -> None:
        """Note what is decided of offsets that are not returned."""
        self._unreadable.setdefault(partition, []).extend(decided)

    def find(
        self, topic: str, partition: int, offset: int
    ) -> tuple[PartitionId, ReturnedRecord] | None:
        """A record; None if it was not returned, or is acknowledged. The newest topic of the name
        counts.
        """
        for key in reversed(self._records):
            if key.topic == topic and key.partition == partition:
                record = self._records[key].get(offset)
                if record is not None:
                    return key, record
        return None

    def accept_all(self) -> None:
        """Accept all records of which nothing is decided, but those that wait for their turn."""
        for record in self.received():
            record.type = record.type or AcknowledgeType.ACCEPT

    def received(self) -> list[ReturnedRecord]:
        """The records that the application has got."""
        return [record for record in self._all() if not self._is_waiting(record)]

    def give_back_waiting(self) -> None:
        """Have the records delivered again that the application has not got."""
        for record in self._all():
            if self._is_waiting(record):
                record.decide(AcknowledgeType.RELEASE, unseen=True)

    def _is_waiting(self, record: ReturnedRecord) -> bool:
        return record.is_waiting or record.poll > self._returned_polls

    def _all(self) -> Iterator[ReturnedRecord]:
        return (record for records in self._records.values() for record in records.values())

    def hand_over(self) -> dict[PartitionId, Sequence[Acknowledgement]]:
        """Forget the records that are decided, which a transaction acknowledges instead."""
        found: dict[PartitionId, Sequence[Acknowledgement]] = {}
        for key, records in self._records.items():
            decided = sorted([of for of in records.items() if of[1].is_decided], key=_offset)
            if decided:
                found[key] = _ranges(decided)
                for offset, _ in decided:
                    del records[offset]
        return found

    @property
    def has_unreadable(self) -> bool:
        """Whether there are offsets that are decided and were not returned."""
        return any(self._unreadable.values())

    @property
    def undecided(self) -> int:
        """The number of records of which nothing is decided."""
        return sum(record.type is None for record in self._all())

    def decided(self) -> DecidedRecords:
        """All that is decided and not acknowledged yet."""
        offsets: dict[PartitionId, frozenset[int]] = {}
        renewed: dict[PartitionId, frozenset[int]] = {}
        unseen: dict[PartitionId, frozenset[int]] = {}
        found = {key: [*decided] for key, decided in self._unreadable.items()}
        for key, records in self._records.items():
            decided = [(offset, record) for offset, record in records.items() if record.type]
            if decided:
                unseen[key] = frozenset(offset for offset, of in decided if of.unseen)
                offsets[key] = frozenset(offset for offset, _ in decided) - unseen[key]
                renewed[key] = frozenset(
                    offset for offset, of in decided if of.type is AcknowledgeType.RENEW
                )
                found.setdefault(key, []).extend(_ranges(sorted(decided, key=_offset)))
        return DecidedRecords(found, offsets, renewed, unseen)

    def forget(
        self, decided: DecidedRecords, refused: Mapping[PartitionId, frozenset[int]]
    ) -> None:
        """What was decided is acknowledged, or `refused` for good. What was renewed is to be
        decided, unless that has happened meanwhile.
        """
        for key, offsets in decided.offsets.items():
            # An exception of a signal handler may have ended this, and it begins again.
            records = self._records.get(key, {})
            renewed = decided.renewed[key] - refused.get(key, frozenset())
            for offset in (offsets - renewed) | decided.unseen[key]:
                records.pop(offset, None)
            for offset in renewed:
                if records[offset].type is AcknowledgeType.RENEW:
                    records[offset].type = None
            if not records:
                self._records.pop(key, None)
        for key, written in decided.acknowledgements.items():
            left = [each for each in self._unreadable.pop(key, ()) if each not in {*written}]
            if left:
                self._unreadable[key] = left


def given_back(ranges: Sequence[TakenRange]) -> list[Acknowledgement]:
    """The ranges released; this delivery does not count."""
    release = AcknowledgeType.RELEASE
    return [
        Acknowledgement(each.first, each.end, each.deliveries, release, unseen=True)
        for each in ranges
    ]


def _is_in(each: Acknowledgement, ranges: Sequence[TakenRange]) -> bool:
    return any(of.first <= each.first < of.end for of in ranges)


def _offset(record: tuple[int, ReturnedRecord]) -> int:
    return record[0]


def _ranges(records: Iterable[tuple[int, ReturnedRecord]]) -> list[Acknowledgement]:
    """The decided records, in order, with those together that follow each other and are alike."""
    found: list[Acknowledgement] = []
    first = end = -1
    about: ReturnedRecord | None = None
    for offset, record in records:
        if about is None or offset != end or record != about:
            found += _acknowledgement(about, first, end)
            first, about = offset, record
        end = offset + 1
    return found + _acknowledgement(about, first, end)


def _acknowledgement(record: ReturnedRecord | None, first: int, end: int) -> list[Acknowledgement]:
    """That of the offsets `[first, end)`, which were all decided as this record was."""
    if record is None or record.type is None:
        return []
    return [
        Acknowledgement(
            first,
            end,
            record.deliveries,
            record.type,
            record.visible_ms,
            record.error,
            record.unseen,
        )
    ]
