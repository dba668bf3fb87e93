"""The audit log: who did what, from where, with what was before and after, and no secrets."""

import socket
import struct

from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic, ResourceType

from secure_broker import DEADLINE_S, basic


def changes(secure, word, count):
    """The changes of objects whose name contains `word`."""
    return secure.audited(lambda event: event["event"] == "changed" and word in str(event["object"]), count)


def shown(event):
    return event["change"], event["before"], event["after"]


def test_changes_of_topics_by_kafka(secure, unique):
    admin = secure.admin_client()
    new = NewTopic(unique, 1, 1, config={"retention.ms": "1000"})
    admin.create_topics([new])[unique].result(DEADLINE_S)
    entry = ConfigEntry("retention.ms", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, unique, incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
    admin.create_partitions([NewPartitions(unique, 2)])[unique].result(DEADLINE_S)
    admin.delete_topics([unique])[unique].result(DEADLINE_S)
    events = changes(secure, unique, 4)
    first, second = ({"partitions": "1", "retention.ms": ms} for ms in ("1000", "2000"))
    third = second | {"partitions": "2"}
    assert [shown(event) for event in events] == [
        ("create-topic", None, first), ("configure-topic", first, second), ("add-partitions", second, third),
        ("delete-topic", third, None)]
    assert {(event["user"], event["address"], event["protocol"]) for event in events} == {("admin", "127.0.0.1", "kafka")}


def test_changes_of_queues_and_bindings_by_http(secure, unique):
    path = f"/v1/queues/{unique}"
    with secure.api() as http:
        assert http.put(path, json={"max_deliveries": 3}).status_code == 201
        assert http.put(path, json={"max_deliveries": 3}).status_code == 200, "which changes nothing"
        http.patch(path, json={"max_deliveries": 4}).raise_for_status()
        http.post(f"{path}/purge").raise_for_status()
        http.post(f"{path}/redrive").raise_for_status()
        binding = {"kind": "mqtt-to-queue", "filter": f"{unique}/#", "queue": unique}
        http.put(f"/v1/bindings/{unique}", json=binding).raise_for_status()
        http.delete(f"/v1/bindings/{unique}").raise_for_status()
        http.delete(path).raise_for_status()
    events = changes(secure, unique, 7)
    assert [event["change"] for event in events] == [
        "create-queue", "configure-queue", "purge-queue", "redrive-queue", "add-binding", "remove-binding",
        "delete-queue"]
    created, configured, _, redriven, added, removed, deleted = events
    assert (created["before"], created["after"]["max-deliveries"]) == (None, "3")
    assert (configured["before"]["max-deliveries"], configured["after"]["max-deliveries"]) == ("3", "4")
    assert redriven["after"] == {"count": "0"}
    assert (added["before"], added["after"]["filter"]) == (None, f"{unique}/#")
    assert (removed["before"], removed["after"]) == (added["after"], None)
    assert (deleted["before"], deleted["after"]) == (configured["after"], None)
    assert {(event["user"], event["address"], event["protocol"]) for event in events} == {("admin", "127.0.0.1", "http")}


def test_changes_whose_client_does_not_wait_for_the_response(secure, unique):
    """The client resets its connection behind the request. Each change that was made has its line."""
    names = [f"{unique}-{number}" for number in range(40)]

    def begin(method, path, body=b""):
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {basic('admin', 'nimda')}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((secure.http.host, secure.http.port), DEADLINE_S) as connection:
            connection.sendall(head.encode() + body)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def queues():
        with secure.api() as http:
            return {queue["name"] for queue in http.get("/v1/queues").raise_for_status().json()["queues"]}

    def audited(change, expected):
        wanted = lambda event: event["event"] == "changed" and event["change"] == change and unique in event["object"]
        assert {event["object"] for event in secure.audited(wanted, len(expected))} >= expected

    for name in names:
        begin("PUT", f"/v1/queues/{name}", b"{}")
    created = queues() & set(names)
    audited("create-queue", created)
    for name in created:
        begin("DELETE", f"/v1/queues/{name}")
    audited("delete-queue", created - queues())


def test_clients_that_bans_refuse(secure, unique):
    secure.tool("ban", "add", "--client-id", unique)
    secure.tool("ban", "add", "--user", "bob")
    assert secure.peer("alice", unique).connect().reason.value == 0x8A
    with secure.api("bob") as http:
        assert http.get("/v1/queues").status_code == 403
    for expected in (
            {"client_id": unique, "user": None, "protocol": "mqtt"},
            {"client_id": None, "user": "bob", "protocol": "http"}):
        expected |= {"event": "banned", "address": "127.0.0.1"}
        secure.audited(lambda event, expected=expected: expected.items() <= event.items())
    secure.tool("ban", "delete", "--client-id", unique)
    secure.tool("ban", "delete", "--user", "bob")


def test_changes_of_users_and_rules(secure, unique):
    secure.tool("user", "add", unique, "--role", "ops", stdin="hunter2hunter2")
    secure.tool("user", "passwd", unique, stdin="hunter3hunter3")
    secure.tool("user", "disable", unique)
    [number] = secure.rule("--user", unique, "--allow", "publish", "mqtt:a/#")
    secure.delete_rules([number])
    secure.tool("user", "delete", unique)
    added, changed, disabled, deleted = changes(secure, unique, 4)
    assert (added["change"], added["before"], added["after"]["roles"]) == ("put-user", None, ["ops"])
    assert (changed["before"], changed["after"]) == (added["after"], added["after"] | {"verifiers_changed": True})
    assert (disabled["before"]["disabled"], disabled["after"]["disabled"]) == (False, True)
    assert (deleted["change"], deleted["before"], deleted["after"]) == ("delete-user", disabled["after"], None)
    put, removed = secure.audited(
        lambda event: event["event"] == "changed" and unique in str((event["before"], event["after"])) and
        event["change"].endswith("-rule"), 2)
    assert (put["before"], removed["after"]) == (None, None)
    assert put["after"] == removed["before"] == {"rule": f"allow user:{unique} publish mqtt:a/#"}
    text = secure.audit_log.read_text()
    for secret in ("hunter", "argon2", "nimda"):
        assert secret not in text, secret


def test_denials_of_all_protocols(secure, rule, unique):
    rule("--user", "alice", "--allow", "publish", "mqtt:elsewhere")
    producer = Producer(secure.librdkafka("alice"))
    errors = []
    producer.produce(unique, b"x", on_delivery=lambda error, _: errors.append(error.code()))
    producer.flush(DEADLINE_S)
    assert errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    # Its requests are cancelled when the client goes, so it is kept.
    admin = secure.admin_client("alice")
    created = admin.create_topics([NewTopic(f"{unique}-new", 1, 1)])[f"{unique}-new"]
    assert created.exception(DEADLINE_S) is not None
    with secure.api("alice") as http:
        assert http.put(f"/v1/queues/{unique}", json={}).status_code == 403
    with secure.peer("alice", unique) as client:
        assert client.subscribe(f"{unique}/#", 1) == 0x87
    with secure.peer("alice", unique) as client:
        client.publish(f"{unique}/a", b"", 1)
    # librdkafka asks for the topic before it produces.
    for protocol, action, resource in (
            ("kafka", "describe", f"topic:{unique}"), ("kafka", "create", f"topic:{unique}-new"),
            ("http", "manage", f"queue:{unique}"), ("mqtt", "subscribe", f"mqtt:{unique}/#"),
            ("mqtt", "publish", f"mqtt:{unique}/a")):
        expected = {"event": "denied", "protocol": protocol, "action": action, "resource": resource}
        [denied, *_] = secure.audited(lambda event, expected=expected: expected.items() <= event.items())
        assert (denied["user"], denied["address"]) == ("alice", "127.0.0.1")
