"""paho-mqtt: message options, and responses of a queue to its senders."""

import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from peer import V311
from worker import Worker, count, texts, user_properties

FULL, NO_SUCH_NAME = 0x97, 0x90


@pytest.fixture
def client(broker_process, unique):
    with Worker(broker_process.mqtt, f"{unique}client") as connected:
        yield connected


@pytest.fixture
def another(broker_process, unique):
    with Worker(broker_process.mqtt, f"{unique}another") as connected:
        yield connected


def test_higher_priorities_come_first(client, queue):
    for payload, asked in (("a", {}), ("b", {"priority": 5}), ("c", {"priority": 9}), ("d", {"priority": 5}), ("e", {})):
        client.send(queue, payload, **asked)
    assert texts(client.work_on(queue).receive(5)) == ["c", "b", "d", "a", "e"]


def test_an_invalid_priority_is_ignored(client, queue):
    for payload, priority in (("a", "high"), ("b", ""), ("c", "-1"), ("d", "1")):
        assert client.send(queue, payload, priority=priority) == 0
    assert texts(client.work_on(queue).receive(4)) == ["d", "a", "b", "c"]


def test_a_message_can_be_delayed(client, operations, queue):
    began = time.monotonic()
    client.send(queue, "late", delay_ms=1000)
    client.send(queue, "later", deliver_at=int(time.time() * 1000) + 1300)
    client.send(queue, "now", deliver_at=1)
    group = operations.group(queue)
    assert (group["ready"], group["delayed"]) == (1, 2)
    client.work_on(queue)
    assert client.next().payload == b"now"
    assert client.next().payload == b"late"
    assert time.monotonic() - began >= 1
    assert client.next().payload == b"later"
    assert time.monotonic() - began >= 1.29


def test_an_expired_message_is_not_delivered(client, operations, make_queue):
    """By user property, Message Expiry Interval, or the queue's limit; the dead letter has the reason."""
    queue, short = make_queue(), make_queue(ttl_ms=300)
    began = time.monotonic()
    client.send(queue, "by property", ttl_ms=300)
    client.send(queue, "by interval", properties={"MessageExpiryInterval": 1})
    client.send(queue, "stays")
    client.send(short, "by queue")
    client.work_on(f"{queue}.dead").work_on(f"{short}.dead")
    letters = client.receive(3)
    assert sorted(texts(letters)) == ["by interval", "by property", "by queue"]
    assert time.monotonic() - began >= 1
    assert {user_properties(letter)["dead-letter-reason"] for letter in letters} == {"expired"}
    assert texts(client.work_on(queue).receive(1)) == ["stays"]


def test_a_duplicate_is_accepted_and_discarded(client, operations, make_queue):
    queue = make_queue(dedup_window_ms=1500)
    for payload in ("first", "second"):
        assert client.send(queue, payload, dedup_id="order-1") == 0
    assert client.send(queue, "other", dedup_id="order-2") == 0
    assert texts(client.work_on(queue).receive(2)) == ["first", "other"]
    info = operations.info(queue)
    assert (info["messages"], info["duplicates"]) == (2, 1)
    # The window is 1.5 s from the first message on.
    deadline = time.monotonic() + 10
    while client.messages.empty():
        assert time.monotonic() < deadline
        client.send(queue, "third", dedup_id="order-1")
    assert client.next().payload == b"third"


def test_messages_with_a_key_come_one_after_the_other(client, another, operations, make_queue):
    """Also when they fail, and with two workers."""
    queue = make_queue(backoff_ms=100, max_deliveries=0)
    client.work_on(queue)
    another.work_on(queue)
    expected = {key: [f"{key}{number}" for number in range(8)] for key in ("a", "b", "c")}
    for number in range(8):
        for key in expected:
            client.send(queue, f"{key}{number}", key=key)
    done = {key: [] for key in expected}
    deadline = time.monotonic() + 20
    failures = 0
    while sum(map(len, done.values())) < 24:
        assert time.monotonic() < deadline, done
        for worker in (client, another):
            while not worker.messages.empty():
                message = worker.messages.get()
                key, text = user_properties(message)["key"], message.payload.decode()
                # The next of its key, at any worker: later ones wait until it is settled.
                assert text == expected[key][len(done[key])]
                if count(message) == 1 and text[1] in "036":
                    failures += 1
                    worker.fail(message)
                else:
                    done[key].append(text)
                    worker.ack(message)
    assert (done, failures) == (expected, 9)
    operations.empty(queue)


def test_one_key_does_not_block_others(client, queue):
    """One message per key is in flight, though there is room for more; other keys pass."""
    for payload, key in (("a0", "a"), ("a1", "a"), ("b0", "b"), ("free", None)):
        client.send(queue, payload, key=key)
    client.work_on(queue)
    first, *others = client.receive(3)
    assert texts([first, *others]) == ["a0", "b0", "free"]
    client.reject(first)
    assert client.next().payload == b"a1"


def test_without_fifo_keys_have_no_order(client, make_queue):
    queue = make_queue(fifo=False)
    for number in range(3):
        client.send(queue, f"{number}", key="a")
    assert texts(client.work_on(queue).receive(3)) == ["0", "1", "2"]


def test_a_full_queue_refuses_its_senders(client, another, operations, make_queue):
    queue = make_queue(length_max=3)
    assert [client.send(queue, f"{number}") for number in range(5)] == [0, 0, 0, FULL, FULL]
    worker = another.work_on(queue)
    got = worker.receive(3)
    assert texts(got) == ["0", "1", "2"]
    assert client.send(queue, "x") == FULL, "what is under way counts as well"
    worker.ack(got[0])
    deadline = time.monotonic() + 10
    while client.send(queue, "y") == FULL:
        assert time.monotonic() < deadline
    assert worker.next().payload == b"y"
    small = make_queue(bytes_max=1000)
    assert [client.send(small, "x" * 400) for _ in range(4)][-1] == FULL


def test_a_full_queue_disconnects_mqtt_3_senders(broker_process, unique, make_queue):
    """An MQTT 3.1.1 client must not mistake a refusal for an acknowledgement."""
    queue = make_queue(length_max=1)
    with Worker(broker_process.mqtt, f"{unique}old", V311) as old:
        old.publish(f"$queue/{queue}", b"1", qos=1)
        refused = old.publish_refused(f"$queue/{queue}", b"2", qos=1)
        old.disconnected.get(timeout=10)
        assert refused.rc or not refused.is_published()


def test_a_full_queue_drops_its_oldest(client, operations, make_queue):
    queue = make_queue(length_max=3, overflow="drop-oldest")
    assert [client.send(queue, f"{number}") for number in range(5)] == [0] * 5
    letters = client.work_on(f"{queue}.dead").receive(2)
    assert texts(letters) == ["0", "1"]
    assert {user_properties(letter)["dead-letter-reason"] for letter in letters} == {"overflow"}
    assert texts(client.work_on(queue).receive(3)) == ["2", "3", "4"]


@pytest.mark.parametrize("name", ["no queue", "ü", "x" * 250, ""])
def test_an_invalid_queue_accepts_no_messages(client, name):
    assert client.send(name, "x") == NO_SUCH_NAME


def test_an_ordinary_topic_is_not_a_queue(client, broker_process, unique):
    admin = AdminClient({"bootstrap.servers": str(broker_process.kafka)})
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(10)
    assert client.send(unique, "x") == NO_SUCH_NAME
    assert client.subscribe(f"$queue/{unique}", qos=1) == 0x8F


def test_a_single_active_worker_at_a_time(client, another, make_queue):
    """The second takes over when the first has gone."""
    queue = make_queue(single_active_consumer=True)
    client.work_on(queue)
    another.work_on(queue)
    for number in range(4):
        another.send(queue, f"{number}")
    got = client.receive(4)
    assert another.messages.empty()
    client.ack(got[0])
    client.settle()
    client.cut()
    rest = another.receive(3)
    assert (texts(rest), {count(message) for message in rest}) == (["1", "2", "3"], {2})


def test_a_will_can_go_to_a_queue(client, broker_process, unique, queue):
    client.work_on(queue)
    will = {"topic": f"$queue/{queue}", "payload": b"find out why", "qos": 1}
    Worker(broker_process.mqtt, f"{unique}mortal", will=will).connect().cut()
    assert client.next().payload == b"find out why"


def test_qos_2_is_in_the_queue_once(client, operations, queue):
    for number in range(10):
        client.publish(f"$queue/{queue}", f"{number}", qos=2)
    assert texts(client.work_on(queue).receive(10)) == [f"{number}" for number in range(10)]
    assert operations.info(queue)["messages"] == 10


def test_the_first_message_or_worker_creates_the_queue(client, operations, unique):
    assert client.send(f"{unique}-sent", "x") == 0
    client.work_on(f"{unique}-wanted")
    for name in (f"{unique}-sent", f"{unique}-wanted"):
        settings = operations.info(name)["settings"]
        assert (settings["max_deliveries"], settings["lease_ms"], settings["durability"]) == (5, 30_000, "fsync")
