"""Bindings: messages of paho-mqtt are consumed by confluent-kafka, and the other way round."""

import subprocess
import threading
import time

import paho.mqtt.client as mqtt
import pytest
from confluent_kafka import Consumer, Producer
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from broker import Broker, KafkaBroker, binary

CONFIGURATION = """
[[mqtt_to_topic]]
name = "telemetry"
filter = "plant/+/temp"
topic = "telemetry"
partitions = 3
key = "level:2"

[[topic_to_mqtt]]
name = "commands"
topic = "commands"
publish = "plant/{key}/set/{header:what}"
start = "earliest"
"""

DEADLINE_S = 30


class Bound:
    """A broker with bindings, which can be killed and started again."""

    def __init__(self, directory):
        self.configuration = directory / "mainstem.toml"
        self.configuration.write_text(CONFIGURATION)
        self.data = str(directory / "data")
        self.mqtt = self.kafka = "127.0.0.1:0"
        self.start()

    def start(self):
        flags = ["--config", str(self.configuration), "--listen", self.mqtt, "--kafka-listen", self.kafka]
        self.process, addresses = launch_both([*flags, "--http-listen", "127.0.0.1:0", "--data", self.data])
        self.mqtt, self.kafka = addresses["mqtt"], addresses["kafka"]

    def kill(self):
        self.process.kill()
        self.process.wait()


def launch_both(flags):
    """Starts the binary and waits until both listeners are open."""
    process = subprocess.Popen([str(binary()), *flags], stdout=subprocess.PIPE, text=True)
    addresses = {}
    while len(addresses) < 2:
        line = process.stdout.readline()
        assert line, "the broker has ended"
        listener, _, address = line.partition(" listening on ")
        addresses[listener.strip()] = address.strip()
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return process, addresses


@pytest.fixture
def bound(tmp_path):
    if Broker.running() or KafkaBroker.running():
        pytest.skip("needs a broker with bindings")
    broker = Bound(tmp_path)
    yield broker
    broker.kill()


def connected(broker, name):
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
    host, port = broker.mqtt.rsplit(":", 1)
    client.connect(host, int(port))
    client.loop_start()
    return client


def consume(broker, topic, count):
    """The first `count` records of a topic, whatever their partitions."""
    settings = {"bootstrap.servers": broker.kafka, "group.id": "readers", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    records, deadline = [], time.monotonic() + DEADLINE_S
    while len(records) < count and time.monotonic() < deadline:
        record = consumer.poll(0.5)
        if record is not None:
            assert record.error() is None, record.error()
            records.append(record)
    consumer.close()
    assert len(records) == count
    return records


def publish(client, topic, payload, qos=1, **properties):
    sent = Properties(PacketTypes.PUBLISH)
    for name, value in properties.items():
        setattr(sent, name, value)
    message = client.publish(topic, payload, qos=qos, properties=sent)
    message.wait_for_publish(DEADLINE_S)
    assert message.is_published()


def test_a_message_becomes_a_record_with_all_properties(bound):
    client = connected(bound, "press")
    before_ms = int(time.time() * 1000)
    user = [("site", "north"), ("b", "1"), ("b", "2")]
    publish(
        client,
        "plant/7/temp",
        b"\x00\xff21.5",
        qos=2,
        UserProperty=user,
        ContentType="text/plain",
        ResponseTopic="answers",
        CorrelationData=b"\x01\x02",
        MessageExpiryInterval=600,
        PayloadFormatIndicator=0,
    )
    publish(client, "plant/8/temp", b"")
    publish(client, "plant/8/pressure", b"not bound")
    first, second = sorted(consume(bound, "telemetry", 2), key=lambda record: record.key())
    assert (first.key(), first.value()) == (b"7", b"\x00\xff21.5")
    headers = first.headers()
    assert headers[:3] == [(name, value.encode()) for name, value in user]
    assert dict(headers[3:]) == {
        "mqtt.topic": b"plant/7/temp",
        "mqtt.qos": b"2",
        "mqtt.retain": b"false",
        "mqtt.content-type": b"text/plain",
        "mqtt.response-topic": b"answers",
        "mqtt.correlation-data": b"\x01\x02",
        "mqtt.payload-format-indicator": b"0",
        "mqtt.message-expiry-interval": b"600",
    }
    kind, timestamp_ms = first.timestamp()
    assert kind == 1 and before_ms <= timestamp_ms <= time.time() * 1000
    assert (second.key(), second.value()) == (b"8", b"")
    client.loop_stop()


def test_messages_of_one_topic_name_stay_in_order_and_survive_a_kill(bound):
    client = connected(bound, "many")
    sent = [client.publish(f"plant/{number % 5}/temp", str(number), qos=1) for number in range(1000)]
    for message in sent:
        message.wait_for_publish(DEADLINE_S)
    client.loop_stop()
    bound.kill()
    bound.start()
    by_key = {}
    for record in consume(bound, "telemetry", 1000):
        by_key.setdefault(record.key(), []).append((record.partition(), int(record.value())))
    assert len(by_key) == 5
    for key, records in by_key.items():
        assert len({partition for partition, _ in records}) == 1
        assert [number for _, number in records] == list(range(int(key), 1000, 5))


def test_a_record_becomes_a_message_and_the_position_survives_a_kill(bound):
    producer = Producer({"bootstrap.servers": bound.kafka})
    headers = [("what", b"valve"), ("site", b"north"), ("mqtt.content-type", b"text/plain")]
    producer.produce("commands", key=b"7", value=b"open", headers=headers)
    producer.flush(DEADLINE_S)
    got = []
    arrived = threading.Condition()

    def on_message(_client, _userdata, message):
        with arrived:
            got.append(message)
            arrived.notify_all()

    def listen(name):
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv5)
        client.on_message = on_message
        host, port = bound.mqtt.rsplit(":", 1)
        properties = Properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 600
        subscribed = threading.Event()
        client.on_subscribe = lambda *_: subscribed.set()
        client.connect(host, int(port), clean_start=False, properties=properties)
        client.subscribe("plant/+/set/#", qos=1)
        client.loop_start()
        assert subscribed.wait(DEADLINE_S)
        return client

    client = listen("valves")
    time_out = time.monotonic() + DEADLINE_S
    producer.produce("commands", key=b"8", value=b"shut", headers=headers)
    producer.produce("commands", key=b"9", value=b"no such header")
    producer.produce("commands", key=b"8", value=b"open", headers=headers)
    producer.flush(DEADLINE_S)
    with arrived:
        while not got or got[-1].payload != b"open" or got[-1].topic != "plant/8/set/valve":
            assert arrived.wait(time_out - time.monotonic())
    last = got[-1]
    assert last.qos == 1
    assert last.properties.ContentType == "text/plain"
    assert last.properties.UserProperty == [("what", "valve"), ("site", "north")]
    assert [message.payload for message in got if message.topic == "plant/8/set/valve"] == [b"shut", b"open"]
    client.disconnect()
    client.loop_stop()

    producer.produce("commands", key=b"10", value=b"while it was away", headers=headers)
    producer.flush(DEADLINE_S)
    bound.kill()
    bound.start()
    got.clear()
    producer.produce("commands", key=b"11", value=b"after", headers=headers)
    producer.flush(DEADLINE_S)
    client = listen("valves")
    with arrived:
        while not got or got[-1].payload != b"after":
            assert arrived.wait(DEADLINE_S)
    assert [message.payload for message in got][-2:] == [b"while it was away", b"after"]
    client.disconnect()
    client.loop_stop()


def test_a_cycle_is_refused(tmp_path):
    configuration = tmp_path / "mainstem.toml"
    configuration.write_text(
        CONFIGURATION.replace('topic = "commands"', 'topic = "telemetry"').replace("set/{header:what}", "temp")
    )
    command = [str(binary()), "--config", str(configuration), "--data", str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode != 0
    assert "loop: commands, telemetry" in ended.stderr
