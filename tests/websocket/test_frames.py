"""WebSocket by hand: what a client must not do, floods, and the end of a connection."""

import base64
import os
import socket
import ssl
import struct
import time

import pytest

DEADLINE_S = 30
CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"
CONNACK, PINGREQ, PINGRESP = 0x20, b"\xc0\x00", b"\xd0\x00"
BINARY, TEXT, CLOSE, PING, PONG = 0x82, 0x81, 0x88, 0x89, 0x8A
MASK = b"\x01\x02\x03\x04"


def frame(first: int, payload: bytes) -> bytes:
    """A masked frame of fewer than 126 bytes."""
    masked = bytes(byte ^ MASK[index % 4] for index, byte in enumerate(payload))
    return bytes([first, 0x80 | len(payload)]) + MASK + masked


def upgrade(**fields: str) -> bytes:
    """A request; `fields` replaces header fields, with `_` for `-`."""
    known = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "mqtt",
    }
    known.update({name.replace("_", "-"): value for name, value in fields.items()})
    return ("GET /mqtt HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in known.items()) + "\r\n").encode()


class Peer:
    """A socket that has connected, and perhaps upgraded."""

    def __init__(self, broker, listener="ws", request: bytes | None = None):
        self.socket = socket.create_connection(("localhost", broker.port(listener)), DEADLINE_S)
        if listener == "wss":
            context = ssl.create_default_context(cafile=broker.ca)
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.received = b""
        self.socket.sendall(request or upgrade())
        head = self.read_until(b"\r\n\r\n")
        self.status = int(head.split(b" ")[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def _fill(self):
        part = self.socket.recv(65_536)
        assert part, "the connection has ended"
        self.received += part

    def read_until(self, end: bytes) -> bytes:
        while end not in self.received:
            self._fill()
        taken, self.received = self.received.split(end, 1)
        return taken

    def read(self, count: int) -> bytes:
        while len(self.received) < count:
            self._fill()
        taken, self.received = self.received[:count], self.received[count:]
        return taken

    def frame(self) -> tuple[int, bytes]:
        first, length = self.read(2)
        assert length < 0x80, "a server does not mask"
        if length == 126:
            (length,) = struct.unpack(">H", self.read(2))
        return first, self.read(length)

    def send(self, data: bytes):
        self.socket.sendall(data)

    def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        while True:
            try:
                part = self.socket.recv(65_536)
            except ConnectionResetError:
                part = b""
            if not part:
                return self.received
            self.received += part


def connected(broker, listener="ws") -> Peer:
    peer = Peer(broker, listener)
    assert peer.status == 101
    peer.send(frame(BINARY, CONNECT))
    first, payload = peer.frame()
    assert (first, payload[0]) == (BINARY, CONNACK)
    return peer


@pytest.mark.parametrize("listener", ["ws", "wss"])
@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (bytes([BINARY, 2]) + PINGREQ, 1002),
        (frame(0xC2, PINGREQ), 1002),
        (frame(0x83, b""), 1002),
        (frame(TEXT, b"hello"), 1003),
        (bytes([BINARY, 0xFF]) + struct.pack(">Q", 1 << 63) + MASK, 1002),
        (bytes([BINARY, 0xFF]) + struct.pack(">Q", 1 << 40) + MASK, 1009),
        (frame(0x80, PINGREQ), 1002),
        (frame(CLOSE, b"\x03\xe8\xff"), 1007),
        (frame(CLOSE, b""), 1000),
        (frame(CLOSE, b"\x0f\xa1bye"), 4001),
    ],
    ids=["unmasked", "rsv", "opcode", "text", "2^63", "2^40", "continuation", "utf8", "close", "close-4001"],
)
# [MQTT5-6.0.0-1], [MQTT3-6.0.0-1]
def test_the_connection_ends_with_a_close_frame_behind_all_responses(websocket, listener, sent, code):
    with connected(websocket, listener) as peer:
        peer.send(frame(BINARY, PINGREQ) + sent + frame(BINARY, PINGREQ))
        assert peer.rest() == bytes([BINARY, 2]) + PINGRESP + bytes([CLOSE, 2]) + struct.pack(">H", code)


def test_packets_may_span_frames_with_pings_between_them(websocket):
    with Peer(websocket) as peer:
        for index, byte in enumerate(CONNECT[:-1]):
            peer.send(frame(0x02 if index == 0 else 0x00, bytes([byte])))
            peer.send(frame(PING, b"%d" % index))
            assert peer.frame() == (PONG, b"%d" % index)
        peer.send(frame(0x80, CONNECT[-1:]))
        assert peer.frame()[1][0] == CONNACK


def test_the_server_says_goodbye(websocket):
    with connected(websocket) as peer:
        peer.send(frame(BINARY, b"\xe0\x00"))
        assert peer.frame() == (CLOSE, struct.pack(">H", 1000))
        peer.send(frame(CLOSE, struct.pack(">H", 1000)))
        assert peer.rest() == b""


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"Sec_WebSocket_Version": "8"}, 426),
        ({"Sec_WebSocket_Protocol": "chat"}, 400),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost"}, 101),
        ({"Sec_WebSocket_Extensions": "permessage-deflate"}, 101),
    ],
)
def test_requests_get_a_status(websocket, fields, status):
    with Peer(websocket, request=upgrade(**fields)) as peer:
        assert peer.status == status


def test_a_listed_origin_may_connect(websocket):
    with Peer(websocket, "wss", upgrade(Origin="https://plant.example.com")) as peer:
        assert peer.status == 101


def test_half_a_request_is_closed_after_the_time_to_connect(websocket):
    with socket.create_connection(("localhost", websocket.port("ws")), DEADLINE_S) as peer:
        peer.sendall(b"GET /mqtt HTTP/1.1\r\nHost: local")
        began = time.monotonic()
        assert peer.recv(100) == b""
        assert 2 < time.monotonic() - began < 10


def flood(peer: Peer, data: bytes, limit: int) -> int:
    """Sends without reading until the broker stops reading or closes, or `limit` bytes are sent."""
    peer.socket.settimeout(1)
    sent = 0
    try:
        while sent < limit:
            sent += peer.socket.send(data)
    except (TimeoutError, ConnectionError):
        pass
    return sent


def test_floods_cost_no_memory_and_delay_nobody_for_long(websocket):
    with connected(websocket) as innocent:
        before = websocket.resident_bytes()
        pings = frame(PING, bytes(125)) * 500
        fragments = frame(0x02, b"") + frame(0x00, b"") * 10_000
        with Peer(websocket) as first, Peer(websocket) as second:
            first_sent = flood(first, pings, 40_000_000)
            second_sent = flood(second, fragments, 4_000_000)
            assert first_sent > 1_000_000 and second_sent > 60_000
            for _ in range(100):
                began = time.monotonic()
                innocent.send(frame(BINARY, PINGREQ))
                assert innocent.frame() == (BINARY, PINGRESP)
                assert time.monotonic() - began < 1
            assert websocket.resident_bytes() < before + 16 * 1024 * 1024
