"""examples/kafka-pipeline: MQTT to Kafka to MQTT through two bindings and a consumer group."""

import pytest
from conftest import EXAMPLES

from broker import binary


@pytest.fixture
def pipeline(broker_process, mainstem, start, unique):
    """Topics and bindings as the README has them, under names of this test; the MQTT prefix."""
    telemetry, commands = f"{unique}-telemetry", f"{unique}-commands"
    kafka, http = ("--kafka", broker_process.kafka), ("--http", broker_process.http)
    mainstem("topic", "create", telemetry, "--partitions", 3, *kafka)
    mainstem("topic", "create", commands, *kafka)
    mainstem("binding", "add", telemetry, "--from-mqtt", f"{unique}/+/temp", "--to-topic", telemetry,
             "--key", "level:2", *http)
    mainstem("binding", "add", commands, "--from-topic", commands, "--to-mqtt", f"{unique}/{{key}}/fan", "--qos", 1, *http)
    start(EXAMPLES / "kafka-pipeline" / "pipeline.py", "--kafka", broker_process.kafka,
          "--telemetry", telemetry, "--commands", commands)
    return unique


def test_fan_follows_the_average(broker_process, mainstem, start, pipeline):
    at = ("-h", broker_process.mqtt.host, "-p", broker_process.mqtt.port)
    fans = start(binary(), "sub", *at, "-t", f"{pipeline}/+/fan", "-q", 1, "-v")
    for celsius in (60, 90, 95):
        mainstem("pub", *at, "-t", f"{pipeline}/7/temp", "-m", celsius, "-q", 1)
    fans.wait_for(f"{pipeline}/7/fan on")
    for celsius in (20, 20):
        mainstem("pub", *at, "-t", f"{pipeline}/7/temp", "-m", celsius, "-q", 1)
    fans.wait_for(f"{pipeline}/7/fan off")
