#!/usr/bin/env python3
"""A worker over MQTT 5: takes jobs from a queue and does them one by one. Start as many as you like.

It reports the result of a job by the reason code of the PUBACK:

    0x00  done
    0x80  failed: the broker redelivers it after the queue's backoff, up to the queue's limit
    0x99  can never be done: it becomes a dead letter at once

If a worker dies, its connection is lost and its jobs go to other workers.
"""

import argparse
import queue
import signal
import struct
import threading

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from resize import Hopeless, resize

DONE, FAILED, REJECTED = 0x00, 0x80, 0x99
# Jobs held at once: the one being done, and the next.
AT_ONCE = 2


class Worker:
    """A connection to the broker, which paho reopens when it is lost, and the jobs received on it."""

    def __init__(self, queue_name):
        self.jobs = queue.Queue()
        self._queue_name = queue_name
        # manual_ack: a message is acknowledged when its job is done, not when it arrives.
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5, manual_ack=True)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_message = lambda _client, _userdata, message: self.jobs.put((self._connection, message))
        self._connection = 0
        self._lock = threading.Lock()

    def start(self, host, port):
        connect = Properties(PacketTypes.CONNECT)
        connect.ReceiveMaximum = AT_ONCE
        self._client.connect(host, port, properties=connect)
        # A thread of paho keeps the connection alive during long jobs.
        self._client.loop_start()

    def stop(self):
        self._client.disconnect()
        self._client.loop_stop()

    def _on_connect(self, _client, _userdata, _flags, reason, _properties):
        # One write with its newline: the other thread prints too.
        print(f"connected: {reason}\n", end="", flush=True)
        self._client.subscribe(f"$queue/{self._queue_name}", qos=1)

    def _on_disconnect(self, *_):
        with self._lock:
            self._connection += 1

    def is_mine(self, connection):
        """Whether this worker still holds the jobs of this connection; after a loss others have them."""
        return connection == self._connection

    def settle(self, connection, message, code):
        """Acknowledges a message with a reason code. paho's ack() has no reason code, so the packet is built here."""
        packet = struct.pack("!BBHB", PacketTypes.PUBACK << 4, 3, message.mid, code)
        with self._lock:
            # On another connection the packet identifier would name another message.
            if self.is_mine(connection):
                self._client._packet_queue(PacketTypes.PUBACK << 4, packet, message.mid, 1)


def main():
    arguments = argparse.ArgumentParser(description="Does the jobs of a queue.")
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=1883)
    arguments.add_argument("--queue", default="images")
    options = arguments.parse_args()

    worker = Worker(options.queue)
    worker.start(options.host, options.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: worker.jobs.put(None))

    while (job := worker.jobs.get()) is not None:
        connection, message = job
        if not worker.is_mine(connection):
            continue
        headers = dict(message.properties.UserProperty)
        name = f"job {headers['offset']}, attempt {headers['delivery-count']}"
        try:
            resize(message.payload)
        except Hopeless as error:
            print(f"{name}: rejected: {error}\n", end="", flush=True)
            worker.settle(connection, message, REJECTED)
        except Exception as error:
            print(f"{name}: failed: {error}\n", end="", flush=True)
            worker.settle(connection, message, FAILED)
        else:
            print(f"{name}: done\n", end="", flush=True)
            worker.settle(connection, message, DONE)
    worker.stop()


if __name__ == "__main__":
    main()
