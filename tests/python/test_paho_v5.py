"""paho-mqtt: properties and subscription options of MQTT 5, and shared subscriptions."""

import collections
import queue

import pytest
from paho.mqtt.subscribeoptions import SubscribeOptions

from peer import DEADLINE_S, V5, V31, V311, VERSION_NAMES, Peer

each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


@each_qos
def test_application_properties_arrive_unaltered(broker, unique, qos):
    """[MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]"""
    pairs = [("b", "2"), ("a", "1"), ("b", "1"), ("", ""), ("ключ", "値")]
    with Peer(broker, f"{unique}a") as peer:
        peer.subscribe(f"{unique}/a", qos)
        peer.publish(f"{unique}/a", "höhe".encode(), qos, UserProperty=pairs, ContentType="text/plain",
                     ResponseTopic=f"{unique}/answer", CorrelationData=bytes(range(256)), PayloadFormatIndicator=1)
        got = peer.next().properties
        assert got.UserProperty == pairs
        assert got.ContentType == "text/plain"
        assert got.ResponseTopic == f"{unique}/answer"
        assert got.CorrelationData == bytes(range(256))
        assert got.PayloadFormatIndicator == 1


def test_absent_properties_stay_absent(broker, unique):
    with Peer(broker, f"{unique}a") as peer, Peer(broker, f"{unique}b", V311) as older:
        peer.subscribe(f"{unique}/a", 1)
        peer.publish(f"{unique}/a", b"from 5", 1)
        older.publish(f"{unique}/a", b"from 3.1.1", 1)
        assert all(message.properties.isEmpty() for message in peer.receive(2))


def test_properties_are_dropped_on_the_way_to_an_older_client(broker, unique):
    with Peer(broker, f"{unique}a", V311) as older, Peer(broker, f"{unique}b") as peer:
        older.subscribe(f"{unique}/a", 1)
        peer.publish(f"{unique}/a", b"plain", 1, UserProperty=[("a", "b")], ContentType="x", MessageExpiryInterval=60)
        message = older.next()
        assert (message.payload, message.qos) == (b"plain", 1)


def test_request_and_response(broker, unique):
    """A request names its response topic and correlation data (MQTT 5, 4.10)."""
    with Peer(broker, f"{unique}a") as asking, Peer(broker, f"{unique}b") as answering:
        asking.subscribe(f"{unique}/answers/a", 1)
        answering.subscribe(f"{unique}/questions", 1)
        asking.publish(f"{unique}/questions", b"2+2", 1,
                       ResponseTopic=f"{unique}/answers/a", CorrelationData=b"\x00q1")
        question = answering.next()
        answering.publish(question.properties.ResponseTopic, b"4", 1,
                          CorrelationData=question.properties.CorrelationData)
        answer = asking.next()
        assert (answer.payload, answer.properties.CorrelationData) == (b"4", b"\x00q1")


@each_qos
def test_a_topic_alias_stands_for_its_topic(broker, unique, qos):
    """[MQTT5-3.3.2-12]; the subscriber asked for no aliases and sees the topic [MQTT5-3.1.2-27]."""
    with Peer(broker, f"{unique}s") as subscriber, Peer(broker, f"{unique}p") as publisher:
        maximum = publisher.properties.TopicAliasMaximum
        subscriber.subscribe(f"{unique}/#", qos)
        for alias in (1, maximum):
            publisher.publish(f"{unique}/{alias}", b"named", qos, TopicAlias=alias)
        for alias in (1, maximum):
            publisher.publish("", b"by alias", qos, TopicAlias=alias)
        publisher.publish(f"{unique}/other", b"moved", qos, TopicAlias=1)
        publisher.publish("", b"by alias", qos, TopicAlias=1)
        got = subscriber.receive(6)
        assert [(m.topic, m.payload) for m in got] == [
            (f"{unique}/1", b"named"), (f"{unique}/{maximum}", b"named"),
            (f"{unique}/1", b"by alias"), (f"{unique}/{maximum}", b"by alias"),
            (f"{unique}/other", b"moved"), (f"{unique}/other", b"by alias"),
        ]
        assert not any(hasattr(m.properties, "TopicAlias") for m in got)


def test_an_alias_ends_with_its_connection(broker, unique):
    """[MQTT5-3.3.2-7]: on the next connection it is unknown, a protocol error (0x82)."""
    with Peer(broker, f"{unique}p", session_expiry=100) as publisher:
        publisher.publish(f"{unique}/a", b"named", 1, TopicAlias=1)
    again = Peer(broker, f"{unique}p", clean=False).connect()
    again.publish_refused("", b"by alias", 1, TopicAlias=1)
    flags, reason, _ = again.disconnected.get(timeout=10)
    assert flags.is_disconnect_packet_from_server
    assert reason.value == 0x82
    again.disconnect()


def test_subscription_identifiers_come_with_the_message(broker, unique):
    """[MQTT5-3.3.4-3] [MQTT5-3.3.4-4] [MQTT5-3.3.4-5]: in one copy or one copy each."""
    with Peer(broker, f"{unique}a") as peer:
        peer.subscribe(f"{unique}/a", 1, identifier=1)
        peer.subscribe(f"{unique}/+", 1, identifier=268_435_455)
        peer.subscribe(f"{unique}/#", 1)
        peer.subscribe(f"{unique}-other", 1, identifier=3)
        peer.publish(f"{unique}/a", b"x", 1)
        peer.publish(f"{unique}-other", b"end", 1)
        copies = peer.receive_until(b"end")
        identifiers = [i for copy in copies for i in getattr(copy.properties, "SubscriptionIdentifier", [])]
        assert sorted(identifiers) == [1, 268_435_455]


def test_a_new_identifier_replaces_the_old(broker, unique):
    """[MQTT5-3.8.4-3]"""
    with Peer(broker, f"{unique}a") as peer:
        for identifier in (1, 2):
            peer.subscribe(f"{unique}/a", 1, identifier=identifier)
        peer.publish(f"{unique}/a", b"x", 1)
        assert peer.next().properties.SubscriptionIdentifier == [2]
        peer.subscribe(f"{unique}/a", 1)
        peer.publish(f"{unique}/a", b"x", 1)
        assert not hasattr(peer.next().properties, "SubscriptionIdentifier")


def test_identifiers_survive_with_the_session(broker, unique):
    """[MQTT5-3.1.2-5]: they are part of the subscription, and so of the session state."""
    with Peer(broker, f"{unique}a", session_expiry=100) as first:
        first.subscribe(f"{unique}/a", 1, identifier=9)
    with Peer(broker, f"{unique}p") as publisher:
        publisher.publish(f"{unique}/a", b"x", 1)
    with Peer(broker, f"{unique}a", clean=False) as second:
        assert second.next().properties.SubscriptionIdentifier == [9]


@each_qos
def test_no_local_keeps_own_messages_away(broker, unique, qos):
    """[MQTT5-3.8.3-3]"""
    with Peer(broker, f"{unique}a") as peer, Peer(broker, f"{unique}b") as other:
        peer.subscribe(f"{unique}/a", qos, noLocal=True)
        peer.publish(f"{unique}/a", b"own", 1)
        other.publish(f"{unique}/a", b"end", qos)
        assert peer.receive_until(b"end") == []


def test_no_local_on_a_shared_subscription_is_an_error(broker, unique):
    """[MQTT5-3.8.3-4]: 0x82, and the connection is closed [MQTT5-4.13.1-1]."""
    peer = Peer(broker, f"{unique}a").connect()
    peer.paho.subscribe(f"$share/g/{unique}", options=SubscribeOptions(qos=1, noLocal=True))
    flags, reason, _ = peer.disconnected.get(timeout=10)
    assert flags.is_disconnect_packet_from_server
    assert reason.value == 0x82
    peer.disconnect()


def test_a_client_states_the_largest_packet_it_takes(broker, unique):
    """[MQTT5-3.1.2-24] [MQTT5-3.1.2-25]: a larger one is dropped for it, and for it only."""
    with Peer(broker, f"{unique}s", connect={"MaximumPacketSize": 1000}) as small, Peer(broker, f"{unique}l") as large:
        for peer in (small, large):
            peer.subscribe(f"{unique}/a", 1)
        for payload in (b"x" * 2000, b"fits", b"end"):
            large.publish(f"{unique}/a", payload, 1)
        assert [m.payload for m in small.receive_until(b"end")] == [b"fits"]
        assert [m.payload for m in large.receive_until(b"end")] == [b"x" * 2000, b"fits"]


def test_connack_announces_nothing_below_what_is_offered(broker, unique):
    """[MQTT5-3.2.2-9]: no Maximum QoS when all are supported; other features are on by default."""
    with Peer(broker, f"{unique}a") as peer:
        props = peer.properties
        assert not hasattr(props, "MaximumQoS")
        for feature in ("RetainAvailable", "WildcardSubscriptionAvailable", "SubscriptionIdentifierAvailable",
                        "SharedSubscriptionAvailable"):
            assert getattr(props, feature, 1) == 1
        assert getattr(props, "ReceiveMaximum", 65535) > 0


class Group:
    """Members of one shared subscription, and what each of them has received."""

    def __init__(self, broker, unique, count, version=V5, qos=1, name="group"):
        self._arrived = queue.Queue()
        self.members = [Peer(broker, f"{unique}{name}{number}", version) for number in range(count)]
        for number, member in enumerate(self.members):
            member.paho.on_message = lambda _c, _u, message, number=number: self._arrived.put((number, message.payload))
            member.connect()
            member.subscribe(f"$share/{name}/{unique}/#", qos)

    def take(self, count):
        """Waits for `count` more messages, and returns the payloads received by each member."""
        shares = [[] for _ in self.members]
        for _ in range(count):
            number, payload = self._arrived.get(timeout=DEADLINE_S)
            shares[number].append(payload)
        return shares

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.disconnect()


@pytest.mark.parametrize("version", [V31, V311, V5], ids=VERSION_NAMES.get)
@each_qos
def test_a_group_gets_every_message_once(broker, unique, version, qos):
    """MQTT 5, 4.8.2: each message goes to one member, and all the members get some."""
    sent = [f"{number}".encode() for number in range(200)]
    with Group(broker, unique, 4, version, qos) as group, Peer(broker, f"{unique}p", version) as publisher:
        for payload in sent:
            publisher.publish(f"{unique}/a", payload, qos)
        shares = group.take(len(sent))
        assert collections.Counter(p for share in shares for p in share) == collections.Counter(sent)
        assert all(shares), f"spread {[len(share) for share in shares]}"


def test_groups_and_plain_subscribers_each_get_everything(broker, unique):
    """[MQTT5-4.8.2-3]: each group and each plain subscription has its own copy, at its own quality of service."""
    sent = [f"{number}".encode() for number in range(60)]
    with Group(broker, unique, 2, qos=2, name="one") as one, Group(broker, unique, 3, qos=0, name="two") as two, \
            Peer(broker, f"{unique}s") as plain:
        plain.subscribe(f"{unique}/#", 1)
        for payload in sent:
            plain.publish(f"{unique}/a", payload, 2)
        for group in (one, two):
            assert sorted(p for share in group.take(len(sent)) for p in share) == sorted(sent)
        got = plain.receive(len(sent))
        assert [m.payload for m in got] == sent
        assert {m.qos for m in got} == {1}


def test_the_rest_goes_to_the_survivors(broker, unique):
    """Messages published after a member has left reach the others."""
    sent = [f"{number}".encode() for number in range(90)]
    with Group(broker, unique, 3) as group, Peer(broker, f"{unique}p") as publisher:
        for payload in sent[:30]:
            publisher.publish(f"{unique}/a", payload, 1)
        before = group.take(30)
        lost = group.members.pop()
        lost.settle()
        lost.cut()
        # The same identifier with a clean start: its CONNACK shows that the lost member's session has ended.
        Peer(broker, lost.client_id).connect().disconnect()
        for payload in sent[30:]:
            publisher.publish(f"{unique}/a", payload, 1)
        after = group.take(60)
        assert sorted(p for share in before + after for p in share) == sorted(sent)
        assert all(after)


def test_unacknowledged_messages_of_a_lost_member_go_to_another(broker, unique):
    """MQTT 5, 4.8.2: with QoS 1 the server SHOULD send it to another member once the session has ended."""
    topic = f"$share/group/{unique}/a"
    with Peer(broker, f"{unique}s") as survivor, Peer(broker, f"{unique}p") as publisher:
        lost = Peer(broker, f"{unique}l", manual_ack=True).connect()
        lost.subscribe(topic, 1)
        for number in range(5):
            publisher.publish(f"{unique}/a", f"{number}".encode(), 1)
        lost.receive(5)
        survivor.subscribe(topic, 1)
        lost.cut()
        assert sorted(m.payload for m in survivor.receive(5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_leaving_a_group_is_unsubscribing(broker, unique):
    """[MQTT5-3.10.4-1]"""
    with Group(broker, unique, 2) as group, Peer(broker, f"{unique}p") as publisher:
        assert group.members[0].unsubscribe(f"$share/group/{unique}/#") == [0]
        for number in range(10):
            publisher.publish(f"{unique}/a", f"{number}".encode(), 1)
        assert [len(share) for share in group.take(10)] == [0, 10]


@pytest.mark.parametrize("bad", ["$share/g", "$share//{}", "$share/g/"])
def test_a_malformed_shared_subscription_is_refused(broker, unique, bad):
    """[MQTT5-4.8.2-1] [MQTT5-4.8.2-2]: a reason code of 0x80 or more, in a SUBACK or a DISCONNECT.

    paho itself refuses wildcards in the name of a group.
    """
    peer = Peer(broker, f"{unique}a").connect()
    outcome = peer.disconnected
    peer.paho.on_subscribe = lambda _c, _u, _mid, reasons, _p: outcome.put((None, reasons[0], None))
    peer.paho.subscribe(bad.format(unique), options=SubscribeOptions(qos=1))
    _, reason, _ = outcome.get(timeout=10)
    assert reason.value >= 0x80
    peer.disconnect()
