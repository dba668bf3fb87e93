"""A broker with users and rules, and clients of all its protocols that log in."""

import base64
import json
import subprocess
import time
from pathlib import Path

import httpx
from confluent_kafka.admin import AdminClient

from broker import binary, launch
from peer import V5, Peer

DEADLINE_S = 30
USERS = ("admin", "alice", "bob")


class Address:
    """Host and port of one listener."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def __str__(self):
        return f"{self.host}:{self.port}"


class SecureBroker:
    """The super user `admin`, and `alice` and `bob`, who have no rights; passwords are the names reversed.
    `admin_first`: `admin` is added before the broker runs, because it lets nobody in without a log-in."""

    def __init__(self, folder: Path, settings: str = "", extra: str = "", admin_first: bool = False):
        self.folder = folder
        self.data = folder / "data"
        self.audit_log = folder / "audit.jsonl"
        self._config = folder / "mainstem.toml"
        self._config.write_text(f"""
[kafka]
sasl = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
failed_authentication_delay_ms = 50

[security]
super_users = ["admin"]
audit_log = "{self.audit_log}"
{settings}

{extra}
""")
        self.mqtt = self.kafka = self.http = Address("127.0.0.1", 0)
        if admin_first:
            command = [str(binary()), "user", "add", "admin", "--data", str(self.data)]
            subprocess.run(command, input="nimda", text=True, capture_output=True, timeout=DEADLINE_S, check=True)
        self.start()
        for name in USERS[1:] if admin_first else USERS:
            self.tool("user", "add", name, stdin=name[::-1])
        # As soon as there is a rule, what no rule allows is denied.
        self.rule("--user", "nobody", "--allow", "publish", "mqtt:nothing")

    def start(self):
        """Starts the broker with its data, on the addresses it had before."""
        flags = ["--config", str(self._config), "--data", str(self.data), "--listen", str(self.mqtt)]
        flags += ["--kafka-listen", str(self.kafka), "--http-listen", str(self.http)]
        self.process, addresses = launch(flags)
        self.mqtt, self.kafka, self.http = (Address(*addresses[name]) for name in ("mqtt", "kafka", "http"))

    def restart(self):
        """Kills the broker and starts it again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self):
        self.process.terminate()
        assert self.process.wait(15) == 0

    def run(self, *arguments: str, stdin: str = "", user="admin") -> subprocess.CompletedProcess:
        """Runs the command-line tool as a user."""
        log_in = [] if arguments[:3] == ("user", "add", "admin") else ["--username", user, "--password", user[::-1]]
        command = [str(binary()), *arguments, "--broker", str(self.http), *log_in]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def tool(self, *arguments: str, stdin: str = "") -> str:
        """Runs the command-line tool as `admin`; it must succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rule(self, *arguments: str) -> list[str]:
        """Adds rules. Returns their numbers."""
        known = self.rules()
        self.tool("acl", "add", *arguments)
        return [number for number in self.rules() if number not in known]

    def rules(self) -> list[str]:
        return [str(json.loads(line)["id"]) for line in self.tool("acl", "list", "-J").splitlines()]

    def delete_rules(self, numbers):
        for number in numbers:
            self.tool("acl", "delete", number)

    def api(self, user: str | None = "admin", **settings) -> httpx.Client:
        """A client of the HTTP API."""
        log_in = (user, user[::-1]) if user else None
        return httpx.Client(base_url=f"http://{self.http}", auth=log_in, timeout=DEADLINE_S, **settings)

    def peer(self, user: str | None, client_id: str, version=V5, **settings) -> Peer:
        """An MQTT client, not yet connected."""
        peer = Peer(self.mqtt, client_id, version, **settings)
        if user:
            peer.paho.username_pw_set(user, user[::-1])
        return peer

    def librdkafka(self, user: str, mechanism="SCRAM-SHA-256", password=None, **settings) -> dict:
        """Settings of librdkafka's clients."""
        log_in = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password or user[::-1]}
        common = {"bootstrap.servers": str(self.kafka), "security.protocol": "SASL_PLAINTEXT"}
        return common | log_in | {key.replace("_", "."): value for key, value in settings.items()}

    def admin_client(self, user="admin") -> AdminClient:
        return AdminClient(self.librdkafka(user))

    def audited(self, matches, count=1) -> list[dict]:
        """The lines of the audit log that satisfy `matches`, once there are `count`."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            lines = self.audit_log.read_text().splitlines(keepends=True)
            events = [json.loads(line) for line in lines if line.endswith("\n")]
            found = [event for event in events if matches(event)]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, events[-20:]


def basic(user: str, password: str) -> str:
    """The value of an Authorization header."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
