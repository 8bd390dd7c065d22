"""An admin script: creates a topic, changes it, and prints what it finds.

Usage: python manage_topics.py BOOTSTRAP_SERVERS
"""

from __future__ import annotations

import sys
import time

import confluent_kafka.admin as kafka

TOPIC = "orders"


def main(servers: str) -> None:
    """Do it."""
    admin = kafka.AdminClient({"bootstrap.servers": servers})

    new = kafka.NewTopic(
        TOPIC, num_partitions=1, replication_factor=1, config={"retention.ms": "86400000"}
    )
    admin.create_topics([new])[TOPIC].result(30)
    try:
        admin.create_topics([new])[TOPIC].result(30)
    except kafka.KafkaException as error:
        print("creating it again:", error.args[0].name())

    admin.create_partitions([kafka.NewPartitions(TOPIC, 3)])[TOPIC].result(30)
    while len(partitions := admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions) < 3:
        time.sleep(0.1)  # a broker answers before it shows the change
    print("partitions:", sorted(partitions))

    longer = kafka.ConfigEntry(
        "retention.ms", "172800000", incremental_operation=kafka.AlterConfigOpType.SET
    )
    resource = kafka.ConfigResource(
        kafka.ConfigResource.Type.TOPIC, TOPIC, incremental_configs=[longer]
    )
    admin.incremental_alter_configs([resource])[resource].result(30)
    while (settings := admin.describe_configs([resource])[resource].result(30))[
        "retention.ms"
    ].value != longer.value:
        time.sleep(0.1)
    for name in ("retention.ms", "cleanup.policy"):
        print(f"{name} = {settings[name].value}")

    missing = kafka.ConfigResource(kafka.ConfigResource.Type.TOPIC, "invoices")
    try:
        admin.describe_configs([missing])[missing].result(30)
    except kafka.KafkaException as error:
        print("a topic that does not exist:", error.args[0].name())


if __name__ == "__main__":
    main(sys.argv[1])
