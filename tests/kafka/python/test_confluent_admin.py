"""confluent-kafka (librdkafka): administration."""

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource, NewPartitions,
                                   NewTopic, OffsetSpec, ResourceType)

from peer import (DEADLINE_S, confluent_consumer, confluent_producer, next_message, numbers, produce_all, read_topic,
                  until)


def failure(future) -> int:
    """The error code of a failed operation."""
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    return refused.value.args[0].code()


def test_topics_are_made_described_and_deleted(kafka, admin, unique):
    new = NewTopic(unique, num_partitions=3, replication_factor=1)
    admin.create_topics([new])[unique].result(DEADLINE_S)
    assert failure(admin.create_topics([new])[unique]) == KafkaError.TOPIC_ALREADY_EXISTS
    described = admin.describe_topics(TopicCollection([unique]))[unique].result(DEADLINE_S)
    assert [partition.id for partition in described.partitions] == [0, 1, 2]
    assert all(partition.leader.port == kafka.port for partition in described.partitions)
    assert not described.is_internal
    admin.delete_topics([unique])[unique].result(DEADLINE_S)
    assert failure(admin.delete_topics([unique])[unique]) == KafkaError.UNKNOWN_TOPIC_OR_PART
    until(lambda: unique not in admin.list_topics(timeout=DEADLINE_S).topics, "the end of the topic")


def test_an_mqtt_topic_of_the_same_name_is_separate(kafka, admin, unique):
    new = NewTopic(unique, num_partitions=1, replication_factor=1)
    ids = set()
    for value in (b"one", b"two"):
        admin.create_topics([new])[unique].result(DEADLINE_S)
        produce_all(confluent_producer(kafka), unique, [value])
        described = admin.describe_topics(TopicCollection([unique]))[unique].result(DEADLINE_S)
        ids.add(str(described.topic_id))
        assert read_topic(kafka, unique, 1)[0].value == value
        admin.delete_topics([unique])[unique].result(DEADLINE_S)
    assert len(ids) == 2


@pytest.mark.parametrize("name", ["", "a b", "x" * 250, ".", ".."])
def test_an_invalid_name_is_refused(admin, name):
    new = NewTopic(name, num_partitions=1, replication_factor=1)
    if name == "":
        with pytest.raises((KafkaException, ValueError)):
            admin.create_topics([new])[name].result(DEADLINE_S)
    else:
        assert failure(admin.create_topics([new])[name]) == KafkaError.TOPIC_EXCEPTION


def test_an_invalid_queue_is_not_created(admin, unique):
    def make(**arguments):
        return admin.create_topics([NewTopic(unique, **arguments)])[unique]

    assert failure(make(num_partitions=1, replication_factor=2)) == KafkaError.INVALID_REPLICATION_FACTOR
    assert failure(make(num_partitions=1, config={"no.such.config": "1"})) == KafkaError.INVALID_CONFIG
    assert failure(make(num_partitions=1, config={"retention.ms": "soon"})) == KafkaError.INVALID_CONFIG
    checked = admin.create_topics([NewTopic(unique, num_partitions=1)], validate_only=True)[unique]
    checked.result(DEADLINE_S)
    assert unique not in admin.list_topics(timeout=DEADLINE_S).topics


def test_partitions_can_only_be_added(kafka, admin, make_topic):
    topic = make_topic(2)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(DEADLINE_S)
    assert failure(admin.create_partitions([NewPartitions(topic, 3)])[topic]) == KafkaError.INVALID_PARTITIONS
    until(lambda: len(admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions) == 5, "the new partitions")
    produce_all(confluent_producer(kafka), topic, [b"new"], partition=4)
    assert read_topic(kafka, topic, 1)[0].partition == 4


def test_topic_configs_are_described_and_altered(admin, make_topic):
    topic = make_topic(retention_ms=3_600_000)
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def configs():
        return admin.describe_configs([resource])[resource].result(DEADLINE_S)

    before = configs()
    assert before["retention.ms"].value == "3600000"
    assert before["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert before["cleanup.policy"].value == "delete"
    assert before["cleanup.policy"].is_default
    for key in ("segment.bytes", "max.message.bytes", "compression.type", "message.timestamp.type",
                "min.insync.replicas", "retention.bytes"):
        assert key in before

    def alter(name, value, operation):
        entry = ConfigEntry(name, value, incremental_operation=operation)
        change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        return admin.incremental_alter_configs([change])[change]

    alter("max.message.bytes", "12345", AlterConfigOpType.SET).result(DEADLINE_S)
    until(lambda: configs()["max.message.bytes"].value == "12345", "the new limit")
    assert configs()["retention.ms"].value == "3600000"
    alter("cleanup.policy", "compact", AlterConfigOpType.APPEND).result(DEADLINE_S)
    until(lambda: set(configs()["cleanup.policy"].value.split(",")) == {"delete", "compact"}, "both policies")
    alter("cleanup.policy", "compact", AlterConfigOpType.SUBTRACT).result(DEADLINE_S)
    until(lambda: configs()["cleanup.policy"].value == "delete", "one policy")
    alter("retention.ms", None, AlterConfigOpType.DELETE).result(DEADLINE_S)
    until(lambda: configs()["retention.ms"].is_default, "the default")
    assert failure(alter("retention.ms", "soon", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG
    assert failure(alter("no.such.config", "1", AlterConfigOpType.SET)) == KafkaError.INVALID_CONFIG


def test_the_whole_of_a_topics_configs_is_replaced(admin, make_topic):
    """AlterConfigs, used by clients before 2.3, resets omitted keys to their defaults."""
    topic = make_topic(retention_ms=3_600_000)
    change = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "54321"})
    admin.alter_configs([change])[change].result(DEADLINE_S)
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def is_replaced():
        configs = admin.describe_configs([resource])[resource].result(DEADLINE_S)
        return configs["max.message.bytes"].value == "54321" and configs["retention.ms"].is_default

    until(is_replaced, "the new configs")


def test_configs_of_unknown_resources(admin, unique):
    resource = ConfigResource(ResourceType.TOPIC, unique)
    assert failure(admin.describe_configs([resource])[resource]) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_the_broker_and_the_cluster_are_described(kafka, admin):
    cluster = admin.describe_cluster().result(DEADLINE_S)
    assert cluster.cluster_id
    [node] = cluster.nodes
    assert (node.host, node.port) == (kafka.host, kafka.port)
    assert cluster.controller.id == node.id
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    configs = admin.describe_configs([resource])[resource].result(DEADLINE_S)
    assert configs["num.partitions"].value
    assert configs["auto.create.topics.enable"].value == "true"


def test_offsets_are_listed(kafka, admin, topic):
    producer = confluent_producer(kafka)
    # The highest timestamp is not that of the last record.
    for timestamp in (1_700_000_000_000, 1_700_000_009_000, 1_700_000_005_000):
        produce_all(producer, topic, [b"x"], timestamp=timestamp)
    partition = TopicPartition(topic, 0)

    def listed(spec, **options):
        return admin.list_offsets({partition: spec}, **options)[partition].result(DEADLINE_S)

    assert listed(OffsetSpec.earliest()).offset == 0
    assert listed(OffsetSpec.latest()).offset == 3
    assert listed(OffsetSpec.latest(), isolation_level=IsolationLevel.READ_COMMITTED).offset == 3
    highest = listed(OffsetSpec.max_timestamp())
    assert (highest.offset, highest.timestamp) == (1, 1_700_000_009_000)
    found = listed(OffsetSpec.for_timestamp(1_700_000_000_001))
    assert (found.offset, found.timestamp) == (1, 1_700_000_009_000)


def test_records_are_deleted_up_to_an_offset(kafka, admin, topic, unique):
    produce_all(confluent_producer(kafka), topic, numbers(10))
    deleted = admin.delete_records([TopicPartition(topic, 0, 6)])
    [result] = deleted.values()
    assert result.result(DEADLINE_S).low_watermark == 6
    consumer = confluent_consumer(kafka, unique)
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S) == (6, 10)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert next_message(consumer).offset() == 6
    consumer.close()
    [beyond] = admin.delete_records([TopicPartition(topic, 0, 11)]).values()
    assert failure(beyond) == KafkaError.OFFSET_OUT_OF_RANGE


def test_a_group_in_use_is_not_deleted(kafka, admin, topic, unique):
    consumer = confluent_consumer(kafka, unique)
    consumer.subscribe([topic])
    until(consumer.assignment, "an assignment", step=lambda: consumer.poll(0.05))
    assert failure(admin.delete_consumer_groups([unique])[unique]) == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    absent = f"{unique}-absent"
    assert failure(admin.delete_consumer_groups([absent])[absent]) == KafkaError.GROUP_ID_NOT_FOUND
