"""paho-mqtt: will messages, keep alive, and take-over."""

import time

import pytest

from peer import V5, VERSION_NAMES, VERSIONS, Peer, will_properties

each_version = pytest.mark.parametrize("version", VERSIONS, ids=VERSION_NAMES.get)


def will(unique, qos=1, retain=False, **props):
    made = {"topic": f"{unique}/will", "payload": b"gone", "qos": qos, "retain": retain}
    return made | ({"properties": will_properties(**props)} if props else {})


def watching(broker, unique, version=V5):
    """A client that is subscribed to the will topic."""
    peer = Peer(broker, f"{unique}w", version).connect()
    peer.subscribe(f"{unique}/will", 2)
    return peer


@each_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_lost_connection_publishes_the_will(broker, unique, version, qos):
    """[MQTT3-3.1.2-8] [MQTT5-3.1.2-8]; [MQTT3-3.1.2-16] [MQTT5-3.1.2-14]: not retained."""
    with watching(broker, unique, version) as watcher:
        Peer(broker, f"{unique}a", version, will=will(unique, qos)).connect().cut()
        message = watcher.next()
        assert (message.topic, message.payload, message.qos) == (f"{unique}/will", b"gone", qos)
    with watching(broker, unique, version) as late:
        late.publish(f"{unique}/will", b"end", 2)
        assert late.receive_until(b"end") == []


@each_version
def test_a_retained_will_is_kept(broker, unique, version):
    """[MQTT3-3.1.2-17] [MQTT5-3.1.2-15]"""
    with watching(broker, unique, version) as watcher:
        Peer(broker, f"{unique}a", version, will=will(unique, retain=True)).connect().cut()
        assert watcher.next().payload == b"gone"
    with watching(broker, unique, version) as late:
        message = late.next()
        assert (message.payload, message.retain) == (b"gone", True)
        late.publish(f"{unique}/will", b"", 1, retain=True)


@each_version
def test_a_normal_disconnect_discards_the_will(broker, unique, version):
    """[MQTT3-3.14.4-3] [MQTT5-3.14.4-3] [MQTT3-3.1.2-10] [MQTT5-3.1.2-10]"""
    with watching(broker, unique, version) as watcher:
        Peer(broker, f"{unique}a", version, will=will(unique)).connect().disconnect()
        # The same client identifier again: its CONNACK shows that the server has closed the old connection.
        with Peer(broker, f"{unique}a", version) as again:
            again.publish(f"{unique}/will", b"end", 2)
        assert watcher.receive_until(b"end") == []


def test_disconnect_with_will_message_publishes_it(broker, unique):
    """DISCONNECT with reason 0x04 (MQTT 5, 3.14.2.1)."""
    with watching(broker, unique) as watcher:
        Peer(broker, f"{unique}a", will=will(unique)).connect().disconnect(reason=0x04)
        assert watcher.next().payload == b"gone"


def test_a_will_carries_its_properties(broker, unique):
    """[MQTT5-3.1.3-10]: user properties in order, and the rest unaltered."""
    pairs = [("b", "1"), ("a", "2"), ("b", "0")]
    props = dict(UserProperty=pairs, ContentType="text/plain", ResponseTopic=f"{unique}/answer",
                 CorrelationData=b"\x00\x01", PayloadFormatIndicator=1, MessageExpiryInterval=100)
    with watching(broker, unique) as watcher:
        Peer(broker, f"{unique}a", will=will(unique, **props)).connect().cut()
        got = watcher.next().properties
        assert got.UserProperty == pairs
        assert got.ContentType == "text/plain"
        assert got.ResponseTopic == f"{unique}/answer"
        assert got.CorrelationData == b"\x00\x01"
        assert got.PayloadFormatIndicator == 1
        assert 90 <= got.MessageExpiryInterval <= 100


def test_a_will_waits_for_its_delay(broker, unique):
    """[MQTT5-3.1.2-8]"""
    with watching(broker, unique) as watcher:
        peer = Peer(broker, f"{unique}a", session_expiry=100, will=will(unique, WillDelayInterval=2)).connect()
        start = time.monotonic()
        peer.cut()
        watcher.publish(f"{unique}/will", b"first", 1)
        assert [message.payload for message in watcher.receive(2)] == [b"first", b"gone"]
        assert 1.5 <= time.monotonic() - start <= 5


def test_a_client_that_returns_within_the_delay_cancels_its_will(broker, unique):
    """[MQTT5-3.1.3-9]; another client's will with the same delay, lost later, shows that the time has passed."""
    with watching(broker, unique) as watcher:
        props = {"session_expiry": 100, "will": will(unique, WillDelayInterval=1)}
        Peer(broker, f"{unique}a", **props).connect().cut()
        with Peer(broker, f"{unique}a", clean=False, session_expiry=100) as again:
            assert again.session_present
            later = will(unique, WillDelayInterval=2) | {"payload": b"end"}
            Peer(broker, f"{unique}b", session_expiry=100, will=later).connect().cut()
            assert watcher.receive_until(b"end") == []


def test_the_end_of_the_session_ends_the_delay(broker, unique):
    """[MQTT5-3.1.2-8]: the end of the session publishes the will without its delay."""
    with watching(broker, unique) as watcher:
        Peer(broker, f"{unique}a", session_expiry=0, will=will(unique, WillDelayInterval=1000)).connect().cut()
        assert watcher.next().payload == b"gone"


def test_an_expiring_session_publishes_a_will_that_still_waits(broker, unique):
    """[MQTT5-3.1.2-8]: the session ends after 1 s, long before the delay has passed."""
    with watching(broker, unique) as watcher:
        Peer(broker, f"{unique}a", session_expiry=1, will=will(unique, WillDelayInterval=1000)).connect().cut()
        assert watcher.next().payload == b"gone"


@each_version
def test_a_silent_client_is_disconnected(broker, unique, version):
    """[MQTT3-3.1.2-24] [MQTT5-3.1.2-22]: after one and a half times the keep alive, and not before the keep alive."""
    with watching(broker, unique, version) as watcher:
        silent = Peer(broker, f"{unique}a", version, keepalive=1, will=will(unique)).connect()
        start = time.monotonic()
        silent.fall_silent()
        assert watcher.next().payload == b"gone"
        assert 1.0 <= time.monotonic() - start <= 4


@each_version
def test_a_second_connection_takes_over(broker, unique, version):
    """[MQTT3-3.1.4-2] [MQTT5-3.1.4-3]: the old connection is closed, on version 5 with 0x8E."""
    first = Peer(broker, f"{unique}a", version).connect()
    with Peer(broker, f"{unique}a", version) as second:
        flags, reason, _ = first.disconnected.get(timeout=10)
        if version == V5:
            assert flags.is_disconnect_packet_from_server
            assert reason.value == 0x8E
        second.subscribe(f"{unique}/a", 1)
        second.publish(f"{unique}/a", b"mine now", 1)
        assert second.next().payload == b"mine now"
        assert second.disconnected.empty()
    first.disconnect()


@each_version
def test_a_take_over_publishes_the_old_will(broker, unique, version):
    """[MQTT3-3.1.2-8] [MQTT5-3.1.2-8]: the old connection did not end with a DISCONNECT from its client."""
    with watching(broker, unique, version) as watcher:
        first = Peer(broker, f"{unique}a", version, will=will(unique)).connect()
        with Peer(broker, f"{unique}a", version):
            assert watcher.next().payload == b"gone"
        first.disconnect()


def test_readiness_fails_while_draining(own_broker, unique):
    """SIGTERM: version 5 clients get DISCONNECT 0x8B (server shutting down), and the broker exits with 0."""
    peers = [Peer(own_broker, f"{unique}{number}").connect() for number in range(5)]
    own_broker.terminate()
    for peer in peers:
        flags, reason, _ = peer.disconnected.get(timeout=10)
        assert flags.is_disconnect_packet_from_server
        assert reason.value == 0x8B
    own_broker.wait()
