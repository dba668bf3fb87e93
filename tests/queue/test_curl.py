"""curl on the command line: the commands of docs/http.md, and how failures show."""

import json
import subprocess

import pytest

BODY = "-H", "content-type:application/json", "-d"


@pytest.fixture
def curl(broker_process):
    """Runs curl for a path of the HTTP API and returns its output. `fails`: expected exit status."""
    def run(*arguments, path, fails=0):
        command = ["curl", "-sS", "--noproxy", "*", "--fail-with-body", "--max-time", "15", *arguments, f"{broker_process.url}{path}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert done.returncode == fails, done.stderr + done.stdout
        return done.stdout

    return run


def test_the_lifecycle_of_a_message(curl, unique):
    url = f"/v1/queues/{unique}"
    assert json.loads(curl("-X", "PUT", *BODY, '{"lease_ms": 60000}', path=url))["settings"]["lease_ms"] == 60_000
    curl("-X", "POST", "-H", "content-type:text/plain", "-d", "resize cat.png", path=f"{url}/messages")
    (message,) = json.loads(curl("-X", "POST", path=f"{url}/receive?wait_ms=20000"))["messages"]
    assert message["body"] == "resize cat.png"
    receipts = json.dumps({"receipts": [message["receipt"]]})
    done = json.loads(curl("-X", "POST", *BODY, receipts, path=f"{url}/ack"))
    assert done == {"results": [{"receipt": message["receipt"], "outcome": "ok"}]}
    late = json.loads(curl("-X", "POST", *BODY, receipts, path=f"{url}/ack", fails=22))
    assert (late["status"], late["type"]) == (409, "urn:mainstem:problem:stale")
    assert curl("-X", "DELETE", path=url) == ""
    assert json.loads(curl(path=url, fails=22))["status"] == 404


def test_a_file_is_a_message(curl, unique, tmp_path):
    """A body of curl's default content type, and one that curl announces with `Expect: 100-continue`."""
    content = bytes(range(256)) * 2048
    (tmp_path / "picture").write_bytes(content)
    path = f"/v1/queues/{unique}"
    assert json.loads(curl("--data-binary", f"@{tmp_path}/picture", path=f"{path}/messages?key=picture&priority=2"))
    got = json.loads(curl("-X", "POST", path=f"{path}/receive"))["messages"][0]
    assert (got["key"], len(got["body_base64"])) == ("picture", (len(content) + 2) // 3 * 4)
    (tmp_path / "large").write_bytes(b"x" * (8 * 1024 * 1024 + 1))
    refused = json.loads(curl("--data-binary", f"@{tmp_path}/large", path=f"{path}/messages", fails=22))
    assert refused["type"] == "urn:mainstem:problem:too-large"


def test_an_interrupted_long_poll_loses_nothing(curl, operations, queue):
    """curl gives up while the queue is empty: a later message goes to the next consumer, as its first delivery."""
    curl("-X", "POST", "--max-time", "0.3", path=f"/v1/queues/{queue}/receive?wait_ms=20000", fails=28)
    operations.send(queue, "x")
    (message,) = json.loads(curl("-X", "POST", path=f"/v1/queues/{queue}/receive?wait_ms=20000"))["messages"]
    assert (message["body"], message["delivery_count"]) == ("x", 1)


def test_one_connection_for_several_requests(broker_process, queue):
    """curl keeps the connection open between the requests of one command."""
    url = f"{broker_process.url}/v1/queues/{queue}"
    each = ["-o", "/dev/null", "-w", "%{http_code} %{num_connects}\n"]
    command = ["curl", "-sS", "--noproxy", "*", *each, url, "--next", "-sS", *each, "-d", "x", f"{url}/messages",
               "--next", "-sS", *each, "-X", "POST", f"{url}/receive"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.split("\n") == ["200 1", "201 0", "200 0", ""]
