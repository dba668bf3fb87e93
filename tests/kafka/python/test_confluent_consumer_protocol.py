"""confluent-kafka (librdkafka): the consumer protocol of KIP-848, in which the broker assigns partitions."""

import subprocess
import sys

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from broker import KafkaBroker
from peer import (DEADLINE_S, ConfluentMember, confluent_consumer, confluent_producer, next_message, numbers,
                  produce_all, read, until, values)

# When rebootstrapping, librdkafka 2.16 waits forever for a group coordinator that it has forgotten itself.
RECONNECT = {"metadata_recovery_strategy": "none", "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200,
             "retry_backoff_ms": 20}
# Joins a group, prints its assignment, and reads until it is killed. Arguments: broker, group, topic.
READER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer"})
consumer.subscribe([sys.argv[3]], on_assign=lambda _, partitions: print(len(partitions), flush=True))
while True:
    consumer.poll(1)
"""


def consumer_of(kafka, group, **settings):
    return confluent_consumer(kafka, group, group_protocol="consumer", **settings)


def member_of(kafka, group, topic, **settings):
    return ConfluentMember(kafka, group, topic, group_protocol="consumer", **settings)


def described(admin, group):
    return admin.describe_consumer_groups([group])[group].result(DEADLINE_S)


def partitions_of(assignment) -> list[int]:
    return sorted(each.partition for each in assignment.topic_partitions)


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_come_and_go_and_nothing_is_missed_or_read_twice(kafka, admin, make_topic, unique, assignor):
    topic = make_topic(6)
    producer = confluent_producer(kafka)
    produced = []
    members = []

    def produce(count, **where):
        more = numbers(count, f"{len(produced)}-")
        produce_all(producer, topic, more, **where)
        produced.extend(more)

    def seen():
        return [value for member in members for value in member.seen]

    def until_shared_by(these):
        share = [6 // len(these)] * len(these)
        until(lambda: sorted(len(each.owned) for each in these) == share, "a fair share")
        assert set().union(*(each.owned for each in these)) == set(range(6))

    # With a committed offset in each partition, no member looks up a start offset while it loses the partition.
    for partition in range(6):
        produce(10, partition=partition)
    members.append(member_of(kafka, unique, topic, group_remote_assignor=assignor))
    until(lambda: len(seen()) >= len(produced), "the first records")
    for _ in range(2):
        members.append(member_of(kafka, unique, topic, group_remote_assignor=assignor))
        produce(300)
        until_shared_by(members)
        produce(300)
    assert described(admin, unique).partition_assignor == assignor
    until(lambda: len(seen()) >= len(produced), "all records")
    for left in range(1, 3):
        members[left - 1].leave()
        until_shared_by(members[left:])
        produce(300)
        until(lambda: len(seen()) >= len(produced), "all records after one has left")
    members[-1].leave()
    assert sorted(seen()) == sorted(produced)


def test_rebalances_are_incremental(kafka, make_topic, unique):
    """A member that keeps a partition is not asked to give it up in between."""
    topic = make_topic(2)
    changes = []

    def assigned(consumer, partitions):
        # librdkafka also calls this to say that a revocation is over.
        if partitions:
            changes.append(("assigned", len(partitions)))
        consumer.incremental_assign(partitions)

    def revoked(consumer, partitions):
        changes.append(("revoked", len(partitions)))
        consumer.incremental_unassign(partitions)

    first = consumer_of(kafka, unique)
    first.subscribe([topic], on_assign=assigned, on_revoke=revoked)
    until(lambda: len(first.assignment()) == 2, "all partitions", step=lambda: first.poll(0.05))
    second = member_of(kafka, unique, topic)
    until(lambda: len(second.owned) == 1, "half of them", step=lambda: first.poll(0.05))
    [kept] = first.assignment()
    produce_all(confluent_producer(kafka), topic, [b"kept"], partition=kept.partition)
    assert next_message(first).value() == b"kept"
    second.leave()
    until(lambda: len(first.assignment()) == 2, "all partitions again", step=lambda: first.poll(0.05))
    assert changes == [("assigned", 2), ("revoked", 1), ("assigned", 1)]
    first.close()


def test_a_commit_is_where_the_group_continues(kafka, topic, unique):
    produce_all(confluent_producer(kafka), topic, numbers(10))
    first = consumer_of(kafka, unique)
    first.subscribe([topic])
    assert values(read(first, 6)) == numbers(10)[:6]
    first.commit(offsets=[TopicPartition(topic, 0, 2, "what I did")], asynchronous=False)

    def committed():
        [found] = first.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
        return found

    assert (committed().offset, committed().metadata) == (2, "what I did")
    first.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=True)
    until(lambda: committed().offset == 4, "the asynchronous commit")
    first.close()
    second = consumer_of(kafka, unique)
    second.subscribe([topic])
    assert values(read(second, 6)) == numbers(10)[4:]
    second.close()


def test_a_static_member_comes_back_without_a_rebalance(kafka, admin, make_topic, unique):
    topic = make_topic(2)
    stays = member_of(kafka, unique, topic, group_instance_id="stays")
    leaves = consumer_of(kafka, unique, group_instance_id="leaves")
    leaves.subscribe([topic])
    until(lambda: len(leaves.assignment()) == 1 and len(stays.owned) == 1, "half each", step=lambda: leaves.poll(0.05))
    had = leaves.assignment()
    kept = set(stays.owned)
    leaves.close()
    back = consumer_of(kafka, unique, group_instance_id="leaves")
    back.subscribe([topic])
    until(back.assignment, "an assignment", step=lambda: back.poll(0.05))
    assert back.assignment() == had
    assert stays.owned == kept
    group = described(admin, unique)
    assert sorted(member.group_instance_id for member in group.members) == ["leaves", "stays"]
    back.close()
    stays.leave()


def test_a_subscription_by_pattern_finds_a_new_topic(kafka, make_topic, unique):
    """librdkafka sends a name that begins with `^` as a regular expression."""
    producer = confluent_producer(kafka)
    consumer = consumer_of(kafka, unique)
    consumer.subscribe([f"^{unique}-.*"])
    produce_all(producer, make_topic(), [b"first"])
    assert next_message(consumer).value() == b"first"
    produce_all(producer, make_topic(), [b"second"])
    assert next_message(consumer).value() == b"second"
    consumer.close()


def test_a_group_is_described_and_listed(kafka, admin, make_topic, unique):
    topic = make_topic(2)
    consumer = consumer_of(kafka, unique, client_id="someone")
    consumer.subscribe([topic])
    until(lambda: len(consumer.assignment()) == 2, "an assignment", step=lambda: consumer.poll(0.05))
    until(lambda: described(admin, unique).state == ConsumerGroupState.STABLE, "a stable group")
    group = described(admin, unique)
    assert (group.type, group.partition_assignor) == (ConsumerGroupType.CONSUMER, "uniform")
    assert (group.coordinator.host, group.coordinator.port) == (kafka.host, kafka.port)
    [member] = group.members
    assert member.client_id == "someone"
    assert partitions_of(member.assignment) == partitions_of(member.target_assignment) == [0, 1]

    def listed(kind):
        groups = admin.list_consumer_groups(types={kind}).result(DEADLINE_S)
        return unique in {group.group_id for group in groups.valid}

    assert listed(ConsumerGroupType.CONSUMER)
    assert not listed(ConsumerGroupType.CLASSIC)
    with pytest.raises(KafkaException) as refused:
        admin.delete_consumer_groups([unique])[unique].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    assert described(admin, unique).state == ConsumerGroupState.EMPTY
    admin.delete_consumer_groups([unique])[unique].result(DEADLINE_S)
    assert not listed(ConsumerGroupType.CONSUMER)


def test_a_member_that_dies_is_replaced_after_its_session(kafka, topic, unique):
    if KafkaBroker.running():
        pytest.skip("the session timeout is that of the broker, and this one is not ours")
    with subprocess.Popen([sys.executable, "-c", READER, kafka.bootstrap, unique, topic], stdout=subprocess.PIPE,
                          text=True) as dead:
        assert dead.stdout.readline() == "1\n"
        heir = member_of(kafka, unique, topic)
        dead.kill()
    until(lambda: heir.owned, "what the other one had")
    heir.leave()


def test_members_keep_their_partitions_when_the_broker_is_killed(own_kafka, unique):
    admin = AdminClient({"bootstrap.servers": own_kafka.bootstrap, "metadata.recovery.strategy": "none"})
    admin.create_topics([NewTopic(unique, 2, 1)])[unique].result(DEADLINE_S)
    consumers = [consumer_of(own_kafka, unique, **RECONNECT) for _ in range(2)]
    changes = []
    seen = []

    def poll():
        for consumer in consumers:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                seen.append(message.value())

    def changed(_, partitions):
        changes.extend(partitions)

    for consumer in consumers:
        consumer.subscribe([unique], on_assign=changed, on_revoke=changed, on_lost=changed)
    until(lambda: [len(each.assignment()) for each in consumers] == [1, 1], "half each", step=poll)
    until(lambda: described(admin, unique).state == ConsumerGroupState.STABLE, "a stable group", step=poll)
    changes.clear()
    own_kafka.end()
    own_kafka.start_again()
    producer = confluent_producer(own_kafka, **RECONNECT)
    for number in range(2):
        produce_all(producer, unique, [str(number).encode()], partition=number)
    until(lambda: sorted(seen) == numbers(2), "both records", step=poll)
    for consumer in consumers:
        # The epoch is still that of the member.
        [committed] = consumer.commit(asynchronous=False)
        assert (committed.error, committed.offset) == (None, 1)
    assert not changes
    group = described(admin, unique)
    assert (group.state, len(group.members)) == (ConsumerGroupState.STABLE, 2)
    for consumer in consumers:
        consumer.close()
