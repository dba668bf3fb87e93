"""The HTTP API over TLS: curl, openssl, peers that do not speak TLS or stop in the middle, and limits of connections."""

import contextlib
import json
import socket
import ssl
import subprocess
import time

import pytest

from conftest import HANDSHAKE_S, HTTP_CONNECTIONS, SecureBroker, cert

DEADLINE_S = 30
LIVE = "/v1/health/live"


def curl(secure, listener, path, *arguments, host="localhost"):
    """Sends a request, and returns the finished process."""
    url = f"https://{host}:{secure.port(listener)}{path}"
    command = ["curl", "-sS", "--noproxy", "*", "--max-time", str(DEADLINE_S), "--cacert", secure.ca, *arguments, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE_S)


def context(secure, version=None):
    made = ssl.create_default_context(cafile=secure.ca)
    if version:
        made.minimum_version = made.maximum_version = version
    return made


@contextlib.contextmanager
def connected(secure, listener="https", **tls):
    """A TLS connection."""
    with socket.create_connection(("127.0.0.1", secure.port(listener)), DEADLINE_S) as plain:
        with context(secure, **tls).wrap_socket(plain, server_hostname="localhost") as stream:
            yield stream


def request(stream, target, method="GET"):
    """Sends a request on an open connection, and returns the status of its response."""
    stream.sendall(f"{method} {target} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    head = b""
    while b"\r\n\r\n" not in head:
        part = stream.recv(4096)
        assert part, "the connection is closed"
        head += part
    head, body = head.split(b"\r\n\r\n", 1)
    (length,) = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")]
    while len(body) < length:
        body += stream.recv(4096)
    return int(head.split(b" ")[1])


def test_the_lifecycle_of_a_message(secure, unique):
    queue = f"/v1/queues/{unique}"
    large = "x" * 1_000_000
    batch = json.dumps({"messages": [{"body": large}]})
    sent = subprocess.run(
        ["curl", "-sS", "--cacert", secure.ca, "-H", "content-type: application/json", "--data-binary", "@-",
         f"https://localhost:{secure.port('https')}{queue}/messages"],
        input=batch, capture_output=True, text=True, timeout=DEADLINE_S)
    assert json.loads(sent.stdout) == {"results": [{"offset": 0}]}, sent.stderr
    (message,) = json.loads(curl(secure, "https", f"{queue}/receive", "-X", "POST").stdout)["messages"]
    assert message["body"] == large
    plain = ["curl", "-sS", f"http://localhost:{secure.port('http')}{queue}"]
    shown = json.loads(subprocess.run(plain, capture_output=True, text=True, timeout=DEADLINE_S).stdout)
    assert shown["groups"][0]["leased"] == 1, "the plain listener serves the same queues"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_both_versions_and_alpn(secure, version):
    made = context(secure, version)
    made.set_alpn_protocols(["h2", "http/1.1"])
    with socket.create_connection(("127.0.0.1", secure.port("https")), DEADLINE_S) as plain:
        with made.wrap_socket(plain, server_hostname="localhost") as tls:
            assert tls.selected_alpn_protocol() == "http/1.1"
            assert [request(tls, LIVE), request(tls, "/nothing")] == [200, 404]


def test_openssl_verifies_the_chain(secure):
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{secure.port('https')}", "-servername", "localhost"]
    command += ["-CAfile", secure.ca, "-verify_return_error", "-verify_hostname", "localhost", "-ign_eof"]
    sent = f"GET {LIVE} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert "Verify return code: 0 (ok)" in done.stdout and "HTTP/1.1 200 OK" in done.stdout


def test_a_client_that_does_not_trust_the_broker_refuses_it(secure, tmp_path):
    cert(tmp_path / "foreign", "--host", "localhost")
    assert curl(secure, "https", LIVE, "--cacert", str(tmp_path / "foreign" / "ca.crt")).returncode == 60


def test_a_client_certificate_is_required_where_the_listener_says_so(secure, tmp_path):
    certificate, key = secure.identity("device-7")
    assert '"live"' in curl(secure, "httpmutual", LIVE, "--cert", certificate, "--key", key).stdout
    cert(tmp_path / "foreign", "--client", "device-7")
    foreign = [str(tmp_path / "foreign" / f"device-7.{kind}") for kind in ("crt", "key")]
    for refused in ([], ["--cert", foreign[0], "--key", foreign[1]]):
        assert curl(secure, "httpmutual", LIVE, *refused).returncode in (35, 55, 56)


def test_hosts_are_checked(secure):
    named = curl(secure, "https", LIVE, "-H", "host: evil.example.com")
    assert json.loads(named.stdout)["type"] == "urn:mainstem:problem:host"


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"\x10\x0d\x00\x04MQTT", bytes(5)])
def test_bytes_that_are_no_tls_get_an_alert_and_the_end(secure, sent):
    with socket.create_connection(("127.0.0.1", secure.port("https")), DEADLINE_S) as plain:
        plain.sendall(sent)
        received = plain.recv(100)
        assert received[:1] == b"\x15", "an alert record"
        while received:
            received = plain.recv(100)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["nothing", "part of a hello"])
def test_a_handshake_has_a_deadline(secure, sent):
    with socket.create_connection(("127.0.0.1", secure.port("https")), DEADLINE_S) as plain:
        plain.sendall(sent)
        began = time.monotonic()
        assert plain.recv(1) == b""
        assert HANDSHAKE_S / 2 < time.monotonic() - began < DEADLINE_S / 2


def test_unfinished_handshakes_keep_no_client_out(secure):
    with contextlib.ExitStack() as stack:
        for _ in range(2 * HTTP_CONNECTIONS):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", secure.port("https")), DEADLINE_S))
            plain.sendall(b"\x16\x03\x01")
        assert '"live"' in curl(secure, "https", LIVE).stdout
        assert '"live"' in curl(secure, "httpmutual", LIVE, *("--cert", secure.identity("device-7")[0]),
                                *("--key", secure.identity("device-7")[1])).stdout


def test_health_is_served_when_all_connections_are_busy(secure, unique):
    with contextlib.ExitStack() as stack:
        subprocess.run(["curl", "-sS", "-X", "PUT", f"http://localhost:{secure.port('http')}/v1/queues/{unique}"],
                       check=True, capture_output=True, timeout=DEADLINE_S)
        for _ in range(HTTP_CONNECTIONS):
            stream = stack.enter_context(connected(secure))
            stream.sendall(f"POST /v1/queues/{unique}/receive?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
        until = time.monotonic() + DEADLINE_S
        while '"status":503' not in (refused := curl(secure, "https", f"/v1/queues/{unique}").stdout):
            assert time.monotonic() < until, refused
        assert '"live"' in curl(secure, "https", LIVE).stdout


def test_messages_of_a_client_that_stops_reading_return(secure, unique):
    queue = f"http://localhost:{secure.port('http')}/v1/queues/{unique}"

    def plain(*arguments):
        command = ["curl", "-sS", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return json.loads(done.stdout)

    large = "x" * 1_000_000
    for _ in range(8):
        subprocess.run(["curl", "-sS", "--data-binary", "@-", "-H", "content-type: text/plain", f"{queue}/messages"],
                       input=large, text=True, check=True, capture_output=True, timeout=DEADLINE_S)
    with socket.socket() as bare:
        bare.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        bare.settimeout(DEADLINE_S)
        bare.connect(("127.0.0.1", secure.port("https")))
        with context(secure).wrap_socket(bare, server_hostname="localhost") as stream:
            stream.sendall(f"POST /v1/queues/{unique}/receive?max=8 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
            assert stream.recv(1), "the response has begun"
            until = time.monotonic() + DEADLINE_S / 2
            while (group := plain(queue)["groups"][0])["ready"] != 8:
                assert time.monotonic() < until, group
            assert group["delivered"] == 8


def replace_certificates(broker):
    """Replaces the files. Returns a function that says whether new connections get the new certificate."""
    cert(broker.certs, "--host", "localhost", "--host", "127.0.0.1", "--force")
    renewed = (broker.certs / "server.crt").read_text().strip()

    def is_served(listener):
        return ssl.get_server_certificate(("127.0.0.1", broker.port(listener)), timeout=DEADLINE_S).strip() == renewed

    return is_served


def test_sighup_serves_renewed_certificates_to_new_connections(secure):
    with connected(secure) as stream:
        is_served = replace_certificates(secure)
        assert not is_served("https")
        secure.process.send_signal(1)
        until = time.monotonic() + DEADLINE_S
        while not is_served("https"):
            assert time.monotonic() < until, "the certificate is not reloaded"
        assert request(stream, LIVE) == 200, "an open connection goes on"
    assert '"live"' in curl(secure, "https", LIVE).stdout


def test_renewed_files_are_found_without_a_signal(tmp_path):
    broker = SecureBroker(tmp_path, check_interval_s=1)
    is_served = replace_certificates(broker)
    until = time.monotonic() + DEADLINE_S
    while not all(is_served(listener) for listener in ("https", "mqtts", "kafkas")):
        assert time.monotonic() < until, "the certificates are not reloaded"
    broker.stop()
