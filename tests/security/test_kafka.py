"""Kafka: attempts to get round a log-in, and what configurations show."""

import base64
import hashlib
import hmac
import os
import socket
import struct

import pytest
from confluent_kafka.admin import (
    ConfigResource, NewTopic, ResourceType, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion,
)
from confluent_kafka import KafkaError, KafkaException

from secure_broker import DEADLINE_S

SASL_HANDSHAKE, SASL_AUTHENTICATE, METADATA = 17, 36, 3
UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 33, 34, 58


class Wire:
    """A connection on which a test says what no client library would."""

    def __init__(self, secure):
        self.socket = socket.create_connection((secure.kafka.host, secure.kafka.port), DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def ask(self, key, version, body) -> bytes | None:
        """Sends a request; the body of the response, or `None` if the connection was closed."""
        request = struct.pack(">hhih", key, version, 7, -1) + body
        try:
            self.socket.sendall(struct.pack(">i", len(request)) + request)
            head = self._read(4)
            return head and self._read(struct.unpack(">i", head)[0])[4:]
        except ConnectionError:
            return None

    def _read(self, count) -> bytes | None:
        got = b""
        while len(got) < count:
            more = self.socket.recv(count - len(got))
            if not more:
                return None
            got += more
        return got

    def is_closed(self) -> bool:
        """Waits until the broker has closed the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def handshake(self, mechanism: str) -> int | None:
        name = mechanism.encode()
        answer = self.ask(SASL_HANDSHAKE, 1, struct.pack(">h", len(name)) + name)
        return answer and struct.unpack(">h", answer[:2])[0]

    def token(self, token: bytes) -> tuple[int, bytes] | None:
        """Sends a token; the error and the broker's token, or `None` if the connection was closed."""
        answer = self.ask(SASL_AUTHENTICATE, 1, struct.pack(">i", len(token)) + token)
        if answer is None:
            return None
        code, message = struct.unpack(">hh", answer[:4])
        rest = answer[4 + max(message, 0):]
        length = struct.unpack(">i", rest[:4])[0]
        return code, rest[4:4 + length]

    def is_served(self) -> bool:
        return self.ask(METADATA, 1, struct.pack(">i", 0)) is not None


def scram(wire, user, password, header="n,,", binding=None, algorithm="sha512", proof_of=None):
    """Logs in by SCRAM (RFC 5802). `header`, `binding`: what is said of channel binding, first and again."""
    nonce = base64.b64encode(os.urandom(12)).decode()
    first = f"n={user},r={nonce}"
    code, server_first = wire.token(f"{header}{first}".encode())
    if code:
        return code
    fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
    assert fields["r"].startswith(nonce) and int(fields["i"]) >= 4096
    salted = hashlib.pbkdf2_hmac(algorithm, password.encode(), base64.b64decode(fields["s"]), int(fields["i"]))
    key = hmac.digest(salted, b"Client Key", algorithm)
    stored = hashlib.new(algorithm, key).digest()
    channel = base64.b64encode((header if binding is None else binding).encode()).decode()
    final = f"c={channel},r={fields['r']}"
    message = f"{proof_of or first},{server_first.decode()},{final}".encode()
    signature = hmac.digest(stored, message, algorithm)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature))).decode()
    return wire.token(f"{final},p={proof}".encode())[0]


def test_scram_as_it_should_be(secure):
    with Wire(secure) as wire:
        assert wire.handshake("SCRAM-SHA-512") == 0
        assert scram(wire, "alice", "ecila") == 0
        assert wire.is_served()


@pytest.mark.parametrize("header,binding", [("p=tls-unique,,", None), ("n,,", "y,,"), ("y,,", "n,,"), ("", "n,,")])
def test_scram_is_not_downgraded_by_channel_binding(secure, header, binding):
    """Who changes what the client says of channel binding, in either message, ends the log-in."""
    with Wire(secure) as wire:
        assert wire.handshake("SCRAM-SHA-512") == 0
        assert scram(wire, "alice", "ecila", header, binding) == SASL_AUTHENTICATION_FAILED
        assert wire.is_closed()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "ANONYMOUS", "EXTERNAL", "", "plain", "SCRAM-SHA-512-PLUS"])
def test_no_weaker_mechanism_is_accepted(secure, mechanism):
    with Wire(secure) as wire:
        assert wire.handshake(mechanism) == UNSUPPORTED_SASL_MECHANISM


def test_scram_is_not_downgraded_by_the_keys_of_the_other_hash(secure):
    """Keys of SHA-256 do not verify SHA-512, and keys with few iterations are not stored."""
    with Wire(secure) as wire:
        assert wire.handshake("SCRAM-SHA-512") == 0
        assert scram(wire, "alice", "ecila", algorithm="sha256") == SASL_AUTHENTICATION_FAILED
    weak = UserScramCredentialUpsertion("alice", ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 1000), b"x", b"salt")
    admin = secure.admin_client()
    with pytest.raises(KafkaException) as refused:
        admin.alter_user_scram_credentials([weak])["alice"].result(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError.UNACCEPTABLE_CREDENTIAL


def test_a_second_log_in_does_not_change_the_user(secure):
    with Wire(secure) as wire:
        assert wire.handshake("PLAIN") == 0
        assert wire.token(b"\0alice\0ecila")[0] == 0
        assert wire.token(b"\0admin\0nimda")[0] == ILLEGAL_SASL_STATE
    with Wire(secure) as wire:
        assert wire.handshake("PLAIN") == 0
        assert wire.token(b"\0alice\0ecila")[0] == 0
        assert wire.handshake("PLAIN") in (ILLEGAL_SASL_STATE, None)
    with Wire(secure) as wire:
        assert wire.handshake("PLAIN") == 0
        assert wire.handshake("SCRAM-SHA-512") in (ILLEGAL_SASL_STATE, None)
        assert not wire.is_served()


def test_no_user_speaks_for_another(secure):
    """The authorization identity of PLAIN and SCRAM is not a way to another user."""
    with Wire(secure) as wire:
        assert wire.handshake("PLAIN") == 0
        assert wire.token(b"admin\0alice\0ecila")[0] == SASL_AUTHENTICATION_FAILED
    with Wire(secure) as wire:
        assert wire.handshake("SCRAM-SHA-512") == 0
        assert scram(wire, "alice", "ecila", header="n,a=admin,") == SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize("size", [40_000, 1 << 20, (1 << 31) - 64])
def test_a_large_token_ends_the_connection(secure, size):
    """Whoever has not logged in sends no large request, and none is waited for or stored."""
    with Wire(secure) as wire:
        assert wire.handshake("PLAIN") == 0
        header = struct.pack(">hhih", SASL_AUTHENTICATE, 1, 7, -1) + struct.pack(">i", size)
        wire.socket.sendall(struct.pack(">i", len(header) + size) + header + b"x" * 1024)
        assert wire.is_closed()
    with Wire(secure) as wire:
        assert wire.handshake("PLAIN") == 0
        assert wire.token(b"\0alice\0ecila")[0] == 0, "nobody else is harmed"


def test_nothing_is_served_before_the_log_in(secure):
    with Wire(secure) as wire:
        assert not wire.is_served()
    with Wire(secure) as wire:
        assert wire.handshake("SCRAM-SHA-512") == 0
        assert not wire.is_served()


def test_configurations_show_no_secrets(secure, unique):
    """Neither the broker's configuration nor a topic's names a password, a verifier, or a file that has some."""
    admin = secure.admin_client()
    admin.create_topics([NewTopic(unique, 1, 1)])[unique].result(DEADLINE_S)
    resources = [ConfigResource(ResourceType.BROKER, "1"), ConfigResource(ResourceType.TOPIC, unique)]
    [node] = admin.list_topics(timeout=DEADLINE_S).brokers
    resources[0] = ConfigResource(ResourceType.BROKER, str(node))
    shown = ""
    for future in admin.describe_configs(resources).values():
        shown += "".join(f"{name}={entry.value}\n" for name, entry in future.result(DEADLINE_S).items())
    assert "log.retention" in shown, "the test sees the configuration"
    for secret in ("nimda", "ecila", "argon2", "$7$", "password", "jaas", "keystore", "unknown-users"):
        assert secret not in shown.lower(), secret


def test_an_unknown_user_looks_like_those_with_keys_of_kafkas_tools(secure):
    """The number of iterations and the form of the salt tell nothing, whoever has set the keys."""
    admin = secure.admin_client()
    # As many users of each kind, so that a stranger sees both kinds of parameters half the time.
    users = [f"tools-{number}" for number in range(3)]
    salt = b"1k3f8vqzlm0dpr72ynx5ts9cha"
    for user in users:
        change = UserScramCredentialUpsertion(user, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 8192), b"x", salt)
        admin.alter_user_scram_credentials([change])[user].result(DEADLINE_S)

    def challenge(user):
        with Wire(secure) as wire:
            assert wire.handshake("SCRAM-SHA-512") == 0
            code, message = wire.token(f"n,,n={user},r=abc".encode())
            assert code == 0
            fields = dict(part.split("=", 1) for part in message.decode().split(","))
            return int(fields["i"]), base64.b64decode(fields["s"])

    known = {challenge(user)[0] for user in (*users, "alice")}
    assert known == {8192, 16384}
    seen = {}
    for number in range(60):
        iterations, salt = challenge(f"stranger-{number}")
        assert challenge(f"stranger-{number}") == (iterations, salt), "which stays the same"
        is_kafkas = salt.isalnum() and salt.lower() == salt and 20 <= len(salt) <= 26
        assert (is_kafkas, len(salt) == 16) == (iterations == 8192, iterations == 16384), salt
        seen[iterations] = seen.get(iterations, 0) + 1
    assert seen.keys() == known and min(seen.values()) >= 10, seen
