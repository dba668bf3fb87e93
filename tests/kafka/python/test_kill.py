"""confluent-kafka: the broker is killed under load and restarted; no acknowledged record is lost or duplicated.

`MAINSTEM_KILLS` is the number of kills per test (3), `MAINSTEM_SEED` determines their times (1).
"""

import os
import random
import threading
import time

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from peer import Deliveries, confluent_consumer, confluent_producer, numbers, read_topic, values

KILLS = int(os.environ.get("MAINSTEM_KILLS", "3"))
SEED = int(os.environ.get("MAINSTEM_SEED", "1"))
SETTLE_S = 60
LIFE_S = (0.3, 1.5)
PARTITIONS = 3
# When rebootstrapping, librdkafka 2.16 waits forever for a group coordinator that it has forgotten itself.
RECONNECT = {"metadata_recovery_strategy": "none", "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200,
             "retry_backoff_ms": 20}

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


class Feeder:
    """An idempotent producer that appends numbers to each partition, in a thread, until it is stopped."""

    def __init__(self, broker, topic):
        self._topic = topic
        self._producer = confluent_producer(broker, enable_idempotence=True, acks="all", **RECONNECT)
        self._deliveries = Deliveries()
        self._is_over = threading.Event()
        self.produced = [0] * PARTITIONS
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._is_over.is_set():
            for partition in range(PARTITIONS):
                value = f"{self.produced[partition]}".encode()
                try:
                    self._producer.produce(self._topic, value, partition=partition, on_delivery=self._deliveries)
                    self.produced[partition] += 1
                except BufferError:
                    self._producer.poll(0.01)
            # Some hundreds per second: the times of the kills matter, not the load.
            self._producer.poll(0.005)

    def stop(self):
        """Waits until all is acknowledged, without an error."""
        self._is_over.set()
        self._thread.join()
        assert self._producer.flush(SETTLE_S) == 0
        assert not self._deliveries.errors
        assert len(self._deliveries.reports) == sum(self.produced) > 0


def assert_each_once_in_order(records, produced):
    for partition in range(PARTITIONS):
        mine = [each for each in records if each.partition == partition]
        assert values(mine) == numbers(produced[partition])


def test_acknowledged_records_exist_once_and_in_order(own_kafka, unique):
    make_topics(own_kafka, unique)
    feeder = Feeder(own_kafka, unique)
    kill_again_and_again(own_kafka)
    feeder.stop()
    assert_each_once_in_order(read_topic(own_kafka, unique, sum(feeder.produced)), feeder.produced)


class Copier:
    """Copies a topic in transactions, and restarts after any error, like an application."""

    def __init__(self, broker, name, source, sink):
        self._broker, self._name, self._source, self._sink = broker, name, source, sink

    def copy_until(self, is_done):
        """Copies until the committed records fulfill a condition."""
        while not self._life(is_done):
            pass

    def _life(self, is_done) -> bool:
        """Copies until all is done or an operation fails."""
        producer = confluent_producer(self._broker, transactional_id=self._name, **RECONNECT)
        consumer = confluent_consumer(self._broker, self._name, isolation_level="read_committed", **RECONNECT)
        try:
            producer.init_transactions(SETTLE_S)
            partitions = [TopicPartition(self._source, partition) for partition in range(PARTITIONS)]
            committed = consumer.committed(partitions, timeout=SETTLE_S)
            positions = [max(each.offset, 0) for each in committed]
            consumer.assign([TopicPartition(self._source, *position) for position in enumerate(positions)])
            while not is_done(positions):
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
        messages = [each for each in consumer.consume(500, timeout=0.1) if not each.error()]
        if not messages:
            return
        producer.begin_transaction()
        for message in messages:
            producer.produce(self._sink, message.value(), partition=message.partition())
            positions[message.partition()] = message.offset() + 1
        offsets = [TopicPartition(self._source, *position) for position in enumerate(positions)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 10)
        producer.commit_transaction(10)


def test_a_copy_in_transactions_is_exact(own_kafka, unique):
    source, sink = f"{unique}-source", f"{unique}-sink"
    make_topics(own_kafka, source, sink)
    feeder = Feeder(own_kafka, source)
    ends = []

    def kill_and_stop():
        kill_again_and_again(own_kafka)
        feeder.stop()
        ends.append(feeder.produced)

    killer = threading.Thread(target=kill_and_stop, daemon=True)
    killer.start()
    Copier(own_kafka, unique, source, sink).copy_until(lambda positions: positions in ends)
    killer.join()
    got = read_topic(own_kafka, sink, sum(feeder.produced), isolation_level="read_committed")
    assert_each_once_in_order(got, feeder.produced)
