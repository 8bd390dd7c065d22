"""The names of `confluent_kafka.cimpl`, for programs that import from there."""

from __future__ import annotations

from deltaq.compat.cimpl import *  # noqa: F403 - all of them, and nothing else is in there
from deltaq.compat.cimpl.constants import *  # noqa: F403 - as above
