#!/usr/bin/env python3
"""An operator's panel: prints states and alarms, also those published while it was away.

    panel.py [--host H] [--port P] [--id ID] [--messages N]
"""

import argparse
import queue

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

DAY_S = 24 * 60 * 60


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=1883)
    arguments.add_argument("--id", default="panel", help="client identifier: it names the session")
    arguments.add_argument("--messages", type=int, default=0, help="exit after this many; 0 runs until Ctrl-C")
    given = arguments.parse_args()

    # Only this thread prints, so that lines do not run into each other.
    arrived = queue.Queue()
    # manual_ack: a message counts as delivered once it is printed, so that a crash in between loses nothing.
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, client_id=given.id, protocol=mqtt.MQTTv5, manual_ack=True
    )
    client.on_message = lambda _client, _userdata, message: arrived.put(message)

    def subscribe(client, _userdata, flags, _reason, _properties):
        arrived.put("session present" if flags.session_present else "new session")
        if not flags.session_present:
            client.subscribe([("plant/+/state", 1), ("alarm/#", 1)])

    client.on_subscribe = lambda *_: arrived.put("subscribed")
    client.on_connect = subscribe
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = DAY_S
    client.connect(given.host, given.port, clean_start=False, properties=properties)
    client.loop_start()
    printed = 0
    try:
        while not given.messages or printed < given.messages:
            message = arrived.get()
            if isinstance(message, str):
                print(message, flush=True)
                continue
            print(f"{message.topic} {message.payload.decode()}", flush=True)
            client.ack(message.mid, message.qos)
            printed += 1
    except KeyboardInterrupt:
        pass
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
