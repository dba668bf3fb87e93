"""A broker as a process of its own, with all its listeners: tests may kill it and start it again with the same data."""

import tempfile
from pathlib import Path

from broker import DRAIN_S, launch


class Address:
    """Host and port of one listener."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def __str__(self):
        return f"{self.host}:{self.port}"


class BrokerProcess:
    """A broker with this configuration and an empty data directory; `mqtt`, `kafka` and `http` are its addresses."""

    def __init__(self, configuration=""):
        self._directory = tempfile.TemporaryDirectory(prefix="mainstem-test-")
        self._configuration = Path(self._directory.name) / "mainstem.toml"
        self.configure(configuration)
        self.mqtt = self.kafka = self.http = Address("127.0.0.1", 0)
        self.start()

    @property
    def data(self) -> Path:
        """The data directory."""
        return Path(self._directory.name) / "data"

    @property
    def url(self) -> str:
        """The HTTP API."""
        return f"http://{self.http}"

    def start(self):
        """Starts the broker with its data, on the addresses it had before."""
        flags = ["--config", str(self._configuration), "--data", f"{self._directory.name}/data", "--listen", str(self.mqtt)]
        flags += ["--kafka-listen", str(self.kafka), "--http-listen", str(self.http)]
        self.process, addresses = launch(flags)
        self.mqtt, self.kafka, self.http = (Address(*addresses[listener]) for listener in ("mqtt", "kafka", "http"))

    def configure(self, configuration):
        """Writes the configuration for later starts."""
        self._configuration.write_text(configuration)

    def kill(self):
        """Sends SIGKILL and waits."""
        self.process.kill()
        self.process.wait()

    def terminate(self):
        """Sends SIGTERM without waiting."""
        self.process.terminate()

    def stop(self):
        """Drains the broker and waits for it."""
        self.terminate()
        self.ended()

    def ended(self):
        """Waits for a draining broker; fails unless it exits with status 0."""
        try:
            status = self.process.wait(DRAIN_S)
        finally:
            self.clear()
        assert status == 0, f"the broker exited with status {status} after SIGTERM"

    def clear(self):
        """Kills the broker if it still runs, and removes its files."""
        if self.process.poll() is None:
            self.kill()
        self._directory.cleanup()
