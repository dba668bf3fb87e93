"""aiokafka: a client on asyncio with a protocol implementation of its own."""

import asyncio
import functools
import inspect

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import ProducerFenced, TopicAlreadyExistsError

from peer import DEADLINE_S, numbers


def in_a_loop(test):
    """Runs a coroutine as a test."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    run.__signature__ = inspect.signature(test)
    return run


def producer_of(kafka, **settings):
    return AIOKafkaProducer(bootstrap_servers=kafka.bootstrap, **settings)


def consumer_of(kafka, *topics, **settings):
    return AIOKafkaConsumer(*topics, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest",
                            enable_auto_commit=False, metadata_max_age_ms=1_000, **settings)


async def send_all(producer, topic, values, **options):
    """Sends all, and returns their offsets."""
    return [await sent for sent in [await producer.send(topic, value, **options) for value in values]]


async def take(consumer, count) -> list:
    return [await asyncio.wait_for(consumer.getone(), DEADLINE_S) for _ in range(count)]


async def until(condition, what):
    """Waits until `condition` is true, and fails after the deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("acks", [0, 1, "all"])
@in_a_loop
async def test_acks(kafka, topic, acks):
    async with producer_of(kafka, acks=acks) as producer:
        sent = await send_all(producer, topic, numbers(100))
    if acks != 0:
        assert [each.offset for each in sent] == list(range(100))
    async with consumer_of(kafka, topic) as consumer:
        assert [each.value for each in await take(consumer, 100)] == numbers(100)


@in_a_loop
async def test_key_headers_and_timestamp_come_back(kafka, topic):
    headers = [("a", b"1"), ("a", b"2")]
    async with producer_of(kafka) as producer:
        await send_all(producer, topic, [b"value"], key=b"key", headers=headers, timestamp_ms=1_600_000_000_123)
        await send_all(producer, topic, [None], key=b"tombstone")
    async with consumer_of(kafka, topic) as consumer:
        first, second = await take(consumer, 2)
    assert (first.key, first.value, list(first.headers), first.timestamp) == (
        b"key", b"value", headers, 1_600_000_000_123)
    assert (second.key, second.value) == (b"tombstone", None)


@in_a_loop
async def test_ten_thousand_of_an_idempotent_producer_once_and_in_order(kafka, topic):
    async with producer_of(kafka, enable_idempotence=True, linger_ms=2) as producer:
        await send_all(producer, topic, numbers(10_000))
    async with consumer_of(kafka, topic) as consumer:
        assert [each.value for each in await take(consumer, 10_000)] == numbers(10_000)


class Share(ConsumerRebalanceListener):
    """A member's assignment and the records it has read; it commits before it loses a partition."""

    def __init__(self, consumer):
        self.consumer = consumer
        self.seen = []

    async def on_partitions_revoked(self, revoked):
        if revoked and self.seen:
            await self.consumer.commit()

    async def on_partitions_assigned(self, assigned):
        pass

    async def run(self):
        async for each in self.consumer:
            self.seen.append(each.value)


@pytest.mark.parametrize("assignor", [RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor],
                         ids=lambda each: each.name)
@in_a_loop
async def test_members_come_and_go_and_nothing_is_missed(kafka, make_topic, unique, assignor):
    topic = await asyncio.to_thread(make_topic, 4)
    shares, tasks = [], []

    async def join():
        consumer = consumer_of(kafka, group_id=unique, partition_assignment_strategy=[assignor],
                               heartbeat_interval_ms=300)
        shares.append(Share(consumer))
        consumer.subscribe([topic], listener=shares[-1])
        await consumer.start()
        tasks.append(asyncio.create_task(shares[-1].run()))

    def sizes():
        return [len(each.consumer.assignment()) for each in shares]

    async with producer_of(kafka) as producer:
        await join()
        await send_all(producer, topic, numbers(200, "a"))
        await until(lambda: sizes() == [4], "all partitions")
        await join()
        await until(lambda: sizes() == [2, 2], "half each")
        await send_all(producer, topic, numbers(200, "b"))
        tasks[0].cancel()
        await shares[0].consumer.stop()
        await until(lambda: sizes()[1] == 4, "what the other one had")
        await send_all(producer, topic, numbers(200, "c"))
    produced = set(numbers(200, "a") + numbers(200, "b") + numbers(200, "c"))
    await until(lambda: {value for each in shares for value in each.seen} == produced, "all records")
    tasks[1].cancel()
    await shares[1].consumer.stop()


@in_a_loop
async def test_offsets_by_time_at_the_ends_and_committed(kafka, topic, unique):
    partition = TopicPartition(topic, 0)
    async with producer_of(kafka) as producer:
        for number in range(5):
            await send_all(producer, topic, [b"x"], timestamp_ms=1_700_000_000_000 + 1000 * number)
    async with consumer_of(kafka, topic, group_id=unique) as consumer:
        assert await consumer.beginning_offsets([partition]) == {partition: 0}
        assert await consumer.end_offsets([partition]) == {partition: 5}
        found = (await consumer.offsets_for_times({partition: 1_700_000_002_500}))[partition]
        assert (found.offset, found.timestamp) == (3, 1_700_000_003_000)
        await take(consumer, 2)
        await consumer.commit({partition: (2, "what I did")})
    async with consumer_of(kafka, topic, group_id=unique) as consumer:
        assert await consumer.committed(partition) == 2
        assert [each.offset for each in await take(consumer, 3)] == [2, 3, 4]


@in_a_loop
async def test_transactions(kafka, make_topic, unique):
    source, sink = [await asyncio.to_thread(make_topic) for _ in range(2)]
    position = {TopicPartition(source, 0): 20}
    async with producer_of(kafka) as plain, producer_of(kafka, transactional_id=unique) as producer:
        await send_all(plain, source, numbers(20))
        for is_abort in (True, False):
            async with consumer_of(kafka, source, group_id=unique, isolation_level="read_committed") as consumer:
                records = await take(consumer, 20)
            await producer.begin_transaction()
            await send_all(producer, sink, [each.value for each in records])
            await producer.send_offsets_to_transaction(position, unique)
            if is_abort:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
        await send_all(plain, sink, [b"end"])
        async with consumer_of(kafka, sink, isolation_level="read_committed") as reader:
            assert [each.value for each in await take(reader, 21)] == [*numbers(20), b"end"]
        async with consumer_of(kafka, source, group_id=unique) as check:
            assert await check.committed(TopicPartition(source, 0)) == 20
        async with producer_of(kafka, transactional_id=unique) as successor:
            async with successor.transaction():
                await send_all(successor, sink, [b"successor"])
            await producer.begin_transaction()
            with pytest.raises(ProducerFenced):
                await send_all(producer, sink, [b"late"])


@in_a_loop
async def test_administration(kafka, unique):
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(unique, 2, 1)])
        with pytest.raises(TopicAlreadyExistsError):
            answer = await admin.create_topics([NewTopic(unique, 2, 1)])
            for _topic, code, *_ in answer.topic_errors:
                if code == TopicAlreadyExistsError.errno:
                    raise TopicAlreadyExistsError
        await admin.create_partitions({unique: NewPartitions(3)})
        [described] = await admin.describe_topics([unique])
        assert len(described["partitions"]) == 3
        assert unique in await admin.list_topics()
        cluster = await admin.describe_cluster()
        assert [broker["port"] for broker in cluster["brokers"]] == [kafka.port]
        await admin.delete_topics([unique])
        assert unique not in await admin.list_topics()
    finally:
        await admin.close()
