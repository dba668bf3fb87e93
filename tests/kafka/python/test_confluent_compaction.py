"""confluent-kafka (librdkafka): the compaction lags of a topic."""

from confluent_kafka import TopicPartition

from peer import confluent_consumer, confluent_producer, next_message, numbers, produce_all, until

VALUES = numbers(10)


def values(kafka, topic) -> list[bytes]:
    """All values of a topic of one partition, in order."""
    consumer = confluent_consumer(kafka, f"read-{topic}")
    try:
        first = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(first)
        consumer.assign([first])
        found = []
        # The newest record is never compacted away.
        while not found or found[-1].offset() < end - 1:
            found.append(next_message(consumer))
        return [message.value() for message in found]
    finally:
        consumer.close()


def test_records_are_compacted_when_they_reach_the_maximum_lag(kafka, make_topic):
    # The ratio alone would never have the only segment compacted.
    topic = make_topic(cleanup_policy="compact", max_compaction_lag_ms=2_000, min_cleanable_dirty_ratio=1)
    lasting = make_topic(cleanup_policy="compact", min_cleanable_dirty_ratio=1)
    producer = confluent_producer(kafka)
    for name in (lasting, topic):
        produce_all(producer, name, VALUES, key=b"key")
    until(lambda: values(kafka, topic) == VALUES[-1:], "only the newest value is left")
    assert values(kafka, lasting) == VALUES


def test_records_younger_than_the_minimum_lag_are_not_compacted(kafka, make_topic):
    eager = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0, "segment_ms": 500}
    young = make_topic(**eager, min_compaction_lag_ms=3_600_000)
    topic = make_topic(**eager)
    producer = confluent_producer(kafka)
    for name in (young, topic):
        produce_all(producer, name, VALUES, key=b"key")
    # What was produced later, with the same settings otherwise, is compacted.
    until(lambda: values(kafka, topic) == VALUES[-1:], "only the newest value is left")
    assert values(kafka, young) == VALUES
    # Nothing is lost when a key is deleted while its records are too young.
    produce_all(producer, young, [None], key=b"key")
    assert values(kafka, young) == [*VALUES, None]
