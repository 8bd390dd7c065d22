"""When share groups deliver a message, as its producer wishes: a header of the message."""

from __future__ import annotations

from datetime import datetime

from deltaq.message import TIMESTAMP_MS_MAX
from deltaq.topics.columns import Headers

DELIVER_AT_HEADER = "deltaq.deliver_at"
"""The header with the time from which share groups deliver a message: milliseconds since 1970 UTC,
as decimal text.
"""


def delivery_header(deliver_at: datetime | float) -> tuple[str, bytes]:
    """The header for a time: seconds since 1970 UTC, or a datetime with its time zone. Raises
    TypeError, ValueError.
    """
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise ValueError(f"deliver_at={deliver_at!r}: give a datetime with its time zone")
        deliver_at = deliver_at.timestamp()
    if isinstance(deliver_at, bool) or not isinstance(deliver_at, int | float):
        raise TypeError(
            f"deliver_at must be a datetime or seconds since 1970, not {type(deliver_at).__name__}"
        )
    if not 0 <= deliver_at <= TIMESTAMP_MS_MAX / 1000:
        raise ValueError(f"deliver_at={deliver_at!r} is no time from 1970 to 2262, in seconds")
    return DELIVER_AT_HEADER, str(round(deliver_at * 1000)).encode()


def deliver_at_ms(headers: Headers) -> int:
    """The time in the headers of a message, in milliseconds since 1970 UTC; 0 for a message that is
    delivered at once.
    """
    for name, value in headers or ():
        if name == DELIVER_AT_HEADER and value is not None and value.isdigit():
            return min(int(value[:20]), TIMESTAMP_MS_MAX)
    return 0
