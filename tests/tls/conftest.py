"""A broker with TLS listeners for MQTT, Kafka and HTTP, and the certificates of its clients, made by `mainstem cert`."""

import tempfile
from pathlib import Path

import pytest

from broker import LISTENERS, ConfiguredBroker, cert

NAMES = (*LISTENERS, "mqtts", "mqttmutual", "kafkas", "https", "httpmutual")
# Longest time for the handshake of an HTTP client.
HANDSHAKE_S = 2
HTTP_CONNECTIONS = 16


def configuration(certs: Path, check_interval_s: int) -> str:
    """For MQTT and HTTP each one listener without client certificates, and one that requires them; one for Kafka."""
    server = f'certificate = "{certs}/server.crt", key = "{certs}/server.key"'
    return f"""
[server]
certificate_check_interval_s = {check_interval_s}

[http]
max_connections = {HTTP_CONNECTIONS}
request_timeout_ms = {HANDSHAKE_S * 1000}

[[listener]]
name = "mqtts"
protocol = "mqtt"
listen = "127.0.0.1:0"
tls = {{ {server} }}

[[listener]]
name = "mqttmutual"
protocol = "mqtt"
listen = "127.0.0.1:0"
tls = {{ {server}, client_certificates = "required", client_ca = "{certs}/ca.crt", min_version = "1.3" }}

[[listener]]
name = "kafkas"
protocol = "kafka"
listen = "127.0.0.1:0"
tls = {{ {server} }}

[[listener]]
name = "https"
protocol = "http"
listen = "127.0.0.1:0"
tls = {{ {server} }}

[[listener]]
name = "httpmutual"
protocol = "http"
listen = "127.0.0.1:0"
tls = {{ {server}, client_certificates = "required", client_ca = "{certs}/ca.crt" }}
"""


class SecureBroker(ConfiguredBroker):
    """A broker with TLS, and the folder of the certificates."""

    def __init__(self, folder: Path, check_interval_s: int = 3600):
        self.certs = folder / "certs"
        self.ca = str(self.certs / "ca.crt")
        cert(self.certs, "--host", "localhost", "--host", "127.0.0.1", "--client", "device-7")
        super().__init__(folder, configuration(self.certs, check_interval_s), NAMES)

    def identity(self, name: str) -> tuple[str, str]:
        return str(self.certs / f"{name}.crt"), str(self.certs / f"{name}.key")


@pytest.fixture(scope="session")
def secure():
    with tempfile.TemporaryDirectory(prefix="mainstem-tls-") as folder:
        broker = SecureBroker(Path(folder))
        yield broker
        broker.stop()
