"""Users of client certificates over MQTT, Kafka and HTTP: mosquitto_pub, paho, librdkafka, kcat, curl, and a proxy."""

import json
import socket
import ssl
import struct
import subprocess
import tempfile
import uuid
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from broker import binary, launch
from conftest import cert

DEADLINE_S = 30
LISTENERS = ("mqtt", "kafka", "http", "byname", "both", "certonly", "proxied", "kafkas", "https")
RULES = (
    ("--user", "press-7", "--allow", "publish", "mqtt:plant/${user}/#"),
    ("--everyone", "--allow", "publish", "mqtt:by-cn/${cn}/#"),
    ("--user", "stored", "--allow", "publish", "mqtt:stored/#"),
    ("--user", "press-8", "--allow", "publish", "mqtt:eight/#"),
    ("--user", "P-7", "--allow", "describe", "topic:*"),
)
CLIENTS = ("press-7", "press-8", "intruder", "admin")


class Broker:
    """A broker whose users are those of certificates: `press-*` is mapped to `P-*`; `stored` has a password, too."""

    def __init__(self, folder: Path):
        self.certs = folder / "certs"
        self.ca = str(self.certs / "ca.crt")
        cert(self.certs, "--host", "localhost", "--host", "127.0.0.1", *(f"--client={name}" for name in CLIENTS))
        self.data = str(folder / "data")
        self.audit = folder / "audit.jsonl"
        self.run_tool("user", "add", "stored", "--data", self.data, stdin="secret")
        self.run_tool("user", "add", "press-8", "--data", self.data, stdin="secret8")
        config = folder / "mainstem.toml"
        config.write_text(self.configuration())
        flags = ["--config", str(config), "--data", self.data]
        for name in ("", "kafka-", "http-"):
            flags += [f"--{name}listen", "127.0.0.1:0"]
        self.process, self.addresses = launch(flags, LISTENERS)

    def configuration(self) -> str:
        server = f'certificate = "{self.certs}/server.crt", key = "{self.certs}/server.key"'
        required = f'tls = {{ {server}, client_certificates = "required", client_ca = "{self.ca}" }}'
        optional = required.replace("required", "optional")
        rules = r"RULE:^CN=press-([0-9]+)$/P-$1/, RULE:^CN=(admin|stored)$/$1/"

        def section(name, protocol, *lines):
            return "\n".join(["[[listener]]", f'name = "{name}"', f'protocol = "{protocol}"', 'listen = "127.0.0.1:0"', *lines])

        return "\n".join([
            f'[security]\nsuper_users = ["admin"]\naudit_log = "{self.audit}"',
            section("byname", "mqtt", 'user_name_from = "common-name"', optional),
            section("both", "mqtt", 'user_name_from = "common-name"', 'user_with_password = "both"', optional),
            section("certonly", "mqtt", 'user_name_from = "common-name"', 'user_with_password = "certificate"', required),
            section("proxied", "mqtt", 'user_name_from = "common-name"', 'proxy_protocol = { from = ["127.0.0.1"] }'),
            section("kafkas", "kafka", 'user_name_from = "subject"', f"user_name_rules = '{rules}'", required),
            section("https", "http", 'user_name_from = "common-name"', optional),
        ])

    def run_tool(self, *arguments, stdin=""):
        done = subprocess.run([str(binary()), *arguments], input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def tool(self, *arguments, stdin=""):
        """Runs a command as the user of the certificate `admin`."""
        https = f"https://localhost:{self.port('https')}"
        certificate, key = self.identity("admin")
        return self.run_tool(*arguments, "-b", https, "--cafile", self.ca, "--cert", certificate, "--tls-key", key, stdin=stdin)

    def port(self, listener: str) -> int:
        return self.addresses[listener][1]

    def identity(self, name: str) -> tuple[str, str]:
        return str(self.certs / f"{name}.crt"), str(self.certs / f"{name}.key")


@pytest.fixture(scope="module")
def broker():
    with tempfile.TemporaryDirectory(prefix="mainstem-identity-") as folder:
        made = Broker(Path(folder))
        for rule in RULES:
            made.tool("acl", "add", *rule)
        yield made
        made.process.terminate()
        assert made.process.wait(15) == 0


def publish(broker, listener, topic, *arguments, client=None):
    """Publishes one message with mosquitto_pub; returns its output and exit status."""
    tls = ["--cafile", broker.ca]
    if client:
        certificate, key = broker.identity(client)
        tls += ["--cert", certificate, "--key", key]
    command = ["mosquitto_pub", "-h", "localhost", "-p", str(broker.port(listener)), "-V", "5", "-q", "1", "-t", topic]
    done = subprocess.run([*command, "-m", "x", *tls, *arguments], capture_output=True, text=True, timeout=DEADLINE_S)
    return done.returncode, (done.stdout + done.stderr).lower()


def accepted(outcome):
    return outcome[0] == 0 and "not authorized" not in outcome[1]


def test_the_common_name_is_the_user(broker):
    assert accepted(publish(broker, "byname", "plant/press-7/a", client="press-7"))
    # Only its own topics, whatever user name it says.
    assert not accepted(publish(broker, "byname", "plant/press-8/a", client="press-7"))
    assert accepted(publish(broker, "byname", "plant/press-7/a", "-u", "admin", client="press-7"))
    assert not accepted(publish(broker, "byname", "plant/press-8/a", "-u", "admin", client="press-7"))
    assert accepted(publish(broker, "byname", "by-cn/press-7/a", client="press-7"))
    assert not accepted(publish(broker, "byname", "by-cn/press-8/a", client="press-7"))


def test_without_a_certificate_a_password_is_needed(broker):
    assert not accepted(publish(broker, "byname", "stored/a"))
    assert accepted(publish(broker, "byname", "stored/a", "-u", "stored", "-P", "secret"))
    assert not accepted(publish(broker, "byname", "stored/a", "-u", "stored", "-P", "wrong"))


def test_a_password_decides_unless_the_listener_says_otherwise(broker):
    stored = ("-u", "stored", "-P", "secret")
    assert accepted(publish(broker, "byname", "stored/a", *stored, client="press-7"))
    assert accepted(publish(broker, "byname", "by-cn/press-7/a", *stored, client="press-7")), "${cn} of the certificate"
    assert not accepted(publish(broker, "byname", "plant/press-7/a", *stored, client="press-7"))
    assert not accepted(publish(broker, "byname", "plant/press-7/a", "-u", "stored", "-P", "wrong", client="press-7"))
    # The certificate decides.
    assert accepted(publish(broker, "certonly", "plant/press-7/a", "-u", "stored", "-P", "wrong", client="press-7"))
    assert not accepted(publish(broker, "certonly", "stored/a", *stored, client="press-7"))
    # Both must name the same user.
    assert accepted(publish(broker, "both", "eight/a", "-u", "press-8", "-P", "secret8", client="press-8"))
    assert not accepted(publish(broker, "both", "eight/a", "-u", "press-8", "-P", "secret8", client="press-7"))
    assert not accepted(publish(broker, "both", "eight/a", "-u", "press-8", "-P", "wrong", client="press-8"))
    assert not accepted(publish(broker, "both", "stored/a", *stored))


def test_a_disabled_user_is_refused_and_disconnected(broker):
    reasons = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, client_id=f"d-{uuid.uuid4()}")
    certificate, key = broker.identity("intruder")
    client.tls_set(ca_certs=broker.ca, certfile=certificate, keyfile=key)
    client.on_connect = lambda _c, _u, _f, reason, _p: reasons.append(str(reason))
    client.on_disconnect = lambda _c, _u, _f, reason, _p: reasons.append(str(reason))
    client.reconnect_delay_set(60, 60)
    client.connect("localhost", broker.port("byname"))

    def until(count):
        for _ in range(DEADLINE_S * 10):
            client.loop(0.1)
            if len(reasons) >= count:
                return
        raise AssertionError(reasons)

    until(1)
    assert reasons == ["Success"]
    broker.tool("user", "add", "intruder", stdin="x")
    broker.tool("user", "disable", "intruder")
    until(2)
    assert reasons[1] == "Not authorized"
    assert not accepted(publish(broker, "byname", "by-cn/intruder/a", client="intruder"))


def test_a_proxy_tells_the_common_name(broker):
    """The header of version 2 with the attribute that HAProxy sends as `send-proxy-v2-ssl-cn`, here by hand."""

    def reason_code(verify, name):
        def attribute(kind, value):
            return struct.pack("!BH", kind, len(value)) + value

        tls = attribute(0x20, struct.pack("!BI", 0x07, verify) + attribute(0x22, name))
        addresses = socket.inet_aton("192.0.2.7") + socket.inet_aton("192.0.2.1") + struct.pack("!HH", 4711, 1883)
        body = addresses + tls
        header = b"\r\n\r\n\0\r\nQUIT\n" + struct.pack("!BBH", 0x21, 0x11, len(body)) + body
        with socket.create_connection(("127.0.0.1", broker.port("proxied")), DEADLINE_S) as proxy:
            proxy.sendall(header + b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x00")
            answer = proxy.recv(100)
            assert answer[0] == 0x20
            return answer[3]

    assert reason_code(0, b"press-7") == 0
    assert reason_code(1, b"press-7") == 0x87, "the proxy has not verified it"


def test_kafka_maps_the_subject_by_rules(broker):
    def topics(client):
        certificate, key = broker.identity(client)
        return AdminClient({
            "bootstrap.servers": f"127.0.0.1:{broker.port('kafkas')}", "security.protocol": "ssl",
            "ssl.ca.location": broker.ca, "ssl.certificate.location": certificate, "ssl.key.location": key,
            "log_level": 0,
        }).list_topics(timeout=5).topics

    certificate, key = broker.identity("admin")
    make = [str(binary()), "topic", "create", "seen", "-b", f"127.0.0.1:{broker.port('kafkas')}", "--cafile", broker.ca]
    done = subprocess.run([*make, "--cert", certificate, "--tls-key", key], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert "seen" in topics("press-7"), "P-7 may see it"
    assert "seen" not in topics("press-8"), "P-8 may not"
    with pytest.raises(KafkaException):
        topics("intruder")


def test_http_takes_certificates(broker):
    def status(*arguments):
        url = f"https://localhost:{broker.port('https')}/v1/users"
        command = ["curl", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "--cacert", broker.ca]
        done = subprocess.run([*command, *arguments, url], capture_output=True, text=True, timeout=DEADLINE_S)
        return done.stdout

    def with_certificate(name):
        certificate, key = broker.identity(name)
        return "--cert", certificate, "--key", key

    assert status(*with_certificate("admin")) == "200"
    assert status(*with_certificate("press-7")) == "403"
    assert status() == "401"
    assert status("-u", "stored:secret") == "403"
    assert status("-u", "stored:wrong", *with_certificate("admin")) == "401", "the password decides"


def test_the_audit_log_names_users_of_certificates(broker):
    assert accepted(publish(broker, "byname", "plant/press-7/a", client="press-7"))
    events = [json.loads(line) for line in broker.audit.read_text().splitlines()]
    assert any(event["event"] == "log-in" and event["user"] == "press-7" for event in events)
    assert "secret" not in broker.audit.read_text()


def test_a_resumed_session_has_the_user_of_its_certificate(broker):
    """The client sends its certificate once: the ticket has it."""
    context = ssl.create_default_context(cafile=broker.ca)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(*broker.identity("press-7"))
    session = None
    for resumed in (False, True):
        with socket.create_connection(("127.0.0.1", broker.port("byname")), DEADLINE_S) as plain:
            with context.wrap_socket(plain, server_hostname="localhost", session=session) as tls:
                tls.sendall(b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x0a\x00\x00\x00")
                assert tls.recv(100)[3] == 0, "the client is let in"
                topic = b"by-cn/press-7/a"
                body = struct.pack("!H", len(topic)) + topic + b"\x00\x01\x00x"
                tls.sendall(bytes([0x32, len(body)]) + body)
                puback = tls.recv(100)
                assert puback[0] == 0x40 and (len(puback) == 4 or puback[4] in (0, 0x10)), puback
                assert tls.session_reused == resumed
                session = tls.session
