"""httpx: HTTP workers and the broker are killed; no confirmed message is lost, no settled one returns."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from kills import SETTLE_S, TIMEOUT_S, kill_under
from operations import DEADLINE_S, Operations, eventually

pytestmark = pytest.mark.timeout(TIMEOUT_S)


def test_messages_of_a_killed_worker_return_when_the_lease_ends(operations, queue):
    operations.send(queue, "a", "b", "c")
    script = Path(__file__).with_name("lone_http_worker.py")
    command = [sys.executable, script, operations.url, queue, "2", "5000"]
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
        try:
            assert [killed.stdout.readline().strip() for _ in range(2)] == ["a", "b"]
        finally:
            killed.kill()
    (other,) = operations.receive(queue, max=3)
    assert (other["body"], other["delivery_count"]) == ("c", 1), "what it had in hand is its own until then"
    got = []
    while len(got) < 2:
        got += operations.receive(queue, max=2)
    assert time.monotonic() - began >= 5
    assert sorted((message["body"], message["delivery_count"]) for message in got) == [("a", 2), ("b", 2)]
    operations.ack(queue, other, *got)
    operations.empty(queue)


class Client:
    """Sends requests one after the other, and repeats them when the broker is back, until it is stopped."""

    def __init__(self, url):
        self._url = url
        self._is_over = threading.Event()
        self.broken = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        with httpx.Client(base_url=self._url, timeout=DEADLINE_S, trust_env=False) as http:
            while not self._is_over.is_set():
                try:
                    self.step(http)
                except httpx.TransportError:
                    # The broker is down. The request may or may not have been executed.
                    self._is_over.wait(0.01)
                except AssertionError as error:
                    self.broken.append(error)
                    return

    def stop(self):
        self._is_over.set()
        self._thread.join(SETTLE_S)
        assert not self._thread.is_alive()
        assert self.broken == []


class Sender(Client):
    """Sends numbers one after the other, each until it is confirmed, with a deduplication identifier."""

    def __init__(self, url, name, queue):
        self._name, self._path = name, f"/v1/queues/{queue}/messages"
        self.confirmed = []
        super().__init__(url)

    def step(self, http):
        text = f"{self._name}/{len(self.confirmed)}"
        answer = http.post(self._path, content=text, headers={"content-type": "text/plain"}, params={"dedup_id": text})
        assert answer.status_code in (201, 503), answer.text
        if answer.status_code == 201:
            self.confirmed.append(text)


class Consumer(Client):
    """Fails each message whose number ends with 0 once, and acknowledges all others until the broker confirms it."""

    def __init__(self, url, queue):
        self._queue = queue
        self.came, self.acknowledged, self.in_hand = [], [], []
        super().__init__(url)

    def step(self, http):
        path = f"/v1/queues/{self._queue}"
        while self.in_hand:
            message = self.in_hand[-1]
            is_to_fail = message["body"].endswith("0") and message["delivery_count"] == 1
            body = {"receipts": [message["receipt"]], **({"delay_ms": 20} if is_to_fail else {})}
            answer = http.post(f"{path}/{'nack' if is_to_fail else 'ack'}", json=body)
            assert answer.status_code in (200, 409, 503), answer.text
            if answer.status_code == 503:
                return
            self.in_hand.pop()
            if answer.status_code == 200 and not is_to_fail:
                self.acknowledged.append((message["body"], message["offset"]))
        answer = http.post(f"{path}/receive", params={"wait_ms": 200, "max": 3, "lease_ms": 2_000})
        assert answer.status_code in (200, 503), answer.text
        self.in_hand = answer.json()["messages"] if answer.status_code == 200 else []
        self.came += [(message["body"], message["offset"], message["delivery_count"]) for message in self.in_hand]


def test_the_broker_is_killed_under_workers_over_http(own_broker_process, unique):
    with Operations(own_broker_process.url) as operations:
        operations.create(unique, max_deliveries=0, backoff_jitter_percent=0)
    senders = [Sender(own_broker_process.url, f"s{number}", unique) for number in range(2)]
    consumers = [Consumer(own_broker_process.url, unique) for _ in range(3)]
    confirmed = kill_under(own_broker_process, senders)
    with Operations(own_broker_process.url) as operations:
        eventually(lambda: operations.info(unique)["messages"] == 0, "all is settled", SETTLE_S)
        for consumer in consumers:
            consumer.stop()
        assert operations.info(unique)["groups"][0]["dead"] == 0
    acknowledged = [message for consumer in consumers for message in consumer.acknowledged]
    came = [delivery for consumer in consumers for delivery in consumer.came]
    texts = {text for text, *_ in came}
    assert confirmed <= texts, "lost"
    # The last message of each sender may exist unconfirmed; none may exist twice.
    assert len(texts) <= len(confirmed) + len(senders)
    assert len({offset for _, offset, _ in came}) == len(texts)
    assert len(acknowledged) == len(set(acknowledged)), "settled twice"
    # A delivery is counted before it is sent, so a kill never loses a count.
    assert len(came) == len(set(came)), "two deliveries with the same number"
    # Settled messages stay settled: nothing is delivered after another SIGKILL.
    own_broker_process.kill()
    own_broker_process.start()
    with Operations(own_broker_process.url) as operations:
        assert operations.info(unique)["messages"] == 0
        assert operations.receive(unique, wait_ms=0) == []
    own_broker_process.stop()
