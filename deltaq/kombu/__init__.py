"""Celery on a folder or a bucket: a transport for kombu. Needs the extra `[celery]`.

    app = Celery(broker_url="deltaq:///var/lib/tasks")
    app = Celery(broker_url="deltaq+s3://bucket/tasks")

Modules:

* `transport`: connections and channels of kombu
* `clients`: the clients with which a connection works on a root
* `shared_queue`: a queue that workers share: a share group over topics
* `private_queue`: a queue of one process: what comes to its topics while it lives
* `routes`: the names of topics, which messages of an exchange a queue takes, and what is delivered
"""

from __future__ import annotations

import json
from typing import Any, Final

from kombu.transport import TRANSPORT_ALIASES

SCHEME = "deltaq"
"""The scheme of broker URLs."""

SERIALIZER: Final[tuple[Any, ...]] = (json.dumps, json.loads, "application/x-deltaq-json", "utf-8")
"""A second name of JSON, `deltaq`, which the entry point `kombu.serializers` gives to kombu.

kombu has no entry point for transports. It loads those for serializers when it is imported, and
with them this module, which names the transport.
"""

# By its name: kombu is not imported as a whole yet.
TRANSPORT_ALIASES[SCHEME] = "deltaq.kombu.transport:QueueTransport"
