"""A message sent over one protocol is received over any other: MQTT, HTTP, Kafka, and bindings from ordinary topics."""

import base64

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer
from kafka.errors import PolicyViolationError

from broker_process import BrokerProcess
from operations import Operations, eventually
from peer import Peer
from worker import Worker, count, texts, user_properties

DEADLINE_S = 30
FULL = 0x97


@pytest.fixture
def worker(broker_process, unique):
    with Worker(broker_process.mqtt, f"{unique}w") as connected:
        yield connected


def produced(producer, topic, value, **more):
    """Sends a record with librdkafka, and returns the error of its delivery, or none."""
    errors = []
    producer.produce(topic, value, on_delivery=lambda error, _message: errors.append(error), **more)
    assert producer.flush(DEADLINE_S) == 0
    return errors[0]


def test_from_http_to_mqtt(worker, operations, queue):
    worker.work_on(queue)
    message = {"body": "text", "key": "k", "headers": {"trace": "7"}, "priority": 3}
    operations.done("POST", f"/v1/queues/{queue}/messages", json={"messages": [message, {"body_base64": "/wA="}]})
    first, second = worker.receive(2)
    assert (first.payload, user_properties(first)["key"], user_properties(first)["trace"], user_properties(first)["priority"]) == (b"text", "k", "7", "3")
    assert second.payload == b"\xff\x00"


def test_from_mqtt_to_http(worker, operations, queue):
    extra = {"ContentType": "image/png", "CorrelationData": b"\x01\xff"}
    assert worker.send(queue, b"\xff\x00", key="press/7", properties=extra, site="north", priority=5) == 0
    (message,) = operations.receive(queue)
    assert (base64.b64decode(message["body_base64"]), message["key"]) == (b"\xff\x00", "press/7")
    headers = message["headers"]
    assert (headers["site"], headers["priority"]) == ("north", "5")
    assert "image/png" in headers.values(), "the content type is a header"
    operations.ack(queue, message)


def test_mqtt_and_http_consumers_compete(worker, operations, queue):
    """A message that one of them fails goes to the other."""
    operations.send(queue, "x")
    (message,) = operations.receive(queue)
    worker.work_on(queue)
    operations.settle("nack", queue, message, delay_ms=0)
    again = worker.next()
    assert (again.payload, count(again)) == (b"x", 2)
    worker.fail(again, delay_ms=0)
    worker.cut()
    (message,) = operations.receive(queue)
    assert message["body"] == "x"
    assert message["receipt"].startswith(f"0-{message['delivery_count']}-")


def test_from_librdkafka_to_mqtt(worker, broker_process, operations, queue):
    producer = Producer({"bootstrap.servers": str(broker_process.kafka), "linger.ms": 1})
    worker.work_on(queue)
    headers = [("site", b"north"), ("priority", b"9")]
    assert produced(producer, queue, b"x", key=b"k", headers=headers) is None
    message = worker.next()
    properties = user_properties(message)
    assert (message.payload, properties["key"], properties["site"], properties["offset"]) == (b"x", "k", "north", "0")
    worker.ack(message)
    operations.empty(queue)


def test_record_headers_set_message_options(broker_process, operations, queue):
    """Priority, delay, deduplication, and order by key."""
    producer = Producer({"bootstrap.servers": str(broker_process.kafka), "linger.ms": 1, "enable.idempotence": True})
    for value, headers in (("a", {}), ("late", {"delay-ms": "60000"}), ("b", {"priority": "5"}), ("c", {"dedup-id": "1"}),
                           ("d", {"dedup-id": "1"})):
        produced(producer, queue, value, headers=list(headers.items()))
    assert [message["body"] for message in operations.receive(queue, max=10)] == ["b", "a", "c"]
    group = operations.group(queue)
    assert (group["leased"], group["delayed"], operations.info(queue)["duplicates"]) == (3, 1, 1)


def test_batches_of_kafka_python_are_messages(worker, broker_process, operations, queue):
    producer = KafkaProducer(bootstrap_servers=str(broker_process.kafka), linger_ms=20, compression_type="gzip")
    sent = [producer.send(queue, f"{number}".encode()) for number in range(200)]
    assert [each.get(DEADLINE_S).offset for each in sent] == list(range(200))
    producer.close()
    worker.work_on(queue)
    got = []
    while len(got) < 200:
        got.append(worker.next())
        worker.ack(got[-1])
    assert texts(got) == [f"{number}" for number in range(200)]
    operations.empty(queue)


def test_a_full_queue_refuses_producers(broker_process, operations, make_queue):
    queue = make_queue(length_max=2)
    operations.send(queue, "1", "2")
    producer = Producer({"bootstrap.servers": str(broker_process.kafka), "linger.ms": 1})
    assert produced(producer, queue, b"3").code() == KafkaError.POLICY_VIOLATION
    other = KafkaProducer(bootstrap_servers=str(broker_process.kafka), retries=0)
    with pytest.raises(PolicyViolationError):
        other.send(queue, b"3").get(DEADLINE_S)
    other.close()
    assert operations.info(queue)["messages"] == 2


def test_kafka_consumers_read_a_queue_like_any_topic(worker, broker_process, operations, queue):
    """Independently of the queue's groups, including settled messages that are still on disk."""
    worker.send(queue, "from mqtt", key="k")
    operations.send(queue, "from http")
    operations.ack(queue, *operations.receive(queue))
    consumer = Consumer({"bootstrap.servers": str(broker_process.kafka), "group.id": queue, "auto.offset.reset": "earliest"})
    consumer.subscribe([queue])
    records = []
    eventually(lambda: (record := consumer.poll(0.1)) and not record.error() and records.append(record) or len(records) == 2,
               "both are read")
    consumer.close()
    assert [(record.offset(), record.key(), record.value()) for record in records] == [
        (0, b"k", b"from mqtt"), (1, None, b"from http")]
    assert operations.info(queue)["messages"] == 1


def test_a_queue_is_a_topic_to_administrators(broker_process, operations, queue):
    admin = AdminClient({"bootstrap.servers": str(broker_process.kafka)})
    topic = admin.list_topics(queue, timeout=DEADLINE_S).topics[queue]
    assert list(topic.partitions) == [0]


CONFIGURATION = """
[[queue]]
name = "presses"
lease_ms = 5000
max_deliveries = 2

[[mqtt_to_queue]]
name = "press-work"
filter = "plant/+/press"
queue = "presses"
key = "level:2"

[[queue]]
name = "small"
length_max = 1

[[mqtt_to_queue]]
name = "small-work"
filter = "small/#"
queue = "small"

[[mqtt_to_queue]]
name = "alarms"
filter = "alarm/#"
queue = "alarms"
"""


@pytest.fixture
def bound():
    with_bindings = BrokerProcess(CONFIGURATION)
    yield with_bindings
    with_bindings.clear()


def test_ordinary_topics_feed_queues(bound, unique):
    with Operations(bound.url) as operations, Worker(bound.mqtt, unique) as worker, Peer(bound.mqtt, f"{unique}p") as press:
        settings = operations.info("presses")["settings"]
        assert (settings["lease_ms"], settings["max_deliveries"]) == (5000, 2)
        watcher = Peer(bound.mqtt, f"{unique}q").connect()
        watcher.subscribe("plant/#", qos=1)
        for number in range(3):
            press.publish("plant/north/press", f"{number}", qos=number)
        press.publish("plant/north/oven", b"no work", qos=1)
        assert texts(watcher.receive(4)) == ["0", "1", "2", "no work"], "subscribers get it as well"
        watcher.disconnect()
        worker.work_on("presses")
        for number in range(3):
            message = worker.next()
            properties = user_properties(message)
            assert (message.payload, message.topic) == (f"{number}".encode(), "$queue/presses")
            assert (properties["topic"], properties["key"]) == ("plant/north/press", "north")
            worker.ack(message)
        operations.empty("presses")
        press.publish("alarm/fire", b"!", qos=1)
        (alarm,) = operations.receive("alarms")
        assert alarm["body"] == "!"
        # Acknowledged to its publisher means stored in the queue.
        press.publish("plant/south/press", b"kept", qos=1)
        bound.kill()
    bound.start()
    with Operations(bound.url) as operations:
        assert [message["body"] for message in operations.receive("presses")] == ["kept"]
    bound.stop()


def test_a_full_queue_refuses_publishers_behind_a_binding(bound, unique):
    """With a reason, on each attempt, while it is full."""
    with Operations(bound.url) as operations, Worker(bound.mqtt, unique) as press:
        def publish(payload):
            info = press.publish_later("small/press", payload, qos=1)
            info.wait_for_publish(DEADLINE_S)
            return press.reason_of(info)

        assert publish(b"x" * 1_200_000) == FULL, "too large for the queue"
        assert publish(b"1") == 0
        assert [publish(b"2"), publish(b"3")] == [FULL, FULL]
        operations.ack("small", *operations.receive("small"))
        eventually(lambda: publish(b"4") == 0, "there is room again")
        (message,) = operations.receive("small")
        assert message["body"] == "4"
        assert press.disconnected.empty()


def test_bindings_come_and_go_while_the_broker_runs(own_broker_process, unique):
    """Through the HTTP API, durably: they survive a kill until they are removed."""
    binding = {"kind": "mqtt-to-queue", "filter": f"{unique}/+/alarm", "queue": f"{unique}-alarms"}
    with Operations(own_broker_process.url) as operations, Peer(own_broker_process.mqtt, unique) as press:
        assert operations.ask("PUT", "/v1/bindings/alarms", json=binding).status_code == 201
        assert operations.ask("PUT", "/v1/bindings/alarms", json=binding).status_code == 200
        operations.refused("PUT", "/v1/bindings/alarms", 409, "exists", json={**binding, "filter": "other"})
        press.publish(f"{unique}/north/alarm", b"1", qos=1)
        assert [message["body"] for message in operations.receive(f"{unique}-alarms")] == ["1"]
        own_broker_process.kill()
    own_broker_process.start()
    with Operations(own_broker_process.url) as operations, Peer(own_broker_process.mqtt, unique) as press:
        assert [each["name"] for each in operations.done("GET", "/v1/bindings")["bindings"]] == ["alarms"]
        assert operations.done("GET", "/v1/bindings/alarms")["filter"] == binding["filter"]
        press.publish(f"{unique}/south/alarm", b"2", qos=1)
        got = operations.receive(f"{unique}-alarms", max=5)
        while len(got) < 2:
            got += operations.receive(f"{unique}-alarms", max=5)
        assert sorted(message["body"] for message in got) == ["1", "2"]
        operations.ack(f"{unique}-alarms", *got)
        assert operations.ask("DELETE", "/v1/bindings/alarms").status_code == 204
        operations.refused("DELETE", "/v1/bindings/alarms", 404, "unknown-binding")
        press.publish(f"{unique}/south/alarm", b"3", qos=1)
        assert operations.info(f"{unique}-alarms")["messages"] == 0
    own_broker_process.stop()
