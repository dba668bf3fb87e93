"""Fixtures of the suites of work queues: a broker, its operations door, and queues that no other test uses."""

import pytest

from doors import Doors
from operations import Operations


@pytest.fixture(scope="session")
def doors():
    """One broker for all the tests of a suite."""
    shared = Doors()
    yield shared
    shared.stop()


@pytest.fixture
def own_doors():
    """A broker that the test may kill."""
    own = Doors()
    yield own
    own.clear()


@pytest.fixture(scope="session")
def operations(doors):
    """The operations door of the shared broker; every answer is compared with its description."""
    with Operations(doors.url) as door:
        yield door


@pytest.fixture
def make_queue(operations, unique):
    """Makes queues for one test: `make_queue(**settings)` returns the name of a new one."""
    made = []

    def make(**settings):
        name = f"{unique}-{len(made)}"
        operations.create(name, **settings)
        made.append(name)
        return name

    return make


@pytest.fixture
def queue(make_queue):
    """A queue as queues are unless something else is said, but for jitter: its waits are exact."""
    return make_queue(backoff_jitter_percent=0)
