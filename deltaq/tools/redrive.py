"""Redrive: dead letters are copied back to the topics that they come from, each once.

What was copied back is the state of a share group that reads the dead-letter topic:
`redrive.<topic>`. A record that is chosen becomes archiving there, is appended to its topic by an
application transaction, and is archived then, as a dead letter is in its group. So a redrive that
was killed goes on with the next one, and a second one of the same letters does nothing.

A chosen letter that cannot be copied is given up before the others are appended: it may be chosen
again later. If the topic says that its entry was appended, it was copied while it could be.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from deltaq import names
from deltaq.clock import SYSTEM_CLOCK, Clock
from deltaq.errors import Corrupt, InvalidConfig, InvalidValue, KafkaException, UnknownTopic
from deltaq.message import SharedMessage
from deltaq.serde.schema import TopicSchema
from deltaq.share_consumer.topics import SharedTopics
from deltaq.share_groups.dead_letters import HEADER, dead_records
from deltaq.share_groups.exchange import Exchange, PartitionId
from deltaq.share_groups.log import ShareLog
from deltaq.share_groups.state import Failure, TakenRange
from deltaq.store import Store
from deltaq.topics.append_once import AppendedRow, append_once, appended_version
from deltaq.topics.log import TopicLog
from deltaq.topics.lookup import TopicLookup
from deltaq.topics.metadata import TopicDefinition
from deltaq.topics.view import known_topic

_log = logging.getLogger("deltaq.tools")

_OWNER = "redrive"

AT_ONCE = 1_000
"""Dead letters that are read and copied together."""

COMMIT_TIMEOUT_S = 60.0

_PREFIX = "redrive."
"""What the name of the share group begins with that says what was copied back."""

COPIED, TO_COPY = "copied back", "to be copied back"


class LetterState(NamedTuple):
    """A dead letter: where it is, the record that it is about, why that failed, and what a redrive
    does with it: `COPIED`, `TO_COPY`, or why it cannot be copied back. Of a letter that cannot be
    read, the topic and the reason are empty, and the place in the topic is -1.
    """

    partition: int
    offset: int
    topic: str
    topic_partition: int
    topic_offset: int
    reason: str
    state: str


_UNKNOWN = PartitionId("", "", -1)


class _Letter(NamedTuple):
    """A dead letter. `record` is the message that is copied back; None if there is neither the
    original nor a copy, or if the original cannot be read because of `damage`. If the letter itself
    cannot be read because of it, the origin is `_UNKNOWN`.
    """

    place: tuple[int, int]
    origin: PartitionId
    offset: int
    reason: str
    record: SharedMessage | None
    damage: Corrupt | None


_Schemas: TypeAlias = Mapping[str, "TopicSchema | Corrupt | None"]
"""The schemas of topics that exist, as `SharedTopics.schemas`; or why a topic cannot be read."""

_ChosenRecord: TypeAlias = tuple[int, SharedMessage, int]
"""The entry that has chosen a record, the record, and its partition."""

_FailingLetter: TypeAlias = tuple[_Letter, Failure]
"""A chosen letter that cannot be copied, and the entry and topic for which it was chosen."""


class Redrive:
    """Copies dead letters of one share group back. Raises InvalidConfig if it has no dead-letter
    topic, UnknownTopic if that does not exist, Unavailable.
    """

    def __init__(self, store: Store, group: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.topic = ShareLog(store, group, clock).read().settings.errors_deadletterqueue_topic_name
        if not self.topic:
            reason = (
                f"share group {group!r} has no dead-letter topic: set "
                "errors.deadletterqueue.topic.name"
            )
            raise InvalidConfig(reason, key="group")
        self._store, self._clock, self._group = store, clock, group
        self._lookup = TopicLookup(store, clock)
        self._head = self._lookup.head(self.topic)
        self._topics = SharedTopics(store, clock, lambda _: None)
        self._log = ShareLog(store, names.check_group(_PREFIX + self.topic), clock)

    def letters(self, wanted: Collection[tuple[int, int]] | None = None) -> list[LetterState]:
        """The dead letters of the group at the places (partition, offset); all of them for None.
        Raises Unavailable, Corrupt.
        """
        return [
            LetterState(
                *letter.place,
                letter.origin.topic,
                letter.origin.partition,
                letter.offset,
                letter.reason,
                state,
            )
            for part in self._read(wanted)
            for letter, state in self._states(part)
        ]

    def run(self, wanted: Collection[tuple[int, int]] | None = None) -> int:
        """Copy back the dead letters of the group at the places (partition, offset), all for None,
        that were not copied back before, and those that an interrupted call has chosen. Returns
        their number. What cannot be read is left. May be repeated. Raises Unavailable,
        OutcomeUnknown, Corrupt.
        """
        copied = self._finish()
        for part in self._read(wanted):
            chosen: dict[PartitionId, dict[int, str]] = {}
            for letter, state in self._states(part):
                if state == TO_COPY:
                    partition, offset = letter.place
                    chosen.setdefault(self._key(partition), {})[offset] = letter.origin.topic
            if chosen:
                self._log.choose(chosen, self._deadline())
                copied += self._finish()
        return copied

    def _deadline(self) -> float:
        return self._clock.monotonic() + COMMIT_TIMEOUT_S

    def _key(self, partition: int) -> PartitionId:
        return PartitionId(self.topic, self._head.topic_id, partition)

    def _states(self, letters: Sequence[_Letter]) -> Iterator[tuple[_Letter, str]]:
        """What is to become of each dead letter, as in `LetterState`."""
        group = self._log.read()
        schemas = self._schemas_for(letters)
        for letter in letters:
            partition = group.partition(self._key(letter.place[0]))
            if partition is not None and partition.is_finished(letter.place[1]):
                yield letter, COPIED
            else:
                yield letter, self._fault(letter, schemas) or TO_COPY

    def _schemas_for(self, letters: Sequence[_Letter]) -> _Schemas:
        """The schemas of the topics of letters."""
        found: dict[str, TopicSchema | Corrupt | None] = {}
        for topic in sorted({letter.origin.topic for letter in letters} - {_UNKNOWN.topic}):
            try:
                found |= self._topics.schemas({topic})
            except Corrupt as error:
                found[topic] = error
        return found

    def _fault(self, letter: _Letter, schemas: _Schemas) -> str:
        """Why a dead letter cannot be copied back to its topic, one of those with these schemas;
        empty if it can.
        """
        topic = letter.origin.topic
        if letter.damage is not None:
            what = "letter" if letter.origin == _UNKNOWN else "record"
            return f"the {what} cannot be read: {letter.damage.error.str()}"
        if topic not in schemas:
            return f"topic {topic!r} does not exist"
        schema = schemas[topic]
        if isinstance(schema, Corrupt):
            return f"topic {topic!r} cannot be read: {schema.error.str()}"
        if letter.record is None:
            return "the record is not in its topic any more, and was not copied"
        try:
            _value_for(letter.record, schema)
        except KafkaException as error:
            return f"the record does not fit topic {topic!r}: {error.error.str()}"
        return ""

    # --- reading ---

    def _read(self, wanted: Collection[tuple[int, int]] | None) -> Iterator[list[_Letter]]:
        """The dead letters of the group at these places, some at a time."""
        for partition, (start, end) in enumerate(
            zip(self._head.start_offsets, self._head.next_offsets, strict=True)
        ):
            offsets = [
                offset
                for offset in range(start, end)
                if wanted is None or (partition, offset) in wanted
            ]
            yield from self._read_at(partition, offsets, self._group)

    def _read_at(
        self, partition: int, offsets: Sequence[int], group: str | None = None
    ) -> Iterator[list[_Letter]]:
        """The dead letters of a group, of all for None, at offsets in order, some at a time; with
        those that cannot be read, of which the group is not known.
        """
        for first in range(0, len(offsets), AT_ONCE):
            some = [TakenRange(at, at + 1, 0) for at in offsets[first : first + AT_ONCE]]
            parts = self._topics.read(self.topic, self._head.topic_id, {partition: some})
            for part in parts:
                found = list(self._letters(part.messages, group))
                if part.damage is not None:
                    about = _UNKNOWN, -1, "", None, part.damage
                    found += [
                        _Letter((partition, offset), *about)
                        for each in part.others
                        for offset in range(each.first, each.end)
                    ]
                yield sorted(found, key=_place)

    def _letters(self, messages: Sequence[SharedMessage], group: str | None) -> Iterator[_Letter]:
        found = [(message, about) for message in messages if (about := _about(message, group))]
        originals, damages = self._originals([about for _, about in found])
        for message, (origin, offset, reason) in found:
            is_copy = message.key() is not None or message.value() is not None
            record = originals.get((origin, offset)) or (message if is_copy else None)
            place = message.partition() or 0, message.offset() or 0
            damage = damages.get(origin) if record is None else None
            yield _Letter(place, origin, offset, reason, record, damage)

    def _originals(
        self, records: Sequence[tuple[PartitionId, int, str]]
    ) -> tuple[dict[tuple[PartitionId, int], SharedMessage], dict[PartitionId, Corrupt]]:
        """The records that are in their topics still, and can be read; and why others of a
        partition cannot be.
        """
        wanted: dict[PartitionId, set[int]] = {}
        for origin, offset, _ in records:
            wanted.setdefault(origin, set()).add(offset)
        found: dict[tuple[PartitionId, int], SharedMessage] = {}
        damages: dict[PartitionId, Corrupt] = {}
        for key, offsets in wanted.items():
            some = [TakenRange(at, at + 1, 0) for at in sorted(offsets)]
            for part in self._topics.read(key.topic, key.topic_id, {key.partition: some}):
                found |= {(key, message.offset() or 0): message for message in part.messages}
                if part.damage is not None:
                    damages[key] = part.damage
        return found, damages

    # --- writing ---

    def _finish(self) -> int:
        """Copy back what is chosen. Returns the number of records."""
        copied = 0
        while pending := dead_records(self._log.read().partitions()):
            # Another redrive may have chosen some of them, also letters of other groups.
            chosen: dict[int, dict[int, Failure]] = {}
            for key, offset, _, failure in pending:
                if key.topic_id == self._head.topic_id:  # else they are deleted
                    chosen.setdefault(key.partition, {})[offset] = failure
            of_topic, failing = self._read_chosen(chosen)
            self._give_up(failing)
            for topic, records in of_topic.items():
                self._append(topic, records)
                copied += len(records)
            published = pending[-1].failure.since
            self._log.exchange(Exchange(_OWNER, published=published), self._deadline())
        return copied

    def _read_chosen(
        self, chosen: Mapping[int, Mapping[int, Failure]]
    ) -> tuple[dict[str, list[_ChosenRecord]], list[_FailingLetter]]:
        """The records of what is chosen, by topic, and the letters that cannot be copied."""
        of_topic: dict[str, list[_ChosenRecord]] = {}
        failing: list[_FailingLetter] = []
        for partition, failures in chosen.items():
            for letters in self._read_at(partition, sorted(failures)):
                schemas = self._schemas_for(letters)
                for letter in letters:
                    failure, topic = failures[letter.place[1]], letter.origin.topic
                    if letter.record is None or self._fault(letter, schemas):
                        failing.append((letter, failure))
                    else:
                        row = failure.since, letter.record, letter.origin.partition
                        of_topic.setdefault(topic, []).append(row)
        return of_topic, failing

    def _give_up(self, failing: Sequence[_FailingLetter]) -> None:
        """Give up chosen letters that cannot be copied, but those that were copied while they
        could be. This comes before an append that would say that they are copied.
        """
        since: dict[PartitionId, dict[int, int]] = {}
        versions: dict[str, int] = {}
        for letter, failure in failing:
            topic = failure.error or letter.origin.topic
            if topic not in versions:
                versions[topic] = self._appended_version(topic)
            if failure.since > versions[topic]:
                partition, offset = letter.place
                since.setdefault(self._key(partition), {})[offset] = failure.since
        if since:
            self._log.give_up(since, self._deadline())

    def _appended_version(self, topic: str) -> int:
        """The entry of the group up to which a topic has what was chosen; -1 without any. Raises
        Corrupt, Unavailable.
        """
        try:
            return appended_version(self._topic_log(topic), self._app_id)
        except UnknownTopic:
            return -1

    @property
    def _app_id(self) -> str:
        return f"deltaq.redrive/{self._head.topic_id}/{self._log.last_read().created_ms}"

    def _topic_log(self, topic: str) -> TopicLog:
        known = known_topic(self._store, topic, self._clock)
        return TopicLog(self._store, topic, self._clock, known=known)

    def _append(self, topic: str, records: Sequence[_ChosenRecord]) -> None:
        """Append records to their topic."""

        def rows_after(definition: TopicDefinition, version: int) -> tuple[list[AppendedRow], int]:
            new = [(message, number) for since, message, number in records if since > version]
            until = max([version, *(since for since, *_ in records)])
            return list(self._rows(topic, new, definition)), until

        log, deadline = self._topic_log(topic), self._deadline()
        try:
            append_once(log, self._store, self._clock, self._app_id, rows_after, deadline)
        except UnknownTopic:
            _log.warning("dead letters are dropped, as their topic was deleted topic=%r", topic)

    def _rows(
        self,
        topic: str,
        records: Iterable[tuple[SharedMessage, int]],
        definition: TopicDefinition,
    ) -> Iterator[AppendedRow]:
        """Records, each with its partition, as rows of their topic."""
        for message, number in records:
            try:
                value = _value_for(message, definition.schema)
            except KafkaException as error:
                # This can happen when the topic was created again a moment ago.
                _log.warning("a dead letter is dropped topic=%r: %s", topic, error.error.str())
                continue
            headers = [pair for pair in message.headers() or () if not pair[0].startswith(HEADER)]
            partition, now_ms = number % definition.partitions, self._clock.time_ms()
            yield AppendedRow(partition, now_ms, message.key(), headers or None, value)


def _place(letter: _Letter) -> tuple[int, int]:
    return letter.place


def _about(message: SharedMessage, group: str | None) -> tuple[PartitionId, int, str] | None:
    """The record that a dead letter of the group, of any for None, is about, and why it failed;
    None for another message.
    """
    about = {
        name.removeprefix(HEADER): (value or b"").decode(errors="replace")
        for name, value in message.headers() or ()
        if name.startswith(HEADER)
    }
    try:
        origin = PartitionId(about["topic"], about["topic.id"], int(about["partition"]))
        place = origin, int(about["offset"]), about.get("exception", about["message"])
    except (KeyError, ValueError):
        return None
    return place if group in (None, about.get("group")) else None


def _value_for(message: SharedMessage, schema: TopicSchema | None) -> Any:
    """The value of a record or of its copy as a topic with this schema takes it. Raises
    KafkaException, InvalidValue if it does not.
    """
    value: Any = message.value()
    if value is None or (schema is None and isinstance(value, bytes)):
        return value
    if schema is None:
        raise InvalidValue("the record has columns, and the topic holds bytes")
    if isinstance(value, bytes):
        raise InvalidValue("the record is bytes, and the topic has columns")
    names = frozenset(schema.arrow.names)
    for name, column in value.items():
        if column is not None and name not in names:
            raise InvalidValue("the topic has no such column", field=name)
    return schema.accept_columns(value)
