"""Users and rules with mosquitto's clients, and every command of docs/security.md."""

import os
import re
import subprocess
import tempfile
import time
import urllib.request

import pytest

from broker import ROOT, binary, launch

LISTEN = ["--listen", "127.0.0.1:0", "--kafka-listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]
# Printed by mosquitto_passwd 2.0 for the password "secret" with 101 iterations and the salt "saltsaltsalt".
HASH = "$7$101$c2FsdHNhbHRzYWx0$"


def password_line(name, password):
    """A line as mosquitto_passwd writes it, computed here: the tool need not be installed."""
    import base64
    import hashlib

    derived = hashlib.pbkdf2_hmac("sha512", password.encode(), b"saltsaltsalt", 101)
    return f"{name}:{HASH}{base64.b64encode(derived).decode()}\n"


@pytest.fixture
def start():
    """Starts brokers with additional flags; returns the addresses of their listeners."""
    processes, directories = [], []

    def run(*flags):
        directories.append(tempfile.TemporaryDirectory(prefix="mainstem-test-"))
        process, addresses = launch([*LISTEN, "--data", directories[-1].name, *flags])
        processes.append(process)
        return addresses

    yield run
    for process in processes:
        process.terminate()
        assert process.wait(15) == 0
    for directory in directories:
        directory.cleanup()


def mosquitto(tool, address, *arguments):
    command = [tool, "-h", address[0], "-p", str(address[1]), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def commands(page):
    """The commands of a page's console blocks, in order."""
    text = (ROOT / "docs" / page).read_text()
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.S) for line in block.splitlines()]
    return [line[2:] for line in lines if line.startswith("$ ")]


def test_every_command_of_the_page_does_what_it_says(start):
    addresses = start()
    mqtt, http = (f"{host}:{port}" for host, port in (addresses["mqtt"], addresses["http"]))
    script = "\n".join(f"echo '$' {index}; {line}; echo status $?" for index, line in enumerate(commands("security.md")))
    # The page uses the default ports.
    script = script.replace("mosquitto_pub ", f"mosquitto_pub -h {addresses['mqtt'][0]} -p {addresses['mqtt'][1]} ")
    # The page cannot know the identifier of a key.
    an_id = "$(mainstem key list -J | head -n 1 | grep -oE '[0-9a-f]{16}' | head -n 1)"
    script = script.replace("0123456789abcdef", an_id)
    script = re.sub(r"mainstem (user|acl|quota|ban|key) ", rf"'{binary()}' \1 -b {http} ", script)
    script = script.replace("localhost:8080", http)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAINSTEM_")}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    outputs = re.split(r"^\$ \d+\n", done.stdout, flags=re.M)[1:]
    results = dict(zip(commands("security.md"), outputs, strict=True))
    failed = {line: output for line, output in results.items() if not output.endswith("status 0\n")}
    # The last command is denied, and mosquitto_pub says so with the reason code.
    last = "mosquitto_pub -V 5 -u press-7 -P p7 -t plant/press-8/temp -m 21.5 -q 1"
    assert set(failed) <= {last}, done.stdout + done.stderr
    assert "not authorized" in done.stderr.lower(), done.stderr
    assert "refused" in results["mosquitto_pub -t plant/7/temp -m 21.5 -q 1 || echo refused"]
    assert results["mainstem acl explain press-7 publish mqtt:plant/press-7/temp"].startswith("allowed")
    assert results["mainstem acl explain press-7 publish mqtt:plant/press-8/temp"].startswith("denied")
    assert '"press-7"' in results["curl -u admin:secret localhost:8080/v1/users"]
    assert mqtt


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
def test_a_password_file_of_mosquitto(start, tmp_path, version):
    file = tmp_path / "passwd"
    file.write_text("# users\n" + password_line("alice", "secret"))
    address = start("--set", f"security.password_file={file}")["mqtt"]
    publish = ["-V", version, "-t", "a", "-m", "x", "-q", "1"]
    assert mosquitto("mosquitto_pub", address, "-u", "alice", "-P", "secret", *publish).returncode == 0
    for wrong in (["-u", "alice", "-P", "wrong"], ["-u", "bob", "-P", "secret"], []):
        assert mosquitto("mosquitto_pub", address, *wrong, *publish).returncode != 0


def mainstem(address, tool, *arguments):
    """Runs one of our tools over HTTP, which must succeed."""
    command = [binary(), tool, *arguments, "-b", f"{address[0]}:{address[1]}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_publisher_is_slowed_down_to_its_quota_and_loses_nothing(start, version, qos):
    addresses = start()
    mainstem(addresses["http"], "quota", "set", "--client-id", "fast", "publish_rate=20")
    host, port = addresses["mqtt"]
    subscriber = subprocess.Popen(["stdbuf", "-oL", "mosquitto_sub", "-h", host, "-p", str(port), "-V", version,
                                   "-q", qos, "-t", "a", "-C", "60", "-d"], stdout=subprocess.PIPE, text=True)
    while "SUBACK" not in (line := subscriber.stdout.readline()):
        assert line, "mosquitto_sub has ended"
    began = time.monotonic()
    lines = "".join(f"line {number}\n" for number in range(60))
    publish = ["mosquitto_pub", "-h", host, "-p", str(port), "-V", version, "-i", "fast", "-q", qos, "-t", "a", "-l"]
    done = subprocess.run(publish, input=lines, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    printed, _ = subscriber.communicate(timeout=30)
    # 20 are the burst, and the others take two seconds.
    assert time.monotonic() - began >= 1.8
    assert [line for line in printed.splitlines() if line.startswith("line ")] == lines.splitlines()
    metrics = urllib.request.urlopen("http://{}:{}/metrics".format(*addresses["http"])).read().decode()
    throttled = re.search(r'^mainstem_quota_throttled_total\{quota="publish_rate"\} (\d+)$', metrics, re.M)
    assert int(throttled[1]) > 0


def test_a_banned_client_is_disconnected_and_refused(start):
    addresses = start()
    host, port = addresses["mqtt"]
    subscriber = subprocess.Popen(["stdbuf", "-oL", "mosquitto_sub", "-h", host, "-p", str(port), "-V", "mqttv5",
                                   "-i", "press-7", "-t", "a", "-d"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while "SUBACK" not in subscriber.stdout.readline():
        pass
    mainstem(addresses["http"], "ban", "add", "--client-id", "press-7", "--reason", "sends nonsense")
    printed, _ = subscriber.communicate(timeout=30)
    assert "DISCONNECT (152)" in printed, printed
    publish = ["-V", "mqttv5", "-i", "press-7", "-t", "a", "-m", "x"]
    refused = mosquitto("mosquitto_pub", addresses["mqtt"], *publish)
    assert refused.returncode != 0 and "banned" in (refused.stdout + refused.stderr).lower(), refused
    mainstem(addresses["http"], "ban", "delete", "--client-id", "press-7")
    assert mosquitto("mosquitto_pub", addresses["mqtt"], *publish).returncode == 0


def test_listeners_outside_loopback_need_users_or_a_decision(tmp_path):
    def run(*flags):
        listen = ["--listen", "0.0.0.0:0", "--kafka-listen", "", "--http-listen", ""]
        command = [binary(), *listen, "--data", str(tmp_path / "data"), *flags]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    refused = run()
    assert refused.returncode == 1
    for part in ("mqtt on 0.0.0.0", "security.allow_anonymous", "security.password_file", "mainstem user add"):
        assert part in refused.stderr, refused.stderr
    file = tmp_path / "passwd"
    file.write_text("alice:secret\n")
    refused = run("--set", f"security.password_file={file}")
    assert "security.password_file" in refused.stderr and "line 1" in refused.stderr, refused.stderr
    file.write_text(password_line("alice", "secret"))
    flags = ["--kafka-listen", "", "--http-listen", "", "--listen", "0.0.0.0:0", "--data", str(tmp_path / "data")]
    for allowed in (f"security.password_file={file}", "security.allow_anonymous=true"):
        process, _ = launch([*flags, "--set", allowed], listeners=("mqtt",))
        process.terminate()
        assert process.wait(15) == 0
