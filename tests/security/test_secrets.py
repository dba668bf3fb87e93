"""No secret leaves the broker: not by its log, its audit log, its metrics, its values under $SYS or its HTTP API."""

import base64

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from peer import V5, Peer
from secure_broker import DEADLINE_S, SecureBroker

# A hash of mosquitto_passwd, of the password "from-a-file".
SALT, HASH = "c2FsdHNhbHRzYWx0", base64.b64encode(b"7" * 64).decode()
RIGHT, WRONG, CHANGED, BY_KAFKA = "hunter2-right", "hunter2-wrong", "hunter2-changed", "hunter2-by-kafka"


def log_in_everywhere(broker, user, password):
    """Tries a password by each protocol and mechanism. Returns how many log-ins were accepted."""
    accepted = 0
    peer = Peer(broker.mqtt, "secrets", V5)
    peer.paho.username_pw_set(user, password)
    if peer.connect().reason.value == 0:
        accepted += 1
        peer.disconnect()
    for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        try:
            AdminClient(broker.librdkafka(user, mechanism, password)).list_topics(timeout=2)
            accepted += 1
        except KafkaException:
            pass
    with broker.api(None) as http:
        accepted += http.get("/v1/users", auth=(user, password)).status_code == 200
    return accepted


def spellings(user, password):
    """How a password may look in a text."""
    texts = [password, f"\0{user}\0{password}", f"{user}:{password}"]
    return [password, *(base64.b64encode(text.encode()).decode().rstrip("=") for text in texts)]


def system_values(broker):
    with broker.peer("admin", "secrets-sys") as client:
        client.subscribe("$SYS/#", 0)
        values = client.receive(20)
    return "\n".join(f"{message.topic} {message.payload!r}" for message in values)


def test_no_secret_is_shown_anywhere(tmp_path, capfd):
    passwords = tmp_path / "passwords"
    passwords.write_text(f"carol:$7$101${SALT}${HASH}\n")
    # librdkafka tries again and again.
    unlimited = "max_failed_log_ins_per_address = 0\nmax_failed_log_ins_per_user = 0"
    broker = SecureBroker(tmp_path, unlimited, extra='[log]\nlevel = "trace"')
    # Users of a file count as users: the first user of the store is there before.
    config = tmp_path / "mainstem.toml"
    config.write_text(config.read_text().replace("[security]", f'[security]\npassword_file = "{passwords}"'))
    broker.restart()
    broker.tool("user", "add", "dave", "--role", "ops", stdin=RIGHT)
    for action in ("describe", "admin-read"):
        broker.rule("--user", "dave", "--allow", action, "*")
    assert log_in_everywhere(broker, "dave", RIGHT) == 5
    assert log_in_everywhere(broker, "dave", WRONG) == 0
    assert log_in_everywhere(broker, "carol", WRONG) == 0
    broker.tool("user", "passwd", "dave", stdin=CHANGED)
    assert log_in_everywhere(broker, "dave", CHANGED) == 5
    sha_256 = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
    change = UserScramCredentialUpsertion("dave", sha_256, BY_KAFKA.encode(), b"some-salt-of-the-client")
    # Its requests are cancelled when the client goes, so it is kept.
    admin = broker.admin_client()
    admin.alter_user_scram_credentials([change])["dave"].result(DEADLINE_S)
    with broker.api() as http:
        shown = [http.get(path).text for path in ("/metrics", "/v1/users", "/v1/acls", "/v1/queues", "/v1/bindings")]
        refused = http.patch("/v1/users/dave", json={"password": 7, "roles": WRONG})
        assert refused.status_code in (400, 422)
    shown += [broker.tool("user", "list"), broker.tool("user", "list", "-J"), system_values(broker)]
    broker.stop()
    log = capfd.readouterr().err
    assert "TRACE" in log and "CONNECT" in log, "the log of the broker, at its most talkative level"
    texts = {"log": log, "audit log": broker.audit_log.read_text(), "answers": "\n".join(shown)}
    secrets = [SALT, HASH, "argon2", "some-salt-of-the-client"]
    for user in ("dave", "carol"):
        for password in (RIGHT, WRONG, CHANGED, BY_KAFKA):
            secrets += spellings(user, password)
    for name, text in texts.items():
        for secret in secrets:
            assert secret not in text, f"{secret} is in the {name}"
