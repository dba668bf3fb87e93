"""paho-mqtt workers: distribution, PUBACK reason codes, redelivery."""

import time

import pytest

from operations import eventually
from peer import V5, V311, VERSION_NAMES, let_pass
from worker import FAILED, MALFORMED, REJECTED_AS_SUCH, Worker, count, texts, user_properties

each_version = pytest.mark.parametrize("version", [V311, V5], ids=VERSION_NAMES.get)


@pytest.fixture
def worker(broker_process, unique):
    """Connects a worker for one test: `worker(version=…)`."""
    made = []

    def make(version=V5, **more):
        client = Worker(broker_process.mqtt, f"{unique}w{len(made)}", version, **more).connect()
        made.append(client)
        return client

    yield make
    for client in made:
        client.disconnect()


@each_version
def test_an_acknowledged_message_is_settled(worker, operations, queue, version):
    client = worker(version).work_on(queue)
    for number in range(20):
        client.publish(f"$queue/{queue}", f"{number}", qos=1)
    got = client.receive(20)
    assert texts(got) == [f"{number}" for number in range(20)]
    assert all((message.topic, message.qos, message.dup, message.retain) == (f"$queue/{queue}", 1, False, False)
               for message in got)
    for message in got:
        client.ack(message)
    operations.empty(queue)
    group = operations.group(queue)
    assert (group["delivered"], group["redelivered"], group["acked"]) == (20, 0, 20)


def test_a_failed_message_returns_after_the_backoff(worker, make_queue):
    queue = make_queue(backoff_ms=150, backoff_jitter_percent=0)
    client = worker().work_on(queue)
    assert client.send(queue, "x") == 0
    message = client.next()
    first = user_properties(message)["first-delivered-at"]
    for number, wait_s in enumerate((0.15, 0.3), 2):
        began = time.monotonic()
        client.fail(message)
        message = client.next()
        assert time.monotonic() - began >= wait_s
        assert (count(message), message.dup, user_properties(message)["first-delivered-at"]) == (number, False, first)
    client.ack(message)


def test_a_failure_can_set_its_delay(worker, queue):
    client = worker().work_on(queue)
    client.send(queue, "x")
    began = time.monotonic()
    client.fail(client.next(), delay_ms=200)
    again = client.next()
    assert 0.2 <= time.monotonic() - began < 1, "sooner than by the queue's backoff, which is a second"
    client.fail(again, delay_ms=0)
    assert count(client.next()) == 3


@pytest.mark.parametrize("code", [FAILED, 0x87, 0x90, 0x91, 0x97])
def test_every_other_error_is_a_failure(worker, make_queue, code):
    queue = make_queue(backoff_ms=0)
    client = worker().work_on(queue)
    client.send(queue, "x")
    client.answer(client.next(), code)
    assert count(client.next()) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_failures_are_redelivered_to_one_worker_and_to_several(worker, operations, make_queue, workers):
    """Each message fails twice, at any worker."""
    queue = make_queue(backoff_ms=10)
    clients = [worker().work_on(queue) for _ in range(workers)]
    operations.send(queue, *(f"{number}" for number in range(30)))
    counts = {}

    def work():
        for client in clients:
            while not client.messages.empty():
                message = client.messages.get()
                counts.setdefault(message.payload, []).append(count(message))
                if count(message) < 3:
                    client.fail(message)
                else:
                    client.ack(message)
        return len(counts) == 30 and all(len(each) == 3 for each in counts.values())

    eventually(work, "all have come three times")
    assert set(map(tuple, counts.values())) == {(1, 2, 3)}
    operations.empty(queue)
    assert operations.group(queue)["redelivered"] == 60


@pytest.mark.parametrize("code", [MALFORMED, REJECTED_AS_SUCH])
def test_a_rejected_message_becomes_a_dead_letter(worker, operations, queue, code):
    client = worker().work_on(queue)
    # It subscribes first, which creates the queue.
    undertaker = worker().work_on(f"{queue}.dead")
    before_ms = int(time.time() * 1000)
    client.send(queue, "broken", key="k", site="north")
    client.reject(client.next(), code)
    letter = undertaker.next()
    assert letter.payload == b"broken"
    properties = user_properties(letter)
    known = {"queue": f"{queue}.dead", "dead-letter-reason": "rejected", "dead-letter-queue": queue, "key": "k",
             "dead-letter-group": "default", "dead-letter-offset": "0", "dead-letter-count": "1", "site": "north"}
    assert {name: properties[name] for name in known} == known
    assert before_ms <= int(properties["dead-letter-time"]) <= time.time() * 1000 + 1
    operations.empty(queue)
    # A dead-letter queue has no limit of deliveries.
    for number in range(2, 9):
        undertaker.fail(letter, delay_ms=0)
        letter = undertaker.next()
        assert count(letter) == number
    undertaker.ack(letter)
    operations.empty(f"{queue}.dead")


def test_too_many_failures_make_a_dead_letter(worker, make_queue):
    queue = make_queue(backoff_ms=0, max_deliveries=3)
    client = worker().work_on(queue)
    client.send(queue, "x")
    for number in (1, 2, 3):
        message = client.next()
        assert count(message) == number
        client.fail(message)
    letter = worker().work_on(f"{queue}.dead").next()
    assert (user_properties(letter)["dead-letter-reason"], user_properties(letter)["dead-letter-count"]) == ("max-deliveries", "3")


def test_dead_letters_go_to_the_configured_queue_or_nowhere(worker, operations, make_queue):
    morgue = make_queue()
    queue, quiet = make_queue(dead_letter_queue=morgue), make_queue(dead_letters=False)
    client = worker().work_on(queue).work_on(quiet)
    for name in (queue, quiet):
        client.send(name, "x")
        client.reject(client.next())
    assert user_properties(worker().work_on(morgue).next())["dead-letter-queue"] == queue
    operations.empty(quiet)
    names = [each["name"] for each in operations.done("GET", "/v1/queues")["queues"]]
    assert not {f"{queue}.dead", f"{quiet}.dead"} & set(names)


def test_workers_compete_and_groups_do_not(worker, operations, queue):
    few = {"ReceiveMaximum": 10}
    workers = [worker(connect=few).work_on(queue) for _ in range(3)]
    auditors = [worker(connect=few).work_on(queue, "audit") for _ in range(2)]
    numbers = sorted(f"{number}" for number in range(60))
    operations.send(queue, *numbers)
    for group in (workers, auditors):
        got = {client: [] for client in group}

        def work():
            for client in group:
                while not client.messages.empty():
                    message = client.messages.get()
                    assert user_properties(message)["group"] == ("audit" if group is auditors else "default")
                    got[client].append(message.payload.decode())
                    client.ack(message)
            return sum(map(len, got.values())) == 60

        eventually(work, "each message has come to one of a group")
        assert sorted(text for each in got.values() for text in each) == numbers
        assert all(got.values()), "each of them has got some"
    operations.empty(queue)


def test_a_delivery_carries_the_queues_properties(worker, queue):
    client = worker()
    assert client.subscribe(f"$queue/{queue}", qos=2, identifier=77) == 1, "at QoS 1, whatever is asked for"
    before_ms = int(time.time() * 1000)
    extra = {"ContentType": "image/png", "ResponseTopic": "answers", "CorrelationData": b"\x01",
             "PayloadFormatIndicator": 1, "MessageExpiryInterval": 100}
    assert client.send(queue, "x", key="press/7", properties=extra, site="north") == 0
    message = client.next()
    properties = user_properties(message)
    known = {"queue": queue, "group": "default", "offset": "0", "delivery-count": "1", "key": "press/7", "site": "north"}
    assert {name: properties[name] for name in known} == known
    assert before_ms <= int(properties["enqueued-at"]) <= int(properties["first-delivered-at"])
    sent = message.properties
    assert (sent.ContentType, sent.ResponseTopic, sent.CorrelationData) == ("image/png", "answers", b"\x01")
    assert (sent.PayloadFormatIndicator, sent.SubscriptionIdentifier) == (1, [77])
    assert 98 <= sent.MessageExpiryInterval <= 100


def test_an_expired_lease_redelivers_to_another_worker(worker, operations, make_queue):
    queue = make_queue(lease_ms=1000)
    slow = worker().work_on(queue)
    slow.send(queue, "x")
    late = slow.next()
    # It is alive and silent.
    slow.unsubscribe(f"$queue/{queue}")
    other = worker().work_on(queue)
    message = other.next()
    assert (message.payload, count(message)) == (b"x", 2)
    slow.ack(late)
    slow.settle()
    assert operations.group(queue)["leased"] == 1, "who is late settles nothing"
    other.ack(message)
    operations.empty(queue)


def test_the_only_worker_gets_messages_with_expired_leases_again(worker, make_queue):
    queue = make_queue(lease_ms=200)
    client = worker().work_on(queue)
    client.send(queue, "x")
    assert [count(message) for message in client.receive(2)] == [1, 2]


@each_version
def test_a_lost_connection_brings_messages_back_at_once(worker, queue, version):
    gone = worker(version).work_on(queue)
    for number in range(5):
        gone.publish(f"$queue/{queue}", f"{number}", qos=1)
    gone.receive(5)
    gone.cut()
    got = worker().work_on(queue).receive(5, timeout=5)
    assert sorted(texts(got)) == ["0", "1", "2", "3", "4"]
    assert {count(message) for message in got} == {2}


def test_an_unsubscribed_worker_gets_no_more_and_can_still_acknowledge(worker, operations, queue):
    client = worker().work_on(queue)
    client.send(queue, "x")
    message = client.next()
    client.unsubscribe(f"$queue/{queue}")
    client.send(queue, "y")
    client.ack(message)
    eventually(lambda: operations.info(queue)["messages"] == 1, "the first is settled")
    assert texts(worker().work_on(queue).receive(1)) == ["y"]
    assert client.messages.empty()


def test_a_receive_maximum_is_respected(worker, operations, queue, unique):
    client = worker(connect={"ReceiveMaximum": 3})
    client.work_on(queue).subscribe(unique, qos=0)
    numbers = [f"{number}" for number in range(10)]
    operations.send(queue, *numbers)
    got = client.receive(3)
    other = worker()
    while len(got) < 10:
        other.publish(unique, b"end", qos=1)
        assert client.receive_until(b"end") == [], "three have not been settled"
        client.ack(got[-3])
        got.append(client.next())
    assert texts(got) == numbers


@each_version
def test_invalid_subscriptions_are_refused(worker, queue, version):
    client = worker(version)
    refused = [0x83, 0x8F] if version == V5 else [0x80, 0x80]
    assert client.subscribe(f"$queue/{queue}", qos=0) == refused[0], "QoS 0 could settle nothing"
    for subscription in ("$queue/#", "$queue/+", f"$queue/{queue}/key", "$queue/no queue", f"$share/g/$queue/{queue}/#"):
        assert client.subscribe(subscription, qos=1) == refused[1], subscription


def test_queue_messages_reach_no_other_subscribers(worker, queue):
    """Queue messages go to no ordinary subscription, and are not retained."""
    bystander = worker()
    bystander.subscribe("#", qos=1)
    client = worker().work_on(queue)
    client.publish(f"$queue/{queue}", b"x", qos=1, retain=True)
    assert client.next().payload == b"x"
    client.publish("end", b"end", qos=1)
    assert bystander.receive_until(b"end") == []


def test_a_persistent_session_resumes_its_queue_subscription(worker, broker_process, unique, queue):
    lasting = {"clean": False, "session_expiry": 100}
    with Worker(broker_process.mqtt, f"{unique}lasting", **lasting) as first:
        first.work_on(queue).send(queue, "x")
        assert count(first.next()) == 1
        first.cut()
    with Worker(broker_process.mqtt, f"{unique}lasting", **lasting) as again:
        assert again.session_present
        message = again.next()
        assert (message.payload, count(message), message.dup) == (b"x", 2, False)
        again.ack(message)
        again.disconnect(session_expiry=0)


def test_a_worker_that_waits_gets_a_message_at_once(worker, queue):
    """No polling: a message reaches its worker as soon as it is on disk."""
    client = worker().work_on(queue)
    let_pass(0.2)
    waits = []
    for number in range(10):
        began = time.monotonic()
        client.send(queue, f"{number}")
        client.ack(client.next())
        waits.append(time.monotonic() - began)
    assert sorted(waits)[5] < 0.1, waits
