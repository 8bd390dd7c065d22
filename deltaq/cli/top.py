"""`deltaq top`: live rates of topics and the lag of groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

from deltaq.cli.command import Command, Option
from deltaq.cli.session import CliSession
from deltaq.cli.table import Column, Rows
from deltaq.errors import Unavailable
from deltaq.units import as_count, as_lag, as_rate

if TYPE_CHECKING:
    from deltaq.tools.rates import RootSample

_TOPICS = [
    Column("topic"),
    Column("messages", as_count),
    Column("messages_per_s", as_rate, "MESSAGES/S"),
    Column("commits_per_s", as_rate, "COMMITS/S"),
]
_GROUPS = [Column("group"), Column("lag", as_lag), Column("lag_per_s", as_rate, "LAG/S")]


def top(
    session: CliSession,
    interval: Annotated[
        float,
        Option("--interval", min=0.1, max=1e6, metavar="S", help="Seconds between two looks."),
    ] = 2.0,
    rounds: Annotated[
        int | None,
        Option("--rounds", "-n", min=1, help="End after so many looks; without it, go on."),
    ] = None,
    count: Annotated[
        int, Option("--count", "-c", min=1, help="Show so many topics and groups.")
    ] = 20,
) -> None:
    """Show the busiest topics and the groups that are furthest behind, live, until Ctrl-C.

    A positive LAG/S means that a group falls behind.
    """
    from deltaq.tools.rates import RootWatch  # noqa: PLC0415 - `deltaq --help` needs no clients

    watch = RootWatch(session.store, session.clock)
    before: RootSample | None = None
    done = 0
    with session.out.screen() as show:
        while rounds is None or done < rounds:
            if done:
                session.clock.sleep(interval)
            try:
                now = watch.sample()
            except Unavailable as error:
                if before is None:
                    raise
                # The rest as last seen.
                now = replace(before, errors={session.store.url: error.error.str()})
            topics, groups = _rows(before, now)
            if session.out.is_json:
                session.out.json_line(
                    {"topics": topics, "groups": groups, "errors": dict(now.errors)}
                )
            else:
                tables: list[Rows] = [(_TOPICS, topics[:count])]
                if groups:
                    tables.append((_GROUPS, groups[:count]))
                if now.errors:
                    errors = [
                        {"topic": name, "error": reason}
                        for name, reason in sorted(now.errors.items())
                    ]
                    tables.append(([Column("topic"), Column("error")], errors[:count]))
                show(tables)
            before, done = now, done + 1


def _rows(
    before: RootSample | None, now: RootSample
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    from deltaq.tools.rates import topic_rates  # noqa: PLC0415 - `deltaq --help` needs no clients

    topics: list[dict[str, object]] = [asdict(rate) for rate in topic_rates(before, now)]
    groups: list[dict[str, object]] = []
    for group, lag in sorted(now.lags.items(), key=lambda item: (-(item[1] or 0), item[0])):
        earlier = None if before is None else before.lags.get(group)
        rate = None
        if before is not None and earlier is not None and lag is not None:
            rate = (lag - earlier) / max(now.at_s - before.at_s, 1e-9)
        groups.append({"group": group, "lag": lag, "lag_per_s": rate})
    return topics, groups


COMMANDS: Mapping[str, Command] = {"top": top}
