"""The guarantees of the bus, tested through the Python bindings."""

import asyncio
import gc
import sys
import threading
import weakref

import pytest
from mainstem_bus import (
    Bus,
    ClosedError,
    Delivered,
    DisconnectedError,
    NestedError,
    RetainedFullError,
)

DEADLINE = 30


def payloads(messages):
    return [message.payload for message in messages]


def counts(delivered: Delivered):
    return delivered.delivered, delivered.dropped, delivered.failed


def test_all_subscription_kinds_get_matching_messages():
    bus, seen = Bus(), []
    callback = bus.subscribe("plant/+/temp", seen.append)
    mailbox, cursor = bus.mailbox("plant/#"), bus.cursor("plant/7/temp")
    assert counts(bus.publish("plant/7/temp", {"celsius": 21.5})) == (3, 0, 0)
    assert counts(bus.publish("plant", 1)) == (1, 0, 0)
    assert counts(bus.publish("plants/7", 2)) == (0, 0, 0)
    assert [(message.topic, message.payload) for message in seen] == [("plant/7/temp", {"celsius": 21.5})]
    assert payloads(mailbox.drain(10)) == [{"celsius": 21.5}, 1]
    assert payloads(cursor.try_batch()) == [{"celsius": 21.5}]
    assert cursor.try_batch() == [] and mailbox.try_recv() is None
    callback.unsubscribe()
    assert counts(bus.publish("plant/7/temp", 3)) == (2, 0, 0)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0"])
def test_rejects_invalid_topics(topic):
    with pytest.raises(ValueError, match="the topic"):
        Bus().publish(topic, 1)


@pytest.mark.parametrize("filter", ["", "a#", "a/+b", "#/a", "$share/g", "$share//a"])
def test_rejects_invalid_filters(filter):
    with pytest.raises(ValueError, match="the topic filter"):
        Bus().mailbox(filter)


def test_rejects_invalid_options():
    with pytest.raises(ValueError, match="capacity"):
        Bus().mailbox("a", capacity=0)
    with pytest.raises(ValueError, match="drop_oldest"):
        Bus().mailbox("a", overflow="sometimes")
    with pytest.raises(ValueError, match="timeout"):
        Bus().mailbox("a").recv(timeout=-1)


def test_subscribers_receive_the_same_object():
    bus, sent = Bus(), object()
    mailboxes = [bus.mailbox("a") for _ in range(3)]
    bus.publish("a", sent)
    assert all(mailbox.recv().payload is sent for mailbox in mailboxes)


def test_metadata_is_visible_only_if_requested():
    bus = Bus()
    with_metadata, without_metadata = bus.mailbox("a", metadata=True), bus.mailbox("a")
    bus.publish("a", 1, headers={"unit": "C", "site": "b"}, timestamp=7.5)
    message = with_metadata.recv()
    assert (message.headers, message.header("unit"), message.timestamp) == ([("unit", "C"), ("site", "b")], "C", 7.5)
    message = without_metadata.recv()
    assert (message.headers, message.header("unit"), message.timestamp) == ([], None, None)
    bus.publish("a", 2)
    assert with_metadata.recv().timestamp > 1.6e9


@pytest.mark.parametrize(
    ("overflow", "left", "dropped"),
    [("drop_oldest", [2, 3], 2), ("drop_newest", [0, 1], 2), ("disconnect", [0, 1], 1)],
)
def test_overflow_policies_drop_and_count(overflow, left, dropped):
    bus = Bus()
    mailbox = bus.mailbox("a", capacity=2, overflow=overflow)
    cursor = bus.cursor("a", capacity=2, overflow=overflow)
    bus.publish_batch("a", range(4))
    assert payloads(mailbox.drain(10)) == left
    assert sum((payloads(cursor.try_batch()) for _ in range(3 if overflow != "disconnect" else 1)), []) == left
    for stats in (mailbox.stats(), cursor.stats()):
        assert (stats["dropped"], stats["lag"], stats["overflow"]) == (dropped, 0, overflow)
    if overflow == "disconnect":
        with pytest.raises(DisconnectedError):
            mailbox.recv()
        with pytest.raises(DisconnectedError):
            next(cursor)


def test_blocking_loses_nothing():
    bus = Bus()
    mailbox = bus.mailbox("a", capacity=2, overflow="block")
    publisher = threading.Thread(target=lambda: [bus.publish("a", number) for number in range(500)])
    publisher.start()
    assert [mailbox.recv(timeout=DEADLINE).payload for _ in range(500)] == list(range(500))
    publisher.join(DEADLINE)


def test_messages_of_each_publisher_arrive_in_order():
    bus, seen = Bus(), []
    subscription = bus.subscribe("#", seen.append)
    cursor = bus.cursor("p/+", capacity=4, overflow="block")
    read = []

    def publish(name):
        for number in range(300):
            bus.publish(f"p/{number % 3}", (name, number))

    threads = [threading.Thread(target=publish, args=(name,)) for name in range(3)]
    for thread in threads:
        thread.start()
    while len(read) < 900:
        read += payloads(cursor.next_batch(timeout=DEADLINE))
    for thread in threads:
        thread.join(DEADLINE)
    for messages in (payloads(seen), read):
        for name in range(3):
            assert [number for publisher, number in messages if publisher == name] == list(range(300))
    subscription.unsubscribe()


def test_group_members_share_and_take_over_messages():
    bus = Bus()
    leaving, staying = (bus.mailbox("$share/g/job", overflow="block") for _ in range(2))
    for job in range(10):
        assert counts(bus.publish("job", job)) == (1, 0, 0)
    assert (leaving.stats()["lag"], staying.stats()["lag"]) == (5, 5)
    leaving.unsubscribe()
    assert sorted(payloads(staying.drain(100))) == list(range(10))
    assert bus.stats()["abandoned"] == 0


def test_retained_messages_are_replayed():
    bus = Bus(retained_max=1)
    bus.publish("a", 1, retain=True)
    bus.publish("a", 2, retain=True)
    with pytest.raises(RetainedFullError):
        bus.publish("b", 3, retain=True)
    seen = []
    subscription = bus.subscribe("a", seen.append, replay=True)
    mailbox = bus.mailbox("#", replay=True)
    bus.publish("a", 4)
    for messages in (seen, mailbox.drain(10)):
        assert [(message.payload, message.is_replay) for message in messages] == [(2, True), (4, False)]
    assert bus.retained("a").payload == 2
    assert (bus.clear_retained("a"), bus.clear_retained("a"), bus.retained("a")) == (True, False, None)
    subscription.unsubscribe()


def test_raising_callback_is_reported_and_contained():
    faults = []
    bus = Bus(on_fault=lambda filter, topic, error: faults.append((filter, topic, error)))
    error = KeyError("no")

    def fail(message):
        raise error

    subscription, mailbox = bus.subscribe("+", fail), bus.mailbox("a")
    assert counts(bus.publish("a", 1)) == (1, 0, 1)
    assert faults == [("+", "a", error)] and mailbox.recv().payload == 1
    assert (subscription.stats()["failed"], bus.stats()["failed"]) == (1, 1)


def test_unraisablehook_is_the_default_reporter(monkeypatch):
    caught = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: caught.append(unraisable.exc_value))
    bus = Bus()
    subscription = bus.subscribe("a", lambda message: 1 // message.payload)
    assert counts(bus.publish("a", 0)) == (0, 0, 1)
    assert [type(error) for error in caught] == [ZeroDivisionError]
    subscription.unsubscribe()


def test_nested_publishing_is_limited():
    faults = []
    bus = Bus(on_fault=lambda *fault: faults.append(fault))
    subscription = bus.subscribe("a", lambda message: bus.publish("a", message.payload + 1))
    bus.publish("a", 0)
    assert [type(error) for _, _, error in faults] == [NestedError]
    subscription.unsubscribe()


def test_close_drains_readers_and_rejects_new_calls():
    bus = Bus()
    mailbox, cursor = bus.mailbox("a"), bus.cursor("a")
    bus.publish_batch("a", [1, 2])
    bus.close()
    assert bus.is_closed and not bus.close_and_wait(0)
    with pytest.raises(ClosedError):
        bus.publish("a", 3)
    with pytest.raises(ClosedError):
        bus.mailbox("a")
    assert payloads(mailbox) == [1, 2]
    assert [payloads(batch) for batch in cursor] == [[1, 2]]
    with pytest.raises(ClosedError):
        mailbox.recv()
    assert bus.close_and_wait(0)


def test_with_block_unsubscribes_and_unsubscribe_wakes_readers():
    bus = Bus()
    with bus.mailbox("a") as mailbox:
        bus.publish("a", 1)
        assert mailbox.recv().payload == 1
    with pytest.raises(ClosedError):
        mailbox.recv()
    mailbox = bus.mailbox("a")
    reader = threading.Thread(target=lambda: list(mailbox))
    reader.start()
    mailbox.unsubscribe()
    reader.join(DEADLINE)
    assert not reader.is_alive()
    assert bus.stats()["subscriptions"] == []


def test_receive_times_out():
    bus = Bus()
    with pytest.raises(TimeoutError):
        bus.mailbox("a").recv(timeout=0.001)
    assert bus.cursor("a").next_batch(timeout=0.001) == []


def test_dropping_the_last_reference_closes_the_bus():
    mailbox = Bus().mailbox("a")
    with pytest.raises(ClosedError):
        mailbox.recv()


def test_unsubscribing_releases_the_callback():
    class Callback:
        def __call__(self, message):
            pass

    bus, callback = Bus(), Callback()
    seen = weakref.ref(callback)
    subscription = bus.subscribe("a", callback)
    del callback
    bus.publish("a", 1)
    assert seen() is not None
    subscription.unsubscribe()
    gc.collect()
    assert seen() is None


def test_async_iteration_is_woken_by_other_threads_and_ends_on_close():
    bus = Bus()
    mailbox = bus.mailbox("a", capacity=4, overflow="block")

    def publish():
        for number in range(300):
            bus.publish("a", number)
        bus.close()

    async def consume():
        publisher = asyncio.get_running_loop().run_in_executor(None, publish)
        seen = [message.payload async for message in mailbox]
        await publisher
        return seen

    seen = asyncio.run(asyncio.wait_for(consume(), DEADLINE))
    assert seen == list(range(300))


def test_async_consumers_share_a_loop():
    async def main():
        bus = Bus()
        mailboxes = [bus.mailbox("a") for _ in range(3)]
        consumers = [asyncio.create_task(anext(mailbox)) for mailbox in mailboxes]
        await asyncio.sleep(0)
        bus.publish("a", 7)
        return [message.payload for message in await asyncio.gather(*consumers)]

    assert asyncio.run(asyncio.wait_for(main(), DEADLINE)) == [7, 7, 7]
