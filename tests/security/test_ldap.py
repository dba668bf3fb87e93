"""Log-ins that a directory decides, OpenLDAP's slapd: mosquitto_pub, paho, confluent-kafka, kafka-python, kcat and curl
log in; the directory knows them, does not, or is away."""

import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import httpx
import pytest
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient

from broker import binary, cert
from directory import ACCOUNT, ACCOUNT_PASSWORD, GROUPS, PEOPLE, Directory
from secure_broker import DEADLINE_S, SecureBroker

SUCCESS, BAD_CREDENTIALS, NOT_AUTHORIZED, SERVER_UNAVAILABLE = 0, 0x86, 0x87, 0x88
PAUSE_MS = 700
ODD = 'Smith, James (Jim)* \\ +"#='
PEOPLE_OF_TESTS = {"ann": "nna", "ben": "neb", "moving": "before", ODD: "ddo", "mute": None, "alice": "of-the-directory"}
GROUPS_OF_TESTS = {"fitters": ["ann", ODD], "night shift": ["ann"], "guests": ["ben"]}
SEARCH = f"""
user_base = "{PEOPLE}"
bind_dn = "{ACCOUNT}"
bind_password_file = "FOLDER/account"
"""
GROUP_SEARCH = f"""
group_base = "{GROUPS}"
"""


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory(prefix="mainstem-ldap-") as name:
        path = Path(name)
        cert(path / "certs", "--host", "localhost")
        # As editors leave it.
        (path / "account").write_text(ACCOUNT_PASSWORD + "\n")
        yield path


@pytest.fixture(scope="module")
def directory(folder):
    made = Directory(folder, folder / "certs", PEOPLE_OF_TESTS, GROUPS_OF_TESTS)
    yield made
    made.stop()


def start(folder, name, ldap):
    (folder / name).mkdir()
    settings = "max_failed_log_ins_per_address = 100000\nmax_failed_log_ins_per_user = 100000"
    extra = f"[ldap]\n{ldap}\npause_ms = {PAUSE_MS}\nmax_failures = 3\n".replace("FOLDER", str(folder))
    made = SecureBroker(folder / name, settings, extra, admin_first=True)
    made.rule("--everyone", "--allow", "publish", "mqtt:free")
    made.rule("--everyone", "--allow", "describe", "topic:free")
    made.rule("--role", "fitters", "--allow", "publish", "mqtt:line/#")
    made.rule("--role", "fitters", "--allow", "admin-read", "cluster")
    return made


@pytest.fixture(scope="module")
def broker(folder, directory):
    """Searches users, over ldaps."""
    made = start(folder, "search", f"""
url = "ldaps://localhost:{directory.tls_port}"
ca_file = "FOLDER/certs/ca.crt"
cache_s = 0
{SEARCH}{GROUP_SEARCH}""")
    yield made
    made.stop()


@pytest.fixture(scope="module")
def by_name(folder, directory):
    """Binds by a distinguished name, with StartTLS, and reads groups as its account."""
    made = start(folder, "name", f"""
url = "ldap://localhost:{directory.port}"
start_tls = true
ca_file = "FOLDER/certs/ca.crt"
user_dn = "uid=${{user}},{PEOPLE}"
bind_dn = "{ACCOUNT}"
bind_password_file = "FOLDER/account"
cache_s = 3600
{GROUP_SEARCH}""")
    yield made
    made.stop()


def connect(broker, user, password, topic="free"):
    """The reason code of the CONNACK, or of the PUBACK if it is a success. 0x10, nobody has subscribed, is one."""
    peer = broker.peer(None, f"c-{time.monotonic_ns()}")
    reasons, over = [], threading.Event()

    def note(code):
        reasons.append(code.value)
        if code.value >= 0x80:
            over.set()

    client = peer.paho
    client.username_pw_set(user, password)
    client.on_connect = lambda _c, _d, _f, code, _p: (note(code), client.publish(topic, b"x", qos=1))
    client.on_publish = lambda _c, _d, _m, code, _p: (reasons.append(code.value), over.set())
    client.connect(broker.mqtt.host, broker.mqtt.port)
    client.loop_start()
    try:
        assert over.wait(DEADLINE_S)
    finally:
        client.disconnect()
        client.loop_stop()
    return next((code for code in reasons if code >= 0x80), SUCCESS)


@pytest.fixture(params=["broker", "by_name"])
def each(request):
    """Both ways to find the entry of a user, and both ways to begin TLS."""
    return request.getfixturevalue(request.param)


def test_the_directory_decides(each):
    for user, password, reason in [
        ("ann", "nna", SUCCESS), ("ann", "ann", BAD_CREDENTIALS), ("ben", "neb", SUCCESS), ("ben", "nna", BAD_CREDENTIALS),
        ("nobody", "x", BAD_CREDENTIALS), ("mute", "x", BAD_CREDENTIALS), (ODD, "ddo", SUCCESS),
    ]:
        assert connect(each, user, password) == reason, user


def test_an_empty_password_proves_nothing(each):
    """RFC 4513, section 5.1.2: the directory answers such a bind with success."""
    for user in ["ann", "nobody", "mute", "broker"]:
        assert connect(each, user, "") in (BAD_CREDENTIALS, NOT_AUTHORIZED), user


def test_no_name_becomes_a_filter_or_a_part_of_another_name(each):
    for user in ["*", "an*", "ann)(uid=*", "ann)(|(uid=*", "\\61nn", "ann,ou=people", f"ann,{PEOPLE}", "ann+cn=ann",
                 "${dn}", "ann\\2C"]:
        assert connect(each, user, "nna") == BAD_CREDENTIALS, user


def test_another_spelling_is_another_user(each):
    """Directories compare names without regard to case and spaces; rules for `ann` must not be passed by as `ANN`."""
    for user in ["ANN", "Ann", " ann", "ann ", "uid=ann"]:
        assert connect(each, user, "nna") == BAD_CREDENTIALS, user


def test_groups_are_roles(each):
    for user, password, reason in [("ann", "nna", SUCCESS), (ODD, "ddo", SUCCESS), ("ben", "neb", NOT_AUTHORIZED)]:
        assert connect(each, user, password, topic="line/7") == reason, user


def test_users_of_the_store_are_not_looked_up(each):
    assert connect(each, "alice", "ecila") == SUCCESS
    assert connect(each, "alice", "of-the-directory") == BAD_CREDENTIALS


def test_mosquitto_pub_logs_in(each):
    def publish(password):
        command = ["mosquitto_pub", "-h", each.mqtt.host, "-p", str(each.mqtt.port), "-u", "ann", "-P", password, "-t",
                   "line/7", "-m", "21.5", "-q", "1"]
        return subprocess.run(command, capture_output=True, timeout=DEADLINE_S, check=False).returncode

    assert publish("nna") == 0 and publish("wrong") != 0


def test_kafka_clients_log_in(each):
    def conf(password):
        return {"bootstrap.servers": str(each.kafka), "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
                "sasl.username": "ann", "sasl.password": password}

    assert AdminClient(conf("nna")).list_topics(timeout=DEADLINE_S).brokers
    errors = []
    refused = AdminClient(conf("wrong") | {"error_cb": errors.append, "reconnect.backoff.ms": 500})
    deadline = time.monotonic() + DEADLINE_S
    while not any("uthentication" in str(error) for error in errors):
        assert time.monotonic() < deadline, errors
        refused.poll(0.1)
    admin = KafkaAdminClient(bootstrap_servers=str(each.kafka), security_protocol="SASL_PLAINTEXT",
                             sasl_mechanism="PLAIN", sasl_plain_username="ann", sasl_plain_password="nna")
    admin.list_topics()
    admin.close()
    command = ["kcat", "-L", "-b", str(each.kafka), "-X", "security.protocol=SASL_PLAINTEXT", "-X",
               "sasl.mechanism=PLAIN", "-X", "sasl.username=ann", "-X", "sasl.password=nna"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0 and "broker" in done.stdout, done.stderr


def test_curl_logs_in(each):
    def status(log_in):
        command = ["curl", "--noproxy", "*", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-u", log_in,
                   f"http://{each.http}/v1/users"]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout

    assert [status("ann:nna"), status("ben:neb"), status("ann:neb"), status("ann:")] == ["200", "403", "401", "401"]


def test_an_allowed_log_in_is_kept_and_a_denied_one_is_not(broker, by_name, directory):
    assert connect(by_name, "moving", "before") == SUCCESS
    assert connect(broker, "moving", "before") == SUCCESS
    directory.change_password("moving", "after")
    assert connect(broker, "moving", "before") == BAD_CREDENTIALS, "without a cache, at once"
    assert connect(by_name, "moving", "before") == SUCCESS
    assert connect(by_name, "moving", "after") == SUCCESS
    assert connect(by_name, "moving", "neither") == BAD_CREDENTIALS


def test_no_password_is_in_the_log_of_events(broker):
    assert connect(broker, "ann", "a-guess-of-a-password") == BAD_CREDENTIALS
    broker.audited(lambda event: event["event"] == "log-in-failed" and event["user"] == "ann")
    text = broker.audit_log.read_text()
    assert "a-guess" not in text and ACCOUNT_PASSWORD not in text


def test_a_directory_that_is_away_lets_nobody_in_and_is_asked_again(folder, directory):
    broker = start(folder, "away", f"""
url = "ldaps://localhost:{directory.tls_port}"
ca_file = "FOLDER/certs/ca.crt"
cache_s = 0
timeout_ms = 2000
{SEARCH}{GROUP_SEARCH}""")
    try:
        assert connect(broker, "ann", "nna") == SUCCESS
        directory.stop()
        for _ in range(5):
            assert connect(broker, "ann", "nna") == SERVER_UNAVAILABLE
        assert connect(broker, "alice", "ecila") == SUCCESS, "users of the store are not concerned"
        answer = httpx.get(f"http://{broker.http}/v1/users", auth=("ann", "nna"), trust_env=False)
        assert answer.status_code == 503 and answer.json()["type"].endswith("log-in-unavailable")
        directory.start()
        deadline = time.monotonic() + DEADLINE_S
        while connect(broker, "ann", "nna") != SUCCESS:
            assert time.monotonic() < deadline
    finally:
        if directory.process is None:
            directory.start()
        broker.stop()


def test_a_directory_that_does_not_answer_delays_its_own_users_only(folder):
    """It accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        broker = start(folder, "silent", f"""
url = "ldap://127.0.0.1:{silent.getsockname()[1]}"
user_dn = "uid=${{user}},{PEOPLE}"
timeout_ms = 1500
max_requests = 2
""")
        try:
            reasons = []
            threads = [threading.Thread(target=lambda: reasons.append(connect(broker, "ann", "nna"))) for _ in range(6)]
            for thread in threads:
                thread.start()
            assert connect(broker, "alice", "ecila") == SUCCESS
            for thread in threads:
                thread.join(DEADLINE_S)
            assert reasons == [SERVER_UNAVAILABLE] * 6
        finally:
            broker.stop()


@pytest.mark.parametrize("tls", ["ldaps", "start_tls"])
def test_a_directory_with_another_certificate_gets_no_password(folder, directory, tls):
    other = folder / f"other-{tls}"
    cert(other, "--host", "localhost")
    url = f'url = "ldaps://localhost:{directory.tls_port}"' if tls == "ldaps" else \
        f'url = "ldap://localhost:{directory.port}"\nstart_tls = true'
    broker = start(folder, f"other-{tls}-broker", f'{url}\nca_file = "{other}/ca.crt"\nuser_dn = "uid=${{user}},{PEOPLE}"')
    try:
        assert connect(broker, "ann", "nna") == SERVER_UNAVAILABLE
    finally:
        broker.stop()


def test_an_account_with_a_wrong_password_lets_nobody_in(folder, directory):
    (folder / "wrong").write_text("wrong")
    search = SEARCH.replace("FOLDER/account", "FOLDER/wrong")
    broker = start(folder, "wrong-account", f'url = "ldap://127.0.0.1:{directory.port}"{search}')
    try:
        assert connect(broker, "ann", "nna") == SERVER_UNAVAILABLE
    finally:
        broker.stop()


@pytest.mark.parametrize("ldap, key", [
    ('url = "ldap://ldap.example.com"\nuser_dn = "uid=${user},o=x"', "ldap.url"),
    ('url = "ldap://localhost"\nuser_dn = "uid=admin,o=x"', "ldap.user_dn"),
    ('url = "ldap://localhost"\nuser_base = "o=x"\nuser_filter = "(uid=${user}"', "ldap.user_filter"),
    ('url = "ldap://localhost"\nuser_base = "o=x"\nbind_dn = "cn=a"\nbind_password_file = "/nonexistent"',
     "ldap.bind_password_file"),
    ('url = "ldap://localhost"\nuser_base = "o=x"\nbind_dn = "cn=a"\nbind_password_file = "/dev/null"',
     "ldap.bind_password_file"),
])
def test_settings_that_are_not_safe_are_refused_at_start(tmp_path, ldap, key):
    config = tmp_path / "mainstem.toml"
    config.write_text(f"[ldap]\n{ldap}\n")
    command = [str(binary()), "--config", str(config), "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0",
               "--kafka-listen", "", "--http-listen", ""]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode != 0 and key in done.stderr, done.stderr
