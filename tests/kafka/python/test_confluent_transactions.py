"""confluent-kafka (librdkafka): transactions."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from peer import (DEADLINE_S, confluent_consumer, confluent_producer, next_message, numbers, produce_all, read,
                  read_topic, values)


def transactional(kafka, name, **settings):
    """A producer that has fenced its predecessors."""
    producer = confluent_producer(kafka, transactional_id=name, **settings)
    producer.init_transactions(DEADLINE_S)
    return producer


def test_read_committed_sees_committed_records_only(kafka, topic, unique):
    producer = transactional(kafka, unique)
    expected = []
    for number in range(6):
        producer.begin_transaction()
        batch = numbers(20, f"{number}-")
        produce_all(producer, topic, batch)
        if number % 2:
            producer.abort_transaction(DEADLINE_S)
        else:
            producer.commit_transaction(DEADLINE_S)
            expected += batch
    produce_all(confluent_producer(kafka), topic, [b"end"])
    committed = read_topic(kafka, topic, len(expected) + 1, isolation_level="read_committed")
    assert values(committed) == [*expected, b"end"]
    everything = read_topic(kafka, topic, 121, isolation_level="read_uncommitted")
    assert values(everything)[:40] == numbers(20, "0-") + numbers(20, "1-")
    # Each marker takes an offset.
    assert everything[20].offset == 21


def test_an_open_transaction_holds_read_committed_back(kafka, topic, unique):
    producer = transactional(kafka, unique)
    producer.begin_transaction()
    produce_all(producer, topic, [b"open"])
    produce_all(confluent_producer(kafka), topic, [b"behind"])
    consumer = confluent_consumer(kafka, unique, isolation_level="read_committed")
    consumer.assign([TopicPartition(topic, 0, 0)])
    # Only the high watermark advances: the last stable offset stays, and a fetch times out.
    assert consumer.poll(1.5) is None
    assert values(read_topic(kafka, topic, 2, isolation_level="read_uncommitted")) == [b"open", b"behind"]
    producer.commit_transaction(DEADLINE_S)
    assert values(read(consumer, 2)) == [b"open", b"behind"]
    consumer.close()


def test_a_successor_fences_its_predecessor_and_aborts_what_it_left(kafka, topic, unique):
    first = transactional(kafka, unique)
    first.begin_transaction()
    produce_all(first, topic, [b"left"])
    second = transactional(kafka, unique)
    second.begin_transaction()
    produce_all(second, topic, [b"done"])
    second.commit_transaction(DEADLINE_S)
    with pytest.raises(KafkaException) as fenced:
        first.commit_transaction(DEADLINE_S)
    assert fenced.value.args[0].fatal()
    assert fenced.value.args[0].code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert values(read_topic(kafka, topic, 1, isolation_level="read_committed")) == [b"done"]


def test_offsets_are_part_of_the_transaction(kafka, make_topic, unique):
    """Read, process, write: aborted work is repeated and its result exists once."""
    source, sink = make_topic(), make_topic()
    produce_all(confluent_producer(kafka), source, numbers(30))
    consumer = confluent_consumer(kafka, unique, isolation_level="read_committed")
    consumer.subscribe([source])
    producer = transactional(kafka, unique)

    def copy(count, end):
        producer.begin_transaction()
        records = read(consumer, count)
        produce_all(producer, sink, values(records))
        position = [TopicPartition(source, 0, records[-1].offset + 1)]
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), DEADLINE_S)
        end(DEADLINE_S)

    def committed():
        [found] = consumer.committed([TopicPartition(source, 0)], timeout=DEADLINE_S)
        return found.offset

    copy(10, producer.commit_transaction)
    assert committed() == 10
    copy(10, producer.abort_transaction)
    assert committed() == 10
    consumer.seek(TopicPartition(source, 0, 10))
    copy(20, producer.commit_transaction)
    assert committed() == 30
    assert values(read_topic(kafka, sink, 30, isolation_level="read_committed")) == numbers(30)
    consumer.close()


def test_a_transaction_that_takes_too_long_is_aborted(kafka, topic, unique):
    slow = transactional(kafka, unique, transaction_timeout_ms=2_000)
    slow.begin_transaction()
    produce_all(slow, topic, [b"slow"])
    produce_all(confluent_producer(kafka), topic, [b"after"])
    # The error arrives when the broker has aborted the transaction, within about ten seconds on Apache Kafka.
    assert next_value(kafka, topic, unique) == b"after"
    with pytest.raises(KafkaException) as refused:
        slow.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].fatal() or refused.value.args[0].txn_requires_abort()


def next_value(kafka, topic, group):
    consumer = confluent_consumer(kafka, group, isolation_level="read_committed")
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return next_message(consumer).value()
    finally:
        consumer.close()


def test_transactions_span_partitions_and_topics(kafka, make_topic, unique):
    topics = [make_topic(3), make_topic(3)]
    producer = transactional(kafka, unique)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for topic in topics:
            for partition in range(3):
                produce_all(producer, topic, [end.__name__.encode()] * 5, partition=partition)
        end(DEADLINE_S)
    for topic in topics:
        got = read_topic(kafka, topic, 15, isolation_level="read_committed")
        assert set(values(got)) == {b"commit_transaction"}
        assert {each.partition for each in got} == {0, 1, 2}
