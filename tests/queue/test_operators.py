"""Operations: Prometheus metrics of all protocols, and queues that cannot be read."""

import json
import re
import subprocess
import threading
from pathlib import Path

import httpx
import paho.mqtt.client as paho
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from prometheus_client.parser import text_string_to_metric_families

from broker import binary
from operations import DEADLINE_S, Operations, eventually


def metrics(url):
    """The metrics of a broker, by name and labels."""
    answer = httpx.get(f"{url}/metrics", timeout=DEADLINE_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for line in answer.text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP \w+ .+|TYPE \w+ (gauge|counter|histogram))", line), line
            continue
        name, value = re.fullmatch(r"(\w+(?:\{[^}]*\})?) (\d+(?:\.\d+)?)", line).groups()
        assert name not in values, name
        values[name] = float(value)
    return values


def test_metrics_of_turns(operations, queue):
    operations.send(queue, "a")
    values = metrics(operations.url)
    name = "mainstem_turn_duration_seconds"
    labels = 'shard="0",phase="total"'
    bounds = re.compile(re.escape(f"{name}_bucket{{{labels},le=") + r'"([^"]+)"\}')
    found = [(float(bound.group(1)), count) for key, count in values.items() if (bound := bounds.fullmatch(key))]
    assert found == sorted(found) and found[-1][0] == float("inf")
    assert [count for _, count in found] == sorted(count for _, count in found)
    assert found[-1][1] == values[f"{name}_count{{{labels}}}"] > 0
    assert 0 < values[f"{name}_sum{{{labels}}}"]


def test_metrics(operations, queue):
    operations.send(queue, *"abcdef")
    operations.receive(queue, group="other", max=6)
    done, failed, bad = operations.receive(queue, max=3)
    operations.receive(queue, lease_ms=60_000)
    operations.ack(queue, done)
    operations.settle("nack", queue, failed, delay_ms=60_000)
    operations.settle("reject", queue, bad)
    values = metrics(operations.url)
    of = {"available": 1, "messages": 6, "bytes": operations.info(queue)["bytes"], "duplicates_total": 0}
    for name, value in of.items():
        assert values[f'mainstem_queue_{name}{{queue="{queue}"}}'] == value, name
    of = {"ready": 2, "leased": 1, "delayed": 1, "blocked": 0, "waiting": 0, "delivered_total": 4,
          "redelivered_total": 0, "acked_total": 1, "nacked_total": 2, "dead_total": 1}
    for name, value in of.items():
        assert values[f'mainstem_queue_group_{name}{{queue="{queue}",group="default"}}'] == value, name
    assert values[f'mainstem_queue_group_leased{{queue="{queue}",group="other"}}'] == 6
    assert values[f'mainstem_queue_messages{{queue="{queue}.dead"}}'] == 1
    assert values[f'mainstem_queue_group_oldest_timestamp_seconds{{queue="{queue}",group="default"}}'] > 1_700_000_000


def test_a_queue_whose_state_cannot_be_read(own_broker_process, unique):
    """Its metrics are marked unavailable; those of other queues are complete."""
    broken, sound = f"{unique}-broken", f"{unique}-sound"
    with Operations(own_broker_process.url) as operations:
        operations.create(broken)
        operations.send(broken, *"abc")
        operations.ack(broken, *operations.receive(broken, max=3))
        # The log of the state is created in the background; an acknowledgement is in it.
        found = eventually(lambda: set(own_broker_process.data.rglob("q-*")), "the state of the queue is on disk")
        operations.send(sound, "x")
    states = [state for state in found if state.is_dir()]
    own_broker_process.terminate()
    assert own_broker_process.process.wait(DEADLINE_S) == 0
    (state,) = states
    for segment in state.iterdir():
        segment.write_bytes(b"\x55" * segment.stat().st_size)
    own_broker_process.start()
    with Operations(own_broker_process.url) as operations:
        listed = {queue["name"]: queue for queue in operations.done("GET", "/v1/queues", params={"info": True})["queues"]}
        assert listed[broken]["problem"]["type"] == "urn:mainstem:problem:storage"
        assert listed[sound]["messages"] == 1
        values = metrics(own_broker_process.url)
        assert values[f'mainstem_queue_available{{queue="{broken}"}}'] == 0
        assert values[f'mainstem_queue_messages{{queue="{sound}"}}'] == 1
        command = [binary(), "queue", "--http", str(own_broker_process.http), "list"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
        rows = {row.split()[0]: row.split() for row in printed.splitlines()}
        assert (rows[broken][1], rows[sound][1]) == ("unavailable", "1")
        operations.refused("GET", f"/v1/queues/{broken}", 503, "storage")
        operations.ack(sound, *operations.receive(sound))


def test_a_declared_queue_has_its_configured_durability(own_broker_process):
    def durability():
        with Operations(own_broker_process.url) as operations:
            return operations.info("jobs")["settings"]["durability"]

    for declared in ("os", "fsync", "os"):
        own_broker_process.kill()
        own_broker_process.configure(f'[[queue]]\nname = "jobs"\ndurability = "{declared}"\n')
        own_broker_process.start()
        assert durability() == declared
    own_broker_process.stop()


def described():
    """The kind and the labels of each metric in the reference page."""
    page = (Path(__file__).parents[2] / "docs/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \| .+ \|$", page, re.MULTILINE)
    return {name: (kind, frozenset(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_prometheus_finds_what_the_reference_page_describes(operations, queue):
    operations.send(queue, "a")
    answer = httpx.get(f"{operations.url}/metrics", timeout=DEADLINE_S, trust_env=False)
    known = described()
    found = set()
    for family in text_string_to_metric_families(answer.text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        kind, labels = known[name]
        assert family.type == kind and family.documentation, name
        for sample in family.samples:
            assert frozenset(sample.labels) - {"le"} == labels, sample
        found.add(name)
    assert found == set(known)


def test_metrics_of_protocols(broker_process, operations, unique):
    before = metrics(operations.url)
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=unique, protocol=paho.MQTTv5)
    client.connect(broker_process.mqtt.host, broker_process.mqtt.port)
    client.loop_start()
    for _ in range(20):
        client.publish(f"{unique}/a", b"12345", qos=1).wait_for_publish(DEADLINE_S)
    producer = Producer({"bootstrap.servers": str(broker_process.kafka)})
    for _ in range(30):
        producer.produce(unique, b"value")
    assert producer.flush(DEADLINE_S) == 0

    def grown():
        values = metrics(operations.url)
        return {name: value - before.get(name, 0) for name, value in values.items()}

    expected = {
        "mainstem_mqtt_publishes_received_total": 20,
        "mainstem_mqtt_payload_received_bytes_total": 100,
        "mainstem_mqtt_connections_accepted_total": 1,
        "mainstem_mqtt_sessions_connected": 1,
        "mainstem_kafka_topics": 1,
        "mainstem_kafka_appended_records_total": 30,
    }
    eventually(lambda: {name: grown()[name] for name in expected} == expected, expected)
    values = grown()
    assert values['mainstem_kafka_requests_total{api="Produce"}'] >= 1
    assert values['mainstem_kafka_request_bytes_total{api="Produce"}'] > 30 * len(b"value")
    assert values["mainstem_kafka_appended_bytes_total"] > 30 * len(b"value")
    assert values["mainstem_kafka_connections"] >= 1
    consumer = Consumer({"bootstrap.servers": str(broker_process.kafka), "group.id": unique})
    consumer.assign([TopicPartition(unique, 0, 0)])
    assert len(consumer.consume(30, DEADLINE_S)) == 30
    consumer.close()
    eventually(lambda: grown()["mainstem_kafka_fetched_bytes_total"] >= values["mainstem_kafka_appended_bytes_total"],
               "fetched bytes")
    client.disconnect()
    client.loop_stop()
    eventually(lambda: grown()["mainstem_mqtt_sessions"] == 0, "the session has ended")


def test_metrics_of_losses_and_of_the_disk(broker_process, operations, unique):
    before = metrics(operations.url)
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=unique, protocol=paho.MQTTv5)
    properties = Properties(PacketTypes.CONNECT)
    properties.MaximumPacketSize = 200
    client.connect(broker_process.mqtt.host, broker_process.mqtt.port, properties=properties)
    subscribed = threading.Event()
    client.on_subscribe = lambda *_: subscribed.set()
    client.loop_start()
    client.subscribe(f"{unique}/#", qos=1)
    assert subscribed.wait(DEADLINE_S)
    publisher = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    publisher.connect(broker_process.mqtt.host, broker_process.mqtt.port)
    publisher.loop_start()
    # Too large for the subscriber, and retained on disk.
    for number in range(3):
        publisher.publish(f"{unique}/{number}", "x" * 300, qos=1, retain=True).wait_for_publish(DEADLINE_S)

    def grown():
        values = metrics(operations.url)
        return {name: value - before.get(name, 0) for name, value in values.items()}

    dropped = 'mainstem_mqtt_publishes_dropped_total{reason="too_large"}'
    expected = {dropped: 3, "mainstem_mqtt_retained_messages": 3}
    eventually(lambda: {name: grown()[name] for name in expected} == expected, expected)
    values = grown()
    assert values["mainstem_mqtt_retained_bytes"] > 900
    commits = [name for name in values if name.startswith("mainstem_commit_duration_seconds_count")]
    assert sum(values[name] for name in commits) >= 1
    # Other tests use the same broker, and see what is retained.
    for number in range(3):
        publisher.publish(f"{unique}/{number}", None, qos=1, retain=True).wait_for_publish(DEADLINE_S)
    publisher.disconnect()
    client.disconnect()


def test_dashboards_and_alerts_are_files_of_grafana_and_prometheus():
    def printed(*args):
        return subprocess.run([binary(), "monitoring", *args], check=True, capture_output=True, text=True).stdout

    for name in ["overview", "mqtt", "kafka", "queues"]:
        dashboard = json.loads(printed("dashboard", name))
        assert dashboard["title"] == f"Mainstem {name}" and len(dashboard["panels"]) >= 6
    (group,) = yaml.safe_load(printed("alerts"))["groups"]
    for rule in group["rules"]:
        assert {"alert", "expr", "for", "labels", "annotations"} == set(rule)
        assert rule["labels"]["severity"] in ("critical", "warning")
    assert len(group["rules"]) >= 10
