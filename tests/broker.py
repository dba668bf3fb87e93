"""The broker under test, as a process.

`MAINSTEM_BROKER=HOST:PORT` names a running broker, `MAINSTEM_KAFKA=HOST:PORT` one for the Kafka tests. Otherwise the tests
start one on a free port: the binary `MAINSTEM_BIN`, or the release build, or the debug build.
"""

import os
import re
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTENERS = ("mqtt", "kafka", "http")
START_S = 30
DRAIN_S = 15


def binary() -> Path:
    """The binary to start: `MAINSTEM_BIN`, else the release build, else the debug build."""
    named = os.environ.get("MAINSTEM_BIN")
    if named:
        return Path(named)
    for profile in ("release", "debug"):
        built = ROOT / "target" / profile / "mainstem"
        if built.exists():
            return built
    raise FileNotFoundError("no mainstem binary: build one, or name it in MAINSTEM_BIN")


def launch(flags: list[str], listeners=LISTENERS) -> tuple[subprocess.Popen, dict[str, tuple[str, int]]]:
    """Starts the binary and waits until it accepts connections. Returns the process and the listeners' addresses.
    `listeners`: names of all listeners, also of those that the configuration adds."""
    command = [str(binary()), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    listening = re.compile(r"(\w+) listening on (\S+):(\d+)\s*$")
    addresses: dict[str, tuple[str, int]] = {}
    ready = threading.Event()

    def read_stdout():
        # Reads to the end, so that the broker never blocks on a full pipe.
        for line in process.stdout:
            found = listening.search(line)
            if found:
                addresses[found[1]] = (found[2], int(found[3]))
            if len(addresses) == len(listeners):
                ready.set()
        ready.set()

    threading.Thread(target=read_stdout, daemon=True).start()
    if not ready.wait(START_S) or len(addresses) < len(listeners):
        process.kill()
        process.wait()
        raise RuntimeError(f"the broker did not say within {START_S} s where it listens: {command}")
    return process, addresses


def wait_until_drained(process: subprocess.Popen):
    """Waits for a broker that was sent SIGTERM, and fails unless its exit status is 0."""
    try:
        status = process.wait(DRAIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AssertionError(f"the broker did not stop within {DRAIN_S} s of SIGTERM") from None
    assert status == 0, f"the broker exited with status {status} after SIGTERM"


def cert(directory: Path, *arguments: str):
    """Makes certificates with `mainstem cert`."""
    subprocess.run([str(binary()), "cert", str(directory), *arguments], check=True, capture_output=True)


class ConfiguredBroker:
    """A broker that the tests start with a configuration file. Its files are in `folder`.
    `listeners`: names of all listeners, also of those that the configuration adds."""

    def __init__(self, folder: Path, configuration: str, listeners=LISTENERS):
        self.folder = folder
        self.data = folder / "data"
        self._listeners = listeners
        self.addresses = {name: ("127.0.0.1", 0) for name in LISTENERS}
        self.configure(configuration)
        self.start()

    def configure(self, configuration: str):
        """Writes the configuration for the next start."""
        (self.folder / "mainstem.toml").write_text(configuration)

    def start(self):
        """Starts the broker with its data. The listeners that every broker has keep their addresses."""
        flags = ["--config", str(self.folder / "mainstem.toml"), "--data", str(self.data)]
        for name, flag in zip(LISTENERS, ("--listen", "--kafka-listen", "--http-listen")):
            flags += [flag, self.address(name)]
        self.process, self.addresses = launch(flags, self._listeners)

    def address(self, listener: str) -> str:
        """Host and port of a listener, as clients take them."""
        host, port = self.addresses[listener]
        return f"{host}:{port}"

    def port(self, listener: str) -> int:
        return self.addresses[listener][1]

    def resident_bytes(self) -> int:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024

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
        wait_until_drained(self.process)


class Broker:
    """A broker's address, and its process if the tests started it."""

    listener = "mqtt"
    environment = "MAINSTEM_BROKER"

    def __init__(self, host: str, port: int, process: subprocess.Popen | None = None, data=None, settings=()):
        self.host = host
        self.port = port
        self._process = process
        self._data = data
        self._settings = settings

    @classmethod
    def running(cls) -> "Broker | None":
        """The running broker that the environment names, if any."""
        address = os.environ.get(cls.environment)
        if not address:
            return None
        host, port = address.rsplit(":", 1)
        return cls(host, int(port))

    @classmethod
    def start(cls, *settings: str) -> "Broker":
        """Starts the binary with the given `section.key=VALUE` settings and waits until it accepts connections."""
        data = tempfile.TemporaryDirectory(prefix="mainstem-test-")
        process, addresses = launch(cls.flags("127.0.0.1:0", data.name, settings))
        host, port = addresses[cls.listener]
        return cls(host, port, process, data, settings)

    @classmethod
    def flags(cls, listen: str, data: str, settings) -> list[str]:
        """Command line flags, with the tested listener at the address `listen`."""
        listeners = {"mqtt": "127.0.0.1:0", "kafka": "127.0.0.1:0", "http": "127.0.0.1:0", cls.listener: listen}
        flags = ["--listen", listeners["mqtt"], "--kafka-listen", listeners["kafka"], "--http-listen", listeners["http"]]
        flags += ["--data", data]
        for setting in ("mqtt.sys_interval_s=1", *settings):
            flags += ["--set", setting]
        return flags

    def start_again(self):
        """Restarts it with its data, at its previous address."""
        flags = self.flags(f"{self.host}:{self.port}", self._data.name, self._settings)
        self._process, _ = launch(flags)

    def end(self):
        """Sends SIGKILL; `start_again` restarts it."""
        self._process.kill()
        self._process.wait()

    def terminate(self):
        """Sends SIGTERM without waiting."""
        self._process.send_signal(signal.SIGTERM)

    def wait(self):
        """Waits until a terminated broker has drained, and fails if its exit status is not 0."""
        try:
            wait_until_drained(self._process)
        finally:
            self._data.cleanup()

    def kill(self):
        """Kills a broker that a failed test left running."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._data.cleanup()

    def stop(self):
        """Drains the broker if the tests started it."""
        if self._process is not None:
            self.terminate()
            self.wait()


class KafkaBroker(Broker):
    """A broker for tests of the Kafka listener; `host` and `port` are that listener's."""

    listener = "kafka"
    environment = "MAINSTEM_KAFKA"

    @property
    def bootstrap(self) -> str:
        """The address in the form of Kafka clients."""
        return f"{self.host}:{self.port}"
