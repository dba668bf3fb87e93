"""Revocation lists of client certificates: who is on one, lists that change, and lists that have expired."""

import ssl
import subprocess
import time

import httpx
import pytest

from broker import LISTENERS, ConfiguredBroker, cert

DEADLINE_S = 30
CLIENTS = ("press-7", "press-8")
EXPIRED = ("-crl_lastupdate", "20200101000000Z", "-crl_nextupdate", "20200102000000Z")


class Authority:
    """The authority of `mainstem cert`, and its revocation list, made by openssl."""

    def __init__(self, folder):
        self.certs = folder / "certs"
        cert(self.certs, "--host", "localhost", *(f"--client={name}" for name in CLIENTS))
        self.crl = folder / "revoked.pem"
        self._config = folder / "openssl.cnf"
        self._database = folder / "index.txt"
        number = folder / "number"
        number.write_text("01")
        self._config.write_text(f"""
[ca]
default_ca = list
[list]
database = {self._database}
crlnumber = {number}
crl_extensions = extensions
default_md = sha256
[extensions]
authorityKeyIdentifier = keyid
""")

    def revoke(self, *clients, validity=("-crldays", "1")):
        """Writes a list of exactly these clients."""
        self._database.write_text("")
        for name in clients:
            self._openssl("-revoke", str(self.certs / f"{name}.crt"))
        made = self.crl.with_suffix(".new")
        self._openssl("-gencrl", "-out", str(made), *validity)
        made.rename(self.crl)

    def _openssl(self, *arguments):
        key, certificate = self.certs / "ca.key", self.certs / "ca.crt"
        command = ["openssl", "ca", "-config", str(self._config), "-keyfile", str(key), "-cert", str(certificate)]
        subprocess.run([*command, *arguments], check=True, capture_output=True)

    def configuration(self):
        server = f'certificate = "{self.certs}/server.crt", key = "{self.certs}/server.key"'
        clients = f'client_certificates = "required", client_ca = "{self.certs}/ca.crt", client_crl = "{self.crl}"'
        listener = f'[[listener]]\nname = "https"\nprotocol = "http"\nlisten = "127.0.0.1:0"\ntls = {{ {server}, {clients} }}'
        return f"[server]\ncertificate_check_interval_s = 1\n\n{listener}\n"


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def launched(authority, tmp_path):
    return ConfiguredBroker(tmp_path, authority.configuration(), (*LISTENERS, "https"))


def is_served(broker, authority, client):
    """Whether a client with its certificate gets a response, on a connection of its own."""
    context = ssl.create_default_context(cafile=authority.certs / "ca.crt")
    context.load_cert_chain(authority.certs / f"{client}.crt", authority.certs / f"{client}.key")
    try:
        url = f"https://localhost:{broker.port('https')}/v1/health/live"
        return httpx.get(url, verify=context, timeout=DEADLINE_S).status_code == 200
    except httpx.TransportError:
        return False


def served(broker, authority):
    return [is_served(broker, authority, client) for client in CLIENTS]


def wait_until_served(broker, authority, expected):
    until = time.monotonic() + DEADLINE_S
    while (now := served(broker, authority)) != expected:
        assert time.monotonic() < until, f"the list is not reloaded: {now}"


def test_a_revoked_certificate_is_refused(authority, tmp_path):
    authority.revoke("press-7")
    broker = launched(authority, tmp_path)
    assert served(broker, authority) == [False, True]
    broker.stop()


def test_a_list_that_changes_is_reloaded(authority, tmp_path):
    authority.revoke()
    broker = launched(authority, tmp_path)
    assert served(broker, authority) == [True, True]
    authority.revoke("press-7")
    wait_until_served(broker, authority, [False, True])
    authority.revoke("press-7", "press-8")
    wait_until_served(broker, authority, [False, False])
    authority.revoke()
    wait_until_served(broker, authority, [True, True])
    broker.stop()


def test_a_list_that_has_expired_refuses_everybody_until_there_is_a_new_one(authority, tmp_path):
    authority.revoke("press-7", validity=EXPIRED)
    broker = launched(authority, tmp_path)
    assert served(broker, authority) == [False, False]
    authority.revoke("press-7")
    wait_until_served(broker, authority, [False, True])
    authority.revoke(validity=EXPIRED)
    wait_until_served(broker, authority, [False, False])
    broker.stop()


def test_a_file_that_is_no_list_changes_nothing(authority, tmp_path):
    authority.revoke("press-7")
    broker = launched(authority, tmp_path)
    authority.crl.write_text("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n")
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert served(broker, authority) == [False, True]
    broker.stop()
