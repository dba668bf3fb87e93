"""Web pages of other origins that use the HTTP API, as browsers send their requests (CORS), with curl."""

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from broker import binary
from secure_broker import DEADLINE_S, SecureBroker

PAGE, STRANGER = "https://console.example.com", "https://evil.example"


@pytest.fixture(scope="module")
def broker():
    with tempfile.TemporaryDirectory(prefix="mainstem-origins-") as folder:
        made = SecureBroker(Path(folder), extra=f'[http]\nallowed_origins = ["{PAGE}", "http://localhost:3000"]')
        yield made
        made.stop()


def curl(broker, path, *arguments):
    """Status, headers and body of a response."""
    command = ["curl", "--noproxy", "*", "-s", "-i", "--http1.1", f"http://{broker.http}{path}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    head, _, body = done.stdout.partition("\n\n")
    status, *fields = head.splitlines()
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return int(status.split()[1]), headers, body


def preflight(broker, origin, method="PUT", path="/v1/queues/x", *more):
    return curl(broker, path, "-X", "OPTIONS", "-H", f"Origin: {origin}", "-H",
                f"Access-Control-Request-Method: {method}", "-H",
                "Access-Control-Request-Headers: authorization,content-type", *more)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_browser_may_ask_for_a_page_that_is_allowed(broker, method):
    """It asks without a log-in, and compares the answer with what the page wants to send."""
    status, headers, body = preflight(broker, PAGE, method)
    assert (status, body) == (204, "")
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["access-control-allow-credentials"] == "true"
    assert method in headers["access-control-allow-methods"].split(", ")
    assert {"authorization", "content-type"} <= set(headers["access-control-allow-headers"].split(", "))
    assert int(headers["access-control-max-age"]) > 0
    assert "origin" in headers["vary"].lower()
    assert headers.get("connection") != "close"
    assert "access-control-allow-private-network" not in headers
    _, headers, _ = preflight(broker, PAGE, method, "/v1/queues/x", "-H", "Access-Control-Request-Private-Network: true")
    assert headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("origin", [STRANGER, "null", f"{PAGE}:8443", "http://console.example.com", "*",
                                    f"{PAGE}.evil.example"])
def test_a_page_that_is_not_allowed_learns_and_changes_nothing(broker, unique, origin):
    for status, headers, body in [
        preflight(broker, origin),
        curl(broker, "/v1/users", "-u", "admin:nimda", "-H", f"Origin: {origin}"),
        curl(broker, f"/v1/queues/{unique}", "-u", "admin:nimda", "-X", "PUT", "-H", f"Origin: {origin}", "-H",
             "Content-Type: application/json", "-d", "{}"),
    ]:
        assert status == 403 and "http.allowed_origins" in json.loads(body)["detail"]
        assert not [name for name in headers if name.startswith("access-control")]
    assert curl(broker, f"/v1/queues/{unique}", "-u", "admin:nimda")[0] == 404


def test_a_page_that_is_allowed_needs_a_log_in_and_reads_errors_too(broker, unique):
    page = ["-H", f"Origin: {PAGE}"]
    status, headers, _ = curl(broker, "/v1/users", *page)
    assert (status, headers["access-control-allow-origin"]) == (401, PAGE)
    status, headers, _ = curl(broker, "/v1/users", "-u", "alice:ecila", *page)
    assert (status, headers["access-control-allow-origin"]) == (403, PAGE)
    status, headers, body = curl(broker, "/v1/users", "-u", "admin:nimda", *page)
    assert (status, headers["access-control-allow-origin"]) == (200, PAGE) and "alice" in body
    put = ["-X", "PUT", "-H", "Content-Type: application/json", "-d", "{}"]
    status, headers, _ = curl(broker, f"/v1/queues/{unique}", "-u", "admin:nimda", *put, "-H",
                              "Origin: http://localhost:3000")
    assert (status, headers["access-control-allow-origin"]) == (201, "http://localhost:3000")


def test_two_origins_are_none(broker):
    status, headers, _ = curl(broker, "/v1/users", "-u", "admin:nimda", "-H", f"Origin: {PAGE}", "-H",
                              f"Origin: {STRANGER}")
    assert status in (400, 403) and "access-control-allow-origin" not in headers


def test_programs_are_not_concerned(broker):
    status, headers, _ = curl(broker, "/v1/users", "-u", "admin:nimda")
    assert status == 200 and not [name for name in headers if name.startswith("access-control")]
    assert curl(broker, "/v1/users", "-X", "OPTIONS", "-u", "admin:nimda")[0] == 405


@pytest.mark.parametrize("origin", ["*", "console.example.com", f"{PAGE}/"])
def test_what_is_no_origin_is_refused_at_start(tmp_path, origin):
    command = [str(binary()), "--data", str(tmp_path), "--set", f'http.allowed_origins=["{origin}"]']
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode != 0 and "http.allowed_origins" in done.stderr
