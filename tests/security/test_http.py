"""HTTP: attempts to get round the log-in, a rule, or the browser's borders."""

import socket
import time

import httpx
import pytest

from secure_broker import DEADLINE_S, basic

LIMIT = 5


def raw(secure, request: bytes) -> bytes:
    """Sends bytes, and returns all that comes until the broker closes the connection."""
    with socket.create_connection((secure.http.host, secure.http.port), DEADLINE_S) as wire:
        wire.sendall(request)
        got = b""
        while more := wire.recv(65536):
            got += more
        return got


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:8080", "file://"])
def test_a_web_page_cannot_use_the_log_in_of_its_reader(secure, unique, origin):
    """CSRF: browsers add stored credentials to requests of any page, and an Origin."""
    with secure.api() as http:
        for method, path, body in (("PUT", f"/v1/queues/{unique}", {}), ("POST", "/v1/acls", {}),
                                   ("DELETE", "/v1/users/bob", None)):
            refused = http.request(method, path, headers={"Origin": origin}, **({} if body is None else {"json": body}))
            assert (refused.status_code, refused.json()["type"]) == (403, "urn:mainstem:problem:cross-site")
        # What a page may send without asking the server first: a form.
        form = http.post(f"/v1/queues/{unique}/messages", content=b"x",
                         headers={"Content-Type": "text/plain", "Origin": origin})
        assert form.status_code == 403
        assert http.get(f"/v1/queues/{unique}").status_code == 404
        assert http.get("/v1/users/bob").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"])
def test_a_name_that_is_rebound_to_this_machine_is_refused(secure, host):
    """DNS rebinding: the page's own name leads here, so there is no Origin, but the Host is wrong."""
    with secure.api() as http:
        refused = http.get("/v1/users", headers={"Host": host})
        assert (refused.status_code, refused.json()["type"]) == (421, "urn:mainstem:problem:host")


@pytest.mark.parametrize("path", [
    "/v1/queues/../users", "/v1/queues/%2e%2e/users", "/v1/queues/..%2fusers", "/v1/queues/mine/../../users",
    "/v1/queues/mine%2f..%2f..%2fusers", "//v1/users", "/v1//users", "/v1/users/", "/./v1/users", "/v1/queues/mine/..;/users",
    "/V1/users", "/v1/users%00", "/v1/queues/mine%5c..%5c..%5cusers", "/..%2f..%2fetc/passwd", "/v1/health/../users",
    "/v1/health/live/../../users",
])
def test_no_path_leads_to_another_route(secure, rule, path):
    """The rules of the route that matched apply; nothing is normalized behind them."""
    rule("--user", "alice", "--allow", "*", "queue:mine")
    for authorization in (basic("alice", "ecila"), None):
        fields = f"Authorization: {authorization}\r\n" if authorization else ""
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n"
        answer = raw(secure, request.encode())
        status = int(answer.split()[1])
        assert status in (400, 401, 403, 404, 422), answer
        assert b'"users"' not in answer and b"root:" not in answer


SMUGGLED = b"DELETE /v1/users/bob HTTP/1.1\r\nHost: localhost\r\nAuthorization: %b\r\n\r\n"


@pytest.mark.parametrize("fields,body", [
    (b"Content-Length: %d\r\nTransfer-Encoding: chunked", b"0\r\n\r\n"),
    (b"Transfer-Encoding: chunked\r\nContent-Length: %d", b"0\r\n\r\n"),
    (b"Content-Length: 0\r\nContent-Length: %d", b""),
    (b"Content-Length: 0, %d", b""),
    (b"Content-Length: +%d", b""),
    (b"Transfer-Encoding: chunked, identity\r\nX: %d", b"0\r\n\r\n"),
    (b"Transfer-Encoding : chunked\r\nX: %d", b"0\r\n\r\n"),
    (b"Transfer-Encoding: xchunked\r\nX: %d", b"0\r\n\r\n"),
    (b"X: a\r\n b\r\nContent-Length: %d", b""),
    (b"X: a\nContent-Length: %d", b""),
    (b"X: a\rContent-Length: %d", b""),
    (b"X: a\0b\r\nContent-Length: %d", b""),
], ids=lambda part: part.decode(errors="replace").replace("\r", "\\r").replace("\n", "\\n")[:40])
def test_a_request_cannot_hide_another(secure, fields, body):
    """Heads that two implementations may read differently are refused, and what follows them is not read."""
    hidden = SMUGGLED % basic("admin", "nimda").encode()
    head = b"POST /v1/queues/q/messages HTTP/1.1\r\nHost: localhost\r\n" + fields % len(body + hidden) + b"\r\n\r\n"
    answer = raw(secure, head + body + hidden)
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 501 ")), answer
    with secure.api() as http:
        assert http.get("/v1/users/bob").status_code == 200


def test_two_authorizations_are_none(secure):
    """A proxy may check the first one and the broker the second, or the other way round."""
    fields = f"Authorization: {basic('alice', 'ecila')}\r\nAuthorization: {basic('admin', 'nimda')}\r\n"
    answer = raw(secure, f"GET /v1/users HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{fields}\r\n".encode())
    assert int(answer.split()[1]) == 401, answer


def test_spraying_passwords_is_limited_and_harms_nobody_elsewhere(tmp_path):
    """One password for many users: each fails once, so the address is what is limited."""
    from secure_broker import SecureBroker

    secure = SecureBroker(tmp_path, f"max_failed_log_ins_per_address = {LIMIT}\nmax_failed_log_ins_per_user = 1000")
    elsewhere = httpx.Client(base_url=f"http://{secure.http}", transport=httpx.HTTPTransport(local_address="127.0.0.2"),
                             timeout=DEADLINE_S)
    try:
        with httpx.Client(base_url=f"http://{secure.http}", timeout=DEADLINE_S,
                          transport=httpx.HTTPTransport(local_address="127.0.0.3")) as http:
            statuses = [http.get("/v1/queues", auth=(f"user-{n}", "Spring2026")).status_code for n in range(LIMIT * 2)]
            assert statuses == [401] * LIMIT + [429] * LIMIT
            begun = time.monotonic()
            assert http.get("/v1/queues", auth=("bob", "bob"[::-1])).status_code == 429, "not even the right one"
            assert time.monotonic() - begun < 5, "and no hash was computed for it"
        assert elsewhere.get("/v1/queues", auth=("bob", "bob"[::-1])).status_code == 403, "he is let in, and has no right"
        assert len(secure.audited(lambda event: event["event"] == "log-in-limited", LIMIT)) >= LIMIT
    finally:
        elsewhere.close()
        secure.stop()
