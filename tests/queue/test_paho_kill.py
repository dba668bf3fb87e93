"""paho-mqtt: workers and the broker are killed; no confirmed message is lost, no settled one returns."""

import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty

import pytest

from kills import KILLS, SETTLE_S, TIMEOUT_S, kill_under
from operations import Operations, eventually
from worker import Worker, count, texts, user_properties

pytestmark = pytest.mark.timeout(TIMEOUT_S)


def test_messages_of_a_killed_worker_go_to_others(broker_process, operations, unique, queue):
    operations.send(queue, *(f"{number}" for number in range(10)))
    script = Path(__file__).with_name("lone_worker.py")
    lone = [sys.executable, script, broker_process.mqtt.host, f"{broker_process.mqtt.port}", queue, "10"]
    with subprocess.Popen(lone, stdout=subprocess.PIPE, text=True) as killed, Worker(broker_process.mqtt, f"{unique}other") as other:
        try:
            assert [killed.stdout.readline().strip() for _ in range(10)] == [f"{number}" for number in range(10)]
            other.work_on(queue)
            operations.send(queue, "new")
            fresh = other.next()
            assert (fresh.payload, count(fresh)) == (b"new", 1), "what the first one has is its own"
        finally:
            killed.kill()
        got = other.receive(10)
        assert sorted(texts(got)) == [f"{number}" for number in range(10)]
        assert {count(message) for message in got} == {2}
        for message in [fresh, *got]:
            other.ack(message)
        operations.empty(queue)


class Client:
    """A paho client that reconnects whenever its broker is back, until it is stopped."""

    def __init__(self, broker_process, name):
        self._broker_process, self._name = broker_process, name
        self._is_over = threading.Event()
        self._lives = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while not self._is_over.is_set():
            self._lives += 1
            worker = Worker(self._broker_process.mqtt, f"{self._name}-{self._lives}", keepalive=10)
            try:
                worker.connect()
            except OSError:
                # The broker is not back yet, or was killed again.
                worker.paho.loop_stop()
                self._is_over.wait(0.01)
                continue
            try:
                self.live(worker)
            except AssertionError:
                # paho notices a lost connection before it calls back.
                eventually(lambda: not worker.disconnected.empty(), "nothing but the end of the broker interrupts it")
            finally:
                worker.paho.loop_stop()

    def is_on(self, worker) -> bool:
        return worker.disconnected.empty() and not self._is_over.is_set()

    def stop(self):
        self._is_over.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive()


class Sender(Client):
    """Sends numbers one after the other, each until it is confirmed."""

    def __init__(self, broker_process, name, queue):
        self._queue = queue
        self.confirmed = []
        self.sent = 0
        super().__init__(broker_process, name)

    def live(self, worker):
        while self.is_on(worker):
            text = f"{self._name}/{self.sent}"
            info = worker.publish_later(f"$queue/{self._queue}", text, qos=1)
            while not info.is_published() and worker.disconnected.empty():
                time.sleep(0.001)
            if info.is_published():
                assert worker._answers.pop(info.mid) == 0
                self.confirmed.append(text)
                # The next connection sends unconfirmed messages again, so they may exist twice.
                self.sent += 1


class Consumer(Client):
    """Fails each message with an even number once, and then acknowledges it."""

    def __init__(self, broker_process, name, queue, record):
        self._queue, self._record = queue, record
        super().__init__(broker_process, name)

    def live(self, worker):
        worker.work_on(self._queue)
        while self.is_on(worker):
            try:
                message = worker.messages.get(timeout=0.05)
            except Empty:
                continue
            self._record.came(worker, message)


class Record:
    """Received messages with their counts, and acknowledged ones."""

    def __init__(self):
        self._lock = threading.Lock()
        self.counts = {}
        self.acknowledged = set()

    def came(self, worker, message):
        text, number = message.payload.decode(), count(message)
        with self._lock:
            self.counts.setdefault(int(user_properties(message)["offset"]), []).append(number)
        if number == 1 and text.endswith("0"):
            worker.fail(message, delay_ms=20)
        else:
            worker.ack(message)
            with self._lock:
                self.acknowledged.add(text)


def test_the_broker_is_killed_under_its_workers(own_broker_process, unique):
    with Operations(own_broker_process.url) as operations:
        # A lost connection is a failed delivery: each kill adds one.
        operations.create(unique, max_deliveries=0, backoff_jitter_percent=0)
    record = Record()
    senders = [Sender(own_broker_process, f"{unique}s{number}", unique) for number in range(2)]
    consumers = [Consumer(own_broker_process, f"{unique}w{number}", unique, record) for number in range(3)]
    confirmed = kill_under(own_broker_process, senders)
    with Operations(own_broker_process.url) as operations:
        eventually(lambda: operations.info(unique)["messages"] == 0, "all is settled", SETTLE_S)
        info = operations.info(unique)
        assert info["groups"][0]["dead"] == 0
        for consumer in consumers:
            consumer.stop()
        assert confirmed <= record.acknowledged, "lost"
        # A delivery is counted before it is sent, so a kill never loses a count: no two deliveries of a
        # message have the same count.
        for offset, counts in record.counts.items():
            assert len(counts) == len(set(counts)), f"{offset}: {counts}"
        # A sender without a confirmation sends a second message with the same text.
        assert len(record.counts) - len(record.acknowledged) <= KILLS * len(senders)
    # Settled messages stay settled: nothing is delivered after another SIGKILL.
    own_broker_process.kill()
    own_broker_process.start()
    with Operations(own_broker_process.url) as operations:
        assert operations.info(unique)["messages"] == 0
        assert operations.receive(unique, wait_ms=0) == []
    own_broker_process.stop()


def test_delays_counts_and_settlements_survive(own_broker_process, unique):
    with Operations(own_broker_process.url) as operations, Worker(own_broker_process.mqtt, unique) as worker:
        operations.create(unique, backoff_ms=60_000, backoff_jitter_percent=0)
        for text, asked in (("done", {}), ("failed", {}), ("held", {}), ("late", {"delay_ms": 60_000}),
                            ("once", {"dedup_id": "a"}), ("broken", {})):
            worker.send(unique, text, **asked)
        worker.work_on(unique)
        taken = {message.payload: message for message in worker.receive(5)}
        worker.ack(taken[b"done"])
        worker.fail(taken[b"failed"])
        worker.reject(taken[b"broken"])
        operations.receive(f"{unique}.dead", lease_ms=60_000)
        eventually(lambda: operations.group(unique)["delayed"] == 2 and operations.info(unique)["messages"] == 4, "all is settled")
        own_broker_process.kill()
    own_broker_process.start()
    with Operations(own_broker_process.url) as operations, Worker(own_broker_process.mqtt, unique) as worker:
        states = {message["body"]: (message["state"], message["delivery_count"]) for message in operations.peek(unique)}
        assert states == {"failed": ("delayed", 1), "held": ("ready", 1), "late": ("delayed", 0), "once": ("ready", 1)}
        assert worker.send(unique, "twice", dedup_id="a") == 0
        again = worker.work_on(unique).receive(2)
        assert sorted((text, count(message)) for text, message in zip(texts(again), again)) == [("held", 2), ("once", 2)]
        (letter,) = operations.receive(f"{unique}.dead")
        assert (letter["body"], letter["delivery_count"]) == ("broken", 2)
    own_broker_process.stop()
