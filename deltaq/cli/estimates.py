"""`deltaq cost` and `deltaq bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from deltaq.cli.command import Command, Option, UsageError
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column
from deltaq.units import as_count, as_rate, as_size

if TYPE_CHECKING:
    from deltaq.tools.cost import Cost


def cost(
    session: CliSession,
    messages: Annotated[
        float | None,
        Option(
            "--messages",
            "-m",
            min=0,
            max=1e12,
            metavar="N",
            help="Messages a second of a topic to be.",
        ),
    ] = None,
    size: Annotated[
        float,
        Option(
            "--size", "-s", min=0, max=1e12, metavar="BYTES", help="With -m: bytes of a message."
        ),
    ] = 1_000,
    linger: Annotated[
        float,
        Option("--linger", min=0, max=1e9, metavar="MS", help="With -m: linger.ms of producers."),
    ] = 5,
    producers: Annotated[
        int, Option("--producers", min=1, help="With -m: processes that write.")
    ] = 1,
    consumers: Annotated[
        int, Option("--consumers", min=0, help="With -m: processes that read all.")
    ] = 1,
    workers: Annotated[
        int, Option("--workers", min=0, help="With -m: workers of one share group.")
    ] = 0,
    processes: Annotated[
        int | None,
        Option(
            "--worker-processes",
            min=1,
            help="With --workers: processes that run them. Without it each has one of its own.",
        ),
    ] = None,
    retention: Annotated[
        float,
        Option(
            "--retention",
            min=0,
            max=1e6,
            metavar="DAYS",
            help="With -m: days that messages are kept.",
        ),
    ] = 7,
    compression: Annotated[
        float,
        Option(
            "--compression", min=0, max=1, metavar="SHARE", help="With -m: size of files per byte."
        ),
    ] = 1,
    topics: Annotated[
        list[str] | None,
        Option("--topic", "-t", help="Without -m: only this topic. May be repeated."),
    ] = None,
    interval: Annotated[
        float,
        Option(
            "--interval",
            min=0.1,
            max=1e6,
            metavar="S",
            help="Without -m: seconds between two looks at the root.",
        ),
    ] = 5,
) -> None:
    """Estimate dollars a day on S3: of rates given by -m, or of the root as it runs now.

    Counts requests and storage by the price list of S3 Standard, whatever the root is. Machines and
    traffic between regions are not included.
    """
    from deltaq.tools.cost import estimate, load_of, queue_load_of  # noqa: PLC0415 - `deltaq --help` needs no clients

    if messages is not None:
        if topics:
            raise UsageError("--topic is for a root that runs: leave out --messages")
        load = load_of(
            messages,
            size,
            linger_ms=linger,
            producers=producers,
            consumers=consumers,
            retention_days=retention,
            compression=compression,
        )
        _show(session, estimate([load], queues=[queue_load_of(load, workers, processes)]))
        return
    from deltaq.tools.rates import RootWatch, measured_cost  # noqa: PLC0415 - as above

    watch = RootWatch(session.store, session.clock, sizes=True)
    before = watch.sample()
    session.clock.sleep(interval)
    _show(session, measured_cost(before, watch.sample(), topics))


def _show(session: CliSession, found: Cost) -> None:
    dollars = {**found.dollars_by_kind(), "storage": found.storage_dollars, "total": found.dollars}
    if session.out.is_json:
        about = {
            "prices": found.prices.name,
            "requests_per_s": found.requests_per_s,
            "bytes_kept": found.bytes_kept,
        }
        session.out.json({**about, "dollars_per_day": dollars})
        return
    rows = [
        {
            "of": kind,
            "per_s": as_rate(found.requests_per_s[kind]) if kind in found.requests_per_s else "",
            "kept": as_size(found.bytes_kept) if kind == "storage" else "",
            "dollars": f"{value:,.2f}",
        }
        for kind, value in dollars.items()
    ]
    columns = [
        Column("of"),
        Column("per_s", title="PER SECOND"),
        Column("kept"),
        Column("dollars", title="$ A DAY"),
    ]
    session.out.rows(columns, rows)
    session.out.line(f"by the price list of {found.prices.name}, estimated")


def bench(
    session: CliSession,
    seconds: Annotated[
        float, Option("--seconds", "-s", min=0.1, max=600, help="How long to measure, about.")
    ] = 6,
    size: Annotated[
        int, Option("--size", min=0, max=900_000, metavar="BYTES", help="Bytes of a message.")
    ] = 100,
    partitions: Annotated[
        int, Option("--partitions", "-p", min=1, max=1_000, help="Partitions of the topic.")
    ] = 1,
) -> None:
    """Measure a root for a few seconds: requests, messages a second, and the time of one message
    alone.

    Makes a topic with a name of its own and removes it. Writes at full speed: not for a root that
    others rely on now.
    """
    from deltaq.tools.speed import measure_speed  # noqa: PLC0415 - `deltaq --help` needs no clients

    found = measure_speed(
        session.store,
        session.clock,
        session.conf,
        seconds=seconds,
        message_bytes=size,
        partitions=partitions,
    )
    if session.out.is_json:
        session.out.json(asdict(found))
        return

    def times(marks: tuple[float, float]) -> str:
        return f"{marks[0]:.2f} ms, longest {marks[1]:.2f} ms"

    def rate(per_s: float) -> str:
        return f"{as_rate(per_s)} messages/s, {as_size(per_s * size)}/s"

    session.out.fields(
        [
            ("Write of 1 KB", times(found.put_ms)),
            ("Read of 1 KB", times(found.get_ms)),
            (
                "Written",
                f"{rate(found.written_per_s)} (of {as_count(found.messages)}, acknowledged)",
            ),
            ("Read", rate(found.read_per_s)),
            (
                "One message alone",
                f"{times(found.arrival_ms)} (of {as_count(found.arrivals)}, produce to poll)",
            ),
        ]
    )


COMMANDS: Mapping[str, Command] = {"cost": cost, "bench": bench}
