"""What others publish of systems with a log on S3: what they cost, and how long messages take."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PUBLISHED_COSTS", "PUBLISHED_LATENCIES", "Published"]


@dataclass(frozen=True, slots=True)
class Published:
    """A figure that others have published of a system, with its source."""

    system: str
    figures: tuple[str, ...]
    source: str


PUBLISHED_COSTS = (
    Published(
        "Kafka, traffic between zones only",
        ("46 to 58", "461 to 576"),
        "AWS, 0.02 $/GB; 3 copies, none or one reader in another zone",
    ),
    Published(
        "Kafka on machines of one's own, all in",
        ("90 to 100", "890 to 1,000"),
        "OpenData quotes 8,500 $ a month at 30 MiB/s, scaled; said to be a third if optimised",
    ),
    Published(
        "WarpStream",
        ("14", "136"),
        "OpenData quotes 1,300 $ a month at 30 MiB/s, scaled; without a minimum",
    ),
    Published(
        "MSK Express",
        ("58 + 12", "405 + 115"),
        "3 brokers, 7 days, + clients' traffic; prices not re-checked",
    ),
    Published("Kinesis on demand", ("105", "1,040"), "one reader; prices not re-checked"),
)
"""Dollars a day at 10 and at 100 MB/s."""

PUBLISHED_LATENCIES = (
    Published(
        "WarpStream", ("", "400 to 600", "", "< 1,500"), "AWS' storage blog, WarpStream's blog"
    ),
    Published("S2 Standard", ("", "< 400", "", "< 500"), "S2's documentation"),
    Published(
        "Bufstream",
        ("260", "500", "", ""),
        "its page of benchmarks; from where to where is not stated",
    ),
    Published(
        "Redpanda Cloud Topics",
        ("", "", "", "1,000 to 2,000"),
        "Redpanda's documentation, what to plan for",
    ),
    Published(
        "StreamNative Ursa",
        ("", "", "200 to 500", ""),
        "StreamNative's documentation; which mark is not stated",
    ),
)
"""Milliseconds on S3 Standard: acknowledgement p50 and p99, from end to end p50 and p99."""
