"""Test kit for programs that use deltaq, and for deltaq itself: a store with faults on demand, and
clocks that a test moves.

Modules:

* `faulty_store`, `faults`, `chance`: a store that injects faults; faults as values; chance from a
  seed
* `manual_clock`, `mortal_clock`: clocks that a test moves, and that die with a killed process
* `reading`: a topic's messages, for assertions; the fixtures of pytest are in `pytest_deltaq`
"""

from deltaq.testing.faults import Crash, Effect, Fault, Rule
from deltaq.testing.faulty_store import FaultyStore, TracedOperation
from deltaq.testing.manual_clock import ManualClock
from deltaq.testing.mortal_clock import MortalClock
from deltaq.testing.reading import messages_of

__all__ = [
    "Crash",
    "Effect",
    "Fault",
    "FaultyStore",
    "ManualClock",
    "MortalClock",
    "Rule",
    "TracedOperation",
    "messages_of",
]
