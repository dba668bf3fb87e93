"""MQTT over TLS: the Mosquitto clients, paho, and peers that do not speak TLS."""

import json
import queue
import socket
import ssl
import subprocess
import time

import paho.mqtt.client as paho
import pytest

from broker import binary
from conftest import cert
from paho_client import PahoClient

DEADLINE_S = 30


def mosquitto(secure, listener, topic, *arguments):
    """Publishes one message, and returns the finished process."""
    command = ["mosquitto_pub", "-h", "localhost", "-p", str(secure.port(listener)), "-V", "5", "-q", "1", "-t", topic]
    return subprocess.run([*command, "-m", "over TLS", *arguments], capture_output=True, text=True, timeout=DEADLINE_S)


class Subscriber:
    """A paho client on one listener that waits for messages of a topic."""

    def __init__(self, secure, listener, topic, **tls):
        self.messages = queue.Queue()
        subscribed = queue.Queue()
        self.client = PahoClient(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        if tls:
            self.client.tls_set(**tls)
        self.client.on_connect = lambda client, *_: client.subscribe(topic, 1)
        self.client.on_subscribe = lambda *_: subscribed.put(True)
        self.client.on_message = lambda _client, _data, message: self.messages.put(message.payload)
        self.client.connect("localhost" if tls else "127.0.0.1", secure.port(listener))
        self.client.loop_start()
        subscribed.get(timeout=DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.disconnect()
        self.client.loop_stop()

    def next(self) -> bytes:
        return self.messages.get(timeout=DEADLINE_S)


def test_messages_pass_between_a_plain_and_a_tls_listener(secure, unique):
    with Subscriber(secure, "mqtt", unique) as plain, Subscriber(secure, "mqtts", unique, ca_certs=secure.ca) as tls:
        sent = mosquitto(secure, "mqtts", unique, "--cafile", secure.ca)
        assert sent.returncode == 0, sent.stderr
        assert plain.next() == b"over TLS"
        assert tls.next() == b"over TLS"
        large = bytes(range(256)) * 4096
        plain.client.publish(unique, large, 1)
        assert tls.next() == large
        tls.client.publish(unique, large, 1)
        assert [tls.next(), plain.next(), plain.next()] == [large] * 3


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
@pytest.mark.parametrize("listener", ["mqtts", "kafkas"])
def test_both_versions_and_alpn(secure, version, listener):
    context = ssl.create_default_context(cafile=secure.ca)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "mqtt"])
    with socket.create_connection(("127.0.0.1", secure.port(listener)), DEADLINE_S) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as tls:
            assert tls.version() == {"TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}[version.name]
            assert tls.selected_alpn_protocol() == ("mqtt" if listener == "mqtts" else None)


def test_a_client_certificate_is_required_where_the_listener_says_so(secure, unique, tmp_path):
    certificate, key = secure.identity("device-7")
    cert(tmp_path / "foreign", "--client", "device-7")
    with Subscriber(secure, "mqtt", unique) as subscriber:
        own = mosquitto(secure, "mqttmutual", unique, "--cafile", secure.ca, "--cert", certificate, "--key", key)
        assert own.returncode == 0, own.stderr
        assert subscriber.next() == b"over TLS"
        foreign = [str(tmp_path / "foreign" / f"device-7.{kind}") for kind in ("crt", "key")]
        for refused in ([], ["--cert", foreign[0], "--key", foreign[1]]):
            assert mosquitto(secure, "mqttmutual", unique, "--cafile", secure.ca, *refused).returncode != 0
        subscriber.client.publish(unique, b"end", 1)
        assert subscriber.next() == b"end", "nothing else has arrived"


def test_a_client_that_does_not_trust_the_broker_refuses_it(secure, unique, tmp_path):
    cert(tmp_path / "foreign", "--host", "localhost")
    assert mosquitto(secure, "mqtts", unique, "--cafile", str(tmp_path / "foreign" / "ca.crt")).returncode != 0


@pytest.mark.parametrize("sent", [b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", b"GET / HTTP/1.1\r\n\r\n", bytes(5)])
def test_bytes_that_are_no_tls_get_an_alert_and_the_end(secure, sent):
    with socket.create_connection(("127.0.0.1", secure.port("mqtts")), DEADLINE_S) as plain:
        plain.sendall(sent)
        received = plain.recv(100)
        assert received[:1] == b"\x15", "an alert record"
        while received:
            received = plain.recv(100)


def served_certificate(secure) -> str:
    return ssl.get_server_certificate(("127.0.0.1", secure.port("mqtts")), timeout=DEADLINE_S)


def test_sighup_serves_renewed_certificates_to_new_connections(secure, unique):
    before = served_certificate(secure)
    with Subscriber(secure, "mqtts", unique, ca_certs=secure.ca) as subscriber:
        cert(secure.certs, "--host", "localhost", "--host", "127.0.0.1", "--force")
        secure.process.send_signal(1)
        until = time.monotonic() + DEADLINE_S
        while served_certificate(secure) == before:
            assert time.monotonic() < until, "the certificate is not reloaded"
        assert served_certificate(secure).strip() == (secure.certs / "server.crt").read_text().strip()
        assert mosquitto(secure, "mqtts", unique, "--cafile", secure.ca).returncode == 0
        assert subscriber.next() == b"over TLS", "an open connection goes on"


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_the_load_generator_delivers_everything(secure, qos):
    command = [str(binary()), "bench", "mqtt", "--port", str(secure.port("mqtts")), "--cafile", secure.ca, "--json"]
    load = ["--publishers", "2", "--subscribers", "20", "--qos", qos, "--payload", "20000", "--window", "5"]
    run = subprocess.run([*command, *load, "--duration", "1", "--warmup", "0"], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    report = json.loads(run.stdout)["traffic"]
    assert report["delivered"] == report["expected"] > 0
