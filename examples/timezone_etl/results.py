"""Write the unified times to a CSV file, from the first message on, and append messages as they
arrive.
"""

from __future__ import annotations

import csv
from pathlib import Path

from deltaq import OFFSET_BEGINNING, Consumer, TopicPartition
from examples._programs import parser_of
from examples.timezone_etl.layout import UNIFIED, wait_for_topics

COLUMNS = ("timestamp", "message", "partition", "offset")


def from_the_beginning(consumer: Consumer, partitions: list[TopicPartition]) -> None:
    """Start at the first message, regardless of what an earlier run has read."""
    for partition in partitions:
        partition.offset = OFFSET_BEGINNING
    consumer.assign(partitions)


def write_results(consumer: Consumer, path: Path, wanted: int | None) -> None:
    """Write messages as rows until `wanted` rows are written; None: until interrupted."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        written = 0
        while wanted is None or written < wanted:
            messages = consumer.consume(1000, timeout=0.5)
            for message in messages:
                if (error := message.error()) is not None:
                    raise SystemExit(f"cannot read {UNIFIED}: {error.str()}")
                value = message.value()
                rows.writerow(
                    [value["timestamp"], value["message"], message.partition(), message.offset()]
                )
            written += len(messages)
            if messages:
                file.flush()
                print(f"{written} rows in {path}", flush=True)


def main() -> None:
    """Run the program."""
    parser = parser_of(__doc__)
    parser.add_argument("--csv", type=Path, default=Path("results.csv"), help="the file to write")
    parser.add_argument(
        "--messages",
        type=int,
        default=None,
        help="end after this many; without, run until interrupted",
    )
    args = parser.parse_args()

    wait_for_topics(args.root, [UNIFIED])
    with Consumer(
        {"bootstrap.servers": args.root, "group.id": "results", "enable.auto.commit": False}
    ) as consumer:
        consumer.subscribe([UNIFIED], on_assign=from_the_beginning)
        try:
            write_results(consumer, args.csv, args.messages)
        except KeyboardInterrupt:
            print("interrupted", flush=True)


if __name__ == "__main__":
    main()
