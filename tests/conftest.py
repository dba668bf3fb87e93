"""Fixtures of every Python suite: the broker, and names that no other test uses."""

import uuid

import pytest

from broker import Broker


@pytest.fixture(scope="session")
def broker():
    """One broker for all the tests of a suite."""
    shared = Broker.running() or Broker.start()
    yield shared
    shared.stop()


@pytest.fixture
def own_broker():
    """A broker that the test may stop; skips the test if the suite uses a running broker."""
    if Broker.running():
        pytest.skip("needs to stop a broker, and this one is not ours")
    own = Broker.start()
    yield own
    own.kill()


@pytest.fixture
def unique() -> str:
    """A prefix for the topics and client identifiers of one test."""
    return f"t{uuid.uuid4().hex[:12]}"
