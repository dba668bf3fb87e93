"""confluent-kafka (librdkafka): records are consumed as produced: byte for byte, in order, at the right offset."""

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME

from peer import (CODECS, DEADLINE_S, confluent_consumer, confluent_producer, next_message, numbers, produce_all, read,
                  read_topic, record, until, values)


def assigned(kafka, topic, offset=OFFSET_BEGINNING, partition=0, **settings):
    """A consumer of one partition, without a group."""
    consumer = confluent_consumer(kafka, "unused", **settings)
    consumer.assign([TopicPartition(topic, partition, offset)])
    return consumer


def test_librdkafka_enables_features_by_api_versions(kafka):
    """It enables features by announced versions; a list that it cannot parse leaves the defaults."""
    lines = []

    class Lines:
        @staticmethod
        def log(_level, _format, *arguments):
            lines.append(" ".join(map(str, arguments)))

    producer = confluent_producer(kafka, debug="feature", logger=Lines)
    wanted = {"ApiVersion", "MsgVer2", "IdempotentProducer", "BrokerBalancedConsumer", "ZSTD", "LZ4"}

    def enabled():
        return wanted <= {line.split("Enabling feature ")[1] for line in lines if "Enabling feature " in line}

    until(enabled, "features", step=lambda: producer.poll(0.05))


def test_metadata_has_the_connected_port(kafka, admin, topic):
    metadata = admin.list_topics(topic, timeout=DEADLINE_S)
    assert {broker.port for broker in metadata.brokers.values()} == {kafka.port}
    assert metadata.controller_id in metadata.brokers
    [partition] = metadata.topics[topic].partitions.values()
    assert partition.leader in metadata.brokers
    assert partition.replicas == [partition.leader] == partition.isrs


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(kafka, topic, acks):
    reports = produce_all(confluent_producer(kafka, acks=acks), topic, numbers(100))
    assert len(reports) == 100
    if acks != "0":
        assert [report.offset() for report in reports] == list(range(100))
    assert values(read_topic(kafka, topic, 100)) == numbers(100)


def test_key_headers_and_timestamp_come_back(kafka, topic):
    headers = [("a", b"1"), ("b", None), ("a", b""), ("\N{SNOWMAN}", b"\x00\xff")]
    producer = confluent_producer(kafka)
    produce_all(producer, topic, [b"value"], key=b"key", headers=headers, timestamp=1_600_000_000_123)
    produce_all(producer, topic, [None], key=b"tombstone")
    produce_all(producer, topic, [b""], key=b"")
    produce_all(producer, topic, [None])
    consumer = assigned(kafka, topic)
    first = next_message(consumer)
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, 1_600_000_000_123)
    assert (first.key(), first.value(), first.headers()) == (b"key", b"value", headers)
    others = [(other.key, other.value) for other in read(consumer, 3)]
    assert others == [(b"tombstone", None), (b"", b""), (None, None)]
    consumer.close()


def test_append_time_replaces_the_producers(kafka, make_topic):
    topic = make_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    produce_all(confluent_producer(kafka), topic, [b"x"], timestamp=1_000)
    consumer = assigned(kafka, topic)
    kind, timestamp = next_message(consumer).timestamp()
    consumer.close()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    # Two clocks of one machine, in milliseconds.
    assert timestamp >= before - 1


def test_each_partition_keeps_its_order(kafka, make_topic):
    topic = make_topic(4)
    producer = confluent_producer(kafka, enable_idempotence=True)
    for partition in range(4):
        produce_all(producer, topic, numbers(500, f"{partition}-"), partition=partition)
    got = read_topic(kafka, topic, 2000)
    for partition in range(4):
        mine = [each for each in got if each.partition == partition]
        assert values(mine) == numbers(500, f"{partition}-")
        assert [each.offset for each in mine] == list(range(500))


@pytest.mark.parametrize("codec", CODECS)
def test_a_large_record(kafka, topic, codec):
    value = bytes(range(256)) * 3_900
    produce_all(confluent_producer(kafka, compression_type=codec), topic, [value])
    assert read_topic(kafka, topic, 1)[0].value == value


def test_a_record_beyond_the_topics_limit_is_refused(kafka, make_topic):
    topic = make_topic(max_message_bytes=10_000)
    producer = confluent_producer(kafka)
    with pytest.raises(KafkaException) as refused:
        produce_all(producer, topic, [b"x" * 20_000])
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    produce_all(producer, topic, [b"small"])
    assert values(read_topic(kafka, topic, 1)) == [b"small"]


def test_a_fetch_larger_than_the_clients_limit_still_comes(kafka, topic):
    """The first batch is complete regardless of limits: KIP-74."""
    produce_all(confluent_producer(kafka), topic, [b"x" * 500_000] * 3)
    got = read_topic(kafka, topic, 3, max_partition_fetch_bytes=1_000, fetch_max_bytes=1_000_000)
    assert [len(each.value) for each in got] == [500_000] * 3


def test_twenty_thousand_of_an_idempotent_producer_once_and_in_order(kafka, topic):
    producer = confluent_producer(kafka, enable_idempotence=True, batch_num_messages=100)
    produce_all(producer, topic, numbers(20_000))
    got = read_topic(kafka, topic, 20_000)
    assert values(got) == numbers(20_000)
    assert [each.offset for each in got] == list(range(20_000))


def test_a_record_wakes_a_long_poll(kafka, topic):
    """The requested wait is far longer than the deadline."""
    consumer = assigned(kafka, topic, fetch_wait_max_ms=60_000, socket_timeout_ms=100_000)
    producer = confluent_producer(kafka)
    for number in range(5):
        produce_all(producer, topic, numbers(1, f"{number}-"))
        assert next_message(consumer).value() == f"{number}-0".encode()
    consumer.close()


def test_offsets_by_time_and_seek(kafka, topic):
    producer = confluent_producer(kafka)
    for number in range(10):
        produce_all(producer, topic, [str(number).encode()], timestamp=1_700_000_000_000 + number * 1000)
    consumer = assigned(kafka, topic)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S) == (0, 10)

    def at(timestamp):
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=DEADLINE_S)
        return found.offset

    assert at(1_700_000_000_000) == 0
    assert at(1_700_000_004_000) == 4
    assert at(1_700_000_004_001) == 5
    assert at(1_800_000_000_000) == OFFSET_END
    assert next_message(consumer).offset() == 0
    consumer.seek(TopicPartition(topic, 0, 7))
    until(lambda: next_message(consumer).offset() == 7, "the record that was sought")
    assert values(read(consumer, 2)) == [b"8", b"9"]
    consumer.close()


def test_an_offset_out_of_range_resets_as_asked(kafka, topic):
    produce_all(confluent_producer(kafka), topic, numbers(3))
    consumer = assigned(kafka, topic, offset=1_000)
    assert record(next_message(consumer)).offset == 0
    consumer.close()
    consumer = assigned(kafka, topic, offset=1_000, auto_offset_reset="error")
    with pytest.raises(KafkaException) as refused:
        next_message(consumer)
    assert refused.value.args[0].code() == KafkaError._AUTO_OFFSET_RESET
    consumer.close()


def test_producing_creates_the_topic(kafka, unique):
    produce_all(confluent_producer(kafka), f"{unique}-auto", [b"first"])
    assert values(read_topic(kafka, f"{unique}-auto", 1)) == [b"first"]


def test_an_unknown_partition_is_an_error_of_the_client(kafka, topic):
    with pytest.raises(KafkaException) as refused:
        produce_all(confluent_producer(kafka), topic, [b"x"], partition=7)
    assert refused.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
