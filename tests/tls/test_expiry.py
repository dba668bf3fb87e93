"""Certificates that end soon: what /metrics and the log say, compared with `openssl x509`."""

import datetime
import os
import re
import signal
import subprocess
import threading
import urllib.request

import pytest

from broker import binary

DEADLINE_S = 30
METRIC = "mainstem_tls_certificate_expiry_timestamp_seconds"


def make(path, days):
    """A certificate for so many days. Returns its end, by openssl."""
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days",
                    str(days), "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout",
                    f"{path}.key.new", "-out", f"{path}.crt.new"], check=True, capture_output=True, timeout=DEADLINE_S)
    done = subprocess.run(["openssl", "x509", "-noout", "-enddate", "-in", f"{path}.crt.new"], check=True,
                          capture_output=True, text=True, timeout=DEADLINE_S)
    for kind in ("key", "crt"):
        os.replace(f"{path}.{kind}.new", f"{path}.{kind}")
    end = datetime.datetime.strptime(done.stdout.strip().removeprefix("notAfter="), "%b %d %H:%M:%S %Y GMT")
    return int(end.replace(tzinfo=datetime.timezone.utc).timestamp())


class Broker:
    """A broker whose log is read."""

    def __init__(self, folder):
        config = folder / "mainstem.toml"
        tls = "certificate = \"{0}/{1}.crt\", key = \"{0}/{1}.key\""
        more = tls.format(folder, "long")
        config.write_text(f"""
[[listener]]
name = "mqtts"
protocol = "mqtt"
listen = "127.0.0.1:0"
tls = {{ {tls.format(folder, "short")}, more_certificates = [{{ {more} }}] }}

[[listener]]
name = "https"
protocol = "http"
listen = "127.0.0.1:0"
tls = {{ {more} }}
""")
        command = [str(binary()), "--config", str(config), "--data", str(folder / "data"), "--listen", "127.0.0.1:0",
                   "--kafka-listen", "", "--http-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines, self.changed = [], threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.http = self.wait(r"^http listening on (\S+)")[1]

    def _read(self):
        for line in self.process.stdout:
            with self.changed:
                self.lines.append(line)
                self.changed.notify()

    def wait(self, pattern):
        """The first match in the log, once there is one."""
        found = lambda: next(filter(None, (re.search(pattern, line) for line in self.lines)), None)
        with self.changed:
            assert self.changed.wait_for(found, DEADLINE_S), (pattern, self.lines)
            return found()

    def ends(self):
        text = urllib.request.urlopen(f"http://{self.http}/metrics", timeout=DEADLINE_S).read().decode()
        found = re.findall(rf'^{METRIC}{{listener="(\w+)",file="(\S+)"}} (\d+)$', text, re.M)
        return {(listener, os.path.basename(file)): int(end) for listener, file, end in found}

    def stop(self):
        self.process.terminate()
        assert self.process.wait(DEADLINE_S) == 0


@pytest.fixture
def opener(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


def test_the_end_of_each_certificate_is_a_metric_and_a_warning(tmp_path, opener):
    short, long = make(tmp_path / "short", 10), make(tmp_path / "long", 400)
    broker = Broker(tmp_path)
    try:
        expected = {("mqtts", "short.crt"): short, ("mqtts", "long.crt"): long, ("https", "long.crt"): long}
        assert broker.ends() == expected
        broker.wait(r'WARN.*listener "mqtts": the certificate in \S+/short.crt ends in (9|10) days; replace the file')
        renewed = make(tmp_path / "short", 500)
        broker.process.send_signal(signal.SIGHUP)
        broker.wait(r'reload: certificates of listener "mqtts": the new contents are used')
        assert broker.ends() == expected | {("mqtts", "short.crt"): renewed}
        # Ends sooner than 30 days again, which is news.
        again = make(tmp_path / "short", 5)
        broker.process.send_signal(signal.SIGHUP)
        broker.wait(r'WARN.*short.crt ends in [45] days')
        assert broker.ends()["mqtts", "short.crt"] == again
        assert not [line for line in broker.lines if "long.crt" in line]
    finally:
        broker.stop()
