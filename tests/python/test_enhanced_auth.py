"""MQTT 5 enhanced authentication, by hand: what the Python clients do not speak, and what no client would send."""

import base64
import hashlib
import hmac
import socket
import struct
import subprocess
import tempfile
import uuid

import pytest

from broker import binary, launch

DEADLINE_S = 30
METHOD, DATA = 0x15, 0x16
CONTINUE, REAUTHENTICATE = 0x18, 0x19
USERS = {"alice": "secret of alice", "bob": "secret of bob"}


@pytest.fixture(scope="module")
def address():
    with tempfile.TemporaryDirectory(prefix="mainstem-auth-") as data:
        for user, password in USERS.items():
            command = [str(binary()), "user", "add", user, "--data", data]
            subprocess.run(command, input=password, text=True, check=True, capture_output=True, timeout=DEADLINE_S)
        flags = ["--data", data, "--set", "mqtt.connect_timeout_ms=2000"]
        for name in ("", "kafka-", "http-"):
            flags += [f"--{name}listen", "127.0.0.1:0"]
        process, addresses = launch(flags)
        yield addresses["mqtt"]
        process.terminate()
        assert process.wait(15) == 0


def sized(value: bytes) -> bytes:
    return struct.pack("!H", len(value)) + value


def properties(method, data) -> bytes:
    found = b"" if method is None else bytes([METHOD]) + sized(method.encode())
    found += b"" if data is None else bytes([DATA]) + sized(data)
    return length(found) + found


def length(value: bytes) -> bytes:
    return bytes([len(value)]) if len(value) < 128 else bytes([len(value) % 128 | 128, len(value) // 128])


def packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + length(body) + body


def auth(reason, method, data=None) -> bytes:
    return packet(0xF0, bytes([reason]) + properties(method, data))


class Client:
    """A client with one exchange of SCRAM-SHA-256 (RFC 5802)."""

    def __init__(self, address, user="alice", password=None):
        self.user, self.password = user, password or USERS.get(user, "wrong")
        self.socket = socket.create_connection(address, DEADLINE_S)
        self.first = f"n={user},r={uuid.uuid4()}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def connect(self, method="SCRAM-SHA-256", data=b""):
        data = f"n,,{self.first}".encode() if data == b"" else data
        body = sized(b"MQTT") + b"\x05\x02\x00\x3c" + properties(method, data) + sized(str(uuid.uuid4()).encode())
        self.socket.sendall(packet(0x10, body))

    def proof(self, challenge: bytes) -> bytes:
        fields = dict(field.split("=", 1) for field in challenge.decode().split(","))
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac("sha256", self.password.encode(), salt, iterations)
        without = f"c=biws,r={fields['r']}"
        message = f"{self.first},{challenge.decode()},{without}".encode()
        key = hmac.digest(salted, b"Client Key", "sha256")
        mask = hmac.digest(hashlib.sha256(key).digest(), message, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, mask))
        server = hmac.digest(hmac.digest(salted, b"Server Key", "sha256"), message, "sha256")
        self.signature = b"v=" + base64.b64encode(server)
        return f"{without},p={base64.b64encode(proof).decode()}".encode()

    def receive(self):
        """The next packet: its first byte and its body; `None` at the end."""
        head = self.socket.recv(2)
        if len(head) < 2:
            return None
        first, length = head
        if length > 127:
            length = length % 128 + 128 * self.socket.recv(1)[0]
        body = b""
        while len(body) < length:
            body += self.socket.recv(length - len(body))
        return first, body

    def challenged(self) -> bytes:
        first, body = self.receive()
        assert (first, body[0]) == (0xF0, CONTINUE), (first, body)
        return body[body.index(b"r="):]

    def log_in(self):
        self.connect()
        self.socket.sendall(auth(CONTINUE, "SCRAM-SHA-256", self.proof(self.challenged())))
        first, body = self.receive()
        assert (first, body[1]) == (0x20, 0), body
        assert b"SCRAM-SHA-256" in body and self.signature in body

    def is_served(self) -> bool:
        self.socket.sendall(b"\xc0\x00")
        return self.receive() == (0xD0, b"")


def test_both_sides_prove_that_they_know_the_password(address):
    with Client(address) as client:
        client.log_in()
        assert client.is_served()


def test_connect_may_come_without_data(address):
    with Client(address) as client:
        client.connect(data=None)
        first, body = client.receive()
        assert (first, body[0]) == (0xF0, CONTINUE)
        client.socket.sendall(auth(CONTINUE, "SCRAM-SHA-256", f"n,,{client.first}".encode()))
        client.socket.sendall(auth(CONTINUE, "SCRAM-SHA-256", client.proof(client.challenged())))
        assert client.receive()[1][1] == 0


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_wrong_password_and_an_unknown_user_look_alike(address, user):
    with Client(address, user, "wrong") as client:
        client.connect()
        client.socket.sendall(auth(CONTINUE, "SCRAM-SHA-256", client.proof(client.challenged())))
        assert client.receive()[1][1] == 0x86
        assert client.receive() is None


@pytest.mark.parametrize("method", ["PLAIN", "OAUTHBEARER", "SCRAM-SHA-1", "scram-sha-256", "SCRAM-SHA-256-PLUS"])
def test_other_methods_are_refused(address, method):
    with Client(address) as client:
        client.connect(method=method)
        assert client.receive()[1][1] == 0x8C
        assert client.receive() is None


@pytest.mark.parametrize("data", [b"n,,", b"garbage", b"n,,n=alice", b"p=tls-unique,,n=alice,r=x", b"\xff" * 50])
def test_malformed_messages_are_refused(address, data):
    with Client(address) as client:
        client.connect(data=data)
        assert client.receive()[1][1] == 0x87
        assert client.receive() is None


@pytest.mark.parametrize("sent", [
    packet(0x30, sized(b"topic") + b"\x00x"), b"\xc0\x00", packet(0x10, sized(b"MQTT") + b"\x05\x02\x00\x00\x00\x00\x00"),
    packet(0x82, b"\x00\x01\x00" + sized(b"#") + b"\x00"), auth(CONTINUE, "SCRAM-SHA-512", b"x"), auth(CONTINUE, None),
    auth(REAUTHENTICATE, "SCRAM-SHA-256", b"n,,n=bob,r=x"), auth(0, "SCRAM-SHA-256"), packet(0xE0, b""),
], ids=["publish", "ping", "connect", "subscribe", "method", "no-method", "reauthenticate", "success", "disconnect"])
def test_nothing_else_may_come_before_connack(address, sent):
    with Client(address) as client:
        client.connect()
        client.challenged()
        client.socket.sendall(sent)
        last = client.receive()
        assert last is None or (last[0] == 0x20 and last[1][1] >= 0x80), last
        assert last is None or client.receive() is None


def test_an_exchange_has_the_time_of_connect(address):
    with Client(address) as client:
        client.connect()
        client.challenged()
        assert client.receive() is None, "closed by the server"


def test_the_same_user_reauthenticates_and_others_do_not(address):
    with Client(address) as client:
        client.log_in()
        for _ in range(2):
            client.socket.sendall(auth(REAUTHENTICATE, "SCRAM-SHA-256", f"n,,{client.first}".encode()))
            challenge = client.challenged()
            assert client.is_served(), "other packets go on"
            client.socket.sendall(auth(CONTINUE, "SCRAM-SHA-256", client.proof(challenge)))
            first, body = client.receive()
            assert first == 0xF0 and body[0] == 0 and client.signature in body
        client.first, client.password = f"n=bob,r={uuid.uuid4()}", USERS["bob"]
        client.socket.sendall(auth(REAUTHENTICATE, "SCRAM-SHA-256", f"n,,{client.first}".encode()))
        client.socket.sendall(auth(CONTINUE, "SCRAM-SHA-256", client.proof(client.challenged())))
        assert client.receive()[1][0] == 0x87
        assert client.receive() is None


@pytest.mark.parametrize("sent, reason", [
    (auth(CONTINUE, "SCRAM-SHA-256", b"x"), 0x82), (auth(REAUTHENTICATE, "SCRAM-SHA-512", b"n,,n=alice,r=x"), 0x82),
    (auth(REAUTHENTICATE, "SCRAM-SHA-256", b"garbage"), 0x87), (auth(0, "SCRAM-SHA-256"), 0x82),
], ids=["no-exchange", "other-method", "malformed", "success"])
def test_a_wrong_reauthentication_ends_the_connection(address, sent, reason):
    with Client(address) as client:
        client.log_in()
        client.socket.sendall(sent)
        first, body = client.receive()
        assert (first, body[0]) == (0xE0, reason)
        assert client.receive() is None
