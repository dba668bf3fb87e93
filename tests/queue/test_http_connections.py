"""httpx beside raw sockets that occupy the connections of the HTTP listener."""

import contextlib
import resource
import socket

import httpx
import paho.mqtt.client as paho
import pytest

from broker_process import BrokerProcess
from operations import DEADLINE_S, eventually

MAX = 256  # the default of http.max_connections
MONITORING = ["/metrics", "/v1/health/live", "/v1/health/ready"]
KINDS = {
    "silent": b"",
    "half a head": b"GET /v1/health/live HTTP/1.1\r\nhost: loc",
    "between two requests": b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n",
}


@pytest.fixture(scope="module", autouse=True)
def open_files():
    """Allows as many sockets as these tests open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def start():
    """Starts a broker with this configuration."""
    with contextlib.ExitStack() as stack:
        def start(configuration=""):
            own = BrokerProcess(configuration)
            stack.callback(own.clear)
            return own

        yield start


@contextlib.contextmanager
def sockets(broker, count, first_bytes):
    """Raw connections that send nothing after these bytes."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            opened.append(stack.enter_context(socket.create_connection((broker.http.host, broker.http.port), DEADLINE_S)))
            opened[-1].sendall(first_bytes)
        yield opened


def http(broker):
    return httpx.Client(base_url=broker.url, timeout=DEADLINE_S, trust_env=False)


@pytest.mark.parametrize("kind", KINDS)
def test_idle_connections_keep_nobody_out(start, unique, kind):
    broker = start()
    with sockets(broker, MAX + 100, KINDS[kind]) as idle:
        for number in range(20):
            with http(broker) as client:
                assert client.put(f"/v1/queues/{unique}-{number}", json={}).status_code == 201
                assert client.get("/metrics").status_code == 200
        while idle[0].recv(4096):
            pass  # responses, then the close that made room


def test_requests_under_way_leave_health_and_metrics_reachable(start, unique):
    broker = start("http.max_connections = 4")
    url = f"/v1/queues/{unique}"
    with http(broker) as client:
        assert client.put(url, json={}).status_code == 201
    waiting = f"POST {url}/receive?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with sockets(broker, 4, waiting) as busy, sockets(broker, 200, b""):
        def is_full():
            with http(broker) as client:
                return client.get(url).status_code == 503

        eventually(is_full, "all connections are busy")
        for path in MONITORING:
            with http(broker) as client:
                assert client.get(path).status_code == 200
        with http(broker) as client:
            refused = client.post(f"{url}/messages", content=bytes(100_000), headers={"content-type": "text/plain"})
            assert refused.status_code == 503 and "http.max_connections" in refused.json()["detail"]
            assert refused.headers["retry-after"] == "1"
        busy.pop().close()

        def is_sent():
            with http(broker) as client:
                sent = client.post(f"{url}/messages", json={"messages": [{"body": "a"}] * 3})
                return sent.status_code == 201

        eventually(is_sent, "a connection is free")
        for connection in busy:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_what_does_not_arrive_in_time_ends_the_connection(start):
    broker = start("http.request_timeout_ms = 300\nhttp.idle_timeout_ms = 300")
    head = b"GET /v1/health/live HTTP/1.1\r\nhost: localhost\r\n"
    body = b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\nabc"
    for first_bytes, status in [(b"", b""), (head, b"408"), (body, b"408"), (head + b"\r\n", b"200")]:
        with sockets(broker, 1, first_bytes) as (connection,):
            received = b""
            while chunk := connection.recv(4096):
                received += chunk
            assert received[9:12] == status


def test_the_limit_per_address_counts_all_listeners(start, unique):
    broker = start("server.max_connections_per_address = 2")
    mqtt = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=unique)
    with http(broker) as client, connected(mqtt, broker):
        assert client.get("/v1/health/live").status_code == 200
        for address in (broker.mqtt, broker.kafka, broker.http):
            with socket.create_connection((address.host, address.port), DEADLINE_S) as refused:
                assert refused.recv(1) == b""
        assert client.get("/v1/health/live").status_code == 200

    def is_admitted():
        with contextlib.suppress(httpx.TransportError), http(broker) as client:
            return client.get("/v1/health/live").status_code == 200

    eventually(is_admitted, "the address has room")


@contextlib.contextmanager
def connected(mqtt, broker):
    """A connected paho client."""
    mqtt.connect(broker.mqtt.host, broker.mqtt.port)
    mqtt.loop_start()
    try:
        eventually(mqtt.is_connected, "CONNACK")
        yield
    finally:
        mqtt.disconnect()
        mqtt.loop_stop()
