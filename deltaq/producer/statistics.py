"""What a producer emits for `stats_cb`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from deltaq.clock import Clock
from deltaq.config import ProducerConfig
from deltaq.producer.accumulator import BatchResult, RecordAccumulator
from deltaq.producer.callbacks import CallbackQueue, Notice
from deltaq.producer.topic_handle import TopicHandle
from deltaq.statistics import ClientFields, StatisticsTimer
from deltaq.topics.columns import rows_by_partition
from deltaq.weak import weakly

_UNASSIGNED = -1
"""librdkafka's partition for messages whose partition is not chosen yet. Here it is chosen when a
batch is encoded.
"""


class ProducerStatistics:
    """Counts what was written, and queues a call of `stats_cb` every `statistics.interval.ms`.
    Calls that the application is late for are replaced by newer ones. All state is guarded by
    `callbacks.changed`.
    """

    def __init__(
        self,
        config: ProducerConfig,
        clock: Clock,
        callbacks: CallbackQueue,
        handles: Mapping[Any, TopicHandle],
    ) -> None:
        self._config = config
        self._fields = ClientFields("producer", config.client_id, clock)
        self._callbacks = callbacks
        self._handles = handles
        self._messages: dict[str, Counter[int]] = {}
        self._bytes = 0
        self._notice: Notice | None = None
        self._timer = StatisticsTimer(
            clock, config.statistics_interval_ms / 1000, weakly(self._emit, False), config.client_id
        )

    def close(self) -> None:
        """End the emissions."""
        self._timer.abandon()

    def delivered(self, result: BatchResult) -> None:
        """Count the records of a result. The caller holds `changed`."""
        if result.error is None and result.columns is not None:
            self._bytes += result.bytes
            partitions = self._messages.setdefault(result.topic, Counter())
            partitions.update(rows_by_partition(result.columns))

    def _emit(self) -> bool:
        with self._callbacks.changed:
            text = json.dumps(self._read())
            if self._notice is None or self._notice.is_called:
                self._notice = Notice(self._config.stats_cb, text)
                self._callbacks.reported(self._notice)
            else:
                self._notice.argument = text
        return True

    def _read(self) -> dict[str, Any]:
        buffers = {handle.name: handle.buffer for handle in tuple(self._handles.values())}
        return {
            **self._fields.now(),
            "replyq": len(self._callbacks.due),
            "msg_cnt": sum(buffer.pending_rows for buffer in buffers.values())
            + sum(map(len, self._callbacks.due)),
            "msg_size": sum(buffer.pending_bytes for buffer in buffers.values()),
            "msg_max": self._config.queue_buffering_max_messages,
            "msg_size_max": self._config.queue_buffering_max_kbytes * 1024,
            "metadata_cache_cnt": len(buffers),
            "brokers": {},
            "topics": {name: self._topic(name, buffer) for name, buffer in buffers.items()},
            "txmsgs": sum(partitions.total() for partitions in self._messages.values()),
            "txmsg_bytes": self._bytes,
        }

    def _topic(self, name: str, buffer: RecordAccumulator) -> dict[str, Any]:
        waiting = {
            "partition": _UNASSIGNED,
            "msgq_cnt": len(buffer),
            "msgq_bytes": buffer.pending_bytes - buffer.taken_bytes + buffer.reported_bytes,
            "msgs_inflight": buffer.taken_rows - buffer.reported_rows,
        }
        written = self._messages.get(name, Counter())
        partitions = {
            str(number): {"partition": number, "txmsgs": written[number]}
            for number in sorted(written)
        }
        return {"topic": name, "partitions": {**partitions, str(_UNASSIGNED): waiting}}


def open_statistics(
    config: ProducerConfig,
    clock: Clock,
    callbacks: CallbackQueue,
    handles: Mapping[Any, TopicHandle],
) -> ProducerStatistics | None:
    """The statistics of a producer; None if its settings do not ask for them."""
    if config.stats_cb is None or not config.statistics_interval_ms:
        return None
    return ProducerStatistics(config, clock, callbacks, handles)
