"""Test kit for programs that use deltaq, and for deltaq itself: fault injection, manual clocks, a
history checker.
"""

from deltaq.testing.checker import Anomaly, check_history, report
from deltaq.testing.faults import Crash, Effect, Fault, Rule
from deltaq.testing.faulty_store import FaultyStore, TracedOperation
from deltaq.testing.history import History, Invocation, Operation, dump_history, load_history
from deltaq.testing.manual_clock import ManualClock
from deltaq.testing.mortal_clock import MortalClock
from deltaq.testing.reading import messages_of

__all__ = [
    "Anomaly",
    "Crash",
    "Effect",
    "Fault",
    "FaultyStore",
    "History",
    "Invocation",
    "ManualClock",
    "MortalClock",
    "Operation",
    "Rule",
    "TracedOperation",
    "check_history",
    "dump_history",
    "load_history",
    "messages_of",
    "report",
]
