"""Every client reads the batches of every other; the broker recompresses if the topic is configured to."""

import asyncio

import aiokafka
import kafka as kafka_python
import pytest

from peer import CODECS, DEADLINE_S, Record, confluent_producer, numbers, produce_all, read_topic, values

COUNT = 200
RECORDS = [b"compressible " * 20 + number for number in numbers(COUNT)]


def confluent_writes(kafka, topic, codec):
    produce_all(confluent_producer(kafka, compression_type=codec, linger_ms=20), topic, RECORDS, key=b"k")


def kafka_python_writes(kafka, topic, codec):
    producer = kafka_python.KafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=20,
                                          compression_type=None if codec == "none" else codec)
    sent = [producer.send(topic, value, key=b"k") for value in RECORDS]
    for future in sent:
        future.get(DEADLINE_S)
    producer.close()


def aiokafka_writes(kafka, topic, codec):
    async def write():
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, linger_ms=20,
                                             compression_type=None if codec == "none" else codec)
        await producer.start()
        try:
            for sent in [await producer.send(topic, value, key=b"k") for value in RECORDS]:
                await sent
        finally:
            await producer.stop()

    asyncio.run(asyncio.wait_for(write(), DEADLINE_S))


def kafka_python_reads(kafka, topic, count) -> list[Record]:
    consumer = kafka_python.KafkaConsumer(topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest",
                                          group_id=None, consumer_timeout_ms=DEADLINE_S * 1000)
    got = []
    for each in consumer:
        got.append(Record(each.key, each.value, list(each.headers), each.partition, each.offset, each.timestamp))
        if len(got) == count:
            break
    consumer.close()
    return got


def aiokafka_reads(kafka, topic, count) -> list[Record]:
    async def read():
        consumer = aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        try:
            return [await consumer.getone() for _ in range(count)]
        finally:
            await consumer.stop()

    got = asyncio.run(asyncio.wait_for(read(), DEADLINE_S))
    return [Record(each.key, each.value, list(each.headers), each.partition, each.offset, each.timestamp)
            for each in got]


WRITERS = {"confluent": confluent_writes, "kafka-python": kafka_python_writes, "aiokafka": aiokafka_writes}
READERS = {"confluent": read_topic, "kafka-python": kafka_python_reads, "aiokafka": aiokafka_reads}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", WRITERS)
def test_all_clients_read_all_codecs(kafka, topic, writer, codec):
    WRITERS[writer](kafka, topic, codec)
    for name, reads in READERS.items():
        got = reads(kafka, topic, COUNT)
        assert values(got) == RECORDS, name
        assert {each.key for each in got} == {b"k"}, name
        assert [each.offset for each in got] == list(range(COUNT)), name


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd", "uncompressed"])
def test_a_topic_with_a_compression_type_of_its_own(kafka, make_topic, codec):
    topic = make_topic(compression_type=codec)
    confluent_writes(kafka, topic, "none")
    confluent_writes(kafka, topic, "gzip")
    for name, reads in READERS.items():
        assert values(reads(kafka, topic, 2 * COUNT)) == RECORDS * 2, name
