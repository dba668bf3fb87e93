"""paho without a stall of its own."""

import paho.mqtt.client as paho


class PahoClient(paho.Client):
    """A paho client that handles each packet as soon as it is complete.

    paho 2 stops after 100 reads of one packet and lets its loop wait for more input. If the last of them has completed
    the packet, none may come, and the packet waits for the next one from the broker, at worst for a keep alive. A
    message of some megabytes takes that many reads where a frame or a record is all that one read returns.
    """

    def _packet_read(self):
        outcome = super()._packet_read()
        packet = self._in_packet
        if outcome == paho.MQTT_ERR_AGAIN and packet["have_remaining"] and packet["to_process"] == 0:
            return super()._packet_read()
        return outcome
