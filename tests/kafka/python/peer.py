"""Helpers of the tests: records, deadlines, and client settings for fast tests."""

import logging
import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

DEADLINE_S = 30
# pytest shows it when a test fails.
LOG = logging.getLogger("librdkafka")
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@dataclass
class Record:
    """A record of any client in one form."""

    key: bytes | None
    value: bytes | None
    headers: list = field(default_factory=list)
    partition: int = 0
    offset: int = 0
    timestamp_ms: int = 0


def until(condition, what: str, step=lambda: time.sleep(0.01)):
    """Repeats `step` until `condition` is true, and fails after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S} s: {what}"
        step()


def confluent_producer(kafka, **settings) -> Producer:
    """librdkafka's producer."""
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": kafka.bootstrap, "logger": LOG, "linger.ms": 1, **settings})


def confluent_consumer(kafka, group, **settings) -> Consumer:
    """librdkafka's consumer, which begins at the start."""
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    if settings.get("group.protocol") != "consumer":
        # In the consumer protocol, the broker sets them.
        settings = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500, **settings}
    return Consumer({
        "bootstrap.servers": kafka.bootstrap, "group.id": group, "auto.offset.reset": "earliest", "logger": LOG,
        "enable.auto.commit": False, "fetch.wait.max.ms": 500, **settings})


class ConfluentMember:
    """A group member in its own thread; it commits its position before it loses a partition."""

    def __init__(self, kafka, group, topic, **settings):
        self.consumer = confluent_consumer(kafka, group, **settings)
        self.seen = []
        self.owned = set()
        self.failures = []
        self._is_over = threading.Event()
        self.consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _assigned(self, consumer, partitions):
        self.owned |= {each.partition for each in partitions}

    def _revoked(self, consumer, partitions):
        try:
            consumer.commit(asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._NO_OFFSET:
                self.failures.append(failure)
        self.owned -= {each.partition for each in partitions}

    def _lost(self, consumer, partitions):
        self.owned -= {each.partition for each in partitions}
        self.failures.append(f"lost {partitions}")

    def _run(self):
        try:
            while not self._is_over.is_set():
                message = self.consumer.poll(0.05)
                if message is not None and not message.error():
                    self.seen.append(message.value())
                elif message is not None:
                    self.failures.append(message.error())
        finally:
            self.consumer.close()

    def leave(self):
        self._is_over.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        assert not self.failures


class Deliveries:
    """The reports of a librdkafka producer."""

    def __init__(self):
        self.reports = []
        self.errors = []

    def __call__(self, error, message):
        if error:
            self.errors.append(error)
        else:
            self.reports.append(message)


def produce_all(producer: Producer, topic: str, values, **options) -> list:
    """Produces all, waits for the reports, and returns them; fails with the first error."""
    deliveries = Deliveries()
    for value in values:
        while True:
            try:
                producer.produce(topic, value, on_delivery=deliveries, **options)
                break
            except BufferError:
                producer.poll(0.05)
    left = producer.flush(DEADLINE_S)
    if deliveries.errors:
        raise KafkaException(deliveries.errors[0])
    assert left == 0, f"{left} without a report"
    return deliveries.reports


def record(message) -> Record:
    """A message of confluent-kafka."""
    return Record(message.key(), message.value(), message.headers() or [], message.partition(), message.offset(),
                  message.timestamp()[1])


def next_message(consumer: Consumer):
    """The next message; fails after the deadline, or with the consumer's error."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None:
            continue
        if message.error():
            # The topic is newer than the client's metadata.
            if message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise KafkaException(message.error())
        return message
    raise AssertionError(f"no message within {DEADLINE_S} s")


def read(consumer: Consumer, count: int) -> list[Record]:
    """The next `count` records."""
    return [record(next_message(consumer)) for _ in range(count)]


def read_topic(kafka, topic, count, **settings) -> list[Record]:
    """The first `count` records of a topic, read by a new group."""
    consumer = confluent_consumer(kafka, f"read-{topic}-{time.monotonic_ns()}", **settings)
    try:
        consumer.subscribe([topic])
        return read(consumer, count)
    finally:
        consumer.close()


def numbers(count: int, prefix: str = "") -> list[bytes]:
    """Distinct values in order."""
    return [f"{prefix}{number}".encode() for number in range(count)]


def values(records) -> list:
    """The values of the records."""
    return [record.value for record in records]
