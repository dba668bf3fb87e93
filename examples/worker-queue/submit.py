#!/usr/bin/env python3
"""Enqueues a job for each picture, over MQTT 5: submit.py --out small *.png

A job is in the queue, and on disk, once the broker has acknowledged it. A job may be sent twice after a lost connection;
its `dedup-id` discards the second one.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties


def main():
    arguments = argparse.ArgumentParser(description="Enqueues pictures to be shrunk.")
    arguments.add_argument("images", nargs="+", type=Path)
    arguments.add_argument("--width", type=int, default=128)
    arguments.add_argument("--out", type=Path, default=Path("small"), help="directory")
    arguments.add_argument("--priority", type=int, default=0, help="0 to 9")
    arguments.add_argument("--host", default="127.0.0.1")
    arguments.add_argument("--port", type=int, default=1883)
    arguments.add_argument("--queue", default="images")
    options = arguments.parse_args()

    refused = {}
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, protocol=mqtt.MQTTv5)

    def on_publish(_client, _userdata, mid, reason, _properties):
        if reason.is_failure:
            refused[mid] = reason

    client.on_publish = on_publish
    client.connect(options.host, options.port)
    client.loop_start()
    sent = []
    for image in options.images:
        job = {"image": str(image.resolve()), "width": options.width, "out": str(options.out.resolve() / image.name)}
        body = json.dumps(job)
        changed = image.stat().st_mtime_ns if image.exists() else 0
        properties = Properties(PacketTypes.PUBLISH)
        properties.ContentType = "application/json"
        properties.UserProperty = [
            ("priority", str(options.priority)),
            ("dedup-id", hashlib.sha256(f"{body}{changed}".encode()).hexdigest()),
        ]
        sent.append((image, client.publish(f"$queue/{options.queue}", body, qos=1, properties=properties)))
    for image, info in sent:
        info.wait_for_publish(30)
        if not info.is_published():
            sys.exit(f"{image}: not acknowledged")
        if info.mid in refused:
            # For instance "Quota exceeded": the queue is full.
            sys.exit(f"{image}: {refused[info.mid]}")
    print(f"{len(sent)} jobs")
    client.disconnect()
    client.loop_stop()


if __name__ == "__main__":
    main()
