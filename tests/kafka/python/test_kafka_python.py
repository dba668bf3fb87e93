"""kafka-python: a client of its own in pure Python."""

import threading

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.errors import KafkaError, ProducerFencedError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import OffsetAndMetadata

from peer import DEADLINE_S, numbers, until


def producer_of(kafka, **settings) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=kafka.bootstrap, **settings)


def consumer_of(kafka, *topics, **settings) -> KafkaConsumer:
    """A consumer that gives up after the deadline. Its metadata age is short: the client drops a metadata request while
    an older one is in flight, and repeats it only after this time."""
    return KafkaConsumer(*topics, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest",
                         enable_auto_commit=False, consumer_timeout_ms=DEADLINE_S * 1000,
                         metadata_max_age_ms=1_000, **settings)


def send_all(producer, topic, values, **options):
    """Sends all, and returns their offsets."""
    return [sent.get(DEADLINE_S) for sent in [producer.send(topic, value, **options) for value in values]]


def take(consumer, count) -> list:
    return [each for _, each in zip(range(count), consumer)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_acks(kafka, topic, acks):
    producer = producer_of(kafka, acks=acks, enable_idempotence=acks == "all")
    sent = send_all(producer, topic, numbers(100))
    if acks != 0:
        assert [each.offset for each in sent] == list(range(100))
    producer.close()
    consumer = consumer_of(kafka, topic)
    assert [each.value for each in take(consumer, 100)] == numbers(100)
    consumer.close()


def test_key_headers_and_timestamp_come_back(kafka, topic):
    producer = producer_of(kafka)
    headers = [("a", b"1"), ("a", b"2")]
    send_all(producer, topic, [b"value"], key=b"key", headers=headers, timestamp_ms=1_600_000_000_123)
    send_all(producer, topic, [None], key=b"tombstone")
    producer.close()
    consumer = consumer_of(kafka, topic)
    first, second = take(consumer, 2)
    consumer.close()
    assert (first.key, first.value, list(first.headers), first.timestamp) == (
        b"key", b"value", headers, 1_600_000_000_123)
    assert (second.key, second.value) == (b"tombstone", None)


def test_ten_thousand_of_an_idempotent_producer_once_and_in_order(kafka, topic):
    producer = producer_of(kafka, linger_ms=5)
    send_all(producer, topic, numbers(10_000))
    producer.close()
    consumer = consumer_of(kafka, topic)
    assert [each.value for each in take(consumer, 10_000)] == numbers(10_000)
    consumer.close()


class Member:
    """A group member in its own thread."""

    def __init__(self, kafka, group, topic, assignor):
        self.consumer = consumer_of(kafka, group_id=group, partition_assignment_strategy=[assignor],
                                    heartbeat_interval_ms=300, session_timeout_ms=10_000)
        self.seen = []
        self.owned = set()
        self._is_over = threading.Event()
        # A kafka-python leader that assigns before it has the topic's metadata assigns no partitions, and misses a
        # metadata update that arrives in the meantime.
        until(lambda: self.consumer.partitions_for_topic(topic), "metadata")
        self.consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._is_over.is_set():
            for records in self.consumer.poll(50).values():
                self.seen += [each.value for each in records]
                self.consumer.commit()
            self.owned = {each.partition for each in self.consumer.assignment()}
        self.consumer.close()

    def leave(self):
        self._is_over.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor,
                                      CooperativeStickyAssignor], ids=lambda each: each.name)
def test_members_come_and_go_and_nothing_is_missed(kafka, make_topic, unique, assignor):
    topic = make_topic(4)
    producer = producer_of(kafka)
    members = [Member(kafka, unique, topic, assignor)]
    send_all(producer, topic, numbers(200, "a"))
    until(lambda: len(members[0].owned) == 4, "all partitions")
    members.append(Member(kafka, unique, topic, assignor))
    until(lambda: [len(each.owned) for each in members] == [2, 2], "half each")
    send_all(producer, topic, numbers(200, "b"))
    members[0].leave()
    until(lambda: len(members[1].owned) == 4, "what the other one had")
    send_all(producer, topic, numbers(200, "c"))
    produced = set(numbers(200, "a") + numbers(200, "b") + numbers(200, "c"))
    until(lambda: {value for each in members for value in each.seen} == produced, "all records")
    members[1].leave()
    producer.close()


def test_a_commit_is_where_the_group_continues(kafka, topic, unique):
    producer = producer_of(kafka)
    send_all(producer, topic, numbers(10))
    producer.close()
    partition = TopicPartition(topic, 0)
    first = consumer_of(kafka, topic, group_id=unique)
    take(first, 4)
    first.commit({partition: OffsetAndMetadata(4, "what I did", -1)})
    assert first.committed(partition) == 4
    first.close()
    second = consumer_of(kafka, topic, group_id=unique)
    assert [each.value for each in take(second, 6)] == numbers(10)[4:]
    second.close()


def test_offsets_by_time_and_at_the_ends(kafka, topic):
    producer = producer_of(kafka)
    for number in range(5):
        send_all(producer, topic, [b"x"], timestamp_ms=1_700_000_000_000 + 1000 * number)
    producer.close()
    partition = TopicPartition(topic, 0)
    consumer = consumer_of(kafka)
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 5}
    found = consumer.offsets_for_times({partition: 1_700_000_002_500})[partition]
    assert (found.offset, found.timestamp) == (3, 1_700_000_003_000)
    consumer.close()


def test_transactions(kafka, make_topic, unique):
    source, sink = make_topic(), make_topic()
    plain = producer_of(kafka)
    send_all(plain, source, numbers(20))
    producer = producer_of(kafka, transactional_id=unique)
    producer.init_transactions()
    for end in (producer.abort_transaction, producer.commit_transaction):
        consumer = consumer_of(kafka, source, group_id=unique, isolation_level="read_committed")
        records = take(consumer, 20)
        producer.begin_transaction()
        for each in records:
            producer.send(sink, each.value)
        position = {TopicPartition(source, 0): OffsetAndMetadata(20, "", -1)}
        producer.send_offsets_to_transaction(position, consumer.group_metadata())
        end()
        consumer.close()
    send_all(plain, sink, [b"end"])
    reader = consumer_of(kafka, sink, isolation_level="read_committed")
    assert [each.value for each in take(reader, 21)] == [*numbers(20), b"end"]
    reader.close()
    check = consumer_of(kafka, group_id=unique)
    assert check.committed(TopicPartition(source, 0)) == 20
    check.close()
    successor = producer_of(kafka, transactional_id=unique)
    successor.init_transactions()
    producer.begin_transaction()
    with pytest.raises((ProducerFencedError, KafkaError)):
        producer.send(sink, b"late").get(DEADLINE_S)
        producer.commit_transaction()
    successor.close()
    plain.close()


def test_administration(kafka, unique):
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.create_topics([NewTopic(unique, 2, 1, topic_configs={"retention.ms": "60000"})])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([NewTopic(unique, 2, 1)])
    assert unique in admin.list_topics()
    [described] = admin.describe_topics([unique])
    assert len(described["partitions"]) == 2
    assert admin.describe_cluster()["brokers"][0]["port"] == kafka.port
    producer = producer_of(kafka)
    send_all(producer, unique, numbers(5), partition=0)
    producer.close()
    consumer = consumer_of(kafka, unique, group_id=unique)
    take(consumer, 5)
    consumer.commit()
    assert unique in {group["group_id"] for group in admin.list_groups()}
    consumer.close()
    described = admin.describe_groups([unique])
    assert unique in str(described)
    offsets = admin.list_group_offsets({unique: None})
    assert offsets[unique][TopicPartition(unique, 0)].offset == 5
    admin.delete_groups([unique])
    assert unique not in {group["group_id"] for group in admin.list_groups()}
    admin.delete_topics([unique])
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_topics([unique])
    admin.close()
