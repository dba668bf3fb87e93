"""A broker as a process of its own, with all its listeners: tests may kill it and start it again with the same data."""

import tempfile
from pathlib import Path

from broker import ConfiguredBroker, wait_until_drained


class Address:
    """Host and port of one listener."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def __str__(self):
        return f"{self.host}:{self.port}"


class BrokerProcess(ConfiguredBroker):
    """A broker with this configuration and an empty data directory; `mqtt`, `kafka` and `http` are its addresses."""

    def __init__(self, configuration=""):
        self._directory = tempfile.TemporaryDirectory(prefix="mainstem-test-")
        super().__init__(Path(self._directory.name), configuration)

    @property
    def mqtt(self) -> Address:
        return Address(*self.addresses["mqtt"])

    @property
    def kafka(self) -> Address:
        return Address(*self.addresses["kafka"])

    @property
    def http(self) -> Address:
        return Address(*self.addresses["http"])

    @property
    def url(self) -> str:
        """The HTTP API."""
        return f"http://{self.http}"

    def stop(self):
        """Drains the broker, waits for it, and removes its files."""
        self.terminate()
        self.ended()

    def ended(self):
        """Waits for a draining broker; fails unless it exits with status 0."""
        try:
            wait_until_drained(self.process)
        finally:
            self.clear()

    def clear(self):
        """Kills the broker if it still runs, and removes its files."""
        if self.process.poll() is None:
            self.kill()
        self._directory.cleanup()
