"""Tokens (JWT) over MQTT, HTTP and Kafka: PyJWT signs them, mosquitto_pub, paho, curl, librdkafka and kafka-python use
them. The keys come from a PEM file, a secret, and the URL of a JSON Web Key set that changes."""

import base64
import hashlib
import hmac
import http.server
import json
import subprocess
import tempfile
import threading
import time
import uuid
from pathlib import Path

import jwt
import paho.mqtt.client as paho
import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from kafka import KafkaAdminClient
from kafka.net.sasl.oauth import AbstractTokenProvider

from broker import binary, launch

DEADLINE_S = 30
LISTENERS = ("mqtt", "kafka", "http")
SECRET = "a secret of more than thirty-two bytes, which signs tokens"
ISSUER = "https://id.example.com"


def public_pem(key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


class Keys:
    """A server of a JSON Web Key set that counts its requests."""

    def __init__(self):
        self.keys, self.requests = {}, 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests += 1
                body = json.dumps({"keys": [outer.jwk(name, key) for name, key in outer.keys.items()]}).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/keys"

    @staticmethod
    def jwk(name, key):
        made = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
        return made | {"kid": name, "use": "sig"}


class Broker:
    def __init__(self, folder: Path):
        self.folder = folder
        self.pem = {"rsa": rsa.generate_private_key(65537, 2048), "p256": ec.generate_private_key(ec.SECP256R1()),
                    "p384": ec.generate_private_key(ec.SECP384R1()), "ed": ed25519.Ed25519PrivateKey.generate()}
        (folder / "keys.pem").write_bytes(b"".join(map(public_pem, self.pem.values())))
        (folder / "secret").write_text(SECRET + "\n")
        self.keys = Keys()
        self.keys.keys["first"] = rsa.generate_private_key(65537, 2048)
        self.data, self.audit, self.log = str(folder / "data"), folder / "audit.jsonl", folder / "log"
        self.tool("user", "add", "admin", "--data", self.data, stdin="nimda")
        config = folder / "mainstem.toml"
        config.write_text(f"""
[kafka]
sasl = ["OAUTHBEARER", "PLAIN"]
failed_authentication_delay_ms = 50

[security]
super_users = ["admin"]
audit_log = "{self.audit}"
max_failed_log_ins_per_address = 100000

[jwt]
secret_file = "{folder}/secret"
public_key_file = "{folder}/keys.pem"
jwks_url = "{self.keys.url}"
jwks_min_refresh_interval_s = 1
issuers = ["{ISSUER}"]
audiences = ["mainstem"]
leeway_s = 0
roles_claim = "realm_access.roles"
""")
        flags = ["--config", str(config), "--data", self.data]
        for name in ("", "kafka-", "http-"):
            flags += [f"--{name}listen", "127.0.0.1:0"]
        self.process, self.addresses = launch(flags, LISTENERS)
        for rule in (
            ("--user", "alice", "--allow", "publish", "mqtt:alice/#"),
            ("--role", "ops", "--allow", "publish", "mqtt:ops/#"),
            ("--role", "ops", "--allow", "admin-read", "cluster"),
            ("--user", "alice", "--allow", "describe", "topic:*"),
        ):
            self.admin("acl", "add", *rule)

    def tool(self, *arguments, stdin=""):
        command = [str(binary()), *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def admin(self, *arguments, stdin=""):
        return self.tool(*arguments, "-b", self.address("http"), "--username", "admin", "--password", "nimda", stdin=stdin)

    def address(self, listener):
        host, port = self.addresses[listener]
        return f"{host}:{port}"

    def token(self, algorithm="RS256", key="rsa", kid=None, **changes):
        claims = {"sub": "alice", "iss": ISSUER, "aud": "mainstem", "exp": int(time.time()) + 300} | changes
        claims = {name: value for name, value in claims.items() if value is not None}
        signing = SECRET if algorithm.startswith("HS") else self.pem.get(key) or self.keys.keys[key]
        return jwt.encode(claims, signing, algorithm=algorithm, headers={"kid": kid} if kid else None)


@pytest.fixture(scope="module")
def broker():
    with tempfile.TemporaryDirectory(prefix="mainstem-tokens-") as folder:
        made = Broker(Path(folder))
        yield made
        made.process.terminate()
        assert made.process.wait(15) == 0


def publish(broker, token, topic="alice/a", user="anyone", version="5"):
    host, port = broker.addresses["mqtt"]
    command = ["mosquitto_pub", "-h", host, "-p", str(port), "-V", version, "-q", "1", "-t", topic, "-m", "x"]
    done = subprocess.run([*command, "-u", user, "-P", token], capture_output=True, text=True, timeout=DEADLINE_S)
    return done.returncode == 0 and "not authorized" not in (done.stdout + done.stderr).lower()


@pytest.mark.parametrize("algorithm, key", [
    ("HS256", None), ("HS384", None), ("HS512", None), ("RS256", "rsa"), ("RS384", "rsa"), ("RS512", "rsa"),
    ("PS256", "rsa"), ("PS384", "rsa"), ("PS512", "rsa"), ("ES256", "p256"), ("ES384", "p384"), ("EdDSA", "ed"),
])
def test_mqtt_takes_tokens_of_every_algorithm(broker, algorithm, key):
    assert publish(broker, broker.token(algorithm, key))


@pytest.mark.parametrize("version", ["31", "311", "5"])
def test_mqtt_takes_tokens_in_every_version(broker, version):
    assert publish(broker, broker.token(), version=version)


def test_rules_apply_to_the_user_and_the_roles_of_the_token(broker):
    assert not publish(broker, broker.token(), "ops/a")
    assert publish(broker, broker.token(realm_access={"roles": ["ops"]}), "ops/a")
    assert not publish(broker, broker.token(sub="bob"), "alice/a", user="alice"), "the token says who it is"


def part(text) -> str:
    return base64.urlsafe_b64encode(text if isinstance(text, bytes) else json.dumps(text).encode()).decode().rstrip("=")


def test_forged_and_expired_tokens_are_refused(broker):
    claims = {"sub": "alice", "iss": ISSUER, "aud": "mainstem", "exp": int(time.time()) + 300}
    none = f"{part({'alg': 'none', 'typ': 'JWT'})}.{part(claims)}."
    message = f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}"
    # The public key as the secret of an HMAC.
    confused = hmac.new(public_pem(broker.pem["rsa"]), message.encode(), hashlib.sha256).digest()
    foreign = jwt.encode(claims, rsa.generate_private_key(65537, 2048), algorithm="RS256")
    for token in (
        none, f"{none}{part(b'x')}", f"{message}.{part(confused)}", foreign,
        broker.token(exp=int(time.time()) - 60), broker.token(nbf=int(time.time()) + 60), broker.token(exp=None),
        broker.token(iss="https://evil.example.com"), broker.token(aud="elsewhere"), broker.token(sub=None),
        broker.token(kid="../../../../etc/passwd", key="rsa", algorithm="RS256", aud="elsewhere"),
        broker.token() + "x", broker.token().rsplit(".", 1)[0] + ".",
    ):
        assert not publish(broker, token), token
    assert publish(broker, broker.token())


def test_a_disabled_user_is_refused_whatever_its_token_says(broker):
    broker.admin("user", "add", "mallory", stdin="x")
    token = broker.token(sub="mallory", realm_access={"roles": ["ops"]})
    assert publish(broker, token, "ops/a")
    broker.admin("user", "disable", "mallory")
    assert not publish(broker, token, "ops/a")


def test_a_changed_key_is_fetched_once(broker):
    assert publish(broker, broker.token(key="first", kid="first"))
    time.sleep(1.1)  # jwks_min_refresh_interval_s
    broker.keys.keys["second"] = rsa.generate_private_key(65537, 2048)
    assert publish(broker, broker.token(key="second", kid="second"))
    before = broker.keys.requests
    for _ in range(5):
        assert not publish(broker, broker.token(kid=f"unknown-{uuid.uuid4()}", aud="elsewhere"))
    assert broker.keys.requests - before <= 5


def test_the_end_of_a_token_ends_the_connection(broker):
    reasons = []
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5, client_id=f"t-{uuid.uuid4()}")
    client.username_pw_set("", broker.token(exp=int(time.time()) + 3))
    client.on_connect = lambda _c, _u, _f, reason, _p: reasons.append(reason.value)
    client.on_disconnect = lambda _c, _u, _f, reason, _p: reasons.append(reason.value)
    client.reconnect_delay_set(60, 60)
    client.connect(*broker.addresses["mqtt"])
    began = time.monotonic()
    while len(reasons) < 2 and time.monotonic() < began + DEADLINE_S:
        client.loop(0.1)
    assert reasons == [0, 0xA0]
    assert 1 < time.monotonic() - began < 10


def status(broker, token, path="/v1/users"):
    url = f"http://{broker.address('http')}{path}"
    command = ["curl", "-sS", "--noproxy", "*", "-o", "/dev/null", "-w", "%{http_code}", "--oauth2-bearer", token, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S).stdout


def test_http_takes_bearer_tokens(broker):
    assert status(broker, broker.token(realm_access={"roles": ["ops"]})) == "200"
    assert status(broker, broker.token()) == "403"
    assert status(broker, broker.token(exp=int(time.time()) - 60)) == "401"
    assert status(broker, "opaque") == "401"


def librdkafka(broker, token, **settings):
    def callback(_config):
        return token, time.time() + 300

    return AdminClient({
        "bootstrap.servers": broker.address("kafka"), "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER", "oauth_cb": callback, "log_level": 0, **settings,
    })


def test_librdkafka_logs_in_by_oauthbearer(broker):
    client = librdkafka(broker, broker.token())
    client.poll(0.1)
    assert client.list_topics(timeout=DEADLINE_S).brokers


def test_librdkafka_is_told_that_a_token_is_not_valid(broker):
    codes = []
    client = librdkafka(broker, broker.token(aud="elsewhere"), error_cb=lambda error: codes.append(error.code()))
    until = time.monotonic() + DEADLINE_S
    while not codes and time.monotonic() < until:
        client.poll(0.1)
    assert codes[0] == KafkaError._AUTHENTICATION


def test_kafka_python_logs_in_by_oauthbearer(broker):
    class Provider(AbstractTokenProvider):
        def token(self):
            return broker.token()

    client = KafkaAdminClient(
        bootstrap_servers=broker.address("kafka"), security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Provider(),
    )
    assert client.list_topics() is not None
    client.close()


def test_a_token_is_no_password_of_somebody_else(broker):
    def codes_of(user):
        codes = []
        client = AdminClient({
            "bootstrap.servers": broker.address("kafka"), "security.protocol": "SASL_PLAINTEXT", "log_level": 0,
            "sasl.mechanisms": "PLAIN", "sasl.username": user, "sasl.password": broker.token(),
            "error_cb": lambda error: codes.append(error.code()),
        })
        until = time.monotonic() + DEADLINE_S
        while not codes and time.monotonic() < until:
            client.poll(0.1)
        return codes

    assert codes_of("admin")[0] == KafkaError._AUTHENTICATION


def test_tokens_and_secrets_are_not_in_the_audit_log(broker):
    token = broker.token()
    assert publish(broker, token)
    text = broker.audit.read_text()
    events = [json.loads(line) for line in text.splitlines()]
    assert any(event["event"] == "log-in" and event["user"] == "alice" for event in events)
    assert token not in text and SECRET not in text and "eyJ" not in text


def test_tokens_and_secrets_are_not_in_the_log(broker, tmp_path):
    (tmp_path / "secret").write_text(SECRET)
    config = tmp_path / "mainstem.toml"
    config.write_text(f'[log]\nlevel = "trace"\n[jwt]\nsecret_file = "{tmp_path}/secret"\n')
    command = [str(binary()), "--config", str(config), "--data", str(tmp_path / "data")]
    for name in ("", "kafka-", "http-"):
        command += [f"--{name}listen", "127.0.0.1:0"]
    log = tmp_path / "log"
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        addresses = {}
        while len(addresses) < len(LISTENERS):
            name, _, _, address = process.stdout.readline().split()
            addresses[name] = address
        valid = broker.token("HS256")
        tokens = [valid, valid[:-4] + "AAAA", broker.token("RS256"), "eyJub3.eyJ.x"]
        for token in tokens:
            host, port = addresses["mqtt"].rsplit(":", 1)
            publishing = ["mosquitto_pub", "-h", host, "-p", port, "-u", "u", "-P", token, "-t", "a", "-m", "x", "-q", "1"]
            subprocess.run(publishing, capture_output=True, timeout=DEADLINE_S)
            curl = ["curl", "-sS", "--noproxy", "*", "--oauth2-bearer", token, f"http://{addresses['http']}/v1/users"]
            answer = subprocess.run(curl, capture_output=True, text=True, timeout=DEADLINE_S).stdout
            assert "eyJ" not in answer and SECRET not in answer
        process.terminate()
        assert process.wait(15) == 0
    text = log.read_text()
    assert "a token is refused" in text
    assert "eyJ" not in text and SECRET not in text
