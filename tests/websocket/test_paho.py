"""MQTT over WebSocket with paho, plain and over TLS, in every version."""

import queue

import paho.mqtt.client as paho
import pytest

from paho_client import PahoClient

DEADLINE_S = 30


class Client:
    """A connected paho client that collects its messages."""

    def __init__(self, broker, listener, protocol, path="/mqtt", host="localhost"):
        self.messages = queue.Queue()
        self._events = queue.Queue()
        # Without a clean session, 3.1 accepts no empty client identifier.
        clean = {} if protocol == paho.MQTTv5 else {"clean_session": True, "client_id": f"ws{id(self)}"}
        self.client = PahoClient(
            paho.CallbackAPIVersion.VERSION2, protocol=protocol, transport="websockets", **clean
        )
        self.client.ws_set_options(path=path)
        if listener == "wss":
            self.client.tls_set(ca_certs=broker.ca)
        self.client.on_connect = lambda *_: self._events.put("connected")
        self.client.on_subscribe = lambda *_: self._events.put("subscribed")
        self.client.on_message = lambda _client, _data, message: self.messages.put(message.payload)
        self.client.connect(host, broker.port(listener))
        self.client.loop_start()
        self.expect("connected")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.disconnect()
        self.client.loop_stop()

    def expect(self, event: str):
        assert self._events.get(timeout=DEADLINE_S) == event

    def subscribe(self, topic: str, qos: int):
        self.client.subscribe(topic, qos)
        self.expect("subscribed")

    def next(self) -> bytes:
        return self.messages.get(timeout=DEADLINE_S)


# [MQTT5-6.0.0-2], [MQTT3-6.0.0-2]
@pytest.mark.parametrize("protocol", [paho.MQTTv31, paho.MQTTv311, paho.MQTTv5], ids=["3.1", "3.1.1", "5"])
@pytest.mark.parametrize("listener", ["ws", "wss"])
def test_messages_of_any_size_arrive_in_order(websocket, unique, listener, protocol):
    # Around the lengths at which frame headers change, the size from which payloads are shared, and a record of TLS.
    sizes = [0, 1, 110, 125, 126, 8191, 8192, 16_380, 65_535, 65_536, 200_000, 3_000_000]
    with Client(websocket, listener, protocol) as receiver, Client(websocket, listener, protocol) as sender:
        for qos in (0, 1, 2):
            receiver.subscribe(f"{unique}/{qos}", qos)
            for size in sizes:
                sent = sender.client.publish(f"{unique}/{qos}", bytes([qos]) * size, qos)
                sent.wait_for_publish(DEADLINE_S)
                assert sent.is_published()
                assert receiver.next() == bytes([qos]) * size


def test_a_payload_is_shared_by_clients_of_all_transports(websocket, unique):
    payload = bytes(range(256)) * 1024
    with (
        Client(websocket, "ws", paho.MQTTv5) as first,
        Client(websocket, "ws", paho.MQTTv311) as second,
        Client(websocket, "wss", paho.MQTTv5) as third,
    ):
        receivers = [first, second, third]
        for receiver in receivers:
            receiver.subscribe(unique, 1)
        for _ in range(20):
            third.client.publish(unique, payload, 1).wait_for_publish(DEADLINE_S)
        for receiver in receivers:
            assert all(receiver.next() == payload for _ in range(20))


def test_another_path_is_refused(websocket):
    with pytest.raises(paho.WebsocketConnectionError):
        Client(websocket, "ws", paho.MQTTv5, path="/other")
