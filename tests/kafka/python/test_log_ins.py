"""Log-ins and rights of Kafka clients: SASL with librdkafka, kafka-python and kcat, over plain and TLS listeners."""

import logging
import subprocess
import tempfile
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding, AclBindingFilter, AclOperation, AclPermissionType, AdminClient, NewTopic, ResourcePatternType,
    ResourceType, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from broker import ConfiguredBroker, binary, cert

DEADLINE_S = 30
# Time in which a refused client is told so: longer than kafka.failed_authentication_delay_ms.
REFUSAL_S = 10
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
LOG = logging.getLogger("librdkafka")
LISTENERS = ("mqtt", "kafka", "http", "sasls", "scramonly")


class SecureBroker(ConfiguredBroker):
    """A broker with the users `admin`, who may do everything, `alice` and `bob`; passwords are the names reversed."""

    def __init__(self, folder: Path):
        certs = folder / "certs"
        self.ca = str(certs / "ca.crt")
        cert(certs, "--host", "127.0.0.1")
        mechanisms = ", ".join(f'"{name}"' for name in MECHANISMS)
        configuration = f"""
[kafka]
sasl = [{mechanisms}]
failed_authentication_delay_ms = 50

[security]
super_users = ["admin"]
max_failed_log_ins_per_address = 1000
max_failed_log_ins_per_user = 1000

[[listener]]
name = "sasls"
protocol = "kafka"
listen = "127.0.0.1:0"
sasl = [{mechanisms}]
tls = {{ certificate = "{certs}/server.crt", key = "{certs}/server.key" }}

[[listener]]
name = "scramonly"
protocol = "kafka"
listen = "127.0.0.1:0"
sasl = ["SCRAM-SHA-512"]
"""
        super().__init__(folder, configuration, LISTENERS)
        for name in ("admin", "alice", "bob"):
            self.tool("user", "add", name, stdin=name[::-1])

    def tool(self, *arguments: str, stdin: str = "") -> str:
        """Runs the command-line tool as `admin`."""
        log_in = [] if arguments == ("user", "add", "admin") else ["--username", "admin", "--password", "nimda"]
        command = [str(binary()), *arguments, "--broker", self.address("http"), *log_in]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def bootstrap(self, listener="kafka") -> str:
        return self.address(listener)

    def librdkafka(self, user: str, mechanism="SCRAM-SHA-256", password=None, listener="kafka", **settings) -> dict:
        """Settings of librdkafka's clients."""
        tls = {"security.protocol": "SASL_SSL", "ssl.ca.location": self.ca} if listener == "sasls" else {}
        log_in = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password or user[::-1]}
        common = {"bootstrap.servers": self.bootstrap(listener), "security.protocol": "SASL_PLAINTEXT", "logger": LOG}
        return common | log_in | tls | {key.replace("_", "."): value for key, value in settings.items()}

    @cached_property
    def admin(self) -> AdminClient:
        """A client of `admin`; its requests are cancelled when it goes, so it is kept."""
        return AdminClient(self.librdkafka("admin"))


@pytest.fixture(scope="module")
def secure():
    with tempfile.TemporaryDirectory(prefix="mainstem-sasl-") as folder:
        broker = SecureBroker(Path(folder))
        yield broker
        broker.stop()


@pytest.fixture
def rules(secure):
    """Adds rules for one test: without rules, every user may do everything."""
    added = []

    def add(name, operation, kind=ResourceType.TOPIC, user="alice", permission=AclPermissionType.ALLOW,
            pattern=ResourcePatternType.LITERAL):
        rule = AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)
        secure.admin.create_acls([rule])[rule].result(DEADLINE_S)
        added.append(rule)

    yield add
    for rule in added:
        fields = (rule.restype, rule.name, rule.resource_pattern_type, rule.principal, rule.host, rule.operation,
                  rule.permission_type)
        deleted = AclBindingFilter(*fields)
        secure.admin.delete_acls([deleted])[deleted].result(DEADLINE_S)


def make_topic(secure, name: str):
    new = NewTopic(name, num_partitions=1, replication_factor=1)
    secure.admin.create_topics([new])[name].result(DEADLINE_S)


def produce(settings: dict, topic: str, value=b"value") -> KafkaError | None:
    """Produces a record; returns its error."""
    errors = []
    producer = Producer(settings | {"linger.ms": 1, "message.timeout.ms": DEADLINE_S * 1000})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    assert len(errors) == 1
    return errors[0]


def consume(settings: dict, topic: str, group: str):
    """Consumes one record; returns its value, or raises the error."""
    consumer = Consumer(settings | {"group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(DEADLINE_S)
        assert message is not None, "no record and no error"
        if message.error():
            raise KafkaException(message.error())
        return message.value()
    finally:
        consumer.close()


def refusal(settings: dict) -> int:
    """The code of the error with which a client learns that it is not let in."""
    codes = []
    client = AdminClient(settings | {"error_cb": lambda error: codes.append(error.code())})
    for _ in range(REFUSAL_S * 10):
        client.poll(0.1)
        if codes:
            return codes[0]
    raise AssertionError(f"no refusal within {REFUSAL_S} s")


@pytest.mark.parametrize("listener", ["kafka", "sasls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(secure, unique, mechanism, listener):
    make_topic(secure, unique)
    settings = secure.librdkafka("alice", mechanism, listener=listener)
    assert produce(settings, unique) is None
    assert consume(settings, unique, unique) == b"value"


@pytest.mark.parametrize("listener", ["kafka", "sasls"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(secure, unique, mechanism, listener):
    make_topic(secure, unique)
    protocol = {"kafka": "SASL_PLAINTEXT", "sasls": "SASL_SSL"}[listener]
    common = {
        "bootstrap_servers": secure.bootstrap(listener), "security_protocol": protocol, "ssl_cafile": secure.ca,
        "sasl_mechanism": mechanism, "sasl_plain_username": "bob", "sasl_plain_password": "bob"[::-1],
    }
    producer = KafkaProducer(**common)
    producer.send(unique, b"value").get(DEADLINE_S)
    producer.close()
    consumer = KafkaConsumer(unique, **common, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_S * 1000)
    assert next(consumer).value == b"value"
    consumer.close()


def test_kcat_logs_in(secure, unique):
    make_topic(secure, unique)
    flags = ["-X", "security.protocol=SASL_PLAINTEXT", "-X", "sasl.mechanism=PLAIN"]
    flags += ["-X", "sasl.username=alice", "-X", "sasl.password=ecila", "-b", secure.bootstrap(), "-t", unique]
    for action, stdin, printed in ((["-P"], "line\n", ""), (["-C", "-e", "-o", "beginning"], "", "line\n")):
        command = ["kcat", "-q", *flags, *action]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert (done.returncode, done.stdout) == (0, printed), done.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_are_refused(secure, mechanism, user):
    settings = secure.librdkafka(user, mechanism, password="wrong")
    assert refusal(settings) == KafkaError._AUTHENTICATION


def test_a_mechanism_that_the_listener_does_not_offer_is_refused(secure):
    assert refusal(secure.librdkafka("alice", "PLAIN", listener="scramonly")) == KafkaError._AUTHENTICATION
    settings = secure.librdkafka("alice", "SCRAM-SHA-512", listener="scramonly")
    assert AdminClient(settings).list_topics(timeout=DEADLINE_S).brokers


def test_a_client_without_a_log_in_gets_nothing(secure):
    client = AdminClient({"bootstrap.servers": secure.bootstrap(), "logger": LOG})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)


def test_keys_of_scram_are_changed_by_clients(secure, unique):
    update = UserScramCredentialUpsertion(
        unique, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), b"new", b"salt of the user")
    secure.admin.alter_user_scram_credentials([update])[unique].result(DEADLINE_S)
    described = secure.admin.describe_user_scram_credentials([unique])[unique].result(DEADLINE_S)
    [info] = described.scram_credential_infos
    assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_512, 8192)
    settings = secure.librdkafka(unique, "SCRAM-SHA-512", password="new")
    assert AdminClient(settings).list_topics(timeout=DEADLINE_S).brokers
    assert refusal(secure.librdkafka(unique, "SCRAM-SHA-256", password="new")) == KafkaError._AUTHENTICATION


def test_rules_decide_who_produces_and_consumes(secure, unique, rules):
    make_topic(secure, unique)
    alice, bob = secure.librdkafka("alice"), secure.librdkafka("bob", "PLAIN")
    rules(unique, AclOperation.WRITE)
    assert produce(alice, unique) is None
    assert produce(bob, unique).code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    for settings in (alice, bob):
        with pytest.raises(KafkaException) as denied:
            consume(settings, unique, unique)
        assert denied.value.args[0].code() in (
            KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED)
    rules(unique, AclOperation.READ)
    with pytest.raises(KafkaException) as denied:
        consume(alice, unique, unique)
    assert denied.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    rules(unique[:8], AclOperation.READ, ResourceType.GROUP, pattern=ResourcePatternType.PREFIXED)
    assert consume(alice, unique, unique) == b"value"
    rules(unique, AclOperation.READ, permission=AclPermissionType.DENY)
    with pytest.raises(KafkaException) as denied:
        consume(alice, unique, f"{unique}-2")
    assert denied.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_topics_that_may_not_be_described_are_not_listed(secure, unique, rules):
    make_topic(secure, unique)
    rules(f"{unique}-other", AclOperation.WRITE)
    alice = AdminClient(secure.librdkafka("alice"))
    assert unique not in alice.list_topics(timeout=DEADLINE_S).topics
    assert unique in secure.admin.list_topics(timeout=DEADLINE_S).topics
    created = alice.create_topics([NewTopic(f"{unique}-new", 1, 1)])[f"{unique}-new"]
    with pytest.raises(KafkaException) as denied:
        created.result(DEADLINE_S)
    assert denied.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_acls_are_the_rules_of_the_command_line(secure, unique, rules):
    rules(unique, AclOperation.WRITE)
    assert f"topic:{unique}" in secure.tool("acl", "list")
    explained = secure.tool("acl", "explain", "alice", "produce", f"topic:{unique}")
    assert "allow" in explained
    everything = AclBindingFilter(ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
                                  AclPermissionType.ANY)
    listed = secure.admin.describe_acls(everything).result(DEADLINE_S)
    assert [(each.name, each.principal, each.operation) for each in listed] == [
        (unique, "User:alice", AclOperation.WRITE)]
