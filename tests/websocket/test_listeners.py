"""Listeners behind a load balancer, on Unix sockets, and with limits of their own."""

import os
import socket
import stat
import subprocess
import threading

import pytest

from broker import binary

DEADLINE_S = 30
CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"
PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"
HEADER = b"PROXY TCP4 192.0.2.%d 192.0.2.99 4000 1883\r\n"


class Broker:
    """A broker with these listeners and settings."""

    def __init__(self, folder, config: str):
        file = folder / "mainstem.toml"
        file.write_text(config)
        listen = ("--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen", "")
        self.command = [str(binary()), "--config", str(file), "--data", str(folder / "data"), *listen]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addresses = {}
        for line in self.process.stdout:
            name, _, address = line.strip().partition(" listening on ")
            self.addresses[name] = address
            if name == "last":
                break
        assert "last" in self.addresses, self.process.stderr.read()
        self.log = []
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def connect(self, listener: str, first: bytes = b"") -> socket.socket:
        address = self.addresses[listener]
        if address.startswith("unix:"):
            peer = socket.socket(socket.AF_UNIX)
            peer.settimeout(DEADLINE_S)
            peer.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            peer = socket.create_connection((host, int(port)), DEADLINE_S)
        peer.sendall(first)
        return peer

    def stop(self) -> str:
        """Ends it, and returns its log."""
        self.process.terminate()
        assert self.process.wait(15) == 0
        return "".join(self.log)


def section(name: str, rest: str, listen: str = "127.0.0.1:0", protocol: str = "mqtt") -> str:
    return f'[[listener]]\nname = "{name}"\nprotocol = "{protocol}"\nlisten = "{listen}"\n{rest}\n'


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(config: str) -> Broker:
        started.append(Broker(tmp_path, config + section("last", "")))
        return started[-1]

    yield begin
    for broker in started:
        broker.process.kill()


def is_served(peer: socket.socket, sent: bytes = CONNECT) -> bool:
    """Whether a CONNECT is answered."""
    try:
        peer.sendall(sent)
        return peer.recv(1) == b"\x20"
    except ConnectionError:
        return False


def test_the_client_behind_a_proxy_counts_and_is_logged(start):
    broker = start(
        "[server]\nmax_connections_per_address = 1\n" + section("proxied", 'proxy_protocol = { from = ["127.0.0.0/8"] }')
    )
    peers = [broker.connect("proxied", HEADER % number) for number in (1, 2, 1, 3)]
    assert [is_served(peer) for peer in peers] == [True, True, False, True]
    assert not is_served(broker.connect("proxied"), CONNECT), "without a header"
    assert is_served(broker.connect("proxied", b"PROXY UNKNOWN\r\n")), "a health check"
    wrong = broker.connect("proxied", HEADER % 9 + b"GET / HTTP/1.1\r\n\r\n")
    assert wrong.recv(1) == b""
    log = broker.stop()
    assert "the last from 192.0.2.1: 1 per address" in log
    assert "a client at 192.0.2.9 speaks HTTP" in log
    assert "does not begin with a header of the PROXY protocol" in log


def test_only_proxies_may_say_who_their_clients_are(start):
    broker = start(section("proxied", 'proxy_protocol = { from = ["192.0.2.0/24"] }'))
    assert not is_served(broker.connect("proxied"), HEADER % 1 + CONNECT)
    # Elsewhere the header is garbage.
    assert not is_served(broker.connect("mqtt"), HEADER % 1 + CONNECT)
    assert "which is none of the proxies in proxy_protocol.from" in broker.stop()


def test_unix_sockets_have_their_mode_and_replace_what_a_kill_left(start, tmp_path):
    path = tmp_path / "mqtt.sock"
    group = os.getgid()
    unix = section("unix", f'socket_mode = "600"\nsocket_group = "{group}"', f"unix:{path}")
    broker = start(unix)
    assert broker.addresses["unix"] == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and path.stat().st_gid == group
    with broker.connect("unix") as peer:
        assert is_served(peer)
    elsewhere = [argument.replace(str(tmp_path / "data"), str(tmp_path / "other")) for argument in broker.command]
    second = subprocess.run(elsewhere, capture_output=True, text=True, timeout=DEADLINE_S)
    assert second.returncode != 0 and "another process listens on the socket" in second.stderr
    broker.process.kill()
    broker.process.wait()
    assert path.exists()
    again = start(unix)
    assert is_served(again.connect("unix"))
    again.stop()
    assert not path.exists()


def test_kafka_takes_a_unix_socket_with_an_address_to_tell(start, tmp_path):
    path = tmp_path / "kafka.sock"
    broker = start(section("unix", 'advertised = "broker.example.com:9092"', f"unix:{path}", "kafka"))
    with broker.connect("unix") as peer:
        # Metadata, version 0, of no topic: all topics and brokers.
        request = b"\x00\x03\x00\x00\x00\x00\x00\x07\x00\x01a\x00\x00\x00\x00"
        peer.sendall(len(request).to_bytes(4) + request)
        assert b"broker.example.com" in peer.recv(1000)
    broker.stop()


def test_a_listener_has_a_limit_of_its_own(start):
    broker = start(section("small", "max_connections = 2"))
    peers = [broker.connect("small") for _ in range(3)]
    assert [is_served(peer) for peer in peers] == [True, True, False]
    assert is_served(broker.connect("mqtt"))
    assert 'the limit of max_connections of listener "small"' in broker.stop()


def test_an_address_opens_so_many_connections_per_second(start):
    broker = start("[server]\nmax_connection_rate_per_address = 20\n")
    served = sum(is_served(broker.connect("mqtt")) for _ in range(60))
    assert 20 <= served < 60
    assert "server.max_connection_rate_per_address" in broker.stop()


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("proxy_protocol = { from = [] }", "at least one address"),
        ('proxy_protocol = { from = ["10.0.0.0/99"] }', "is not a network"),
        ('socket_mode = "660"', "socket_mode and socket_group are for"),
        ("max_connections = 0", "max_connections"),
        ('websocket = { path = "mqtt" }', "websocket.path"),
        ('websocket = { allowed_origins = ["example.com"] }', "websocket.allowed_origins"),
    ],
)
def test_wrong_settings_are_refused_at_start(tmp_path, rest, error):
    file = tmp_path / "mainstem.toml"
    file.write_text(section("wrong", rest))
    command = [str(binary()), "--config", str(file), "--data", str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert ended.returncode != 0 and error in ended.stderr
