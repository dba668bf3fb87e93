"""paho-mqtt: sessions that outlive connections, expiry, and flow control."""

import pytest

from peer import V5, V31, V311, VERSION_NAMES, VERSIONS, Peer, let_pass

each_version = pytest.mark.parametrize("version", VERSIONS, ids=VERSION_NAMES.get)
LONG = 1000


def durable(broker, client_id, version=V5, **arguments):
    """A client with a persistent session, which it resumes."""
    expiry = {"session_expiry": LONG} if version == V5 else {}
    return Peer(broker, client_id, version, clean=False, **(expiry | arguments))


def forget(broker, client_id, version):
    """Ends the session of a durable client."""
    Peer(broker, client_id, version, clean=True).connect().disconnect()


@each_version
def test_session_present_says_what_the_server_has(broker, unique, version):
    """[MQTT3-3.2.2-1] [MQTT3-3.2.2-2] [MQTT3-3.2.2-3] [MQTT5-3.2.2-2] [MQTT5-3.2.2-3]

    MQTT 3.1 has no such flag.
    """
    name = f"{unique}a"
    kept = version != V31
    with durable(broker, name, version) as first:
        assert not first.session_present
    with durable(broker, name, version) as second:
        assert second.session_present == kept
    with Peer(broker, name, version, clean=True) as third:
        assert not third.session_present
    with durable(broker, name, version) as fourth:
        assert not fourth.session_present, "[MQTT3-3.1.2-6] [MQTT5-3.1.2-4]: a clean start discards the old session"
    forget(broker, name, version)


@each_version
@pytest.mark.parametrize("leave", [Peer.disconnect, Peer.cut])
def test_messages_wait_for_an_absent_client(broker, unique, version, leave):
    """[MQTT3-3.1.2-4] [MQTT3-3.1.2-5] [MQTT5-3.1.2-5] [MQTT5-3.1.2-23] [MQTT5-4.5.0-1], in order [MQTT5-4.6.0-5]."""
    name, topic = f"{unique}a", f"{unique}/queue"
    first = durable(broker, name, version).connect()
    first.subscribe(topic, 2)
    leave(first)
    with Peer(broker, f"{unique}p", version) as publisher:
        sent = [(f"{number}".encode(), 1 + number % 2) for number in range(300)]
        for payload, qos in sent:
            publisher.publish(topic, payload, qos)
        with durable(broker, name, version) as second:
            got = [(message.payload, message.qos) for message in second.receive(len(sent))]
            # The order holds within one quality of service.
            for level in (1, 2):
                assert [pair for pair in got if pair[1] == level] == [pair for pair in sent if pair[1] == level]
            publisher.publish(topic, b"end", 2)
            assert second.receive_until(b"end") == []
    forget(broker, name, version)


@each_version
def test_subscriptions_survive(broker, unique, version):
    """[MQTT3-3.1.2-4] [MQTT5-3.1.2-5]"""
    name = f"{unique}a"
    with durable(broker, name, version) as first:
        first.subscribe(f"{unique}/#", 1)
    with durable(broker, name, version) as second:
        second.publish(f"{unique}/a", b"still subscribed", 1)
        assert second.next().payload == b"still subscribed"
    forget(broker, name, version)


@each_version
def test_an_unacknowledged_message_comes_again(broker, unique, version):
    """[MQTT3-4.4.0-1] [MQTT5-4.4.0-1] [MQTT3-3.3.1-1] [MQTT5-3.3.1-1]: same identifier, DUP set, before the rest."""
    name, topic = f"{unique}a", f"{unique}/inflight"
    gone = f"{unique}/gone"
    first = durable(broker, name, version, manual_ack=True, will={"topic": gone, "qos": 1}).connect()
    first.subscribe(topic, 1)
    with Peer(broker, f"{unique}p", version) as publisher:
        publisher.subscribe(gone, 1)
        for payload in (b"acked", b"one", b"two"):
            publisher.publish(topic, payload, 1)
        acked, one, two = first.receive(3)
        first.ack(acked)
        assert not acked.dup
        # The response follows the PUBACK, so the server has processed it.
        first.subscribe(f"{unique}/fence", 1)
        first.cut()
        # Its will shows that the server has noticed the end of the connection and sends nothing more to it.
        assert publisher.next().topic == gone
        publisher.publish(topic, b"three", 1)
    with durable(broker, name, version) as second:
        got = second.receive(3)
        assert [message.payload for message in got] == [b"one", b"two", b"three"]
        assert [message.dup for message in got] == [True, True, False]
        assert [message.mid for message in got[:2]] == [one.mid, two.mid]
        second.publish(topic, b"end", 1)
        assert second.receive_until(b"end") == []
    forget(broker, name, version)


@each_version
def test_a_released_qos_2_message_is_not_sent_again(broker, unique, version):
    """[MQTT3-4.3.3-1] [MQTT5-4.3.3-6] [MQTT5-4.4.0-1]: after PUBREL only that is repeated, never the PUBLISH."""
    name, topic = f"{unique}a", f"{unique}/released"
    first = durable(broker, name, version, manual_ack=True).connect()
    first.subscribe(topic, 2)
    first.publish(topic, b"once", 2)
    # paho delivers a QoS 2 message at its PUBREL, and with manual_ack sends no PUBCOMP.
    assert first.next().payload == b"once"
    first.cut()
    with durable(broker, name, version) as second:
        second.publish(topic, b"end", 2)
        assert second.receive_until(b"end") == []
    forget(broker, name, version)


def test_a_session_expires(broker, unique):
    """[MQTT5-4.1.0-2] [MQTT5-3.1.2-23]"""
    with durable(broker, f"{unique}a", session_expiry=1) as first:
        first.subscribe(f"{unique}/a", 1)
    with durable(broker, f"{unique}b", session_expiry=LONG) as first:
        first.subscribe(f"{unique}/a", 1)
    let_pass(2.5)
    with durable(broker, f"{unique}a") as second:
        assert not second.session_present
    with durable(broker, f"{unique}b") as second:
        assert second.session_present
    forget(broker, f"{unique}a", V5)
    forget(broker, f"{unique}b", V5)


def test_a_session_without_expiry_ends_with_its_connection(broker, unique):
    """[MQTT5-4.1.0-2]: an absent session expiry interval is 0."""
    Peer(broker, f"{unique}a", clean=False).connect().disconnect()
    with Peer(broker, f"{unique}a", clean=False) as second:
        assert not second.session_present


@pytest.mark.parametrize(("on_leaving", "present"), [(0, False), (LONG, True)])
def test_disconnect_changes_the_expiry(broker, unique, on_leaving, present):
    """The session expiry interval of DISCONNECT overrides that of CONNECT (MQTT 5, 3.14.2.2.2)."""
    durable(broker, f"{unique}a", session_expiry=10).connect().disconnect(session_expiry=on_leaving)
    with durable(broker, f"{unique}a") as second:
        assert second.session_present == present
    forget(broker, f"{unique}a", V5)


def test_a_queued_message_expires(broker, unique):
    """[MQTT5-3.3.2-5] [MQTT5-3.3.2-6]: one expires, the other carries its remaining time."""
    name, topic = f"{unique}a", f"{unique}/expiry"
    with durable(broker, name) as first:
        first.subscribe(topic, 2)
    with Peer(broker, f"{unique}p") as publisher:
        for qos in (1, 2):
            publisher.publish(topic, b"short", qos, MessageExpiryInterval=1)
            publisher.publish(topic, b"long", qos, MessageExpiryInterval=100)
            publisher.publish(topic, b"for ever", qos)
        let_pass(2.1)
        with durable(broker, name) as second:
            publisher.publish(topic, b"end", 1)
            publisher.publish(topic, b"end", 2)
            got = second.receive_until(b"end") + second.receive_until(b"end")
            assert sorted(message.payload for message in got) == [b"for ever", b"for ever", b"long", b"long"]
            for message in got:
                if message.payload == b"long":
                    assert 90 <= message.properties.MessageExpiryInterval <= 98
                else:
                    assert not hasattr(message.properties, "MessageExpiryInterval")
    forget(broker, name, V5)


def test_an_expiry_passes_through_to_a_live_subscriber(broker, unique):
    """[MQTT5-3.3.2-6]"""
    with Peer(broker, f"{unique}a") as peer:
        peer.subscribe(f"{unique}/a", 1)
        peer.publish(f"{unique}/a", b"x", 1, MessageExpiryInterval=100)
        assert 98 <= peer.next().properties.MessageExpiryInterval <= 100


@pytest.mark.parametrize("maximum", [1, 2, 10])
@pytest.mark.parametrize("qos", [1, 2])
def test_the_receive_maximum_of_a_client_is_respected(broker, unique, maximum, qos):
    """[MQTT5-3.3.4-9] [MQTT5-4.9.0-2] [MQTT5-4.9.0-3]: no more in flight, and everything else still answered."""
    topic = f"{unique}/flow"
    with Peer(broker, f"{unique}s", manual_ack=True, connect={"ReceiveMaximum": maximum}) as subscriber, \
            Peer(broker, f"{unique}p") as publisher:
        subscriber.subscribe(topic, qos)
        count = 3 * maximum + 2
        for number in range(count):
            publisher.publish(topic, f"{number}".encode(), qos)
        waiting = subscriber.receive(maximum)
        order = list(waiting)
        while len(order) < count:
            # QoS 0 is not held back, and shows that no other message is in transit.
            subscriber.subscribe(f"{unique}/fence", 0)
            publisher.publish(f"{unique}/fence", b"fence")
            assert subscriber.receive_until(b"fence") == []
            subscriber.ack(waiting.pop(0))
            order.append(subscriber.next())
            waiting.append(order[-1])
        assert [message.payload for message in order] == [f"{number}".encode() for number in range(count)]
        for message in waiting:
            subscriber.ack(message)
        publisher.publish(topic, b"end", qos)
        assert subscriber.receive_until(b"end") == []


@pytest.mark.parametrize("version", [V311, V5], ids=VERSION_NAMES.get)
def test_a_slow_client_gets_everything_in_the_end(broker, unique, version):
    """A client that acknowledges nothing for a while: the rest waits in the queue, in order."""
    topic, count = f"{unique}/slow", 500
    with Peer(broker, f"{unique}s", version, manual_ack=True) as subscriber, \
            Peer(broker, f"{unique}p", version) as publisher:
        subscriber.subscribe(topic, 1)
        pending = [publisher.publish_later(topic, f"{number}".encode(), 1) for number in range(count)]
        for info in pending:
            info.wait_for_publish(10)
            assert info.is_published(), "a slow subscriber does not hold the publisher up"
        for number in range(count):
            message = subscriber.next()
            assert message.payload == f"{number}".encode()
            subscriber.ack(message)


def test_a_busy_session_survives_lost_connections(broker, unique):
    """[MQTT5-4.4.0-1] [MQTT5-4.3.3-10]: every QoS 2 message arrives once, over six connections of one client."""
    topic, count = f"{unique}/moving", 500
    subscriber = durable(broker, f"{unique}a").connect()
    subscriber.subscribe(topic, 2)
    with Peer(broker, f"{unique}p") as publisher:
        pending = []
        for number in range(count):
            pending.append(publisher.publish_later(topic, f"{number}".encode(), 2))
            if number % 100 == 99:
                subscriber.cut()
                subscriber.connect()
                assert subscriber.session_present
        for info in pending:
            info.wait_for_publish(10)
            assert info.is_published()
        got = [message.payload for message in subscriber.receive(count)]
        publisher.publish(topic, b"end", 2)
        assert subscriber.receive_until(b"end") == []
    subscriber.disconnect(session_expiry=0)
    assert sorted(got, key=int) == [f"{number}".encode() for number in range(count)]
