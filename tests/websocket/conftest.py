"""A broker with WebSocket listeners, plain and with TLS."""

import subprocess
import tempfile
from pathlib import Path

import pytest

from broker import LISTENERS, binary, launch

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


class WebSocketBroker:
    """The broker's process, the ports of its listeners, and its authority."""

    def __init__(self, folder: Path):
        certs = folder / "certs"
        self.ca = str(certs / "ca.crt")
        make = [str(binary()), "cert", str(certs), "--host", "localhost", "--host", "127.0.0.1"]
        subprocess.run(make, check=True, capture_output=True)
        config = folder / "mainstem.toml"
        config.write_text(configuration(certs))
        listen = ("--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        flags = ["--config", str(config), "--data", str(folder / "data"), *listen]
        self.process, self.addresses = launch(flags, NAMES)

    def port(self, listener: str) -> int:
        return self.addresses[listener][1]

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

    def stop(self):
        self.process.terminate()
        assert self.process.wait(15) == 0


@pytest.fixture(scope="session")
def websocket():
    with tempfile.TemporaryDirectory(prefix="mainstem-websocket-") as folder:
        broker = WebSocketBroker(Path(folder))
        yield broker
        broker.stop()
