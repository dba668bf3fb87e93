"""MQTT: attempts to get round a rule, and what becomes of a session whose user loses its rights."""

import pytest

from peer import V5, V311, will_properties
from secure_broker import DEADLINE_S

NOT_AUTHORIZED = 0x87
versions = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


def refusal(version) -> int:
    """What SUBACK says of a subscription that is not allowed."""
    return NOT_AUTHORIZED if version == V5 else 0x80


def will(topic, **props):
    made = {"topic": topic, "payload": b"gone", "qos": 1}
    return made | ({"properties": will_properties(**props)} if props else {})


def watching(secure, unique, topic_filter):
    """A client of `admin` that gets all messages."""
    watcher = secure.peer("admin", f"{unique}w").connect()
    watcher.subscribe(topic_filter, 2)
    return watcher


@versions
def test_a_wildcard_does_not_reach_a_denied_topic(secure, rule, unique, version):
    rule("--user", "alice", "--allow", "subscribe", f"mqtt:{unique}/#")
    rule("--user", "alice", "--deny", "subscribe", f"mqtt:{unique}/secret/#")
    with secure.peer("admin", f"{unique}p") as admin, secure.peer("alice", f"{unique}a", version) as alice:
        admin.publish(f"{unique}/secret/kept", b"retained", 1, retain=True)
        for topic_filter in (f"{unique}/#", f"{unique}/+/+", "#", "+/#"):
            assert alice.subscribe(topic_filter, 1) == 1, topic_filter
        assert alice.subscribe(f"{unique}/secret/+", 1) == refusal(version)
        for topic in (f"{unique}/secret/a", f"{unique}/secret", f"{unique}x/other"):
            admin.publish(topic, b"secret", 1)
        admin.publish(f"{unique}/open/a", b"end", 1)
        assert alice.receive_until(b"end") == []
        admin.publish(f"{unique}/secret/kept", b"", 1, retain=True)


@versions
def test_a_will_to_a_denied_topic_is_refused_at_connect(secure, rule, unique, version):
    rule("--user", "alice", "--allow", "publish", f"mqtt:{unique}/mine")
    refused = secure.peer("alice", f"{unique}a", version, will=will(f"{unique}/other")).connect()
    assert refused.reason.value in (NOT_AUTHORIZED, 5)
    allowed = secure.peer("alice", f"{unique}b", version, will=will(f"{unique}/mine")).connect()
    assert allowed.reason.value == 0
    allowed.disconnect()


@versions
def test_a_shared_subscription_to_a_denied_topic_is_refused(secure, rule, unique, version):
    """A group must not give a message to a member that may not have it: a wildcard that is wider is refused, too."""
    rule("--user", "alice", "--allow", "subscribe", f"mqtt:{unique}/open/#")
    with secure.peer("alice", f"{unique}a", version) as alice:
        for topic_filter in (f"{unique}/secret", f"{unique}/#", "#"):
            assert alice.subscribe(f"$share/group/{topic_filter}", 1) == refusal(version), topic_filter
        assert alice.subscribe(f"$share/group/{unique}/open/+", 1) == 1


@versions
def test_topics_that_begin_with_a_dollar_need_rules_of_their_own(secure, rule, unique, version):
    rule("--user", "alice", "--allow", "publish,subscribe", "mqtt:#")
    rule("--user", "alice", "--allow", "publish,subscribe", "mqtt:+/#")
    with secure.peer("alice", f"{unique}a", version) as alice:
        for topic_filter in ("$SYS/#", "$SYS/broker/uptime", "$SYS/+/+", f"$queue/{unique}", "$other/a"):
            assert alice.subscribe(topic_filter, 1) == refusal(version), topic_filter
    rule("--user", "alice", "--allow", "subscribe", "mqtt:$SYS/#")
    with secure.peer("alice", f"{unique}a", version) as alice:
        assert alice.subscribe("$SYS/#", 1) == 1


@versions
def test_a_session_cannot_be_taken_over_by_another_user(secure, rule, unique, version):
    for user in ("alice", "bob"):
        rule("--user", user, "--allow", "publish,subscribe", f"mqtt:{unique}/#")
    durable = {"session_expiry": 300} if version == V5 else {}
    owner = secure.peer("alice", unique, version, clean=False, **durable).connect()
    owner.subscribe(f"{unique}/a", 1)
    thief = secure.peer("bob", unique, version, clean=False, **durable).connect()
    assert thief.reason.value in (NOT_AUTHORIZED, 5)
    owner.publish(f"{unique}/a", b"still there", 1)
    assert owner.next().payload == b"still there"
    owner.cut()
    thief = secure.peer("bob", unique, version, clean=False, **durable).connect()
    assert thief.reason.value in (NOT_AUTHORIZED, 5), "nor while its client is away"
    back = secure.peer("alice", unique, version, clean=False, **durable).connect()
    assert (back.reason.value, back.session_present) == (0, True)
    back.disconnect()


def test_rules_with_conditions_apply_to_a_session_whose_client_has_not_returned_after_a_restart(secure, rule, unique):
    rule("--user", "alice", "--allow", "subscribe", f"mqtt:{unique}/listener", "--listener", "mqtt")
    rule("--user", "alice", "--allow", "subscribe", f"mqtt:{unique}/network", "--network", "127.0.0.0/8")
    rule("--user", "alice", "--allow", "subscribe", f"mqtt:{unique}/elsewhere", "--network", "192.0.2.0/24")
    rule("--user", "alice", "--allow", "subscribe", f"mqtt:{unique}/shared", "--listener", "mqtt")
    away = secure.peer("alice", unique, clean=False, session_expiry=300).connect()
    assert away.subscribe(f"{unique}/+", 1) == 1
    assert away.subscribe(f"$share/group/{unique}/shared", 1) == 1
    away.cut()
    secure.restart()
    with secure.peer("admin", f"{unique}p") as publisher:
        for topic in ("listener", "network", "elsewhere", "shared"):
            publisher.publish(f"{unique}/{topic}", topic.encode(), 1)
    back = secure.peer("alice", unique, clean=False, session_expiry=300).connect()
    assert (back.reason.value, back.session_present) == (0, True)
    received = sorted(back.next().payload for _ in range(4))
    assert received == [b"listener", b"network", b"shared", b"shared"], "also by the shared subscription"
    back.disconnect()


@pytest.mark.parametrize("change", ["nothing", "disable", "delete", "rule"])
def test_a_delayed_will_needs_its_user_when_it_is_published(secure, rule, unique, change):
    user = f"{unique}-user"
    secure.tool("user", "add", user, stdin=user[::-1])
    numbers = rule("--user", user, "--allow", "publish", f"mqtt:{unique}/#")
    watcher = watching(secure, unique, f"{unique}/#")
    for client, delay_s in (("a", 3), ("b", 3)):
        lost = secure.peer(user, f"{unique}{client}", will=will(f"{unique}/{client}", WillDelayInterval=delay_s),
                           session_expiry=300)
        assert lost.connect().reason.value == 0
        lost.cut()
    if change == "rule":
        secure.delete_rules(numbers)
    elif change != "nothing":
        secure.tool("user", change, user)
    # A will of another user that is due later shows that those were not published.
    last = secure.peer("admin", f"{unique}z", will=will(f"{unique}/end", WillDelayInterval=5), session_expiry=300)
    last.connect().cut()
    topics = []
    while not topics or topics[-1] != f"{unique}/end":
        topics.append(watcher.messages.get(timeout=DEADLINE_S).topic)
    expected = [f"{unique}/a", f"{unique}/b"] if change == "nothing" else []
    assert sorted(topics[:-1]) == expected
    watcher.disconnect()
    if change != "delete":
        secure.tool("user", "delete", user)


def test_the_will_of_a_user_who_is_disabled_while_connected_is_not_published(secure, rule, unique):
    user = f"{unique}-user"
    secure.tool("user", "add", user, stdin=user[::-1])
    rule("--user", user, "--allow", "publish", f"mqtt:{unique}/#")
    watcher = watching(secure, unique, f"{unique}/#")
    client = secure.peer(user, f"{unique}a", will=will(f"{unique}/will")).connect()
    secure.tool("user", "disable", user)
    _, reason, _ = client.disconnected.get(timeout=DEADLINE_S)
    assert reason.value == NOT_AUTHORIZED
    watcher.publish(f"{unique}/end", b"end", 1)
    assert watcher.receive_until(b"end") == []
    watcher.disconnect()
    secure.tool("user", "delete", user)


def test_a_binding_is_no_way_round_a_rule(secure, rule, unique):
    """A binding has rights of its own, so whoever adds one needs a right for that, not only those to its two ends."""
    rule("--user", "alice", "--allow", "publish,subscribe", f"mqtt:{unique}/#")
    rule("--user", "alice", "--allow", "*", f"topic:{unique}*")
    rule("--user", "alice", "--allow", "*", f"queue:{unique}*")
    binding = {"kind": "mqtt-to-queue", "filter": "#", "queue": unique}
    with secure.api("alice") as http:
        for method, path in (("PUT", f"/v1/bindings/{unique}"), ("DELETE", f"/v1/bindings/{unique}"),
                             ("GET", "/v1/bindings"), ("GET", f"/v1/bindings/{unique}")):
            body = {"json": binding} if method == "PUT" else {}
            refused = http.request(method, path, **body)
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:mainstem:problem:forbidden"), path
    with secure.api() as admin:
        assert admin.get("/v1/bindings").json()["bindings"] == []
