"""Fixtures of the suite about users and rules."""

import tempfile
from pathlib import Path

import pytest

from secure_broker import SecureBroker


@pytest.fixture(scope="module")
def secure():
    """One broker for all tests of a file. Tests use names of their own."""
    with tempfile.TemporaryDirectory(prefix="mainstem-secure-") as folder:
        broker = SecureBroker(Path(folder))
        yield broker
        broker.stop()


@pytest.fixture
def rule(secure):
    """Adds rules for one test."""
    added = []

    def add(*arguments):
        numbers = secure.rule(*arguments)
        added.extend(numbers)
        return numbers

    yield add
    known = secure.rules()
    secure.delete_rules([number for number in added if number in known])
