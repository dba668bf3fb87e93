"""Fixtures of the suites of work queues: a broker, its HTTP API, and queues that no other test uses."""

import pytest

from broker_process import BrokerProcess
from operations import Operations


@pytest.fixture(scope="session")
def broker_process():
    """One broker for all the tests of a suite."""
    shared = BrokerProcess()
    yield shared
    shared.stop()


@pytest.fixture
def own_broker_process():
    """A broker that the test may kill."""
    own = BrokerProcess()
    yield own
    own.clear()


@pytest.fixture(scope="session")
def operations(broker_process):
    """The HTTP API of the shared broker; every response is checked against its description."""
    with Operations(broker_process.url) as listener:
        yield listener


@pytest.fixture
def make_queue(operations, unique):
    """Creates queues for one test: `make_queue(**settings)` returns the name of a new one."""
    made = []

    def make(**settings):
        name = f"{unique}-{len(made)}"
        operations.create(name, **settings)
        made.append(name)
        return name

    return make


@pytest.fixture
def queue(make_queue):
    """A queue with default settings, except that its backoff has no jitter."""
    return make_queue(backoff_jitter_percent=0)
