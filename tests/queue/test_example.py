"""The worked example of the README: MQTT and curl workers, failures, dead letters, redrive."""

import os
import signal
import subprocess
import sys

import pytest
from PIL import Image

from broker import ROOT, binary
from operations import Operations, eventually

EXAMPLE = ROOT / "examples" / "worker-queue"
DEADLINE_S = 30


@pytest.fixture
def run(broker_process, operations, unique):
    """Starts example scripts and the command line tool on a queue of this test; ends them afterwards."""
    started = []
    at = ["--host", broker_process.mqtt.host, "--port", str(broker_process.mqtt.port), "--queue", unique]
    environment = {**os.environ, "MAINSTEM_URL": broker_process.url, "QUEUE": unique, "no_proxy": "*",
                   "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}

    class Run:
        queue = unique

        def start(self, script, stderr=None, **more):
            """Starts a worker in its own process group, with additional environment variables."""
            command = [EXAMPLE / script, *(at if script.endswith(".py") else [])]
            process = subprocess.Popen(command, env={**environment, **more}, stderr=stderr, start_new_session=True)
            started.append(process)
            return started[-1]

        def submit(self, *arguments):
            command = [EXAMPLE / "submit.py", *at, *map(str, arguments)]
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=DEADLINE_S)

        def mainstem(self, *arguments):
            command = [binary(), "queue", *arguments, "--http", str(broker_process.http)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
            assert done.returncode == 0, done.stderr
            return done.stdout

    yield Run()
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pictures(directory, count, width=400):
    directory.mkdir()
    made = [directory / f"{number}.png" for number in range(count)]
    for number, path in enumerate(made):
        Image.new("RGB", (width, width // 2), (number, 0, 0)).save(path)
    return made


def is_small(path):
    with Image.open(path) as image:
        return image.size == (128, 64)


def dead_letters(operations, queue, count):
    """Waits until a queue has this many messages, and returns them."""
    def found():
        answer = operations.ask("GET", f"/v1/queues/{queue}.dead/peek")
        return answer.is_success and len(answer.json()["messages"]) == count and answer.json()["messages"]

    return eventually(found, f"{count} dead letters")


def test_the_example(run, operations, tmp_path):
    queue, small = run.queue, tmp_path / "small"
    run.mainstem("create", queue, "--set", "max_deliveries=3", "--set", "backoff_ms=50", "--set", "lease_ms=60000")
    workers = [run.start("worker_mqtt.py") for _ in range(2)]
    images = pictures(tmp_path / "in", 20)
    for _ in range(2):
        done = run.submit("--out", small, *images)
        assert (done.returncode, done.stdout) == (0, "20 jobs\n"), done.stderr
    operations.empty(queue)
    assert all(is_small(small / image.name) for image in images)
    assert len(list(small.iterdir())) == 20
    assert operations.info(queue)["duplicates"] == 20, "submitting twice is harmless"

    (broken := tmp_path / "broken.png").write_text("no picture")
    missing = tmp_path / "missing.png"
    run.submit("--out", small, broken, missing)
    letters = dead_letters(operations, queue, 2)
    reasons = {letter["headers"]["dead-letter-reason"]: letter["headers"]["dead-letter-count"] for letter in letters}
    assert reasons == {"rejected": "1", "max-deliveries": "3"}
    assert "dead-letter-reason=rejected" in run.mainstem("peek", f"{queue}.dead", "-f", "%h\\n  %s\\n")

    for worker in workers:
        worker.terminate()
        assert worker.wait(DEADLINE_S) == 0
    for path, image in zip((broken, missing), images):
        image.replace(path)
    assert run.mainstem("redrive", f"{queue}.dead") == "2\n"
    run.start("worker.sh")
    operations.empty(f"{queue}.dead")
    operations.empty(queue)
    assert is_small(small / "broken.png") and is_small(small / "missing.png")


def test_curl_and_paho_examples_agree(run, operations, tmp_path):
    """The shell worker rejects impossible work, and fails work that may succeed later."""
    run.mainstem("create", run.queue, "--set", "max_deliveries=2", "--set", "backoff_ms=10")
    run.start("worker.sh")
    run.submit("--out", tmp_path, tmp_path / "missing.png")
    operations.send(run.queue, "no job")
    letters = dead_letters(operations, run.queue, 2)
    assert {letter["headers"]["dead-letter-reason"] for letter in letters} == {"max-deliveries", "rejected"}


def test_a_killed_worker_of_the_example(run, operations, tmp_path):
    """Killed with all its children repeatedly while it works: every picture exists in the end."""
    images = pictures(tmp_path / "in", 60, width=1200)
    run.submit("--out", tmp_path / "small", *images)
    killed = 0
    while operations.info(run.queue)["messages"]:
        worker = run.start("worker_mqtt.py")
        before = operations.group(run.queue)["acked"]
        eventually(lambda: operations.group(run.queue)["acked"] >= min(60, before + 20), "it works")
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        killed += 1
        eventually(lambda: operations.group(run.queue)["leased"] == 0, "its connection is lost")
    assert killed >= 2
    small = tmp_path / "small"
    assert all((small / image.name).exists() for image in images)


@pytest.mark.parametrize("status, then", [(0, "ack"), (65, "reject")])
def test_the_broker_is_down_when_a_job_completes(run, own_broker_process, tmp_path, status, then):
    """The shell worker survives, and its result counts when the broker is back."""
    # Work that lasts until the test ends it.
    gate, work, errors = tmp_path / "gate", tmp_path / "python3", tmp_path / "errors"
    work.write_text(f"#!/bin/sh\ncat > /dev/null\nuntil [ -e {gate} ]; do sleep 0.02; done\nexit {status}\n")
    work.chmod(0o755)
    with Operations(own_broker_process.url) as operations, errors.open("w") as stderr:
        path = f"{tmp_path}:{os.environ['PATH']}"
        worker = run.start("worker.sh", stderr=stderr, MAINSTEM_URL=own_broker_process.url, PATH=path)
        operations.send(run.queue, "a job")
        eventually(lambda: operations.group(run.queue)["leased"] == 1, "it has the job")
        own_broker_process.kill()
        gate.touch()
        eventually(lambda: "curl: " in errors.read_text() or worker.poll(), "it has found nobody to tell")
        own_broker_process.start()
        eventually(lambda: operations.info(run.queue)["messages"] == 0 or worker.poll(), "it is settled")
        assert worker.poll() is None, "it works on"
        assert operations.ask("GET", f"/v1/queues/{run.queue}.dead").is_success == (then == "reject")
        operations.send(run.queue, "another job")
        operations.empty(run.queue)
    own_broker_process.stop()
