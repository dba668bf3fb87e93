"""gmqtt: a client with its own codec, on asyncio, that can refuse a message and that resolves topic aliases."""

import asyncio
import functools
import inspect

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv311, MQTTv50
from gmqtt.storage import PersistentStorage

DEADLINE_S = 30
each_version = pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["3.1.1", "5"])
each_qos = pytest.mark.parametrize("qos", [0, 1, 2])


def in_a_loop(test):
    """Runs a coroutine as a test."""

    @functools.wraps(test)
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), 30))

    run.__signature__ = inspect.signature(test)
    return run


class Message:
    def __init__(self, topic, payload, qos, properties):
        self.topic, self.payload, self.qos, self.properties = topic, bytes(payload), qos, properties


class Peer:
    """One gmqtt client; `async with` connects it, and disconnects it at the end."""

    def __init__(self, broker, client_id, version=MQTTv50, clean=True, answer=None, will=None, **connect):
        """`answer`: the reason code of the acknowledgement, for each message; without it all are accepted."""
        self._broker, self._version = broker, version
        self._messages = asyncio.Queue()
        self._subacks = asyncio.Queue()
        self._unsubacks = asyncio.Queue()
        self.disconnected = asyncio.Queue()
        self._unacknowledged = PersistentStorage()
        self.gmqtt = gmqtt.Client(client_id, clean_session=clean, will_message=will,
                                  persistent_storage=self._unacknowledged,
                                  optimistic_acknowledgement=answer is None, **connect)
        # Never reconnect.
        self.gmqtt.set_config({"reconnect_retries": -2})
        self.gmqtt.on_connect = self._connected
        self.gmqtt.on_subscribe = lambda _c, mid, reasons, _p: self._subacks.put_nowait((mid, reasons))
        self.gmqtt.on_unsubscribe = lambda _c, mid, reasons: self._unsubacks.put_nowait((mid, reasons))
        self.gmqtt.on_disconnect = lambda _c, packet, exc=None: self.disconnected.put_nowait(packet)
        self._answer = answer or (lambda _: 0)
        self.gmqtt.on_message = self._message

    def _connected(self, _client, session_present, _reason, properties):
        self.session_present, self.properties = bool(session_present), properties

    async def _message(self, _client, topic, payload, qos, properties):
        message = Message(topic, payload, qos, properties)
        self._messages.put_nowait(message)
        return self._answer(message)

    async def __aenter__(self):
        await self.gmqtt.connect(self._broker.host, self._broker.port, version=self._version)
        return self

    async def __aexit__(self, *_):
        await self.gmqtt.disconnect()

    async def subscribe(self, topic_filter, qos=0, identifier=None, **options):
        """Returns the reason code of the SUBACK."""
        properties = {} if identifier is None else {"subscription_identifier": identifier}
        mid = self.gmqtt.subscribe(gmqtt.Subscription(topic_filter, qos, **options), **properties)
        acked, reasons = await asyncio.wait_for(self._subacks.get(), DEADLINE_S)
        assert acked == mid
        return reasons[0]

    async def unsubscribe(self, topic_filter):
        self.gmqtt.unsubscribe(topic_filter)
        return (await asyncio.wait_for(self._unsubacks.get(), DEADLINE_S))[1]

    async def publish(self, topic, payload=b"", qos=0, retain=False, **properties):
        """Publishes, and waits until the QoS handshake is complete: gmqtt stores unfinished ones."""
        self.gmqtt.publish(topic, payload, qos=qos, retain=retain, **properties)
        await asyncio.wait_for(self._unacknowledged.wait_empty(), DEADLINE_S)

    async def publish_all(self, messages):
        """Publishes (topic, payload, qos) up to ten at a time, within the receive maximum of any server."""
        for start in range(0, len(messages), 10):
            for topic, payload, qos in messages[start:start + 10]:
                self.gmqtt.publish(topic, payload, qos=qos)
            await asyncio.wait_for(self._unacknowledged.wait_empty(), DEADLINE_S)

    async def next(self):
        return await asyncio.wait_for(self._messages.get(), DEADLINE_S)

    async def receive(self, count):
        return [await self.next() for _ in range(count)]

    async def receive_until(self, payload):
        got = []
        while (message := await self.next()).payload != payload:
            got.append(message)
        return got


@each_version
@each_qos
@in_a_loop
async def test_a_run_of_messages_arrives_once_and_in_order(broker, unique, version, qos):
    """[MQTT3-4.6.0-6] [MQTT5-4.6.0-5] [MQTT3-4.3.3-2] [MQTT5-4.3.3-10]"""
    async with Peer(broker, f"{unique}s", version) as subscriber, Peer(broker, f"{unique}p", version) as publisher:
        assert await subscriber.subscribe(f"{unique}/run", qos) == qos
        sent = [f"{number}".encode() for number in range(200)]
        await publisher.publish_all([(f"{unique}/run", payload, qos) for payload in sent])
        got = await subscriber.receive(len(sent))
        assert [message.payload for message in got] == sent
        assert {message.qos for message in got} == {qos}
        await publisher.publish(f"{unique}/run", b"end", qos)
        assert await subscriber.receive_until(b"end") == []


@each_version
@each_qos
@in_a_loop
async def test_a_large_message_arrives_whole(broker, unique, version, qos):
    payload = bytes(range(256)) * 8192
    async with Peer(broker, f"{unique}a", version) as peer:
        await peer.subscribe(f"{unique}/large", qos)
        await peer.publish(f"{unique}/large", payload, qos)
        assert (await peer.next()).payload == payload


@each_version
@in_a_loop
async def test_a_session_is_resumed(broker, unique, version):
    """[MQTT3-3.1.2-4] [MQTT3-3.1.2-5] [MQTT3-3.2.2-2] [MQTT5-3.1.2-5] [MQTT5-3.2.2-3] [MQTT5-4.5.0-1]"""
    expiry = {"session_expiry_interval": 100} if version == MQTTv50 else {}
    async with Peer(broker, f"{unique}s", version, clean=False, **expiry) as first:
        assert not first.session_present
        await first.subscribe(f"{unique}/a", 2)
    async with Peer(broker, f"{unique}p", version) as publisher:
        await publisher.publish_all([(f"{unique}/a", f"{number}".encode(), 1 + number % 2) for number in range(50)])
    async with Peer(broker, f"{unique}s", version, clean=False) as second:
        assert second.session_present
        got = await second.receive(50)
        for qos in (1, 2):
            numbers = [int(message.payload) for message in got if message.qos == qos]
            assert numbers == list(range(qos - 1, 50, 2))
    async with Peer(broker, f"{unique}s", version) as third:
        assert not third.session_present


@each_version
@in_a_loop
async def test_retained_messages(broker, unique, version):
    """[MQTT3-3.3.1-6] [MQTT3-3.3.1-8] [MQTT3-3.3.1-10] [MQTT5-3.3.1-6] [MQTT5-3.3.1-9]"""
    topic = f"{unique}/kept"
    async with Peer(broker, f"{unique}p", version) as publisher, Peer(broker, f"{unique}s", version) as subscriber:
        await publisher.subscribe(topic, 1)
        await publisher.publish(topic, b"kept", 1, retain=True)
        assert not (await publisher.next()).properties["retain"]
        await subscriber.subscribe(topic, 1)
        message = await subscriber.next()
        assert (message.payload, message.properties["retain"]) == (b"kept", 1)
        await publisher.publish(topic, b"", 1, retain=True)
        assert (await subscriber.next()).payload == b""
        await subscriber.unsubscribe(topic)
        await subscriber.subscribe(topic, 1)
        await publisher.publish(topic, b"end", 1)
        assert await subscriber.receive_until(b"end") == []


@pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
@in_a_loop
async def test_retain_handling(broker, unique, handling, counts):
    """[MQTT5-3.3.1-9] [MQTT5-3.3.1-10] [MQTT5-3.3.1-11]"""
    topic = f"{unique}/handling"
    async with Peer(broker, f"{unique}a") as peer, Peer(broker, f"{unique}w") as witness:
        await witness.subscribe(topic, 1)
        await peer.publish(topic, b"kept", 1, retain=True)
        await witness.next()
        for count in counts:
            await peer.subscribe(topic, 1, retain_handling_options=handling)
            await peer.publish(topic, b"end", 1)
            assert len(await peer.receive_until(b"end")) == count
        await peer.publish(topic, b"", 1, retain=True)
        await peer.next()


@in_a_loop
async def test_no_local_and_retain_as_published(broker, unique):
    """[MQTT5-3.8.3-3] [MQTT5-3.3.1-13]"""
    topic = f"{unique}/options"
    async with Peer(broker, f"{unique}a") as peer, Peer(broker, f"{unique}b") as other:
        await peer.subscribe(topic, 1, no_local=True, retain_as_published=True)
        await other.subscribe(topic, 1)
        await peer.publish(topic, b"own", 1)
        assert (await other.next()).payload == b"own"
        await other.publish(topic, b"end", 1, retain=True)
        message = await peer.next()
        assert (message.payload, message.properties["retain"]) == (b"end", 1)
        await other.publish(topic, b"", 1, retain=True)
        await peer.next()


@in_a_loop
async def test_properties_arrive_unaltered_and_in_order(broker, unique):
    """[MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]"""
    pairs = [("b", "2"), ("a", "1"), ("b", "1")]
    async with Peer(broker, f"{unique}a") as peer:
        await peer.subscribe(f"{unique}/a", 1, identifier=128)
        await peer.publish(f"{unique}/a", b"x", 1, user_property=pairs, content_type="text/plain", payload_format_id=1,
                     response_topic=f"{unique}/answer", correlation_data=b"\x00c", message_expiry_interval=100)
        got = (await peer.next()).properties
        assert got["user_property"] == pairs
        assert got["content_type"] == ["text/plain"]
        assert got["response_topic"] == [f"{unique}/answer"]
        assert [bytes(data) for data in got["correlation_data"]] == [b"\x00c"]
        assert got["payload_format_id"] == [1]
        assert got["subscription_identifier"] == [128]
        assert 98 <= got["message_expiry_interval"][0] <= 100


@in_a_loop
async def test_aliases_towards_a_client_keep_within_its_maximum(broker, unique):
    """[MQTT5-3.1.2-26] [MQTT5-3.3.2-11]: the server need not use any, but those it uses must resolve."""
    async with Peer(broker, f"{unique}s", topic_alias_maximum=3) as subscriber, Peer(broker, f"{unique}p") as publisher:
        await subscriber.subscribe(f"{unique}/#", 1)
        sent = [f"{unique}/{number % 5}" for number in range(50)]
        await publisher.publish_all([(topic, topic.encode(), 1) for topic in sent])
        got = await subscriber.receive(len(sent))
        assert [message.topic for message in got] == sent
        assert [message.payload.decode() for message in got] == sent
        assert {alias for m in got for alias in m.properties.get("topic_alias", [])} <= {1, 2, 3}


@in_a_loop
async def test_a_group_gets_every_message_once(broker, unique):
    """MQTT 5, 4.8.2"""
    async with Peer(broker, f"{unique}a") as a, Peer(broker, f"{unique}b") as b, Peer(broker, f"{unique}c") as c, \
            Peer(broker, f"{unique}p") as publisher:
        members = (a, b, c)
        arrived = asyncio.Queue()
        for number, member in enumerate(members):
            member.gmqtt.on_message = lambda _c, _t, payload, _q, _p, n=number: arrived.put_nowait((n, int(payload)))
            await member.subscribe(f"$share/group/{unique}/a", 1)
        got = []
        for number in range(90):
            await publisher.publish(f"{unique}/a", f"{number}".encode(), 1)
            got.append(await asyncio.wait_for(arrived.get(), DEADLINE_S))
        assert [number for _, number in got] == list(range(90))
        assert {member for member, _ in got} == {0, 1, 2}
        assert arrived.empty()


@each_qos
@in_a_loop
async def test_a_refused_message_goes_to_nobody_else(broker, unique, qos):
    """[MQTT5-4.8.2-6] [MQTT5-4.4.0-2]: after PUBACK or PUBREC 0x80 it is not sent to another, nor again."""
    topic = f"{unique}/a"
    async with Peer(broker, f"{unique}a", answer=lambda _: 0x80 if qos else 0, session_expiry_interval=100) as a, \
            Peer(broker, f"{unique}p") as publisher:
        await a.subscribe(f"$share/group/{topic}", qos)
        await publisher.publish(topic, b"refused", qos)
        assert (await a.next()).payload == b"refused"
        async with Peer(broker, f"{unique}b") as b:
            await b.subscribe(f"$share/group/{topic}", qos)
            await b.subscribe(f"{unique}/end", qos)
            # After the refusal on the same connection.
            await a.unsubscribe(f"$share/group/{topic}")
            await publisher.publish(f"{unique}/end", b"end", qos)
            assert await b.receive_until(b"end") == []
    async with Peer(broker, f"{unique}a", clean=False) as again:
        assert again.session_present
        await again.subscribe(f"{unique}/end", 2)
        await again.publish(f"{unique}/end", b"end", 2)
        assert await again.receive_until(b"end") == []


@in_a_loop
async def test_a_refused_message_frees_its_place(broker, unique):
    """[MQTT5-3.3.4-9] [MQTT5-4.4.0-2]: a receive maximum of 1, and a client that refuses every second message."""
    refuse = lambda message: 0x97 if int(message.payload) % 2 else 0  # noqa: E731
    async with Peer(broker, f"{unique}s", answer=refuse, receive_maximum=1) as subscriber, \
            Peer(broker, f"{unique}p") as publisher:
        for qos in (1, 2):
            await subscriber.subscribe(f"{unique}/{qos}", qos)
            await publisher.publish_all([(f"{unique}/{qos}", f"{number}".encode(), qos) for number in range(20)])
            assert [int(message.payload) for message in await subscriber.receive(20)] == list(range(20))


@in_a_loop
async def test_wills(broker, unique):
    """[MQTT5-3.14.4-3] and DISCONNECT with reason 0x04; [MQTT5-3.1.2-8]"""
    will = gmqtt.Message(f"{unique}/will", b"gone", qos=1)
    async with Peer(broker, f"{unique}w") as watcher:
        await watcher.subscribe(f"{unique}/will", 1)
        async with Peer(broker, f"{unique}a", will=will):
            pass
        async with Peer(broker, f"{unique}a") as again:
            await again.publish(f"{unique}/will", b"end", 1)
        assert await watcher.receive_until(b"end") == []
        async with Peer(broker, f"{unique}b", will=will) as leaving:
            await leaving.gmqtt.disconnect(reason_code=0x04)
            assert (await watcher.next()).payload == b"gone"


@in_a_loop
async def test_a_second_connection_takes_over(broker, unique):
    """[MQTT5-3.1.4-3]: the old connection gets DISCONNECT 0x8E."""
    async with Peer(broker, f"{unique}a") as first, Peer(broker, f"{unique}a"):
        packet = await asyncio.wait_for(first.disconnected.get(), DEADLINE_S)
        assert packet[:1] == b"\x8e"
