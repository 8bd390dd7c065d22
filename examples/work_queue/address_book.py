"""The address book of another department: slow, often down, and incomplete."""

from __future__ import annotations

import random


class UnknownAddress(LookupError):
    """The address book answers that there is no such person: to ask again is of no use."""


class FlakyAddressBook:
    """Knows everyone but those whose name begins with `gone`. A part `failing` of all questions
    fails.
    """

    def __init__(self, failing: float, chance: random.Random) -> None:
        self._failing = failing
        self._chance = chance

    def find(self, name: str) -> str:
        """The address of a person. Raises UnknownAddress, and OSError if it is down."""
        if self._chance.random() < self._failing:
            raise OSError("the address book does not answer")
        if name.startswith("gone"):
            raise UnknownAddress(name)
        return f"{name}@example.org"
