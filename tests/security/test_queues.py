"""Work queues: no protocol gets round the rules about them."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from secure_broker import DEADLINE_S

DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


def kafka_code(future) -> int | None:
    """The error of a request; `None` if it succeeds."""
    try:
        future.result(DEADLINE_S)
    except KafkaException as error:
        return error.args[0].code()
    return None


def create_topic(admin, name, **config) -> int | None:
    settings = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
    return kafka_code(admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name])


def set_key(admin, topic, key, value) -> int | None:
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    [future] = admin.incremental_alter_configs([resource]).values()
    return kafka_code(future)


def replace_keys(admin, topic, **config) -> int | None:
    settings = {key.replace("__", ".").replace("_", "-"): value for key, value in config.items()}
    [future] = admin.alter_configs([ConfigResource(ResourceType.TOPIC, topic, set_config=settings)]).values()
    return kafka_code(future)


def delete_records(admin, topic) -> int | None:
    [future] = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
    return kafka_code(future)


def test_dead_letters_are_no_way_round_a_rule(secure, rule, unique):
    jobs, vault, archive = (f"{unique}-{name}" for name in ("jobs", "vault", "archive"))
    root = secure.admin_client()
    assert create_topic(root, archive) is None
    alice = secure.admin_client("alice")
    rule("--user", "alice", "--allow", "manage,send,receive", f"queue:{jobs}")
    rule("--user", "alice", "--allow", "*", f"topic:{jobs}")
    with secure.api("alice") as http, secure.api() as admin:
        admin.put(f"/v1/queues/{vault}", json={}).raise_for_status()
        path = f"/v1/queues/{jobs}"
        for target in (vault, archive, f"{unique}-unknown"):
            refused = http.put(path, json={"dead_letter_queue": target})
            assert (refused.status_code, target in refused.json()["detail"]) == (403, True), refused.text
            made = create_topic(alice, jobs, queue__enabled="true", queue__dead_letter_queue=target)
            assert made == DENIED, target
        assert http.put(path, json={}).status_code == 201
        for target in (vault, archive):
            assert http.patch(path, json={"dead-letter-queue": target}).status_code == 403
            # Switching dead letters off first, and on afterwards, changes nothing.
            changed = http.patch(path, json={"dead_letter_queue": target, "dead_letters": False})
            assert changed.status_code == 403
            tool = secure.run("queue", "config", jobs, "--set", f"dead-letter-queue={target}", user="alice")
            assert tool.returncode == 1 and "no rule allows" in tool.stderr, tool
            assert set_key(alice, jobs, "queue.dead-letter-queue", target) == DENIED
            assert replace_keys(alice, jobs, queue__enabled="true", queue__dead_letter_queue=target) == DENIED
        assert http.get(path).json()["settings"]["dead_letter_queue"] == ""
        rule("--user", "alice", "--allow", "send", f"queue:{vault}")
        assert http.patch(path, json={"dead_letter_queue": vault}).status_code == 200
        http.post(f"{path}/messages", json={"messages": [{"body": "x"}]}).raise_for_status()
        [message] = http.post(f"{path}/receive", json={}).json()["messages"]
        http.post(f"{path}/reject", json={"receipts": [message["receipt"]]}).raise_for_status()
        received = admin.post(f"/v1/queues/{vault}/receive", json={"wait_ms": 20_000}).json()["messages"]
        assert [each["body"] for each in received] == ["x"], "with the right, dead letters arrive"
        rule("--user", "alice", "--allow", "produce", f"topic:{archive}")
        assert set_key(alice, jobs, "queue.dead-letter-queue", archive) is None


def test_kafkas_rights_on_a_topic_do_not_manage_a_queue(secure, rule, unique):
    with secure.api() as admin:
        admin.put(f"/v1/queues/{unique}", json={}).raise_for_status()
    rule("--user", "bob", "--allow", "*", f"topic:{unique}*")
    bob = secure.admin_client("bob")
    assert set_key(bob, unique, "queue.max-deliveries", "1") == DENIED
    assert set_key(bob, unique, "mainstem.durability", "os") == DENIED
    assert replace_keys(bob, unique, queue__enabled="true") == DENIED
    assert delete_records(bob, unique) == DENIED
    assert kafka_code(bob.delete_topics([unique])[unique]) == KafkaError.POLICY_VIOLATION
    assert create_topic(bob, f"{unique}-2", queue__enabled="true") == DENIED
    assert create_topic(bob, f"{unique}-2") is None
    assert set_key(bob, f"{unique}-2", "queue.enabled", "true") == DENIED
    rule("--user", "bob", "--allow", "manage", f"queue:{unique}")
    assert set_key(bob, unique, "queue.max-deliveries", "1") is None
    assert delete_records(bob, unique) is None


@pytest.mark.parametrize("change", ["rule", "user"])
def test_a_request_that_waits_for_a_message_is_checked_again(secure, rule, unique, change):
    path = f"/v1/queues/{unique}"
    user = f"{unique}-user"
    secure.tool("user", "add", user, stdin=user[::-1])
    with secure.api() as admin, secure.api(user) as http:
        admin.put(path, json={}).raise_for_status()
        numbers = rule("--user", user, "--allow", "receive", f"queue:{unique}")
        responses = []
        waits = threading.Thread(
            target=lambda: responses.append(http.post(f"{path}/receive", json={"wait_ms": 30_000})))
        waits.start()
        while admin.get(path).json()["groups"] == [] or admin.get(path).json()["groups"][0]["waiting"] == 0:
            assert waits.is_alive()
        if change == "rule":
            secure.delete_rules(numbers)
        else:
            secure.tool("user", "disable", user)
        admin.post(f"{path}/messages", json={"messages": [{"body": "secret"}]}).raise_for_status()
        waits.join(DEADLINE_S)
        assert [response.status_code for response in responses] == [403 if change == "rule" else 401]
        assert "secret" not in responses[0].text
        # The message is not lost, and this was no delivery.
        received = admin.post(f"{path}/receive", json={"wait_ms": 20_000}).json()["messages"]
        assert [each["body"] for each in received] == ["secret"]
    secure.tool("user", "delete", user)


def test_a_queue_is_read_and_written_over_mqtt_with_its_rights_only(secure, rule, unique):
    """`$queue/` is no way round a rule, nor is `#`."""
    rule("--user", "alice", "--allow", "publish,subscribe", "mqtt:#")
    rule("--user", "alice", "--allow", "publish,subscribe", "mqtt:$queue/#")
    with secure.api() as admin, secure.peer("alice", f"{unique}a") as alice:
        admin.put(f"/v1/queues/{unique}", json={}).raise_for_status()
        for subscription in (f"$queue/{unique}", f"$share/group/$queue/{unique}"):
            assert alice.subscribe(subscription, 1) == 0x87, subscription
        alice.publish(f"$queue/{unique}", b"forged", 1)
        info = admin.get(f"/v1/queues/{unique}").json()
        assert info["messages"] == 0
        denied = secure.audited(lambda event: event["event"] == "denied" and unique in event["resource"], 3)
        assert {event["action"] for event in denied} == {"send", "receive"}
        assert {(event["user"], event["protocol"]) for event in denied} == {("alice", "mqtt")}


def test_producing_to_a_queue_over_kafka_needs_the_right_to_its_topic(secure, rule, unique):
    with secure.api() as admin:
        admin.put(f"/v1/queues/{unique}", json={}).raise_for_status()
    rule("--user", "alice", "--allow", "send", f"queue:{unique}")
    errors = []
    producer = Producer(secure.librdkafka("alice"))
    producer.produce(unique, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    assert [error.code() for error in errors] == [DENIED]
