"""API keys: log-ins over all protocols, and attempts to get more from a key than it gives."""

import json
import queue
import time

import httpx
import pytest
from confluent_kafka.admin import AdminClient

from peer import V5, V311
from secure_broker import DEADLINE_S, SecureBroker
from test_kafka import SASL_AUTHENTICATION_FAILED, Wire

LIMIT = 5
BAD_NAME_OR_PASSWORD, NOT_AUTHORIZED, MAXIMUM_CONNECT_TIME = 0x86, 0x87, 0xA0
versions = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])


@pytest.fixture
def user(secure, rule, unique):
    """A user with the role of its own name, which may use topics and queues that begin with it."""
    name = f"{unique}-user"
    secure.tool("user", "add", name, "--role", name, stdin=name[::-1])
    rule("--role", name, "--allow", "publish,subscribe", f"mqtt:{unique}/#")
    rule("--role", name, "--allow", "*", f"queue:{unique}*")
    rule("--role", name, "--allow", "*", f"topic:{unique}*")
    yield name
    if any(json.loads(line)["name"] == name for line in secure.tool("user", "list", "-J").splitlines()):
        secure.tool("user", "delete", name)


def add_key(secure, user, *flags) -> tuple[str, str]:
    """A new key and its identifier."""
    key = secure.tool("key", "add", user, *flags).strip()
    return key, key.split("_")[1]


def listed(secure, key_id) -> dict | None:
    lines = secure.tool("key", "list", "-J").splitlines()
    return next((key for key in map(json.loads, lines) if key["id"] == key_id), None)


def peer(secure, user, key, client_id, version=V5, **settings):
    made = secure.peer(None, client_id, version, **settings)
    made.paho.username_pw_set(user, key)
    return made


def end_of(client) -> int:
    """Waits until the broker has disconnected a client. The reason code."""
    return client.disconnected.get(timeout=DEADLINE_S)[1].value


def publish(client, topic) -> int:
    """The reason code of the PUBACK."""
    reasons = queue.Queue()
    client.paho.on_publish = lambda _c, _u, _mid, reason, _props: reasons.put(reason.value)
    client.publish(topic, b"x", 1)
    return reasons.get(timeout=DEADLINE_S)


def status(secure, path="/v1/users", **settings) -> int:
    return httpx.get(f"http://{secure.http}{path}", timeout=DEADLINE_S, **settings).status_code


def bearer(key):
    return {"headers": {"Authorization": f"Bearer {key}"}}


@versions
def test_a_key_is_an_mqtt_password(secure, user, unique, version):
    key, _ = add_key(secure, user)
    for name in (user, ""):
        with peer(secure, name, key, f"{unique}{len(name)}", version) as client:
            assert client.subscribe(f"{unique}/a", 1) == 1
            client.publish(f"{unique}/a", b"hello", 1)
            assert client.next().payload == b"hello"


def test_a_key_is_a_bearer_token_and_a_basic_password(secure, user, unique):
    key, _ = add_key(secure, user)
    for log_in in (bearer(key), {"auth": (user, key)}, {"auth": ("", key)}):
        with httpx.Client(base_url=f"http://{secure.http}", timeout=DEADLINE_S, **log_in) as http:
            assert http.put(f"/v1/queues/{unique}", json={}).status_code in (200, 201)
            assert http.get("/v1/users").status_code == 403, "it has the rights of its user, not more"


def test_a_key_is_a_sasl_plain_password(secure, user, unique):
    key, _ = add_key(secure, user)
    admin = AdminClient(secure.librdkafka(user, "PLAIN", key))
    assert admin.list_topics(timeout=DEADLINE_S).brokers
    for name, other in (("bob", key), (user, key[:-2] + "AA")):
        with Wire(secure) as wire:
            assert wire.handshake("PLAIN") == 0
            assert wire.token(f"\0{name}\0{other}".encode())[0] == SASL_AUTHENTICATION_FAILED


def test_a_key_is_shown_once_and_stored_as_a_hash(secure, user, unique):
    key, key_id = add_key(secure, user, "--description", f"for {unique}", "--expires", "3600")
    secret = key.split("_", 2)[2]
    shown = listed(secure, key_id)
    assert (shown["user"], shown["description"], shown["last_used_ms"]) == (user, f"for {unique}", None)
    assert 3_500_000 < shown["expires_ms"] - time.time() * 1000 < 3_700_000
    for path in ("/v1/keys", f"/v1/keys?user={user}", "/v1/users"):
        with secure.api() as http:
            assert secret not in http.get(path).text
    stored = b"".join(path.read_bytes() for path in (secure.data / "security").rglob("*") if path.is_file())
    assert key_id.encode() in stored and secret.encode() not in stored
    added = secure.audited(lambda event: event.get("change") == "put-api-key" and event["object"] == key_id)[0]
    assert (added["user"], added["after"]["user"]) == ("admin", user)
    assert secret not in secure.audit_log.read_text()


def test_keys_and_their_last_use_survive_a_kill(secure, user, unique):
    key, key_id = add_key(secure, user)
    assert status(secure, **bearer(key)) == 403
    used = listed(secure, key_id)["last_used_ms"]
    assert abs(used - time.time() * 1000) < DEADLINE_S * 1000
    log_in = secure.audited(lambda event: event["event"] == "log-in" and event.get("api_key") == key_id)[0]
    assert (log_in["user"], log_in["protocol"]) == (user, "http")
    # It is stored after the next change of users and rules; the one after that waits for it.
    for number in range(2):
        add_key(secure, user, "--description", str(number))
    secure.restart()
    assert listed(secure, key_id)["last_used_ms"] == used
    assert status(secure, **bearer(key)) == 403


@versions
def test_a_deleted_key_ends_what_is_logged_in_with_it(secure, user, unique, version):
    (key, key_id), (other, _) = add_key(secure, user), add_key(secure, user)
    lost = peer(secure, user, key, f"{unique}a", version).connect()
    stays = peer(secure, user, other, f"{unique}b").connect()
    assert (lost.reason.value, stays.reason.value) == (0, 0)
    secure.tool("key", "delete", key_id)
    reason = end_of(lost)
    assert version == V311 or reason == NOT_AUTHORIZED
    assert status(secure, **bearer(key)) == 401
    assert peer(secure, user, key, f"{unique}c", version).connect().reason.value in (BAD_NAME_OR_PASSWORD, 4)
    assert stays.subscribe(f"{unique}/a", 1) == 1, "another key of the same user"
    stays.disconnect()
    gone = secure.run("key", "delete", key_id)
    assert gone.returncode != 0 and "does not exist" in gone.stderr


def test_a_key_does_not_outlive_its_user(secure, user, unique):
    key, key_id = add_key(secure, user)
    client = peer(secure, user, key, unique).connect()
    secure.tool("user", "disable", user)
    assert end_of(client) == NOT_AUTHORIZED
    assert status(secure, **bearer(key)) == 401
    secure.tool("user", "enable", user)
    assert status(secure, **bearer(key)) == 403
    secure.tool("user", "delete", user)
    assert status(secure, **bearer(key)) == 401
    assert listed(secure, key_id) is None
    secure.tool("user", "add", user, stdin="again")
    assert status(secure, **bearer(key)) == 401, "a later user of this name does not inherit it"


def test_a_key_is_of_its_user_only(secure, user, unique):
    key, _ = add_key(secure, user)
    assert status(secure, auth=("admin", key)) == 401
    assert peer(secure, "admin", key, unique).connect().reason.value == BAD_NAME_OR_PASSWORD
    failed = secure.audited(lambda event: event["event"] == "log-in-failed" and event.get("api_key") == key.split("_")[1])
    assert {event["user"] for event in failed} == {"admin"}
    missing = secure.run("key", "add", f"{unique}-nobody")
    assert missing.returncode != 0 and "does not exist" in missing.stderr


def test_a_key_with_a_role_has_no_other_rights(secure, rule, user, unique):
    narrow = f"{unique}-narrow"
    secure.tool("user", "role", user, user, narrow)
    rule("--role", narrow, "--allow", "publish", f"mqtt:{unique}/narrow/#")
    rule("--user", user, "--deny", "publish", f"mqtt:{unique}/narrow/secret")
    rule("--everyone", "--allow", "publish", f"mqtt:{unique}/everyone")
    key, _ = add_key(secure, user, "--role", narrow)
    with peer(secure, user, key, unique) as client:
        assert publish(client, f"{unique}/narrow/a") in (0, 0x10)
        for topic in ("narrow/secret", "wide", "everyone"):
            assert publish(client, f"{unique}/{topic}") == NOT_AUTHORIZED, topic
        assert client.subscribe(f"{unique}/wide", 1) == NOT_AUTHORIZED
    assert status(secure, f"/v1/queues/{unique}", **bearer(key)) == 403
    # The role is taken from the user, and the key with it.
    secure.tool("user", "role", user, user)
    assert peer(secure, user, key, f"{unique}b").connect().reason.value == NOT_AUTHORIZED
    refused = secure.run("key", "add", user, "--role", narrow)
    assert refused.returncode != 0 and "roles" in refused.stderr


def test_a_key_with_a_role_takes_over_no_session(secure, rule, user, unique):
    narrow = f"{unique}-narrow"
    secure.tool("user", "role", user, user, narrow)
    rule("--role", narrow, "--allow", "publish", f"mqtt:{unique}/narrow/#")
    whole, _ = add_key(secure, user)
    key, _ = add_key(secure, user, "--role", narrow)
    kept = {"clean": False, "session_expiry": 300}
    with peer(secure, user, whole, unique, **kept) as client:
        assert client.subscribe(f"{unique}/a", 1) == 1
    for settings in (kept, {}):
        assert peer(secure, user, key, unique, **settings).connect().reason.value == NOT_AUTHORIZED
    for _ in range(2):
        with peer(secure, user, key, f"{unique}own", **kept) as client:
            assert client.reason.value == 0
    with peer(secure, user, whole, unique, **kept) as client:
        client.publish(f"{unique}/a", b"still there", 1)
        assert client.next().payload == b"still there"


def test_a_new_key_finds_the_session_of_a_deleted_one(secure, user, unique):
    old, old_id = add_key(secure, user)
    kept = {"clean": False, "session_expiry": 300}
    with peer(secure, user, old, unique, **kept) as client:
        assert client.subscribe(f"$share/group/{unique}/jobs", 1) == 1
    with peer(secure, user, old, f"{unique}other") as other:
        secure.tool("key", "delete", old_id)
        end_of(other)
    new, _ = add_key(secure, user)
    with peer(secure, user, new, unique, **kept) as client:
        client.publish(f"{unique}/jobs", b"for the group", 1)
        assert client.next().payload == b"for the group"


def test_a_key_of_a_super_user_with_a_role_is_none(secure, unique):
    secure.tool("user", "role", "admin", f"{unique}-role")
    key, _ = add_key(secure, "admin", "--role", f"{unique}-role")
    assert status(secure, **bearer(key)) == 403
    whole, _ = add_key(secure, "admin")
    assert status(secure, **bearer(whole)) == 200


def test_an_expired_key_ends_its_connection(secure, user, unique):
    key, _ = add_key(secure, user, "--expires", "2")
    client = peer(secure, user, key, unique).connect()
    assert client.reason.value == 0
    assert end_of(client) == MAXIMUM_CONNECT_TIME
    assert status(secure, **bearer(key)) == 401
    assert peer(secure, user, key, unique).connect().reason.value == BAD_NAME_OR_PASSWORD


def test_only_administrators_handle_keys(secure, rule, user):
    key, key_id = add_key(secure, user)
    with httpx.Client(base_url=f"http://{secure.http}", timeout=DEADLINE_S, **bearer(key)) as http:
        assert http.get("/v1/keys").status_code == 403
        assert http.post("/v1/keys", json={"user": "admin"}).status_code == 403
        assert http.delete(f"/v1/keys/{key_id}").status_code == 403
    rule("--user", user, "--allow", "admin-read", "cluster")
    with httpx.Client(base_url=f"http://{secure.http}", timeout=DEADLINE_S, **bearer(key)) as http:
        assert http.get("/v1/keys").status_code == 200
        assert http.post("/v1/keys", json={"user": "admin"}).status_code == 403
    with secure.api() as http:
        for body in ({"user": user, "expires_in_s": 0}, {"user": user, "description": "x" * 256}, {"user": user, "x": 1}, {}):
            assert http.post("/v1/keys", json=body).status_code in (400, 422), body


def test_guessing_keys_is_limited_and_locks_nobody_out(tmp_path):
    limits = f"max_failed_log_ins_per_address = {LIMIT}\nmax_failed_log_ins_per_user = {LIMIT}"
    secure = SecureBroker(tmp_path, limits)
    try:
        key, key_id = add_key(secure, "bob")
        guesses = [f"mainstem_{key_id}_{n:042d}A" for n in range(LIMIT * 2)]
        transport = httpx.HTTPTransport(local_address="127.0.0.3")
        with httpx.Client(base_url=f"http://{secure.http}", timeout=DEADLINE_S, transport=transport) as http:
            statuses = [http.get("/v1/queues", auth=("bob", guess)).status_code for guess in guesses]
            assert statuses == [401] * LIMIT + [429] * LIMIT
            assert http.get("/v1/queues", auth=("bob", key)).status_code == 403, "the right key, from the same address"
        assert status(secure, "/v1/queues", auth=("bob", "bob"[::-1])) == 403, "his password, from another one"
        limited = lambda event: event["event"] == "log-in-limited" and event.get("api_key") == key_id  # noqa: E731
        assert len(secure.audited(limited, LIMIT)) == LIMIT
    finally:
        secure.stop()
