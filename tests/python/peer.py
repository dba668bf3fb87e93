"""A paho client that a test can wait on: every callback feeds a queue, every wait has a deadline."""

import queue
import socket
import time

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from paho_client import PahoClient

V31, V311, V5 = paho.MQTTv31, paho.MQTTv311, paho.MQTTv5
VERSIONS = [V31, V311, V5]
VERSION_NAMES = {V31: "3.1", V311: "3.1.1", V5: "5"}
DEADLINE_S = 30


def properties(packet: int, **values) -> Properties:
    """MQTT 5 properties of a packet type, by paho's names for them."""
    made = Properties(packet)
    for name, value in values.items():
        setattr(made, name, value)
    return made


def publish_properties(**values) -> Properties:
    return properties(PacketTypes.PUBLISH, **values)


def will_properties(**values) -> Properties:
    return properties(PacketTypes.WILLMESSAGE, **values)


def let_pass(seconds: float):
    """Lets time pass, where an interval of the protocol is the subject of the test."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        time.sleep(left)


class Peer:
    """One MQTT client. Use as a context manager: it disconnects at the end if it is still connected."""

    def __init__(self, broker, client_id, version=V5, clean=True, manual_ack=False, keepalive=60,
                 session_expiry=None, connect=None, will=None):
        """`connect`: further CONNECT properties. `will`: the arguments of paho's `will_set`."""
        self.version = version
        self.client_id = client_id
        self.messages = queue.Queue()
        self.connack = queue.Queue()
        self.disconnected = queue.Queue()
        self._subacks = queue.Queue()
        self._unsubacks = queue.Queue()
        self._address = (broker.host, broker.port)
        self._keepalive = keepalive
        self._clean = clean
        self._connect = None
        if version == V5:
            extra = dict(connect or {})
            if session_expiry is not None:
                extra["SessionExpiryInterval"] = session_expiry
            self._connect = properties(PacketTypes.CONNECT, **extra)
        self.paho = PahoClient(
            paho.CallbackAPIVersion.VERSION2, client_id=client_id, protocol=version, manual_ack=manual_ack,
            clean_session=None if version == V5 else clean, reconnect_on_failure=False)
        if will:
            self.paho.will_set(**will)
        self.paho.on_connect = lambda _c, _u, flags, reason, props: self.connack.put((flags, reason, props))
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_subscribe = lambda _c, _u, mid, reasons, props: self._subacks.put((mid, reasons, props))
        self.paho.on_unsubscribe = lambda _c, _u, mid, reasons, props: self._unsubacks.put((mid, reasons, props))
        self.paho.on_disconnect = lambda _c, _u, flags, reason, props: self._closed(flags, reason, props)
        self._open = self._is_waiting = False

    def connect(self):
        """Connects and waits for a CONNACK, which is stored in `session_present`, `reason` and `properties`."""
        arguments = {"keepalive": self._keepalive}
        if self.version == V5:
            arguments |= {"clean_start": self._clean, "properties": self._connect}
        self.paho.connect(*self._address, **arguments)
        self._open = self._is_waiting = True
        self.paho.loop_start()
        answer = self.connack.get(timeout=DEADLINE_S)
        self._is_waiting = False
        if answer is None:
            raise ConnectionError(f"{self.client_id}: the connection was lost before there was a CONNACK")
        flags, self.reason, self.properties = answer
        self.session_present = flags.session_present
        return self

    def _closed(self, flags, reason, props):
        self._open = False
        if self._is_waiting:
            self.connack.put(None)
        self.disconnected.put((flags, reason, props))

    def __enter__(self):
        return self if self._open else self.connect()

    def __exit__(self, *_):
        self.disconnect()

    def subscribe(self, topic_filter, qos=0, identifier=None, **options):
        """Subscribes, waits for the SUBACK, and returns its reason code. `options`: paho's SubscribeOptions."""
        if self.version == V5:
            props = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=identifier) if identifier else None
            _, mid = self.paho.subscribe(topic_filter, options=SubscribeOptions(qos=qos, **options), properties=props)
        else:
            _, mid = self.paho.subscribe(topic_filter, qos)
        acked, reasons, _ = self._subacks.get(timeout=DEADLINE_S)
        assert acked == mid
        assert len(reasons) == 1
        return reasons[0].value

    def unsubscribe(self, topic_filter):
        """Unsubscribes, waits for the UNSUBACK, and returns its reason codes."""
        _, mid = self.paho.unsubscribe(topic_filter)
        acked, reasons, _ = self._unsubacks.get(timeout=DEADLINE_S)
        assert acked == mid
        return [reason.value for reason in reasons]

    def publish(self, topic, payload=b"", qos=0, retain=False, **props):
        """Publishes, and waits until the QoS handshake is complete. `props`: PUBLISH properties."""
        info = self.publish_later(topic, payload, qos, retain, **props)
        info.wait_for_publish(DEADLINE_S)
        assert info.is_published(), f"{self.client_id}: no acknowledgement of {topic} within {DEADLINE_S} s"

    def publish_later(self, topic, payload=b"", qos=0, retain=False, **props):
        """Publishes without waiting, and returns a handle to wait on."""
        info = self.publish_refused(topic, payload, qos, retain, **props)
        assert info.rc == paho.MQTT_ERR_SUCCESS
        return info

    def publish_refused(self, topic, payload=b"", qos=0, retain=False, **props):
        """Publishes a message for which the server closes the connection, possibly before paho has sent all of it."""
        made = publish_properties(**props) if self.version == V5 and props else None
        return self.paho.publish(topic, payload, qos, retain, properties=made)

    def receive(self, count=1, timeout=DEADLINE_S):
        """The next `count` messages, all of them within the deadline."""
        until = time.monotonic() + timeout
        got = []
        for _ in range(count):
            try:
                got.append(self.messages.get(timeout=max(0.0, until - time.monotonic())))
            except queue.Empty:
                raise AssertionError(f"{self.client_id}: {len(got)} of {count} messages within {timeout} s") from None
        return got

    def next(self, timeout=DEADLINE_S):
        return self.receive(1, timeout)[0]

    def receive_until(self, payload, timeout=DEADLINE_S):
        """The messages up to the one with this payload, which a test sends last to show that no others arrive."""
        until = time.monotonic() + timeout
        got = []
        while True:
            message = self.next(max(0.0, until - time.monotonic()))
            if message.payload == payload:
                return got
            got.append(message)

    def settle(self):
        """Returns when the server has all acknowledgements of the messages delivered so far.

        paho delivers a message first and acknowledges it afterwards; its part of the first exchange here follows that
        acknowledgement, and so does the second request.
        """
        for _ in range(2):
            self.unsubscribe(f"{self.client_id}/never-subscribed")

    def ack(self, message):
        """Acknowledges a message of a client created with `manual_ack`."""
        assert self.paho.ack(message.mid, message.qos) == paho.MQTT_ERR_SUCCESS

    def disconnect(self, reason=None, session_expiry=None):
        """Sends DISCONNECT and waits until the connection is closed."""
        was_open = self._open
        if self.version == V5:
            props = None
            if session_expiry is not None:
                props = properties(PacketTypes.DISCONNECT, SessionExpiryInterval=session_expiry)
            code = ReasonCode(PacketTypes.DISCONNECT, identifier=reason) if reason is not None else None
            self.paho.disconnect(code, props)
        else:
            self.paho.disconnect()
        if was_open:
            self.disconnected.get(timeout=DEADLINE_S)
        self.paho.loop_stop()

    def cut(self):
        """Closes the connection without a DISCONNECT, as a network failure would."""
        wire = self.paho.socket()
        wire.shutdown(socket.SHUT_RDWR)
        self.disconnected.get(timeout=DEADLINE_S)
        self.paho.loop_stop()

    def fall_silent(self):
        """Keeps the connection open and stops sending, even PINGREQ."""
        self.paho.loop_stop()
