"""The clock of a group of views: a relation `clock` with one row, whose column `now` is the time of
the tick. `now()` and `current_timestamp` in the SQL of views are that time.

A tick names its time, so its views have one right result whenever they are evaluated. The clock
shows whole seconds, and never goes back from tick to tick.
"""

from __future__ import annotations

from deltaq.tools.duckdb_tables import Connection

CLOCK = "clock"
"""The name of the relation in SQL."""

CLOCK_TIME = "now"
"""Its column."""


def shown_s(time_ms: int) -> int:
    """The time that the clock shows at a tick with this time, in seconds since 1970."""
    return time_ms // 1000


def create_clock(connection: Connection, table: str) -> None:
    """Create the clock as a table without its row, and what SQL calls to read it. The schema of
    views is the current one, so that these names go before DuckDB's own.
    """
    connection.execute(f"create table {table} ({CLOCK_TIME} timestamp with time zone)")
    # DuckDB takes `current_timestamp` for a call of get_current_timestamp().
    for function in ("now", "get_current_timestamp"):
        connection.execute(f"create macro {function}() as (select {CLOCK_TIME} from {table})")


def set_clock(connection: Connection, table: str, time_s: int) -> None:
    """Give the clock its row, in place of the one that it has."""
    connection.execute(f"truncate {table}; insert into {table} select to_timestamp({time_s})")
