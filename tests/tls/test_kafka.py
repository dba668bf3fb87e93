"""Kafka over TLS: librdkafka and kafka-python. Clients must be told the address of the listener that they came by."""

import confluent_kafka
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer

DEADLINE_S = 30


def test_librdkafka_produces_and_consumes(secure, unique):
    common = {
        "bootstrap.servers": f"127.0.0.1:{secure.port('kafkas')}",
        "security.protocol": "ssl",
        "ssl.ca.location": secure.ca,
    }
    values = [b"%d" % number * 1000 for number in range(1000)]
    producer = confluent_kafka.Producer(common | {"enable.idempotence": True})
    for value in values:
        producer.produce(unique, value)
    assert producer.flush(DEADLINE_S) == 0
    consumer = confluent_kafka.Consumer(common | {"group.id": unique, "auto.offset.reset": "earliest"})
    consumer.subscribe([unique])
    read = []
    while len(read) < len(values):
        message = consumer.poll(DEADLINE_S)
        assert message is not None and message.error() is None, message and message.error()
        read.append(message.value())
    consumer.close()
    assert read == values


def test_kafka_python_produces_and_consumes(secure, unique):
    common = {
        "bootstrap_servers": f"127.0.0.1:{secure.port('kafkas')}",
        "security_protocol": "SSL",
        "ssl_cafile": secure.ca,
    }
    producer = KafkaProducer(**common)
    for number in range(100):
        producer.send(unique, b"%d" % number)
    producer.flush(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer(unique, **common, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_S * 1000)
    read = []
    for record in consumer:
        read.append(record.value)
        if len(read) == 100:
            break
    consumer.close()
    assert read == [b"%d" % number for number in range(100)]


def test_each_listener_tells_its_own_address(secure):
    ports = {"kafka": {}, "kafkas": {"security.protocol": "ssl", "ssl.ca.location": secure.ca}}
    for listener, settings in ports.items():
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{secure.port(listener)}", **settings})
        brokers = admin.list_topics(timeout=DEADLINE_S).brokers.values()
        assert [broker.port for broker in brokers] == [secure.port(listener)]
