"""paho-mqtt: the broker is killed under load and restarted; no message is lost or repeated.

paho keeps its half of a session in memory: after a reconnection it sends unacknowledged messages again, and it remembers
the identifiers of QoS 2 messages that it has received.

`MAINSTEM_KILLS` is the number of kills per test (6), `MAINSTEM_SEED` determines their times (1).
"""

import os
import random
import threading
import time

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes

from peer import V5, V311, VERSION_NAMES, properties

KILLS = int(os.environ.get("MAINSTEM_KILLS", "6"))
SEED = int(os.environ.get("MAINSTEM_SEED", "1"))
SETTLE_S = 30
LIFE_S = (0.05, 1.5)
PAUSE_S = 0.002
WINDOW = 50


class Durable:
    """A client with a persistent session.

    It does not reconnect by itself: paho forgets the state of QoS 2 messages if a connection is refused.
    """

    def __init__(self, broker, client_id, version):
        self.client_id = client_id
        self.received = []
        self.published = 0
        self.acknowledged = 0
        self.lost_sessions = 0
        self._connected = threading.Event()
        self._lost = threading.Event()
        self._subscribed = threading.Event()
        self._has_session = False
        # It has published nothing new since its reconnection.
        self._is_behind = False
        self._changed = threading.Condition()
        self.paho = paho.Client(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version,
            clean_session=None if version == V5 else False,
            reconnect_on_failure=False)
        self.paho.max_inflight_messages_set(WINDOW)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = self._on_message
        self.paho.on_publish = self._on_publish
        self.paho.on_subscribe = lambda *_: self._subscribed.set()
        arguments = {}
        if version == V5:
            connect = properties(PacketTypes.CONNECT, SessionExpiryInterval=1000)
            arguments = {"clean_start": False, "properties": connect}
        self.paho.connect(broker.host, broker.port, **arguments)
        self.paho.loop_start()
        assert self._connected.wait(SETTLE_S)

    def _on_connect(self, _client, _userdata, flags, reason, _properties):
        if reason.is_failure:
            return
        if self._has_session and not flags.session_present:
            self.lost_sessions += 1
        self._has_session = True
        self._connected.set()

    def _on_disconnect(self, *_):
        self._connected.clear()
        self._is_behind = True
        self._lost.set()

    def _on_message(self, _client, _userdata, message):
        with self._changed:
            self.received.append((message.topic, int(message.payload)))
            self._changed.notify_all()

    def _on_publish(self, *_):
        with self._changed:
            self.acknowledged += 1
            self._changed.notify_all()

    def publish_if_it_may(self, topic, qos):
        """Publishes the next number, unless too many are unacknowledged.

        After a reconnection paho would send a new message before those that it repeats, so these must be acknowledged
        first.
        """
        if not self._connected.is_set():
            return
        pending = self.published - self.acknowledged
        if pending == 0:
            self._is_behind = False
        if pending < WINDOW and not self._is_behind:
            self.paho.publish(topic, str(self.published), qos)
            self.published += 1

    def wait_for_acknowledgements(self):
        with self._changed:
            self._changed.wait_for(lambda: self.acknowledged == self.published, SETTLE_S)
        assert self.acknowledged == self.published, f"{self.client_id}: not everything was acknowledged"

    def subscribe(self, topic, qos):
        self.paho.subscribe(topic, qos)
        assert self._subscribed.wait(SETTLE_S)

    def wait_for(self, topic, numbers):
        """Waits until all these numbers have arrived, and returns the messages of the topic in order."""
        with self._changed:
            self._changed.wait_for(lambda: numbers <= self._numbers_of(topic), SETTLE_S)
        return [number for name, number in self.received if name == topic]

    def _numbers_of(self, topic):
        return {number for name, number in self.received if name == topic}

    def connect_again(self):
        """Waits for the end of a lost connection and opens the next."""
        assert self._lost.wait(SETTLE_S)
        self.paho.loop_stop()
        self._lost.clear()
        self.paho.reconnect()
        self.paho.loop_start()
        assert self._connected.wait(SETTLE_S)

    def leave(self):
        self.paho.disconnect()
        self.paho.loop_stop()


def first_arrivals(numbers):
    """The received messages without duplicates."""
    return list(dict.fromkeys(numbers))


@pytest.mark.parametrize("version", [V311, V5], ids=VERSION_NAMES.get)
def test_no_message_is_lost_or_repeated_across_kills(own_broker, unique, version):
    """[MQTT3-4.4.0-1] [MQTT5-4.4.0-1] [MQTT3-4.3.3-2] [MQTT5-4.3.3-10] [MQTT3-4.6.0-5] [MQTT5-4.6.0-5]"""
    topics = {1: f"{unique}/1", 2: f"{unique}/2"}
    subscribers = {qos: Durable(own_broker, f"{unique}s{qos}", version) for qos in (1, 2)}
    for qos, subscriber in subscribers.items():
        subscriber.subscribe(f"{unique}/+", qos)
    publishers = {qos: Durable(own_broker, f"{unique}p{qos}", version) for qos in (1, 2)}
    over = threading.Event()

    def publish(qos):
        while not over.is_set():
            publishers[qos].publish_if_it_may(topics[qos], qos)
            time.sleep(PAUSE_S)

    threads = [threading.Thread(target=publish, args=(qos,)) for qos in (1, 2)]
    for thread in threads:
        thread.start()
    moments = random.Random(SEED)
    try:
        for _ in range(KILLS):
            time.sleep(moments.uniform(*LIFE_S))
            own_broker.end()
            own_broker.start_again()
            for client in [*subscribers.values(), *publishers.values()]:
                client.connect_again()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    for publisher in publishers.values():
        publisher.wait_for_acknowledgements()
    for granted, subscriber in subscribers.items():
        for qos, topic in topics.items():
            expected = list(range(publishers[qos].published))
            got = subscriber.wait_for(topic, set(expected))
            assert sorted(set(expected) - set(got)) == [], f"lost, QoS {qos} to a subscription of QoS {granted}"
            assert first_arrivals(got) == expected, f"out of order, QoS {qos} to a subscription of QoS {granted}"
            if qos == granted == 2:
                assert len(got) == len(expected), "repeated at QoS 2"
    for client in [*subscribers.values(), *publishers.values()]:
        assert client.lost_sessions == 0, client.client_id
        client.leave()
    own_broker.stop()
