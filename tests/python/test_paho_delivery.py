"""paho-mqtt: connecting, the three qualities of service, order, wildcards, and large messages."""

import pytest

from peer import V5, V311, VERSION_NAMES, VERSIONS, Peer, let_pass

each_version = pytest.mark.parametrize("version", VERSIONS, ids=VERSION_NAMES.get)
each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


@each_version
def test_connects_and_disconnects(broker, unique, version):
    """[MQTT3-3.2.0-1] [MQTT5-3.1.4-5] the CONNACK says yes; [MQTT3-3.2.2-1] [MQTT5-3.2.2-2] to no session."""
    with Peer(broker, f"{unique}a", version) as peer:
        assert not peer.reason.is_failure
        assert not peer.session_present


@pytest.mark.parametrize("version", [V311, V5], ids=VERSION_NAMES.get)
def test_an_empty_client_id_is_accepted(broker, version):
    """[MQTT3-3.1.3-6] [MQTT5-3.1.3-6]"""
    with Peer(broker, "", version) as first, Peer(broker, "", version) as second:
        assert not first.reason.is_failure
        assert not second.reason.is_failure
        assert first.disconnected.empty(), "two clients without an identifier are two clients"


def test_an_empty_client_id_is_answered_with_an_assigned_one(broker):
    """[MQTT5-3.1.3-7] [MQTT5-3.2.2-16]"""
    with Peer(broker, "") as first, Peer(broker, "") as second:
        assigned = {peer.properties.AssignedClientIdentifier for peer in (first, second)}
        assert len(assigned) == 2
        assert "" not in assigned


@each_version
@pytest.mark.parametrize("subscribed", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_a_run_of_messages_arrives_once_and_in_order(broker, unique, version, published, subscribed):
    """[MQTT3-3.8.4-6] [MQTT5-3.8.4-8] at the lower quality of service; [MQTT3-4.6.0-6] [MQTT5-4.6.0-5] in order.

    [MQTT3-4.3.3-2] [MQTT5-4.3.3-10]: at QoS 2 never twice.
    """
    topic = f"{unique}/run"
    with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}p", version) as publisher:
        assert subscriber.subscribe(topic, subscribed) == subscribed
        sent = [f"{number}".encode() for number in range(100)]
        pending = [publisher.publish_later(topic, payload, published) for payload in sent]
        got = subscriber.receive(len(sent))
        assert [message.payload for message in got] == sent
        assert {message.qos for message in got} == {min(published, subscribed)}
        assert not any(message.dup or message.retain for message in got)
        for info in pending:
            info.wait_for_publish(10)
            assert info.is_published()
        publisher.publish(topic, b"end", published)
        assert subscriber.receive_until(b"end") == []


@pytest.mark.parametrize("receiver", VERSIONS, ids=VERSION_NAMES.get)
@pytest.mark.parametrize("sender", VERSIONS, ids=VERSION_NAMES.get)
@each_qos
def test_clients_of_all_versions_interoperate(broker, unique, sender, receiver, qos):
    topic = f"{unique}/mixed"
    with Peer(broker, f"{unique}s", receiver) as subscriber, Peer(broker, f"{unique}p", sender) as publisher:
        subscriber.subscribe(topic, qos)
        publisher.publish(topic, b"across", qos)
        message = subscriber.next()
        assert (message.topic, message.payload, message.qos) == (topic, b"across", qos)


@each_qos
def test_a_client_receives_what_it_publishes(broker, unique, qos):
    with Peer(broker, f"{unique}a") as peer:
        peer.subscribe(f"{unique}/self", qos)
        peer.publish(f"{unique}/self", b"mine", qos)
        assert peer.next().payload == b"mine"


@each_version
@each_qos
@pytest.mark.parametrize("size", [0, 1, 65_536, 1_048_577, 5_000_000])
def test_payloads_of_every_size_arrive_whole(broker, unique, version, qos, size):
    topic = f"{unique}/large"
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}p", version) as publisher:
        subscriber.subscribe(topic, qos)
        publisher.publish(topic, payload, qos)
        assert subscriber.next().payload == payload


@pytest.mark.parametrize(
    ("topic_filter", "matching", "others"),
    [
        ("{}/+/c", ["{}/b/c", "{}//c"], ["{}/c", "{}/b/c/d", "{}/b/x"]),
        ("{}/#", ["{}", "{}/a", "{}/a/b", "{}/"], ["{}x", "x/{}"]),
        ("{}/+", ["{}/a", "{}/"], ["{}", "{}/a/b"]),
        ("+/{}/#", ["a/{}", "/{}/b"], ["a/b/{}", "{}"]),
        ("{}/a", ["{}/a"], ["{}/A", "{}/a/", "/{}/a"]),
    ],
)
def test_wildcards_match_whole_levels(broker, unique, topic_filter, matching, others):
    """[MQTT3-4.7.1-2] [MQTT3-4.7.1-3] [MQTT5-4.7.1-1] [MQTT5-4.7.1-2] [MQTT5-4.7.3-4]"""
    with Peer(broker, f"{unique}s") as subscriber, Peer(broker, f"{unique}p") as publisher:
        subscriber.subscribe(topic_filter.format(unique), 1)
        subscriber.subscribe(f"{unique}-end", 1)
        for topic in [*others, *matching]:
            publisher.publish(topic.format(unique), b"-", 1)
        publisher.publish(f"{unique}-end", b"end", 1)
        assert [message.topic for message in subscriber.receive_until(b"end")] == [t.format(unique) for t in matching]


@each_version
def test_an_unsubscribed_client_gets_no_more(broker, unique, version):
    """[MQTT3-3.10.4-1] [MQTT3-3.10.4-2] [MQTT5-3.10.4-1] [MQTT5-3.10.4-2]"""
    with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}p", version) as publisher:
        subscriber.subscribe(f"{unique}/a", 1)
        subscriber.subscribe(f"{unique}/b", 1)
        publisher.publish(f"{unique}/a", b"before", 1)
        assert subscriber.next().payload == b"before"
        subscriber.unsubscribe(f"{unique}/a")
        publisher.publish(f"{unique}/a", b"after", 1)
        publisher.publish(f"{unique}/b", b"end", 1)
        assert subscriber.receive_until(b"end") == []


def test_unsubscribing_from_what_was_never_subscribed_is_answered(broker, unique):
    """[MQTT3-3.10.4-5] [MQTT5-3.10.4-5] [MQTT5-3.11.3-2]: 0x11, no subscription existed."""
    with Peer(broker, f"{unique}a") as modern, Peer(broker, f"{unique}b", V311) as older:
        assert modern.unsubscribe(f"{unique}/nothing") == [0x11]
        older.unsubscribe(f"{unique}/nothing")


def test_subscribing_again_replaces_the_subscription(broker, unique):
    """[MQTT3-3.8.4-3] [MQTT5-3.8.4-3]: one subscription, at the new quality of service."""
    with Peer(broker, f"{unique}s") as subscriber, Peer(broker, f"{unique}p") as publisher:
        subscriber.subscribe(f"{unique}/a", 2)
        subscriber.subscribe(f"{unique}/a", 1)
        publisher.publish(f"{unique}/a", b"once", 2)
        publisher.publish(f"{unique}/a", b"end", 2)
        got = subscriber.receive_until(b"end")
        assert [(message.payload, message.qos) for message in got] == [(b"once", 1)]


@each_version
def test_overlapping_subscriptions_respect_the_highest_qos(broker, unique, version):
    """[MQTT3-3.3.5-1] [MQTT5-3.3.4-2]; how many copies come is left to the server."""
    with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}p", version) as publisher:
        subscriber.subscribe(f"{unique}/#", 0)
        subscriber.subscribe(f"{unique}/+", 2)
        publisher.publish(f"{unique}/a", b"overlap", 2)
        while (message := subscriber.next()).qos != 2:
            assert message.payload == b"overlap"
        assert message.payload == b"overlap"


@each_version
def test_sys_topics_are_readable_and_hidden_from_wildcards(broker, unique, version):
    """[MQTT3-4.7.2-1] [MQTT5-4.7.2-1]"""
    with Peer(broker, f"{unique}a", version) as everything, Peer(broker, f"{unique}b", version) as system:
        everything.subscribe("#")
        everything.subscribe("+/broker/#")
        system.subscribe("$SYS/#")
        retained = []
        while (message := system.next()).retain:
            retained.append(message.topic)
        assert message.topic.startswith("$SYS/")
        system.publish(f"{unique}/end", b"end")
        assert not [m.topic for m in everything.receive_until(b"end") if m.topic.startswith("$")]


@each_version
def test_an_idle_client_that_pings_stays_connected(broker, unique, version):
    """[MQTT3-3.12.4-1] [MQTT5-3.12.4-1]: with a keep alive of 1 s and only PINGREQ, for longer than 1.5 s."""
    with Peer(broker, f"{unique}a", version, keepalive=1) as idle:
        let_pass(2.2)
        assert idle.disconnected.empty()
        idle.subscribe(f"{unique}/a", 1)
        idle.publish(f"{unique}/a", b"still here", 1)
        assert idle.next().payload == b"still here"
