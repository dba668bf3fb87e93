#!/usr/bin/env python3
"""A press that reports temperatures over MQTT 5, and an alarm for each one above 80 degrees.

    press.py [--host H] [--port P] NUMBER TEMPERATURE...
"""

import argparse

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

ALARM_CELSIUS = 80.0
DEADLINE_S = 30


def connect(host, port, number):
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, client_id=f"press-{number}", protocol=mqtt.MQTTv5)
    # The broker publishes the will if the connection is lost without a DISCONNECT.
    client.will_set(f"plant/{number}/state", "offline", qos=1, retain=True)
    client.connect(host, port, keepalive=10)
    client.loop_start()
    return client


def publish(client, topic, payload, qos, retain=False, **properties):
    sent = Properties(PacketTypes.PUBLISH)
    for name, value in properties.items():
        setattr(sent, name, value)
    # With QoS 1 this returns when the broker has synced the message to disk.
    client.publish(topic, payload, qos=qos, retain=retain, properties=sent).wait_for_publish(DEADLINE_S)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=1883)
    arguments.add_argument("number", type=int)
    arguments.add_argument("temperatures", type=float, nargs="+")
    given = arguments.parse_args()

    client = connect(given.host, given.port, given.number)
    publish(client, f"plant/{given.number}/state", "online", qos=1, retain=True)
    for temperature in given.temperatures:
        # Telemetry: the next value replaces it soon, so QoS 0 is enough. It expires after a minute.
        publish(client, f"plant/{given.number}/temp", str(temperature), qos=0, MessageExpiryInterval=60)
        if temperature > ALARM_CELSIUS:
            publish(client, f"alarm/{given.number}", f"{temperature} degrees", qos=1)
    publish(client, f"plant/{given.number}/state", "offline", qos=1, retain=True)
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
