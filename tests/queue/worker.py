"""A paho client that works on queues.

paho's API only acknowledges with success: `Worker.answer` builds a PUBACK with a reason code from paho's own parts and
passes it to the layer below.
"""

import struct

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from peer import V5, Peer

FAILED, REJECTED_AS_SUCH, MALFORMED = 0x80, 0x83, 0x99


class Worker(Peer):
    """A client that settles each message by hand; a context manager like any other peer."""

    def __init__(self, listener, client_id, version=V5, **more):
        super().__init__(listener, client_id, version, manual_ack=True, **more)
        self._answers = {}
        self.paho.on_publish = lambda _c, _u, mid, reason, _p: self._answers.__setitem__(mid, reason.value)

    def work_on(self, queue, group=None):
        """Subscribes to a queue, and returns itself."""
        subscription = f"$share/{group}/$queue/{queue}" if group else f"$queue/{queue}"
        assert self.subscribe(subscription, qos=1) == 1
        return self

    def send(self, queue, payload, key=None, properties=None, **asked) -> int:
        """Sends a message, and returns the reason code of its PUBACK. `asked`: user properties, such as `delay_ms`."""
        user = [(name.replace("_", "-"), str(value)) for name, value in asked.items()]
        topic = f"$queue/{queue}/{key}" if key else f"$queue/{queue}"
        extra = {"UserProperty": user} if user else {}
        info = self.publish_later(topic, payload, qos=1, **extra, **(properties or {}))
        info.wait_for_publish(10)
        assert info.is_published(), f"no acknowledgement of {payload!r}"
        return self.reason_of(info)

    def reason_of(self, published) -> int:
        """The reason code of the acknowledgement of something published."""
        return self._answers.pop(published.mid)

    def answer(self, message, code, **user):
        """Acknowledges with a reason code, and user properties such as `delay_ms`."""
        properties = Properties(PacketTypes.PUBACK)
        if user:
            properties.UserProperty = [(name.replace("_", "-"), str(value)) for name, value in user.items()]
        body = struct.pack("!H", message.mid) + ReasonCode(PacketTypes.PUBACK, identifier=code).pack() + properties.pack()
        packet = bytearray([PacketTypes.PUBACK << 4])
        self.paho._pack_remaining_length(packet, len(body))
        assert self.paho._packet_queue(PacketTypes.PUBACK << 4, bytes(packet + body), message.mid, 1) == paho.MQTT_ERR_SUCCESS

    def fail(self, message, **user):
        """Fails a message: it is redelivered."""
        self.answer(message, FAILED, **user)

    def reject(self, message, code=MALFORMED):
        """Rejects a message: it becomes a dead letter."""
        self.answer(message, code)


def user_properties(message) -> dict:
    """The user properties of a message; the first of a name counts, because those of the queue come first."""
    return dict(reversed(message.properties.UserProperty))


def count(message) -> int:
    """The delivery attempt, starting at 1."""
    return int(user_properties(message)["delivery-count"])


def texts(messages) -> list[str]:
    return [message.payload.decode() for message in messages]
