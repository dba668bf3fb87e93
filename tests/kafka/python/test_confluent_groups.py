"""confluent-kafka (librdkafka): consumer groups."""

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from peer import (DEADLINE_S, ConfluentMember, confluent_consumer, confluent_producer, next_message, numbers,
                  produce_all, read, until, values)

each_assignor = pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])


def test_the_coordinator_has_the_connected_address(kafka, admin, topic, unique):
    consumer = confluent_consumer(kafka, unique)
    consumer.subscribe([topic])
    until(consumer.assignment, "an assignment", step=lambda: consumer.poll(0.05))
    group = admin.describe_consumer_groups([unique])[unique].result(DEADLINE_S)
    assert (group.coordinator.host, group.coordinator.port) == (kafka.host, kafka.port)
    [member] = group.members
    assert [each.topic for each in member.assignment.topic_partitions] == [topic]
    consumer.close()


def test_a_commit_is_where_the_group_continues(kafka, topic, unique):
    produce_all(confluent_producer(kafka), topic, numbers(10))
    first = confluent_consumer(kafka, unique)
    first.subscribe([topic])
    assert values(read(first, 4)) == numbers(10)[:4]
    first.commit(offsets=[TopicPartition(topic, 0, 4, "what I did")], asynchronous=False)
    [committed] = first.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
    assert (committed.offset, committed.metadata) == (4, "what I did")
    first.close()
    second = confluent_consumer(kafka, unique)
    second.subscribe([topic])
    assert values(read(second, 6)) == numbers(10)[4:]
    second.close()


@each_assignor
def test_members_come_and_go_and_nothing_is_missed_or_read_twice(kafka, make_topic, unique, assignor):
    topic = make_topic(6)
    producer = confluent_producer(kafka)
    produced = []

    def produce(count, **where):
        more = numbers(count, f"{len(produced)}-")
        produce_all(producer, topic, more, **where)
        produced.extend(more)

    def seen():
        return [value for member in members for value in member.seen]

    def until_all_have_joined(these):
        """Waits for a fair assignment. A member that leaves earlier may commit with an outdated generation."""
        share = [6 // len(these)] * len(these)
        until(lambda: sorted(len(each.owned) for each in these) == share, "a fair share")
        assert set().union(*(each.owned for each in these)) == set(range(6))

    # A librdkafka member that loses a partition while it looks up its start offset returns to that offset if it ever
    # gets the partition again. With a committed offset in each partition there is no lookup.
    for partition in range(6):
        produce(10, partition=partition)
    members = [ConfluentMember(kafka, unique, topic, partition_assignment_strategy=assignor)]
    until(lambda: len(seen()) >= len(produced), "the first records")
    for _ in range(2):
        produce(300)
        members.append(ConfluentMember(kafka, unique, topic, partition_assignment_strategy=assignor))
        produce(300)
        until_all_have_joined(members)
        produce(300)
    until(lambda: len(seen()) >= len(produced), "all records")
    for left in range(1, 3):
        members[left - 1].leave()
        until_all_have_joined(members[left:])
        produce(300)
        until(lambda: len(seen()) >= len(produced), "all records after one has left")
    members[-1].leave()
    assert sorted(seen()) == sorted(produced)


def test_a_static_member_comes_back_without_a_rebalance(kafka, admin, make_topic, unique):
    """KIP-345."""
    topic = make_topic(2)
    stays = ConfluentMember(kafka, unique, topic, group_instance_id="stays")
    leaves = confluent_consumer(kafka, unique, group_instance_id="leaves")
    leaves.subscribe([topic])
    until(lambda: len(leaves.assignment()) == 1 and len(stays.owned) == 1, "half each", step=lambda: leaves.poll(0.05))
    had = leaves.assignment()
    leaves.close()
    back = confluent_consumer(kafka, unique, group_instance_id="leaves")
    back.subscribe([topic])
    until(back.assignment, "an assignment", step=lambda: back.poll(0.05))
    assert back.assignment() == had
    group = admin.describe_consumer_groups([unique])[unique].result(DEADLINE_S)
    assert sorted(member.group_instance_id for member in group.members) == ["leaves", "stays"]
    back.close()
    stays.leave()


def test_a_second_static_member_of_a_name_fences_the_first(kafka, topic, unique):
    first = confluent_consumer(kafka, unique, group_instance_id="one")
    first.subscribe([topic])
    until(first.assignment, "an assignment", step=lambda: first.poll(0.05))
    second = confluent_consumer(kafka, unique, group_instance_id="one")
    second.subscribe([topic])
    until(second.assignment, "an assignment", step=lambda: second.poll(0.05))
    fenced = []

    def poll():
        message = first.poll(0.1)
        if message is not None and message.error():
            fenced.append(message.error().code())

    until(lambda: fenced, "an error", step=poll)
    assert fenced[0] in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    first.close()
    second.close()


def test_a_member_that_dies_is_replaced_after_its_session(kafka, topic, unique):
    """Its thread stops polling, and its heartbeats end after `max.poll.interval.ms`."""
    dead = confluent_consumer(kafka, unique, session_timeout_ms=6_000, max_poll_interval_ms=6_000)
    dead.subscribe([topic])
    until(dead.assignment, "an assignment", step=lambda: dead.poll(0.05))
    heir = confluent_consumer(kafka, unique)
    heir.subscribe([topic])
    until(heir.assignment, "what the other one had", step=lambda: heir.poll(0.1))
    heir.close()
    dead.close()


def test_a_commit_of_a_former_generation_is_refused(kafka, make_topic, unique):
    topic = make_topic(2)
    produce_all(confluent_producer(kafka), topic, numbers(2))
    outsider = confluent_consumer(kafka, unique)
    member = confluent_consumer(kafka, unique)
    member.subscribe([topic])
    until(member.assignment, "an assignment", step=lambda: member.poll(0.05))
    outsider.assign([TopicPartition(topic, 0)])
    with pytest.raises(KafkaException) as refused:
        outsider.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    member.close()
    # The group is empty, so an admin client may set its offsets.
    outsider.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    outsider.close()


def test_a_subscription_by_pattern_finds_a_new_topic(kafka, make_topic, unique):
    first = make_topic()
    consumer = confluent_consumer(kafka, unique, topic_metadata_refresh_interval_ms=500)
    consumer.subscribe([f"^{unique}-.*"])
    producer = confluent_producer(kafka)
    produce_all(producer, first, [b"first"])
    assert next_message(consumer).value() == b"first"
    consumer.commit(asynchronous=False)
    produce_all(producer, make_topic(), [b"second"])
    assert next_message(consumer).value() == b"second"
    consumer.close()


def test_offsets_of_a_group_are_listed_altered_and_deleted_with_it(kafka, admin, topic, unique):
    produce_all(confluent_producer(kafka), topic, numbers(10))
    consumer = confluent_consumer(kafka, unique)
    consumer.subscribe([topic])
    read(consumer, 5)
    consumer.commit(asynchronous=False)
    consumer.close()

    def listed():
        asked = [ConsumerGroupTopicPartitions(unique, [TopicPartition(topic, 0)])]
        found = admin.list_consumer_group_offsets(asked)[unique].result(DEADLINE_S)
        return found.topic_partitions[0].offset

    assert listed() == 5
    wanted = [ConsumerGroupTopicPartitions(unique, [TopicPartition(topic, 0, 2)])]
    admin.alter_consumer_group_offsets(wanted)[unique].result(DEADLINE_S)
    assert listed() == 2
    groups = admin.list_consumer_groups().result(DEADLINE_S)
    assert unique in {group.group_id for group in groups.valid}
    admin.delete_consumer_groups([unique])[unique].result(DEADLINE_S)
    groups = admin.list_consumer_groups().result(DEADLINE_S)
    assert unique not in {group.group_id for group in groups.valid}
