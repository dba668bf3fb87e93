"""paho-mqtt: retained messages."""

import pytest

from peer import V311, VERSION_NAMES, VERSIONS, Peer, let_pass

each_version = pytest.mark.parametrize("version", VERSIONS, ids=VERSION_NAMES.get)


@pytest.fixture
def retained(broker, unique):
    """Publishes retained messages, and clears them after the test."""
    with Peer(broker, f"{unique}r") as publisher:
        topics = set()

        def publish(topic, payload, qos=1, **props):
            topics.add(topic)
            publisher.publish(topic, payload, qos, retain=True, **props)
            if qos == 0:
                # Its acknowledgement shows that the server has processed the one before it.
                publisher.publish(f"{unique}/fence", b"", 1)

        yield publish
        for topic in topics:
            publisher.publish(topic, b"", 1, retain=True)


def arrivals(peer, topic, qos=1):
    """Messages received by `peer`, which is subscribed to `topic`, before one that it publishes now."""
    peer.publish(topic, b"end", qos)
    return peer.receive_until(b"end")


@each_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_new_subscriber_gets_the_retained_message(broker, unique, retained, version, qos):
    """[MQTT3-3.3.1-5] [MQTT3-3.3.1-6] [MQTT3-3.3.1-8] [MQTT5-3.3.1-5] [MQTT5-3.3.1-9] [MQTT3-3.8.4-6]"""
    topic = f"{unique}/kept"
    retained(topic, b"first", qos)
    retained(topic, b"second", qos)
    with Peer(broker, f"{unique}s", version) as subscriber:
        subscriber.subscribe(topic, 2)
        got = arrivals(subscriber, topic, 2)
        assert [(message.payload, message.qos, message.retain) for message in got] == [(b"second", qos, True)]


@each_version
def test_a_live_subscriber_sees_no_retain_flag(broker, unique, retained, version):
    """[MQTT3-3.3.1-9] [MQTT5-3.3.1-12]"""
    topic = f"{unique}/live"
    with Peer(broker, f"{unique}s", version) as subscriber:
        subscriber.subscribe(topic, 1)
        retained(topic, b"live")
        message = subscriber.next()
        assert (message.payload, message.retain) == (b"live", False)


@each_version
def test_an_empty_payload_clears(broker, unique, retained, version):
    """[MQTT3-3.3.1-10] [MQTT3-3.3.1-11] [MQTT5-3.3.1-6] [MQTT5-3.3.1-7]"""
    topic = f"{unique}/cleared"
    retained(topic, b"kept")
    with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}l", version) as late:
        subscriber.subscribe(topic, 1)
        assert subscriber.next().payload == b"kept"
        retained(topic, b"")
        message = subscriber.next()
        assert (message.payload, message.retain) == (b"", False), "a live subscriber gets it as any message"
        late.subscribe(topic, 1)
        assert arrivals(late, topic) == []


@each_version
def test_a_plain_message_leaves_the_retained_one_alone(broker, unique, retained, version):
    """[MQTT3-3.3.1-12] [MQTT5-3.3.1-8]"""
    topic = f"{unique}/alone"
    retained(topic, b"kept")
    with Peer(broker, f"{unique}s", version) as subscriber:
        subscriber.publish(topic, b"passing", 1)
        subscriber.publish(topic, b"", 1)
        subscriber.subscribe(topic, 1)
        assert subscriber.next().payload == b"kept"


@each_version
def test_a_wildcard_finds_every_retained_message(broker, unique, retained, version):
    """[MQTT3-3.3.1-6] [MQTT5-3.3.1-9]"""
    topics = {f"{unique}/room/{number}/temp" for number in range(100)}
    for topic in topics:
        retained(topic, topic.encode())
    retained(f"{unique}/room/1/light", b"on")
    with Peer(broker, f"{unique}s", version) as subscriber:
        subscriber.subscribe(f"{unique}/room/+/temp", 1)
        got = subscriber.receive(len(topics))
        assert {message.topic for message in got} == topics
        assert all(message.retain and message.payload == message.topic.encode() for message in got)
        assert arrivals(subscriber, f"{unique}/room/x/temp") == []


@each_version
@pytest.mark.parametrize("qos", [1, 2])
def test_a_retained_message_comes_before_what_is_published_later(broker, unique, version, qos):
    """[MQTT3-4.6.0-6] [MQTT5-4.6.0-5]: on each topic, with more of them than may be in flight to one client."""
    topics = [f"{unique}/{number}" for number in range(200)]
    with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}p", version) as publisher:
        for topic in topics:
            publisher.publish(topic, b"old", qos, retain=True)
        subscriber.subscribe(f"{unique}/+", qos)
        for topic in reversed(topics):
            publisher.publish(topic, b"new", qos)
        seen = {topic: [] for topic in topics}
        for message in subscriber.receive(2 * len(topics)):
            seen[message.topic].append(message.payload)
        for topic in topics:
            publisher.publish(topic, b"", 1, retain=True)
        assert {topic: got for topic, got in seen.items() if got != [b"old", b"new"]} == {}


@each_version
def test_subscribing_again_sends_them_again(broker, unique, retained, version):
    """[MQTT3-3.8.4-3] [MQTT5-3.8.4-4]"""
    topic = f"{unique}/again"
    retained(topic, b"kept")
    with Peer(broker, f"{unique}s", version) as subscriber:
        for _ in range(3):
            subscriber.subscribe(topic, 1)
            message = subscriber.next()
            assert (message.payload, message.retain) == (b"kept", True)


def test_retained_messages_outlive_sessions(broker, unique, retained):
    """[MQTT3-3.1.2-7]"""
    topic = f"{unique}/outlives"
    with Peer(broker, f"{unique}p", V311) as publisher:
        publisher.publish(topic, b"kept", 1, retain=True)
    with Peer(broker, f"{unique}s", V311) as subscriber:
        subscriber.subscribe(topic, 1)
        assert subscriber.next().payload == b"kept"
    retained(topic, b"")


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
def test_retain_handling(broker, unique, retained, handling, counts):
    """[MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11]: on a first subscription, and on the same one again."""
    topic = f"{unique}/handling"
    retained(topic, b"kept")
    with Peer(broker, f"{unique}s") as subscriber:
        for count in counts:
            subscriber.subscribe(topic, 1, retainHandling=handling)
            assert [message.payload for message in arrivals(subscriber, topic)] == [b"kept"] * count


@pytest.mark.parametrize("kept", [False, True])
def test_retain_as_published(broker, unique, retained, kept):
    """[MQTT5-3.3.1-12] [MQTT5-3.3.1-13]"""
    topic = f"{unique}/published"
    with Peer(broker, f"{unique}s") as subscriber:
        subscriber.subscribe(topic, 1, retainAsPublished=kept)
        retained(topic, b"retained")
        subscriber.publish(topic, b"plain", 1)
        got = [(message.payload, message.retain) for message in subscriber.receive(2)]
        assert got == [(b"retained", kept), (b"plain", False)]


def test_a_retained_message_keeps_its_properties(broker, unique, retained):
    """[MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]"""
    topic = f"{unique}/properties"
    pairs = [("z", "1"), ("a", "2"), ("z", "3")]
    retained(topic, b"kept", UserProperty=pairs, ContentType="text/plain", CorrelationData=b"c")
    with Peer(broker, f"{unique}s") as subscriber:
        subscriber.subscribe(topic, 1, identifier=7)
        message = subscriber.next()
        assert message.retain
        assert message.properties.UserProperty == pairs
        assert message.properties.ContentType == "text/plain"
        assert message.properties.CorrelationData == b"c"
        assert message.properties.SubscriptionIdentifier == [7]


def test_a_retained_message_expires(broker, unique, retained):
    """[MQTT5-3.3.2-5] [MQTT5-3.3.2-6]"""
    retained(f"{unique}/expiry/short", b"short", MessageExpiryInterval=1)
    retained(f"{unique}/expiry/long", b"long", MessageExpiryInterval=100)
    let_pass(2.1)
    with Peer(broker, f"{unique}s") as subscriber:
        subscriber.subscribe(f"{unique}/expiry/+", 1)
        got = arrivals(subscriber, f"{unique}/expiry/end")
        assert [message.payload for message in got] == [b"long"]
        assert 90 <= got[0].properties.MessageExpiryInterval <= 98


def test_a_shared_subscription_gets_no_retained_message(broker, unique, retained):
    """MQTT 5, 4.8.2: a shared subscription receives no retained messages."""
    topic = f"{unique}/shared"
    retained(topic, b"kept")
    with Peer(broker, f"{unique}s") as subscriber:
        subscriber.subscribe(f"$share/{unique}/{topic}", 1)
        assert arrivals(subscriber, topic) == []
