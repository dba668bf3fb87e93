"""A broker with all its doors open, as a process of its own: it can be killed and started again where it was."""

import tempfile
from pathlib import Path

from broker import DRAIN_S, launch


class Door:
    """Where one door listens, as the clients of the other suites want to be told."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def __str__(self):
        return f"{self.host}:{self.port}"


class Doors:
    """The doors `mqtt`, `kafka` and `http` of a broker with this configuration and an empty data directory."""

    def __init__(self, configuration=""):
        self._directory = tempfile.TemporaryDirectory(prefix="mainstem-test-")
        self._configuration = Path(self._directory.name) / "mainstem.toml"
        self.configure(configuration)
        self.mqtt = self.kafka = self.http = Door("127.0.0.1", 0)
        self.start()

    @property
    def data(self) -> Path:
        """Where it keeps what lasts."""
        return Path(self._directory.name) / "data"

    @property
    def url(self) -> str:
        """The operations door."""
        return f"http://{self.http}"

    def start(self):
        """Starts it with the data there is, on the addresses it has had."""
        flags = ["--config", str(self._configuration), "--data", f"{self._directory.name}/data", "--listen", str(self.mqtt)]
        flags += ["--kafka-listen", str(self.kafka), "--http-listen", str(self.http)]
        self.process, addresses = launch(flags)
        self.mqtt, self.kafka, self.http = (Door(*addresses[door]) for door in ("mqtt", "kafka", "http"))

    def configure(self, configuration):
        """Writes the configuration that it is started with from now on."""
        self._configuration.write_text(configuration)

    def kill(self):
        """Ends it by SIGKILL."""
        self.process.kill()
        self.process.wait()

    def terminate(self):
        """Sends SIGTERM, and does not wait for the end."""
        self.process.terminate()

    def stop(self):
        """Drains it."""
        self.terminate()
        self.ended()

    def ended(self):
        """Waits for the end of one that drains, and fails if it does not say that all went well."""
        try:
            status = self.process.wait(DRAIN_S)
        finally:
            self.clear()
        assert status == 0, f"the broker exited with status {status} after SIGTERM"

    def clear(self):
        """Removes what it leaves, and whatever of it still runs."""
        if self.process.poll() is None:
            self.kill()
        self._directory.cleanup()
