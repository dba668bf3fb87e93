"""mosquitto_pub, mosquitto_sub and mosquitto_rr on the command line."""

import queue
import re
import signal
import subprocess
import threading
import time

import pytest

VERSIONS = ["mqttv31", "mqttv311", "mqttv5"]
DEADLINE_S = 30
each_version = pytest.mark.parametrize("version", VERSIONS)
each_qos = pytest.mark.parametrize("qos", ["0", "1", "2"])
# One line per message: topic, QoS, retain flag, payload in hexadecimal.
PLAIN = "%t %q %r %x"


@pytest.fixture
def pub(broker):
    """Runs mosquitto_pub to its end, and fails if it does not report success."""

    def run(*arguments, version="mqttv5", stdin=None):
        command = ["mosquitto_pub", "-h", broker.host, "-p", str(broker.port), "-V", version, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=30)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stderr == b""

    return run


class Subscriber:
    """A running mosquitto_sub, subscribed when the constructor returns, and its messages in the given format."""

    def __init__(self, broker, *arguments, version="mqttv5", form=PLAIN, program="mosquitto_sub"):
        command = ["stdbuf", "-oL", program, "-h", broker.host, "-p", str(broker.port), "-V", version, "-d",
                   "-F", f"MESSAGE {form}", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._messages = queue.Queue()
        self._subscribed = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._subscribed.wait(DEADLINE_S):
            self._process.kill()
            raise AssertionError(f"not subscribed: {command}")

    def _read(self):
        for line in self._process.stdout:
            if line.startswith("MESSAGE "):
                self._messages.put(line[len("MESSAGE "):].rstrip("\n"))
            elif line.startswith("Subscribed ") or re.match(r"Client \S* received PUBLISH", line):
                # A client with a session may get messages before the answer to its SUBSCRIBE.
                self._subscribed.set()

    def next(self):
        return self._messages.get(timeout=DEADLINE_S)

    def receive(self, count):
        return [self.next() for _ in range(count)]

    def wait(self):
        """Waits until it exits by itself, as with `-C`, and returns its status and the remaining messages."""
        status = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return status, list(self._messages.queue)

    def leave(self):
        """Makes it disconnect and waits until it exits."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(DEADLINE_S)

    def kill(self):
        """Kills it, so that it sends no DISCONNECT."""
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self.leave()


def hexed(text):
    return text.encode().hex()


@each_version
@each_qos
def test_lines_arrive_once_and_in_order(broker, unique, pub, version, qos):
    """[MQTT3-4.6.0-6] [MQTT5-4.6.0-5] [MQTT3-4.3.3-2] [MQTT5-4.3.3-10]: 300 lines, then a marker."""
    lines = [f"line {number}" for number in range(300)]
    with Subscriber(broker, "-t", unique, "-q", qos, "-C", "301", version=version) as subscriber:
        pub("-t", unique, "-q", qos, "-l", version=version, stdin="\n".join([*lines, "end"]).encode())
        status, messages = subscriber.wait()
    assert status == 0
    assert messages == [f"{unique} {qos} 0 {hexed(line)}" for line in [*lines, "end"]]


@each_version
@pytest.mark.parametrize("published", ["0", "1", "2"])
@pytest.mark.parametrize("subscribed", ["0", "1", "2"])
def test_the_lower_quality_of_service_wins(broker, unique, pub, version, published, subscribed):
    """[MQTT3-3.8.4-6] [MQTT5-3.8.4-8]"""
    with Subscriber(broker, "-t", f"{unique}/#", "-q", subscribed, version=version) as subscriber:
        pub("-t", f"{unique}/a/b", "-q", published, "-m", "x", version=version)
        assert subscriber.next() == f"{unique}/a/b {min(published, subscribed)} 0 {hexed('x')}"


@each_version
def test_a_retained_message_is_kept_and_cleared(broker, unique, pub, version):
    """[MQTT3-3.3.1-6] [MQTT3-3.3.1-8] [MQTT3-3.3.1-10] [MQTT5-3.3.1-6] [MQTT5-3.3.1-9]"""
    pub("-t", unique, "-q", "1", "-r", "-m", "kept", version=version)
    with Subscriber(broker, "-t", unique, "-q", "1", version=version) as subscriber:
        assert subscriber.next() == f"{unique} 1 1 {hexed('kept')}"
        pub("-t", unique, "-q", "1", "-r", "-n", version=version)
        assert subscriber.next() == f"{unique} 1 0 "
    with Subscriber(broker, "-t", unique, "-q", "1", version=version) as late:
        pub("-t", unique, "-q", "1", "-m", "end", version=version)
        assert late.next() == f"{unique} 1 0 {hexed('end')}"


def test_retain_as_published(broker, unique, pub):
    """[MQTT5-3.3.1-13]"""
    with Subscriber(broker, "-t", unique, "-q", "1", "--retain-as-published") as subscriber:
        pub("-t", unique, "-q", "1", "-r", "-m", "x")
        assert subscriber.next() == f"{unique} 1 1 {hexed('x')}"
        pub("-t", unique, "-q", "1", "-r", "-n")


@each_version
def test_a_killed_client_leaves_its_will(broker, unique, pub, version):
    """[MQTT3-3.1.2-8] [MQTT5-3.1.2-8]; not a client that disconnects [MQTT3-3.14.4-3] [MQTT5-3.14.4-3]."""
    will = ["--will-topic", f"{unique}/will", "--will-payload", "gone", "--will-qos", "1", "-t", f"{unique}/other"]
    with Subscriber(broker, "-t", f"{unique}/will", "-q", "1", version=version) as watcher:
        assert Subscriber(broker, *will, "-i", f"{unique}a", "-E", version=version).wait() == (0, [])
        # The same identifier ensures that the server has finished with the previous connection.
        pub("-t", f"{unique}/will", "-q", "1", "-m", "first", "-i", f"{unique}a", version=version)
        Subscriber(broker, *will, version=version).kill()
        assert watcher.receive(2) == [f"{unique}/will 1 0 {hexed('first')}", f"{unique}/will 1 0 {hexed('gone')}"]


def test_an_interrupted_client_asks_for_its_will(broker, unique):
    """On version 5 mosquitto_sub answers an interrupt with DISCONNECT 0x04, disconnect with will message."""
    will = ["--will-topic", f"{unique}/will", "--will-payload", "gone", "--will-qos", "1", "-t", f"{unique}/other"]
    with Subscriber(broker, "-t", f"{unique}/will", "-q", "1") as watcher:
        Subscriber(broker, *will).leave()
        assert watcher.next() == f"{unique}/will 1 0 {hexed('gone')}"


def test_a_will_with_delay_and_properties(broker, unique, pub):
    """[MQTT5-3.1.2-8] [MQTT5-3.1.3-10]"""
    will = ["--will-topic", f"{unique}/will", "--will-payload", "gone", "--will-qos", "1", "-t", f"{unique}/other",
            "-x", "100", "-D", "will", "will-delay-interval", "1", "-D", "will", "user-property", "b", "1",
            "-D", "will", "user-property", "a", "2", "-D", "will", "content-type", "text/plain"]
    with Subscriber(broker, "-t", f"{unique}/will", "-q", "1", form="%p %P %C") as watcher:
        killed = Subscriber(broker, *will)
        start = time.monotonic()
        killed.kill()
        pub("-t", f"{unique}/will", "-q", "1", "-m", "first")
        assert watcher.next().split() == ["first"]
        assert watcher.next().split() == ["gone", "b:1", "a:2", "text/plain"]
        assert 0.7 <= time.monotonic() - start <= 4


@each_qos
def test_properties_arrive_unaltered(broker, unique, pub, qos):
    """[MQTT5-3.3.2-4] [MQTT5-3.3.2-15] [MQTT5-3.3.2-16] [MQTT5-3.3.2-17] [MQTT5-3.3.2-18] [MQTT5-3.3.2-20]"""
    form = "%p|%P|%C|%R|%D|%F|%E|%S"
    identified = ["-D", "subscribe", "subscription-identifier", "77"]
    with Subscriber(broker, "-t", unique, "-q", qos, *identified, form=form) as subscriber:
        pub("-t", unique, "-q", qos, "-m", "x", "-D", "publish", "user-property", "z", "1", "-D", "publish",
            "user-property", "a", "2", "-D", "publish", "user-property", "z", "0", "-D", "publish", "content-type",
            "text/plain", "-D", "publish", "response-topic", f"{unique}/r", "-D", "publish", "correlation-data",
            "corr", "-D", "publish", "payload-format-indicator", "1", "-D", "publish", "message-expiry-interval", "100")
        payload, users, content, response, correlation, indicator, expiry, identifier = subscriber.next().split("|")
        assert payload == "x"
        assert users.split() == ["z:1", "a:2", "z:0"]
        assert content == "text/plain"
        assert response == f"{unique}/r"
        assert correlation == "corr"
        assert indicator == "1"
        assert 98 <= int(expiry) <= 100
        assert identifier == "77"


def test_a_topic_alias_stands_for_its_topic(broker, unique, pub):
    """[MQTT5-3.3.2-12]: mosquitto_pub sends the topic with the first line only."""
    with Subscriber(broker, "-t", unique, "-q", "1") as subscriber:
        pub("-t", unique, "-q", "1", "-l", "-D", "publish", "topic-alias", "2", stdin=b"a\nb\nc\n")
        assert subscriber.receive(3) == [f"{unique} 1 0 {hexed(line)}" for line in "abc"]


@each_version
def test_a_shared_subscription_spreads_the_lines(broker, unique, pub, version):
    """MQTT 5, 4.8.2: each line once, and some for each member."""
    lines = [f"{number}" for number in range(90)]
    members = [Subscriber(broker, "-t", f"$share/g/{unique}", "-t", f"{unique}/end", "-q", "1", version=version)
               for _ in range(3)]
    pub("-t", unique, "-q", "1", "-l", version=version, stdin="\n".join(lines).encode())
    pub("-t", f"{unique}/end", "-q", "1", "-m", "end", version=version)
    shares = []
    for member in members:
        share = []
        while not (message := member.next()).startswith(f"{unique}/end"):
            share.append(bytes.fromhex(message.split()[3]).decode())
        shares.append(share)
        member.leave()
    assert sorted(line for share in shares for line in share) == sorted(lines)
    assert all(shares)


@each_version
@pytest.mark.parametrize("qos", ["1", "2"])
def test_messages_wait_for_a_durable_client(broker, unique, pub, version, qos):
    """[MQTT3-3.1.2-5] [MQTT5-3.1.2-23] [MQTT5-4.5.0-1]"""
    durable = ["-i", f"{unique}s", "-c", "-t", unique, "-q", qos, *(["-x", "100"] if version == "mqttv5" else [])]
    Subscriber(broker, *durable, version=version).leave()
    lines = [f"{number}" for number in range(100)]
    pub("-t", unique, "-q", qos, "-l", version=version, stdin="\n".join(lines).encode())
    with Subscriber(broker, *durable, "-C", "100", version=version) as again:
        status, messages = again.wait()
        assert status == 0
        assert messages == [f"{unique} {qos} 0 {hexed(line)}" for line in lines]
    # Without -c: a clean start, which ends the session.
    pub("-i", f"{unique}s", "-t", f"{unique}/end", "-m", "-", version=version)


@pytest.mark.parametrize("qos", ["1", "2"])
def test_a_receive_maximum_of_one_loses_nothing(broker, unique, pub, qos):
    """[MQTT5-3.3.4-9]"""
    lines = [f"{number}" for number in range(100)]
    with Subscriber(broker, "-t", unique, "-q", qos, "-D", "connect", "receive-maximum", "1") as subscriber:
        pub("-t", unique, "-q", qos, "-l", stdin="\n".join(lines).encode())
        assert subscriber.receive(100) == [f"{unique} {qos} 0 {hexed(line)}" for line in lines]


@each_version
@each_qos
def test_a_large_file_arrives_whole(broker, unique, pub, tmp_path, version, qos):
    """5 MB, most of them line feeds and zero bytes."""
    content = (bytes(range(256)) + b"\n\0" * 1000) * 2216
    file = tmp_path / "large"
    file.write_bytes(content)
    with Subscriber(broker, "-t", unique, "-q", qos, "-C", "1", version=version) as subscriber:
        pub("-t", unique, "-q", qos, "-f", str(file), version=version)
        assert bytes.fromhex(subscriber.next().split(" ")[3]) == content


@each_version
def test_sys_topics_can_be_read(broker, version):
    with Subscriber(broker, "-t", "$SYS/#", "-C", "3", version=version) as subscriber:
        status, messages = subscriber.wait()
        assert status == 0
        assert len(messages) == 3
        assert all(message.startswith("$SYS/") for message in messages)


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_a_request_gets_its_response(broker, unique, pub, version):
    """mosquitto_rr subscribes to the response topic, publishes the request, and prints the response."""
    with Subscriber(broker, "-t", f"{unique}/request", "-q", "1", version=version) as answering:
        request = ["stdbuf", "-oL", "mosquitto_rr", "-h", broker.host, "-p", str(broker.port), "-V", version, "-q", "1",
                   "-t", f"{unique}/request", "-e", f"{unique}/response", "-m", "question"]
        with subprocess.Popen(request, stdout=subprocess.PIPE) as asking:
            assert answering.next().endswith(hexed("question"))
            pub("-t", f"{unique}/response", "-q", "1", "-m", "answer", version=version)
            answer, _ = asking.communicate(timeout=DEADLINE_S)
        assert (asking.returncode, answer) == (0, b"answer\n")


@each_version
def test_a_second_client_with_the_same_identifier_takes_over(broker, unique, version):
    """[MQTT3-3.1.4-2] [MQTT5-3.1.4-3]: the will of the first shows that its connection was closed."""
    with Subscriber(broker, "-t", f"{unique}/will", "-q", "1", version=version) as watcher:
        same = ["-i", f"{unique}a", "-t", f"{unique}/other"]
        first = Subscriber(broker, *same, "--will-topic", f"{unique}/will", "--will-payload", "gone", version=version)
        with Subscriber(broker, *same, version=version):
            assert watcher.next().endswith(hexed("gone"))
            # Before it can reconnect and take over itself.
            first.kill()
