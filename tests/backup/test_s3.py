"""`mainstem backup` and `mainstem restore` with an S3 gateway, versitygw, which Go builds. Skipped without a Go that can."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from broker import ROOT, ConfiguredBroker, binary

MODULE = Path(__file__).parent / "gateway"
TOOLS = ROOT / "target" / "tools"
INSTALL_S = 600
START_S = 30
USER, SECRET = "mainstem", "a-secret-of-the-test"


@pytest.fixture(scope="session")
def versitygw() -> Path:
    command = ["go", "-C", str(MODULE), "install", "tool"]
    environment = {**os.environ, "GOBIN": str(TOOLS)}
    try:
        subprocess.run(command, env=environment, check=True, timeout=INSTALL_S, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no versitygw: {error}")
    return TOOLS / "versitygw"


class Gateway:
    """An S3 gateway whose bucket `backups` is a directory."""

    def __init__(self, program: Path, folder: Path):
        self.program, self.folder = program, folder
        (folder / "backups").mkdir()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.start()

    def start(self):
        environment = {**os.environ, "ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": SECRET}
        command = [self.program, "--quiet", "--port", f"127.0.0.1:{self.port}", "posix", str(self.folder)]
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        end = time.monotonic() + START_S
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert time.monotonic() < end and self.process.poll() is None, "the gateway did not start"

    def stop(self):
        self.process.kill()
        self.process.wait()

    def run(self, *arguments: str, secret=SECRET) -> subprocess.CompletedProcess:
        """Runs `mainstem` with the credentials of the gateway."""
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_REGION": "us-east-1",
        }
        return subprocess.run([binary(), *arguments], env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def gateway(versitygw, tmp_path):
    (tmp_path / "bucket").mkdir()
    running = Gateway(versitygw, tmp_path / "bucket")
    yield running
    running.stop()


def start_broker(folder: Path) -> ConfiguredBroker:
    """Starts a broker on the data in a folder."""
    folder.mkdir(exist_ok=True)
    return ConfiguredBroker(folder, "")


@pytest.fixture
def source(tmp_path):
    running = start_broker(tmp_path / "source")
    yield running
    running.kill()


def run(*arguments: str, stdin="") -> str:
    done = subprocess.run([binary(), *arguments], input=stdin, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


@pytest.mark.timeout(INSTALL_S + 300)
def test_a_broker_is_restored_from_a_bucket(source, gateway, tmp_path):
    kafka, http = source.address("kafka"), source.address("http")
    target = "s3://backups/plants/one"
    run("topic", "create", "-b", kafka, "records")
    lines = "".join(f"{number} {'x' * 1000}\n" for number in range(12_000))
    run("produce", "-b", kafka, "-t", "records", stdin=lines)

    first = gateway.run("backup", target, "--http", http, "--json")
    assert first.returncode == 0, first.stderr
    run("produce", "-b", kafka, "-t", "records", stdin="last\n")
    second = gateway.run("backup", target, "--http", http, "--json")
    first, second = json.loads(first.stdout), json.loads(second.stdout)
    # Only the end of the log is stored again.
    assert second["bytes"] > first["bytes"] > 12_000_000
    assert 0 < second["uploaded_bytes"] < 8 << 20
    assert gateway.run("backup", "check", target).returncode == 0

    data = tmp_path / "copy" / "data"
    restored = gateway.run("restore", target, "--data", str(data))
    assert restored.returncode == 0, restored.stderr
    run("verify", "--data", str(data))
    copy = start_broker(tmp_path / "copy")
    try:
        assert run("consume", "-b", copy.address("kafka"), "-t", "records", "-o", "beginning", "-e") == lines + "last\n"
    finally:
        copy.kill()


@pytest.mark.timeout(INSTALL_S + 300)
def test_errors_of_the_bucket_are_reported(source, gateway, tmp_path):
    http = source.address("http")
    target = "s3://backups/plants/one"
    refused = gateway.run("backup", target, "--http", http, secret="another-secret")
    assert refused.returncode == 1 and "object" in refused.stderr, refused
    missing = gateway.run("backup", "s3://nothing/here", "--http", http)
    assert missing.returncode == 1 and "NoSuchBucket" in missing.stderr, missing
    none = gateway.run("restore", target, "--data", str(tmp_path / "restored"))
    assert none.returncode == 1 and "there are no backups" in none.stderr, none
    assert gateway.run("backup", target, "--http", http).returncode == 0

    # An object that someone has changed.
    objects = [path for path in (gateway.folder / "backups/plants/one/data").rglob("*") if path.is_file()]
    largest = max(objects, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    damaged = gateway.run("restore", target, "--data", str(tmp_path / "restored"))
    assert damaged.returncode == 1 and largest.name in damaged.stderr, damaged
    assert (tmp_path / "restored" / "restore-incomplete").exists()
