"""confluent-kafka: the broker is killed under load and started again; nothing acknowledged is lost, nothing is twice.

`MAINSTEM_KILLS` says how often the broker is killed in each test (3), `MAINSTEM_SEED` decides the moments (1).
"""

import os
import random
import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from peer import Deliveries, confluent_consumer, confluent_producer, numbers, produce_all, read_topic, values

KILLS = int(os.environ.get("MAINSTEM_KILLS", "3"))
SEED = int(os.environ.get("MAINSTEM_SEED", "1"))
SETTLE_S = 60
LIFE_S = (0.3, 1.5)
PARTITIONS = 3
RECONNECT = {"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200, "retry_backoff_ms": 20}

pytestmark = pytest.mark.timeout(60 + 40 * KILLS)


def make_topics(broker, *names):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        future.result(SETTLE_S)


def kill_again_and_again(broker):
    moments = random.Random(SEED)
    for _ in range(KILLS):
        time.sleep(moments.uniform(*LIFE_S))
        broker.end()
        broker.start_again()


def test_what_was_acknowledged_is_there_once_and_in_order(own_kafka, unique):
    make_topics(own_kafka, unique)
    producer = confluent_producer(own_kafka, enable_idempotence=True, acks="all", **RECONNECT)
    deliveries = Deliveries()
    is_over = threading.Event()
    produced = [0] * PARTITIONS

    def produce():
        while not is_over.is_set():
            for partition in range(PARTITIONS):
                value = f"{produced[partition]}".encode()
                try:
                    producer.produce(unique, value, partition=partition, on_delivery=deliveries)
                    produced[partition] += 1
                except BufferError:
                    producer.poll(0.01)
            producer.poll(0.001)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    kill_again_and_again(own_kafka)
    is_over.set()
    thread.join()
    assert producer.flush(SETTLE_S) == 0
    assert not deliveries.errors
    assert len(deliveries.reports) == sum(produced) > 0
    got = read_topic(own_kafka, unique, sum(produced))
    for partition in range(PARTITIONS):
        mine = [each for each in got if each.partition == partition]
        assert values(mine) == numbers(produced[partition])


class Copier:
    """Copies a topic in transactions, and starts anew whenever anything fails, as an application would."""

    def __init__(self, broker, name, source, sink):
        self._broker, self._name, self._source, self._sink = broker, name, source, sink
        self.restarts = 0

    def copy_all(self, ends: dict[int, int]):
        deadline = time.monotonic() + SETTLE_S
        while not self._life(ends):
            assert time.monotonic() < deadline, "the copy is not done"
            self.restarts += 1

    def _life(self, ends) -> bool:
        """Copies until all is done, or until something fails."""
        producer = confluent_producer(self._broker, transactional_id=self._name, **RECONNECT)
        consumer = confluent_consumer(self._broker, self._name, isolation_level="read_committed", **RECONNECT)
        try:
            producer.init_transactions(SETTLE_S)
            partitions = [TopicPartition(self._source, partition) for partition in ends]
            committed = consumer.committed(partitions, timeout=SETTLE_S)
            positions = {each.partition: max(each.offset, 0) for each in committed}
            consumer.assign([TopicPartition(self._source, *position) for position in positions.items()])
            while positions != ends:
                self._transaction(producer, consumer, positions)
            return True
        except KafkaException as failure:
            error = failure.args[0]
            assert error.retriable() or error.txn_requires_abort() or error.fatal() or error.code() in (
                KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN), failure
            return False
        finally:
            consumer.close()

    def _transaction(self, producer, consumer, positions):
        messages = [each for each in consumer.consume(50, timeout=0.5) if not each.error()]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce(self._sink, message.value(), partition=message.partition())
            positions[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(self._source, *position) for position in positions.items()]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 10)
        producer.commit_transaction(10)


def test_a_copy_in_transactions_is_exact(own_kafka, unique):
    source, sink = f"{unique}-source", f"{unique}-sink"
    make_topics(own_kafka, source, sink)
    producer = confluent_producer(own_kafka)
    for partition in range(PARTITIONS):
        produce_all(producer, source, numbers(10_000), partition=partition)
    killer = threading.Thread(target=kill_again_and_again, args=[own_kafka], daemon=True)
    killer.start()
    copier = Copier(own_kafka, unique, source, sink)
    copier.copy_all(dict.fromkeys(range(PARTITIONS), 10_000))
    killer.join()
    got = read_topic(own_kafka, sink, 10_000 * PARTITIONS, isolation_level="read_committed")
    for partition in range(PARTITIONS):
        mine = [each for each in got if each.partition == partition]
        assert values(mine) == numbers(10_000)
