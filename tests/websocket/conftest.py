"""A broker with WebSocket listeners, plain and with TLS."""

import tempfile
from pathlib import Path

import pytest

from broker import LISTENERS, ConfiguredBroker, cert

NAMES = (*LISTENERS, "ws", "wss")


def configuration(certs: Path) -> str:
    return f"""
[mqtt]
connect_timeout_ms = 3000

[[listener]]
name = "ws"
protocol = "mqtt"
listen = "127.0.0.1:0"
websocket = {{}}

[[listener]]
name = "wss"
protocol = "mqtt"
listen = "127.0.0.1:0"
tls = {{ certificate = "{certs}/server.crt", key = "{certs}/server.key" }}
websocket = {{ path = "/mqtt", allowed_origins = ["https://plant.example.com"] }}
"""


class WebSocketBroker(ConfiguredBroker):
    """A broker with WebSocket listeners, and its certificate authority."""

    def __init__(self, folder: Path):
        certs = folder / "certs"
        self.ca = str(certs / "ca.crt")
        cert(certs, "--host", "localhost", "--host", "127.0.0.1")
        super().__init__(folder, configuration(certs), NAMES)


@pytest.fixture(scope="session")
def websocket():
    with tempfile.TemporaryDirectory(prefix="mainstem-websocket-") as folder:
        broker = WebSocketBroker(Path(folder))
        yield broker
        broker.stop()
