"""Log-ins that an HTTP service decides: paho, librdkafka and httpx log in; the service answers, is slow, fails, dies."""

import http.server
import json
import tempfile
import threading
import time
import uuid
from pathlib import Path

import httpx
import paho.mqtt.client as paho
import pytest
from confluent_kafka.admin import AdminClient

from secure_broker import DEADLINE_S, SecureBroker

SUCCESS, BAD_CREDENTIALS, NOT_AUTHORIZED, SERVER_UNAVAILABLE, MAXIMUM_CONNECT_TIME = 0, 0x86, 0x87, 0x88, 0xA0
SECRET = "Bearer known-to-the-service-only"
TIMEOUT_MS, PAUSE_MS = 500, 700


class Service:
    """The service: `answers` maps users to a status and a body; others get 403. It notes all requests."""

    def __init__(self):
        self.answers, self.requests, self.held = {}, [], threading.Event()
        self.held.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                request = json.loads(body)
                outer.requests.append((self.headers, request))
                if request["user"].startswith("slow"):
                    outer.held.wait(DEADLINE_S)
                status, answer = outer.answers.get(request["user"], (403, b""))
                try:
                    self.send_response(status)
                    self.send_header("content-length", str(len(answer)))
                    if status == 302:
                        self.send_header("location", outer.url)
                    self.end_headers()
                    self.wfile.write(answer)
                except OSError:
                    pass

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/log-in"

    def allow(self, user, **more):
        self.answers[user] = (200, json.dumps({"result": "allow"} | more).encode())

    def of(self, user):
        return [request for _, request in self.requests if request["user"] == user]


@pytest.fixture(scope="module")
def service():
    made = Service()
    yield made
    made.held.set()
    made.server.shutdown()


@pytest.fixture(scope="module")
def broker(service):
    with tempfile.TemporaryDirectory(prefix="mainstem-hook-") as folder:
        secret = Path(folder) / "authorization"
        secret.write_text(SECRET + "\n")
        extra = f"""
[log_in_hook]
url = "{service.url}"
authorization_file = "{secret}"
timeout_ms = {TIMEOUT_MS}
max_requests = 2
max_failures = 3
pause_ms = {PAUSE_MS}
"""
        settings = "max_failed_log_ins_per_address = 100000"
        made = SecureBroker(Path(folder), settings, extra, admin_first=True)
        # A rule that allows anything also allows to connect.
        made.rule("--everyone", "--allow", "publish", "mqtt:free")
        made.rule("--everyone", "--allow", "describe", "topic:free")
        made.rule("--role", "fitters", "--allow", "publish", "mqtt:line/#")
        yield made
        made.stop()


def connect(broker, user, password="right", client_id=None):
    """The reason code of the CONNACK, and the client."""
    reasons, over = [], threading.Event()

    def on_connect(_client, _data, _flags, reason, _properties):
        reasons.append(reason.value)
        over.set()

    client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id=client_id or f"c-{uuid.uuid4()}",
                         protocol=paho.MQTTv5, reconnect_on_failure=False)
    client.username_pw_set(user, password)
    client.on_connect = on_connect
    client.connect(broker.mqtt.host, broker.mqtt.port)
    client.loop_start()
    assert over.wait(DEADLINE_S)
    return reasons[0], client


def result(broker, user, **how):
    reason, client = connect(broker, user, **how)
    client.disconnect()
    client.loop_stop()
    return reason


@pytest.fixture(autouse=True)
def healthy(broker, service):
    """After a test, the service is asked again."""
    yield
    service.held.set()
    service.allow("healthy")
    deadline = time.monotonic() + DEADLINE_S
    while result(broker, "healthy", client_id=f"h-{uuid.uuid4()}") != SUCCESS:
        assert time.monotonic() < deadline


def test_the_service_decides(broker, service):
    service.allow("device-1")
    service.answers["device-2"] = (204, b"")
    service.answers["device-3"] = (200, b'{"result":"deny"}')
    service.answers["device-4"] = (401, b"who?")
    for user, reason in [("device-1", SUCCESS), ("device-2", SUCCESS), ("device-3", BAD_CREDENTIALS),
                         ("device-4", BAD_CREDENTIALS), ("nobody-knows", BAD_CREDENTIALS)]:
        assert result(broker, user) == reason, user


def test_what_the_service_is_told(broker, service):
    service.allow("told")
    client_id = f"c-{uuid.uuid4()}"
    assert result(broker, "told", password="pä ss", client_id=client_id) == SUCCESS
    [(headers, request)] = [known for known in service.requests if known[1]["user"] == "told"]
    assert request == {"user": "told", "password": "pä ss", "client_id": client_id, "address": "127.0.0.1",
                       "protocol": "mqtt", "common_name": None}
    assert headers["Authorization"] == SECRET and headers["Content-Type"] == "application/json"


def test_users_of_the_store_are_not_asked_for(broker, service):
    service.allow("alice")
    assert result(broker, "alice", password="ecila") == SUCCESS
    assert result(broker, "alice", password="right") == BAD_CREDENTIALS
    assert not service.of("alice")


def test_roles_of_the_answer_give_rights(broker, service):
    service.allow("fitter", roles=["fitters"])
    service.allow("guest")
    for user, reason in [("fitter", SUCCESS), ("guest", NOT_AUTHORIZED)]:
        _, client = connect(broker, user)
        reasons, over = [], threading.Event()
        client.on_publish = lambda _c, _d, _m, code, _p: (reasons.append(code.value), over.set())
        client.publish("line/7", b"x", qos=1)
        assert over.wait(DEADLINE_S)
        client.disconnect()
        client.loop_stop()
        # 0x10: nobody has subscribed.
        assert reasons[0] in ((SUCCESS, 0x10) if reason == SUCCESS else (reason,)), user


def test_the_end_of_an_answer_ends_the_connection(broker, service):
    service.allow("short", expires_at=int(time.time()) + 3)
    over, reasons = threading.Event(), []
    reason, client = connect(broker, "short")
    client.on_disconnect = lambda _c, _d, _f, code, _p: (reasons.append(code.value), over.set())
    assert reason == SUCCESS
    assert over.wait(DEADLINE_S) and reasons == [MAXIMUM_CONNECT_TIME]
    client.loop_stop()


def test_an_allowed_log_in_is_kept_and_a_denied_one_is_not(broker, service):
    service.allow("kept")
    for _ in range(5):
        assert result(broker, "kept", client_id="same") == SUCCESS
    assert len(service.of("kept")) == 1
    assert result(broker, "kept", client_id="other") == SUCCESS
    assert result(broker, "kept", client_id="same", password="changed") == SUCCESS
    assert len(service.of("kept")) == 3, "the service has decided for this client and this password only"
    for _ in range(2):
        assert result(broker, "denied") == BAD_CREDENTIALS
    assert len(service.of("denied")) == 2


def test_what_is_no_answer_lets_nobody_in(broker, service):
    for number, answer in enumerate([
        (200, b""), (200, b"allow"), (200, b'{"result":"yes"}'), (200, b'{"result":"allow","roles":"fitters"}'),
        (500, b'{"result":"allow"}'), (302, b""), (200, b'{"result":"allow","x":"' + b"a" * 2_000_000 + b'"}'),
    ]):
        service.answers[user := f"garbage-{number}"] = answer
        assert result(broker, user) == SERVER_UNAVAILABLE, answer[1][:40]
        service.allow("healthy")
        while result(broker, "healthy", client_id=f"g-{uuid.uuid4()}") != SUCCESS:
            pass


def test_a_slow_service_delays_its_own_users_only(broker, service):
    service.held.clear()
    reasons = []
    threads = [threading.Thread(target=lambda user=f"slow-{n}": reasons.append(result(broker, user))) for n in range(6)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    for _ in range(5):
        assert result(broker, "alice", password="ecila") == SUCCESS
    assert result(broker, "bob", password="bob") == SUCCESS
    assert time.monotonic() - began < DEADLINE_S
    for thread in threads:
        thread.join(DEADLINE_S)
    assert reasons == [SERVER_UNAVAILABLE] * 6


def test_a_service_that_fails_is_left_alone_for_a_while(broker, service):
    service.answers["failing"] = (500, b"")
    for _ in range(30):
        assert result(broker, "failing") == SERVER_UNAVAILABLE
    assert len(service.of("failing")) < 30
    service.allow("failing")
    deadline = time.monotonic() + DEADLINE_S
    while result(broker, "failing") != SUCCESS:
        assert time.monotonic() < deadline


def test_kafka_and_http_ask_it_too(broker, service):
    service.allow("pipeline")
    conf = {"bootstrap.servers": str(broker.kafka), "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "pipeline", "sasl.password": "right", "client.id": "loader"}
    assert AdminClient(conf).list_topics(timeout=DEADLINE_S).brokers
    assert service.of("pipeline")[0]["client_id"] == "loader" and service.of("pipeline")[0]["protocol"] == "kafka"
    url = f"http://{broker.http}/v1/queues"
    # Known, but without the right to list queues.
    assert httpx.get(url, auth=("pipeline", "right"), trust_env=False).status_code == 403
    assert httpx.get(url, auth=("unheard-of", "x"), trust_env=False).status_code == 401
    service.answers["broken"] = (500, b"")
    answer = httpx.get(url, auth=("broken", "x"), trust_env=False)
    assert answer.status_code == 503 and answer.json()["type"].endswith("log-in-unavailable")
