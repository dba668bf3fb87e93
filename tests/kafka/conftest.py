"""Fixtures of the Python suites of the Kafka listener: the broker, and topics that no other test uses."""

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from broker import KafkaBroker

DEADLINE_S = 30
# The defaults of the consumer protocol are too slow for tests.
SETTINGS = ("kafka.group_consumer_heartbeat_interval_ms=200", "kafka.group_consumer_session_timeout_ms=4000")


@pytest.fixture(scope="session")
def kafka():
    """One broker for all the tests of a suite."""
    shared = KafkaBroker.running() or KafkaBroker.start(*SETTINGS)
    yield shared
    shared.stop()


@pytest.fixture
def own_kafka():
    """A broker that the test may kill; skips the test if the suite uses a running broker."""
    if KafkaBroker.running():
        pytest.skip("needs to kill a broker, and this one is not ours")
    own = KafkaBroker.start(*SETTINGS)
    yield own
    own.kill()


@pytest.fixture(scope="session")
def admin(kafka):
    """An admin client of the shared broker."""
    return AdminClient({"bootstrap.servers": kafka.bootstrap})


@pytest.fixture
def make_topic(admin, unique):
    """Creates topics for one test: `make_topic(partitions, **configs)` returns the name of a new one."""
    made = []

    def make(partitions=1, **configs):
        name = f"{unique}-{len(made)}"
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin.create_topics([new])[name].result(DEADLINE_S)
        made.append(name)
        return name

    return make


@pytest.fixture
def topic(make_topic):
    """A topic of one partition."""
    return make_topic()
