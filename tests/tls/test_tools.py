"""The command-line tools of Mainstem over TLS, against the broker and `openssl s_server`."""

import contextlib
import socket
import subprocess
import time

import pytest

from broker import binary
from conftest import cert

DEADLINE_S = 30


def mainstem(*arguments, fails=False, **options):
    """Runs a tool and returns what it printed."""
    done = subprocess.run([str(binary()), *map(str, arguments)], capture_output=True, text=True, timeout=DEADLINE_S, **options)
    assert (done.returncode != 0) == fails, done.stderr + done.stdout
    return done.stderr if fails else done.stdout


@contextlib.contextmanager
def subscriber(*arguments, count=1):
    """`mainstem sub` of so many messages, once it is subscribed."""
    command = [str(binary()), "sub", "--debug", "-C", str(count), "-q", "1", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "SUBACK" in line:
                break
        yield process


def printed(process):
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, err
    return out


def test_pub_and_sub_with_a_client_certificate(secure, unique):
    certificate, key = secure.identity("device-7")
    port = secure.port("mqttmutual")
    trust = ("--cafile", secure.ca, "--cert", certificate)
    with subscriber("-h", "localhost", "-p", port, *trust, "--key", key, "-t", unique) as process:
        mainstem("pub", "-L", f"mqtts://localhost:{port}/{unique}", *trust, "--tls-key", key, "-q", "1", "-m", "over TLS")
        assert printed(process) == "over TLS\n"
    for missing in (["--cafile", secure.ca], []):
        mainstem("pub", "-h", "localhost", "-p", port, *missing, "-t", unique, "-q", "1", "-m", "x", fails=True)


@pytest.mark.parametrize("size", [1, 300_000, 900_000])
def test_messages_of_any_size_between_our_tools_and_mosquitto(secure, unique, size, tmp_path):
    """Large ones take several records, and more than one write."""
    (tmp_path / "payload").write_text("x" * size)
    port = secure.port("mqtts")
    with subscriber("-h", "localhost", "-p", port, "--cafile", secure.ca, "-t", unique) as process:
        subprocess.run(["mosquitto_pub", "-h", "localhost", "-p", str(port), "--cafile", secure.ca, "-t", unique, "-q", "1",
                        "-f", str(tmp_path / "payload")], check=True, timeout=DEADLINE_S)
        assert len(printed(process)) == size + 1
    command = ["mosquitto_sub", "-h", "localhost", "-p", str(port), "--cafile", secure.ca, "-t", unique, "-q", "1",
               "-i", unique, "-V", "mqttv5", "-x", "60", "-c"]
    subprocess.run([*command, "-E"], check=True, timeout=DEADLINE_S)
    mainstem("pub", "-h", "localhost", "-p", port, "--cafile", secure.ca, "-t", unique, "-q", "1", "-f", tmp_path / "payload")
    got = subprocess.run([*command, "-C", "1"], check=True, capture_output=True, text=True, timeout=DEADLINE_S)
    assert len(got.stdout) == size + 1


def test_many_messages_from_standard_input(secure, unique, tmp_path):
    trust = ("-h", "localhost", "-p", str(secure.port("mqtts")), "--cafile", secure.ca, "-t", unique)
    lines = "".join(f"{number}\n" for number in range(5000))
    (tmp_path / "lines").write_text(lines)
    with subscriber(*trust, count=5000) as process, open(tmp_path / "lines") as source:
        # Beside the subscriber, whose output is read meanwhile.
        with subprocess.Popen([str(binary()), "pub", *trust, "-q", "1", "-l"], stdin=source) as publisher:
            assert printed(process) == lines
            assert publisher.wait(DEADLINE_S) == 0


def test_who_is_not_trusted_is_refused(secure, unique, tmp_path):
    cert(tmp_path / "foreign", "--host", "localhost")
    foreign = tmp_path / "foreign" / "ca.crt"
    for tool, port in ((("pub", "-t", unique, "-m", "x", "-h"), secure.port("mqtts")),
                       (("topic", "list", "-b"), secure.port("kafkas")), (("queue", "list", "-b"), secure.port("https"))):
        address = ["localhost", "-p", port] if tool[0] == "pub" else [f"localhost:{port}"]
        for refused in (["--cafile", foreign], ["--tls"]):
            error = mainstem(*tool, *address, *refused, fails=True)
            assert "certificate" in error or "authorities" in error, error
        mainstem(*tool, *address, "--cafile", secure.ca)
        mainstem(*tool, *address, "--insecure")
        assert "/nothing" in mainstem(*tool, *address, "--cafile", tmp_path / "nothing", fails=True)


def test_a_name_that_the_certificate_does_not_have_is_refused(secure, tmp_path):
    cert(tmp_path / "other", "--host", "other.example.com")
    files = tmp_path / "other"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-cert", files / "server.crt", "-key", files / "server.key"]
    with subprocess.Popen([*map(str, server), "-quiet"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        until = time.monotonic() + DEADLINE_S
        while True:
            error = mainstem("queue", "list", "-b", f"https://localhost:{port}", "--cafile", files / "ca.crt", fails=True)
            if "refused" not in error:
                break
            assert time.monotonic() < until, error
        assert "certificate" in error, error
        process.kill()


def test_queue_over_https(secure, unique):
    certificate, key = secure.identity("device-7")
    url = f"https://localhost:{secure.port('httpmutual')}"
    trust = ("--cafile", secure.ca, "--cert", certificate, "--tls-key", key)
    mainstem("queue", "-b", url, *trust, "send", unique, "resize cat.png", "--key", "cat")
    assert "resize cat.png" in mainstem("queue", "receive", unique, "-c", "1", "-b", url, *trust)
    listed = mainstem("queue", "list", "-b", f"localhost:{secure.port('https')}", "--cafile", secure.ca)
    assert unique in listed
    assert mainstem("queue", "list", "-b", url, "--cafile", secure.ca, fails=True)


def test_kafka_tools_over_tls(secure, unique):
    kafka = ("-b", f"localhost:{secure.port('kafkas')}", "--cafile", secure.ca)
    mainstem("topic", "create", unique, *kafka)
    large = "x" * 500_000
    mainstem("produce", "-t", unique, *kafka, input=f"one\n{large}\n")
    got = subprocess.run(["kcat", "-b", f"localhost:{secure.port('kafkas')}", "-X", "security.protocol=ssl", "-X",
                          f"ssl.ca.location={secure.ca}", "-C", "-t", unique, "-e", "-q"],
                         capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert got.stdout == f"one\n{large}\n"
    assert mainstem("consume", "-t", unique, *kafka, "-o", "beginning", "-e") == f"one\n{large}\n"


def test_a_plain_listener_is_told_apart(secure, unique):
    for tool in (("pub", "-t", unique, "-m", "x", "-h", "localhost", "-p", secure.port("mqtt")),
                 ("topic", "list", "-b", f"localhost:{secure.port('kafka')}", "--request-timeout", "3"),
                 ("queue", "list", "-b", f"localhost:{secure.port('http')}")):
        began = time.monotonic()
        assert mainstem(*tool, "--cafile", secure.ca, fails=True)
        assert time.monotonic() - began < DEADLINE_S / 2
    mainstem("queue", "list", "-b", f"http://localhost:{secure.port('http')}")
