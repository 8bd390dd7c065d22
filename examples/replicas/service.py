"""A replica: reads its share of the topic, and adds each event once to the user's totals in
PostgreSQL.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import pyarrow as pa

from deltaq import OFFSET_BEGINNING, Consumer, Fenced, KafkaError, KafkaException, TopicPartition
from examples._programs import child_parser, on_stop
from examples.replicas.aggregate import aggregate
from examples.replicas.database import ReplicaDatabase, ReplicaStopped, StalePositions
from examples.replicas.layout import EVENTS, ReplicaSettings, create_topic

_log = logging.getLogger(__name__)

POINTS = ("assigned", "received", "written", "committed", "revoked")
"""The points at which a crash leaves a different state behind: the positions are read but nothing
is assigned; rows are in memory; they are written but not committed; they are committed but the
group does not know; they are committed but the partitions are not released.
"""


def pass_on(_: str) -> None:
    """The default of `Replica.reached`: does nothing."""


class Replica:
    """One replica. `run` returns after `stop`.

    At most `batch_rows` rows are taken from the consumer and not yet committed to the database.
    While a transaction takes its time the replica takes no more, the consumer stops reading ahead,
    and the records wait in the topic.

    `reached` is called at each of the `POINTS`; tests kill the process there.
    """

    def __init__(
        self, settings: ReplicaSettings, reached: Callable[[str], object] = pass_on
    ) -> None:
        self._settings = settings
        self._reached = reached
        self._stopping = threading.Event()
        self.database = self._open_database()
        self._consumer = Consumer(
            {
                "bootstrap.servers": settings.root,
                "group.id": settings.group,
                "client.id": settings.name,
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": settings.session_timeout_ms,
                "heartbeat.interval.ms": settings.session_timeout_ms // 6,
                "queued.max.messages.kbytes": settings.read_ahead_kbytes,
                "fetch.max.bytes": settings.read_ahead_kbytes * 1024,
                # The database decides where to go on. The group's offsets only show the lag to the
                # tools.
                "enable.auto.offset.store": False,
                "auto.commit.interval.ms": 1_000,
                # Records that were removed before they were counted are an error, not something to
                # pass over.
                "auto.offset.reset": "error",
            }
        )
        # Of the assigned partitions, as they are in the database.
        self._positions: dict[int, int] = {}
        self._batches: list[pa.RecordBatch] = []  # records of one transaction
        self.rows_in_flight = 0

    def _open_database(self) -> ReplicaDatabase:
        settings = self._settings
        delay_s = settings.database_delay_s
        return ReplicaDatabase(
            settings.database_url,
            settings.name,
            settings.group,
            EVENTS.name,
            self._stopping,
            delay_s,
        )

    @property
    def partitions(self) -> set[int]:
        """The partitions that are assigned to this replica."""
        return set(self._positions)

    def stop(self) -> None:
        """Let `run` write what it has taken and return."""
        self._stopping.set()

    def run(self) -> None:
        """Count records until `stop` is called. Raises KafkaException for an error that needs an
        operator.
        """
        try:
            create_topic(self._settings.root)
            self.database.create_tables()
            callbacks = {
                "on_assign": self._assigned,
                "on_revoke": self._revoked,
                "on_lost": self._lost,
            }
            self._consumer.subscribe([EVENTS], **callbacks)
            while not self._stopping.is_set():
                self._take()
                self._write()
        except ReplicaStopped:
            self._forget_rows()
        finally:
            self._consumer.close()  # calls on_revoke
            self.database.close()

    def _take(self) -> None:
        """Collect rows for one transaction."""
        until = time.monotonic() + self._settings.linger_s
        while (
            room := self._settings.batch_rows - self.rows_in_flight
        ) > 0 and not self._stopping.is_set():
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                return
            try:
                batch = self._consumer.consume_arrow(room, remaining_s)
            except KafkaException as error:
                if not joins_again(error):
                    raise
                _log.warning("left the group, joining again: %s", error)
                continue
            if batch is not None:
                self._batches.append(batch)
                self.rows_in_flight += batch.num_rows

    def _write(self) -> None:
        """Count the rows in the database, unless another replica has counted some of them."""
        if not self._batches:
            return
        self._reached("received")
        change = aggregate(self._batches)
        try:
            self.database.write(change, self._positions, lambda: self._reached("written"))
        except StalePositions:
            _log.warning(
                "another replica has counted records of partitions %s", sorted(change.positions)
            )
            self._forget_rows()
            self._seek()
            return
        self._reached("committed")
        self._forget_rows()
        self._positions |= change.positions
        self._consumer.store_offsets(
            offsets=[
                TopicPartition(EVENTS.name, partition, offset)
                for partition, offset in change.positions.items()
            ]
        )

    def _forget_rows(self) -> None:
        self._batches, self.rows_in_flight = [], 0

    def _seek(self) -> None:
        """Continue where the database says."""
        self._positions = self.database.positions(self._positions)
        for tp in starts(self._positions):
            self._consumer.seek(tp)

    # --- what the consumer calls, in the thread of `run` ---

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not partitions:  # only those of other replicas have changed
            return
        found = self.database.positions([tp.partition for tp in partitions])
        self._reached("assigned")
        consumer.incremental_assign(starts(found))
        self._positions |= found

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self._write()
        except ReplicaStopped:  # the next owner reads the rows again
            self._forget_rows()
        self._reached("revoked")
        self._forget_partitions(partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget_rows()  # a lost membership loses all partitions
        self._forget_partitions(partitions)

    def _forget_partitions(self, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self._positions.pop(tp.partition, None)


def starts(positions: dict[int, int]) -> list[TopicPartition]:
    """Where to read on. A partition of which nothing was counted starts at its first record, which
    need not be 0.
    """
    return [
        TopicPartition(EVENTS.name, partition, offset or OFFSET_BEGINNING)
        for partition, offset in sorted(positions.items())
    ]


def joins_again(error: KafkaException) -> bool:
    """Whether the consumer has lost its membership, or waits for the store, and goes on by
    itself.
    """
    reason: KafkaError = error.args[0]
    lost = isinstance(error, Fenced) or reason.code() == KafkaError._MAX_POLL_EXCEEDED
    return (lost or reason.retriable()) and not reason.fatal()


def main() -> None:
    """Run the program."""
    parser = child_parser(__doc__)
    parser.add_argument(
        "--database-url",
        required=True,
        help="as libpq takes it, for example postgresql://host/name",
    )
    parser.add_argument(
        "--name",
        default=ReplicaSettings.name,
        help="shown in the group and in the database's sessions",
    )
    parser.add_argument(
        "--batch-rows",
        type=int,
        default=ReplicaSettings.batch_rows,
        help="rows in one transaction, at most",
    )
    parser.add_argument(
        "--linger",
        type=float,
        default=ReplicaSettings.linger_s,
        help="seconds to collect a transaction",
    )
    parser.add_argument(
        "--session-timeout",
        type=float,
        default=6.0,
        help="seconds until a dead replica is replaced",
    )
    parser.add_argument(
        "--database-delay", type=float, default=0.0, help="seconds to add to each transaction"
    )
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    replica = Replica(
        ReplicaSettings(
            args.root,
            args.database_url,
            args.name,
            batch_rows=args.batch_rows,
            linger_s=args.linger,
            session_timeout_ms=int(args.session_timeout * 1000),
            database_delay_s=args.database_delay,
        )
    )
    on_stop(replica.stop, until_eof=args.until_eof)
    replica.run()


if __name__ == "__main__":
    main()
