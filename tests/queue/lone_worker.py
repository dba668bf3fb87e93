"""A worker in a process of its own, to be killed: it prints up to MOST messages and settles none.

    lone_worker.py HOST PORT QUEUE MOST
"""

import sys

import paho.mqtt.client as paho
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def main():
    host, port, queue, most = sys.argv[1:]
    connect = Properties(PacketTypes.CONNECT)
    connect.ReceiveMaximum = int(most)
    worker = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, manual_ack=True)
    worker.on_connect = lambda *_: worker.subscribe(f"$queue/{queue}", qos=1)
    worker.on_message = lambda _client, _userdata, message: print(message.payload.decode(), flush=True)
    worker.connect(host, int(port), properties=connect)
    worker.loop_forever()


main()
