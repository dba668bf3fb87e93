"""A message for thousands of subscribers, and a client beside them that wants none of it.

The subscribers are plain sockets, since thousands of clients with a thread each would measure themselves. The publisher and
the client beside are paho's.
"""

import resource
import selectors
import socket
import struct
import threading
import time

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from broker import Broker

SUBSCRIBERS = 6_000
MESSAGES = 5
OWN_MESSAGES = 50
DEADLINE_S = 60


@pytest.fixture
def open_files():
    """Room for the sockets of all subscribers, here and in a broker that is started here."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = SUBSCRIBERS + 500
    if before[1] != resource.RLIM_INFINITY and before[1] < needed:
        pytest.skip(f"needs {needed} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], needed), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture
def one_shard(open_files):
    """A broker that serves all subscribers on one thread."""
    own = Broker.start("runtime.shards=1")
    yield own
    own.kill()


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def subscriber(broker: Broker, client_id: str, topic: str) -> socket.socket:
    """A client that has sent CONNECT and SUBSCRIBE, MQTT 3.1.1 at QoS 0."""
    opened = socket.create_connection((broker.host, broker.port))
    connect = text("MQTT") + bytes([4, 2, 0, 0]) + text(client_id)
    subscribe = struct.pack(">H", 1) + text(topic) + bytes([0])
    opened.sendall(bytes([0x10, len(connect)]) + connect + bytes([0x82, len(subscribe)]) + subscribe)
    return opened


class Crowd:
    """Subscribers whose input is collected on one thread."""

    def __init__(self, broker: Broker, unique: str, topic: str):
        self.received = {number: bytearray() for number in range(SUBSCRIBERS)}
        self.selector = selectors.DefaultSelector()
        self.sockets = []
        for number in range(SUBSCRIBERS):
            opened = subscriber(broker, f"{unique}-{number}", topic)
            self.selector.register(opened, selectors.EVENT_READ, number)
            self.sockets.append(opened)

    def read_until_each_has(self, length: int):
        """Reads until each subscriber has got so many bytes."""
        end = time.monotonic() + DEADLINE_S
        missing = {number for number, received in self.received.items() if len(received) < length}
        while missing:
            assert time.monotonic() < end, f"{len(missing)} subscribers wait for messages"
            for key, _ in self.selector.select(1):
                chunk = key.fileobj.recv(65536)
                assert chunk, f"the connection of subscriber {key.data} was closed"
                self.received[key.data] += chunk
                if len(self.received[key.data]) >= length:
                    missing.discard(key.data)

    def close(self):
        for opened in self.sockets:
            opened.close()


def connected(broker: Broker, client_id: str) -> mqtt.Client:
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=client_id)
    client.connect(broker.host, broker.port)
    client.loop_start()
    return client


def test_thousands_of_subscribers_get_every_message_in_order_and_others_are_served(one_shard, unique):
    topic = f"{unique}/all"
    # Before the crowd: paho's loop uses select, which takes no descriptor above 1,023.
    publisher, beside = connected(one_shard, f"{unique}-publisher"), connected(one_shard, f"{unique}-beside")
    crowd = Crowd(one_shard, unique, topic)
    handshake = 4 + 5
    crowd.read_until_each_has(handshake)
    echoes, subscribed, complete = [], threading.Event(), threading.Event()

    def note_echo(_client, _data, message):
        echoes.append(int(message.payload))
        if len(echoes) == OWN_MESSAGES:
            complete.set()

    beside.on_message = note_echo
    beside.on_subscribe = lambda *_: subscribed.set()
    beside.subscribe(f"{unique}/beside", 1)
    assert subscribed.wait(DEADLINE_S)
    # All are under way at once; those of the client beside do not wait for them.
    sent = [publisher.publish(topic, b"%d" % number, 1) for number in range(MESSAGES)]
    own = [beside.publish(f"{unique}/beside", str(number), 1) for number in range(OWN_MESSAGES)]
    packet = 2 + 2 + len(topic) + 1
    crowd.read_until_each_has(handshake + MESSAGES * packet)
    for info in sent + own:
        info.wait_for_publish(DEADLINE_S)
        assert info.is_published()
    expected = b"".join(bytes([0x30, packet - 2]) + text(topic) + b"%d" % number for number in range(MESSAGES))
    wrong = [number for number, received in crowd.received.items() if received[handshake:] != expected]
    assert not wrong, f"subscribers {wrong[:10]} got something else"
    assert complete.wait(DEADLINE_S), f"{len(echoes)} of {OWN_MESSAGES} messages to itself"
    assert echoes == list(range(OWN_MESSAGES))
    crowd.close()
    for client in (publisher, beside):
        client.disconnect()
        client.loop_stop()
