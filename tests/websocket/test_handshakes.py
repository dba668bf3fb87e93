"""Floods of handshakes: clients that are served notice little, and new ones still get in."""

import resource
import socket
import ssl
import threading
import time

import pytest

from test_frames import BINARY, PINGREQ, PINGRESP, connected, frame

HALF_OPEN = 10_000
SAMPLES = 2_000
# Slack for other work of the machine.
SLACK_S = 0.03


def client_hello() -> bytes:
    """The first flight of a client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def p99(peer) -> float:
    """Of the time from PINGREQ to PINGRESP."""
    times = []
    for _ in range(SAMPLES):
        began = time.monotonic()
        peer.send(frame(BINARY, PINGREQ))
        assert peer.frame() == (BINARY, PINGRESP)
        times.append(time.monotonic() - began)
    return sorted(times)[len(times) * 99 // 100]


class Flood:
    """Opens connections and sends `first` on each, as fast as the broker accepts, until there are `count`."""

    def __init__(self, port: int, first: bytes, count: int):
        self.sockets = []
        self.thread = threading.Thread(target=self._run, args=(port, first, count))
        self.thread.start()

    def _run(self, port, first, count):
        for _ in range(count):
            peer = socket.create_connection(("127.0.0.1", port), 30)
            try:
                peer.sendall(first)
            except ConnectionError:
                # It was the oldest of too many.
                pass
            self.sockets.append(peer)

    def end(self):
        self.thread.join()
        for peer in self.sockets:
            peer.close()


@pytest.mark.parametrize("part", ["half a ClientHello", "a whole ClientHello"])
@pytest.mark.timeout(180)
def test_a_flood_of_handshakes_delays_nobody(websocket, part):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < HALF_OPEN + 1000:
        pytest.skip("the limit of open files is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    hello = client_hello()
    with connected(websocket, "wss") as innocent:
        before = p99(innocent)
        memory = websocket.resident_bytes()
        flood = Flood(websocket.port("wss"), hello[:100] if part.startswith("half") else hello, HALF_OPEN)
        during = p99(innocent)
        with connected(websocket, "wss"):
            pass
        flood.thread.join()
        after = p99(innocent)
        with connected(websocket, "wss"):
            pass
        grown = websocket.resident_bytes() - memory
        flood.end()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"p99 before, during, after: {before:.4f} {during:.4f} {after:.4f} s; memory +{grown >> 20} MiB")
    assert max(during, after) <= 2 * before + SLACK_S
    assert grown < 128 * 1024 * 1024
