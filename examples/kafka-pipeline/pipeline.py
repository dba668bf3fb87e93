#!/usr/bin/env python3
"""Switches the fan of a press by the average of its last temperatures. Start as many as there are partitions.

    pipeline.py [--kafka HOST:PORT] [--telemetry TOPIC] [--commands TOPIC]
"""

import argparse
import collections
import signal

from confluent_kafka import Consumer, Producer

VALUES = 3
ON_CELSIUS = 80.0


class Average:
    """Mean of the last values of each press."""

    def __init__(self):
        self._values = collections.defaultdict(lambda: collections.deque(maxlen=VALUES))

    def add(self, press, value):
        values = self._values[press]
        values.append(value)
        return sum(values) / len(values)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--kafka", default="127.0.0.1:9092")
    arguments.add_argument("--telemetry", default="telemetry")
    arguments.add_argument("--commands", default="commands")
    given = arguments.parse_args()

    consumer = Consumer({
        "bootstrap.servers": given.kafka,
        "group.id": f"fans-of-{given.telemetry}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    })
    producer = Producer({"bootstrap.servers": given.kafka, "enable.idempotence": True})
    consumer.subscribe([given.telemetry])
    is_running = True

    def stop(*_):
        nonlocal is_running
        is_running = False

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    average, fans = Average(), {}
    while is_running:
        record = consumer.poll(0.2)
        if record is None:
            continue
        if record.error():
            raise SystemExit(str(record.error()))
        press = record.key()
        fan = "on" if average.add(press, float(record.value())) > ON_CELSIUS else "off"
        if fans.get(press) != fan:
            fans[press] = fan
            producer.produce(given.commands, key=press, value=fan)
            producer.flush()
        # After the command is durable: a crash before this line repeats the record, and the command is harmless twice.
        consumer.commit(record, asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main()
