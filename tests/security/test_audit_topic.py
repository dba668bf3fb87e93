"""The audit topic: the events of the audit log as records that clients read and that none can write."""

import json
import subprocess
import tempfile
import time
from pathlib import Path

import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from kafka.admin import AbortTransactionSpec
from kafka.protocol.producer.transaction import WriteTxnMarkersRequest

from broker import binary
from secure_broker import DEADLINE_S, SecureBroker

TOPIC = "audit"


@pytest.fixture(scope="module")
def secure():
    """A broker whose audit log goes to a file and a topic."""
    with tempfile.TemporaryDirectory(prefix="mainstem-audit-topic-") as folder:
        settings = f'audit_topic = "{TOPIC}"\nmax_failed_log_ins_per_address = 0\nmax_failed_log_ins_per_user = 0'
        broker = SecureBroker(Path(folder), settings)
        yield broker
        broker.stop()


def records(secure, is_complete, user="admin"):
    """The events in the topic from its start, as soon as `is_complete` of them."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=str(secure.kafka), security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username=user, sasl_plain_password=user[::-1], auto_offset_reset="earliest",
        enable_auto_commit=False)
    events = []
    try:
        consumer.assign([kafka.TopicPartition(TOPIC, 0)])
        deadline = time.monotonic() + DEADLINE_S
        while not is_complete(events):
            assert time.monotonic() < deadline, events[-20:]
            for batch in consumer.poll(timeout_ms=200).values():
                events.extend(json.loads(record.value) for record in batch)
    finally:
        consumer.close()
    return events


def index(events, **expected):
    """The place of the first event with these fields; `None` without one."""
    return next((at for at, event in enumerate(events) if expected.items() <= event.items()), None)


def ordered(*expected):
    """Whether there is an event for each of these, in this order."""
    def is_complete(events):
        places = [index(events, **fields) for fields in expected]
        if None in places:
            return False
        assert places == sorted(places), places
        return True
    return is_complete


def fails_to_log_in(secure, user):
    with secure.api(None) as http:
        assert http.get("/v1/queues", auth=(user, "wrong")).status_code == 401


def test_events_are_records_in_order_also_after_a_restart(secure, rule, unique):
    rule("--user", "alice", "--allow", "publish", "mqtt:elsewhere")
    fails_to_log_in(secure, f"{unique}-stranger")
    with secure.peer("alice", unique) as client:
        assert client.subscribe(f"{unique}/#", 1) == 0x87
    admin = secure.admin_client()
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(DEADLINE_S)
    expected = [
        {"event": "log-in-failed", "user": f"{unique}-stranger", "protocol": "http"},
        {"event": "log-in", "user": "alice", "protocol": "mqtt"},
        {"event": "denied", "client_id": unique, "action": "subscribe", "resource": f"mqtt:{unique}/#"},
        {"event": "changed", "change": "create-topic", "object": unique, "user": "admin"},
    ]
    before = records(secure, ordered(*expected))
    assert all("missing" not in event for event in before)
    secure.restart()
    fails_to_log_in(secure, f"{unique}-later")
    later = {"event": "log-in-failed", "user": f"{unique}-later"}
    after = records(secure, ordered(*expected, later))
    assert after[:len(before)] == before, "what was durable is there after the broker was killed"


def test_the_topic_has_what_the_file_has(secure, unique):
    secure.tool("ban", "add", "--client-id", unique)
    secure.tool("ban", "delete", "--client-id", unique)
    def mine(event):
        return event["event"] == "changed" and event["change"].endswith("-ban") and unique in json.dumps(event)
    in_file = secure.audited(mine, 2)
    in_topic = records(secure, lambda events: len([event for event in events if mine(event)]) >= 2)
    assert [event for event in in_topic if mine(event)] == in_file


def alter(admin, key, value):
    """Sets a key of the topic."""
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def produce_error(secure, user, **settings):
    producer = Producer(secure.librdkafka(user, **settings))
    errors = []
    producer.produce(TOPIC, b'{"event":"forged"}', on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    [error] = errors
    return error.code()


def test_no_client_writes_to_it_whatever_the_rules_are(secure, rule, unique):
    rule("--user", "alice", "--allow", "produce,describe", f"topic:{TOPIC}")
    for user in ("alice", "admin"):
        assert produce_error(secure, user) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    denied = {"event": "denied", "action": "produce", "resource": f"topic:{TOPIC}"}
    events = records(secure, ordered({"user": "alice"} | denied, {"user": "admin"} | denied))
    assert index(events, event="forged") is None


def test_no_transaction_writes_to_it(secure, unique):
    producer = Producer(secure.librdkafka("admin", **{"transactional.id": unique}))
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(TOPIC, b'{"event":"forged"}')
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    fails_to_log_in(secure, f"{unique}-end")
    events = records(secure, ordered({"user": f"{unique}-end"}))
    assert index(events, event="forged") is None


def test_no_marker_is_written_to_it(secure, unique):
    """WriteTxnMarkers of an administrator: a control record would be an offset that no reader gets an event for."""
    librdkafka = secure.admin_client()
    librdkafka.create_topics([NewTopic(unique, 1, 1)])[unique].result(DEADLINE_S)
    admin = kafka.KafkaAdminClient(bootstrap_servers=str(secure.kafka), security_protocol="SASL_PLAINTEXT",
                                   sasl_mechanism="SCRAM-SHA-256", sasl_plain_username="admin",
                                   sasl_plain_password="nimda")
    try:
        spec = AbortTransactionSpec(kafka.TopicPartition(TOPIC, 0), producer_id=1, producer_epoch=0, coordinator_epoch=0)
        with pytest.raises(kafka.errors.TopicAuthorizationFailedError):
            admin.abort_transaction(spec)
        # Other topics of the same request are not concerned.
        Marker = WriteTxnMarkersRequest.WritableTxnMarker
        topic = lambda name, *partitions: Marker.WritableTxnMarkerTopic(name=name, partition_indexes=list(partitions))
        markers = [Marker(producer_id=1, producer_epoch=0, transaction_result=result, coordinator_epoch=0,
                          topics=[topic(TOPIC, 0, 7), topic(unique, 7, 0), topic(TOPIC, 0)])
                   for result in (True, False)]
        manager = admin._manager
        response = manager.run(manager.send, WriteTxnMarkersRequest(markers=markers))
    finally:
        admin.close()
    for marker in response.markers:
        codes = [[partition.error_code for partition in topic.partitions] for topic in marker.topics]
        assert codes == [[29, 29], [3, 0], [29]]
    denied = {"event": "denied", "user": "admin", "action": "produce", "resource": f"topic:{TOPIC}"}
    fails_to_log_in(secure, f"{unique}-end")
    events = records(secure, ordered(denied, {"user": f"{unique}-end"}))
    consumer = Consumer(secure.librdkafka("admin", group_id=unique))
    _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), DEADLINE_S)
    consumer.close()
    # Reading logs in, which is an event, too.
    assert len(records(secure, lambda later: len(later) >= end)) >= end > len(events)


def test_no_binding_and_no_dead_letters_lead_into_it(secure, unique):
    with secure.api() as http:
        binding = {"kind": "mqtt-to-topic", "filter": f"{unique}/#", "topic": TOPIC}
        response = http.put(f"/v1/bindings/{unique}", json=binding)
        assert response.status_code in (400, 422) and "audit topic" in response.text, response.text
        response = http.put(f"/v1/queues/{unique}", json={"dead_letter_queue": TOPIC})
        assert response.status_code in (400, 422) and "audit topic" in response.text, response.text
        assert http.put(f"/v1/queues/{TOPIC}", json={}).status_code in (409, 422)
        assert http.post(f"/v1/queues/{TOPIC}/messages", json={"messages": [{"value": "x"}]}).status_code >= 400


def test_it_is_read_with_the_right_to_consume_only(secure, rule):
    rule("--user", "bob", "--allow", "*", "group:bob")
    rule("--user", "bob", "--allow", "describe", f"topic:{TOPIC}")
    consumer = Consumer(secure.librdkafka("bob", group_id="bob", enable_auto_commit="false"))
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    deadline, code = time.monotonic() + DEADLINE_S, None
    while code != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        assert time.monotonic() < deadline, code
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is not None, message.value()
            code = message.error().code()
    consumer.close()
    rule("--user", "bob", "--allow", "consume", f"topic:{TOPIC}")
    assert records(secure, bool, user="bob")


def test_a_binding_publishes_it_to_mqtt(secure, unique):
    with secure.api() as http:
        binding = {"kind": "topic-to-mqtt", "topic": TOPIC, "publish": f"{unique}/audit"}
        with secure.peer("admin", unique) as client:
            assert client.subscribe(f"{unique}/#", 1) == 1
            http.put(f"/v1/bindings/{unique}", json=binding).raise_for_status()
            deadline = time.monotonic() + DEADLINE_S
            while True:
                assert time.monotonic() < deadline
                fails_to_log_in(secure, unique)
                if json.loads(client.next().payload).get("user") == unique:
                    break
        http.delete(f"/v1/bindings/{unique}").raise_for_status()


def test_nothing_else_of_the_configuration_writes_to_it(tmp_path):
    for extra in (
            f'[[queue]]\nname = "{TOPIC}"',
            f'[[mqtt_to_topic]]\nname = "b"\nfilter = "a/#"\ntopic = "{TOPIC}"',
            f'[[mqtt_to_queue]]\nname = "b"\nfilter = "a/#"\nqueue = "{TOPIC}"'):
        config = tmp_path / "mainstem.toml"
        config.write_text(f'[security]\naudit_topic = "{TOPIC}"\n{extra}\n')
        command = [str(binary()), "--config", str(config), "--data", str(tmp_path / "data")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode != 0 and "audit topic (security.audit_topic)" in done.stderr, (extra, done.stderr)


def test_events_wait_while_the_topic_cannot_be_written(secure, unique):
    """A topic that accepts records with keys only refuses the events, which have none, until it is changed again."""
    admin = secure.admin_client()
    alter(admin, "cleanup.policy", "compact")
    fails_to_log_in(secure, f"{unique}-first")
    fails_to_log_in(secure, f"{unique}-second")
    wanted = [{"user": f"{unique}-{name}", "event": "log-in-failed"} for name in ("first", "second", "third")]
    secure.audited(lambda event: wanted[1].items() <= event.items())
    assert index(records(secure, bool), **wanted[0]) is None
    alter(admin, "cleanup.policy", "delete")
    fails_to_log_in(secure, f"{unique}-third")
    events = records(secure, ordered(*wanted))
    assert all("missing" not in event for event in events)
