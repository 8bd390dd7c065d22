"""The producer client and its write path: accumulate, upload, commit, report.

Modules:

* `producer`, `topic_handle`: the client; what it knows of a topic, and the checks of messages, one
  by one and before a call of `produce_batch`
* `serializing`: `SerializingProducer`: objects as records
* `accumulator`, `batches`: records that wait; records on their way
* `sender`, `sender_topic`: one sender per topic and process; what it knows of the topic, with the
  maintenance beside it
* `linger`, `uploader`: how long records wait; taking them, and how many uploads run at once
* `batch_upload`, `encoding`: their way into the store: partitions, columns, files; the pieces of
  large messages
* `committer`, `group_commit`: their way into the log; committing for other processes
* `delivery_reports`, `callbacks`: results, those of `message.timeout.ms` too; the callbacks that
  are due, made inside `poll` and `flush`, with what `stats_cb` gets, and futures, which end without
  them
* `transaction_calls`, `transactions`, `staging`: the methods of transactions; their states, and
  the steps of a commit; uploads that wait for its decision
* `lifecycle`: how it ends
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from deltaq.producer.producer import Producer
    from deltaq.producer.serializing import SerializingProducer

__all__ = ["Producer", "SerializingProducer"]

# Loaded when first used: a task of Spark encodes records with parts of this package, and needs no
# client.
_LOADED_WHEN_USED = {"Producer": "producer", "SerializingProducer": "serializing"}


if not typing.TYPE_CHECKING:  # else a type checker accepts any name

    def __getattr__(name: str) -> object:
        if name not in _LOADED_WHEN_USED:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(
            importlib.import_module("deltaq.producer." + _LOADED_WHEN_USED[name]), name
        )
        globals()[name] = value
        return value
