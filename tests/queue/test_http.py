"""httpx over HTTP: every route, errors, and waiting. Each response is checked against the OpenAPI description."""

import asyncio
import base64
import contextlib
import json
import re
import socket
import time
import urllib.error
import urllib.request

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from broker_process import BrokerProcess
from operations import DEADLINE_S, Operations, eventually

JSON = {"content-type": "application/json"}


def at(queue, what=""):
    return f"/v1/queues/{queue}{what}"


@contextlib.asynccontextmanager
async def asking(listener, queue):
    """Concurrent waiting receive requests: functions to send one, and to wait until N of them wait."""
    async with httpx.AsyncClient(base_url=listener.url, timeout=DEADLINE_S, trust_env=False) as client:
        def ask(**parameters):
            parameters = {"wait_ms": 10_000, **parameters}
            return asyncio.create_task(client.post(at(queue, "/receive"), params=parameters))

        async def waiting(count):
            while (await client.get(at(queue))).json()["groups"][0]["waiting"] != count:
                pass

        yield ask, waiting


def test_the_description_is_valid(operations):
    OpenAPIV31SpecValidator(operations.description.document).validate()


def test_a_queue_is_created_shown_changed_and_deleted(operations, unique):
    url = at(unique)
    made = operations.ask("PUT", url, json={"lease_ms": 60_000, "fifo": False})
    assert made.status_code == 201
    assert (made.json()["settings"]["lease_ms"], made.json()["settings"]["fifo"]) == (60_000, False)
    assert operations.ask("PUT", url, json={"fifo": False, "lease_ms": 60_000}).status_code == 200
    operations.refused("PUT", url, 409, "exists", json={"lease_ms": 1000})
    shown = operations.info(unique)
    assert (shown["name"], shown["messages"], shown["bytes"], shown["oldest_at"]) == (unique, 0, 0, None)
    changed = operations.done("PATCH", url, json={"max_deliveries": 7, "overflow": "drop-oldest"})
    settings = changed["settings"]
    assert (settings["max_deliveries"], settings["overflow"], settings["lease_ms"]) == (7, "drop-oldest", 60_000)
    names = [queue["name"] for queue in operations.done("GET", "/v1/queues")["queues"]]
    assert unique in names and names == sorted(names)
    listed = operations.done("GET", "/v1/queues", params={"info": "true"})["queues"]
    assert operations.info(unique) in listed
    assert operations.ask("DELETE", url).status_code == 204
    operations.refused("GET", url, 404, "unknown-queue")
    operations.refused("DELETE", url, 404, "unknown-queue")


def test_a_message_is_received_unaltered(operations, queue):
    binary, text = bytes(range(256)), "ü\n\"\\\u0000 日本"
    odd = base64.b64encode(binary).decode()
    messages = [
        {"body": text, "key": "k", "headers": {"trace": "7", "many": ["a", None, {"base64": odd}]}, "priority": 3},
        {"body_base64": odd, "key_base64": odd, "priority": 2},
        {"headers": {}, "priority": 1},
        {},
    ]
    before_ms = int(time.time() * 1000)
    sent = operations.ask("POST", at(queue, "/messages"), json={"messages": messages})
    assert (sent.status_code, sent.json()) == (201, {"results": [{"offset": number} for number in range(4)]})
    got = operations.receive(queue, max=10)
    first, second, third, last = got
    assert (first["body"], first["key"], first["delivery_count"]) == (text, "k", 1)
    assert re.fullmatch("0-1-[0-9a-f]{8}", first["receipt"])
    assert first["headers"] == {"trace": "7", "many": ["a", None, {"base64": odd}], "priority": "3"}
    assert before_ms <= first["enqueued_at"] <= first["first_delivered_at"] < first["lease_until"]
    assert (second["body_base64"], second["key_base64"]) == (odd, odd)
    assert (third["body"], last["body"], last["headers"]) == ("", "", {})
    operations.ack(queue, *got)
    assert operations.info(queue)["messages"] == 0


def test_a_non_json_body_is_a_message(operations, queue):
    query = {"key": "a/b", "priority": 9, "ttl_ms": 60_000, "dedup_id": "once", "header": ["site=north", "site=south", "e="]}
    sent = operations.done("POST", at(queue, "/messages"), params=query, content=b"\xff\x00", headers={"content-type": "image/png"})
    assert sent == {"results": [{"offset": 0}]}
    operations.done("POST", at(queue, "/messages"), params=query, content=b"again")
    (message,) = operations.receive(queue, max=5)
    assert base64.b64decode(message["body_base64"]) == b"\xff\x00"
    expected = {"site": ["north", "south"], "e": "", "priority": "9", "ttl-ms": "60000", "dedup-id": "once"}
    assert (message["key"], message["headers"]) == ("a/b", expected)
    assert operations.info(queue)["duplicates"] == 1


def test_the_query_completes_the_messages_of_a_batch(operations, queue):
    batch = {"messages": [{"body": "1"}, {"body": "2", "priority": 9, "delay_ms": 0}]}
    sent = operations.ask("POST", at(queue, "/messages"), params={"key": "k", "priority": 3, "deliver_at": 1}, json=batch)
    assert sent.status_code == 201
    shown = operations.peek(queue)
    assert [(message["key"], message["headers"]) for message in shown] == [
        ("k", {"priority": "3", "deliver-at": "1"}), ("k", {"priority": "9", "deliver-at": "1", "delay-ms": "0"})]


def test_parameters_in_the_query_come_before_those_in_the_body(operations, queue):
    operations.send(queue, *"abcd")
    receive = at(queue, "/receive")
    got = operations.done("POST", receive, params={"max": 1}, json={"max": 3, "lease_ms": 60_000})["messages"]
    assert [message["body"] for message in got] == ["a"]
    assert got[0]["lease_until"] - got[0]["first_delivered_at"] == 60_000
    assert operations.done("POST", at(queue, "/purge"), params={"group": "default"}, json={"group": "none"}) == {"count": 4}


def test_messages_come_in_batches(operations, queue):
    bodies = [f"{number}" for number in range(1000)]
    assert operations.send(queue, *bodies) == list(range(1000))
    got = operations.receive(queue, max=1000)
    assert [message["body"] for message in got] == bodies
    operations.ack(queue, *got)
    assert operations.receive(queue, wait_ms=0) == []


def test_a_batch_may_be_larger_than_a_batch_of_the_log(operations, queue):
    bodies = [f"{number}".ljust(100_000, "x") for number in range(40)]
    operations.send(queue, *bodies)
    got = [message["body"] for _ in range(40) for message in operations.receive(queue)]
    assert got == bodies


def test_a_large_message_becomes_a_dead_letter(operations, make_queue):
    """Also a message of the largest size, to which headers are added."""
    queue = make_queue()
    bodies = ["a" * 500_000, "b" * 600_000, "c" * 1_048_000, "d"]
    for body in bodies:
        operations.send(queue, body)
    messages = [message for _ in bodies for message in operations.receive(queue)]
    operations.settle("reject", queue, *messages)
    letters = [letter for _ in bodies for letter in operations.receive(f"{queue}.dead", wait_ms=10_000)]
    assert [letter["body"] for letter in letters] == bodies


def test_a_failure_is_delayed_and_counted(operations, make_queue):
    queue = make_queue(backoff_ms=1000, backoff_jitter_percent=0, max_deliveries=4)
    operations.send(queue, "x")
    (message,) = operations.receive(queue)
    began = time.monotonic()
    assert operations.settle("nack", queue, message) == ["ok"]
    assert operations.receive(queue, wait_ms=0) == []
    assert operations.group(queue)["delayed"] == 1
    (message,) = operations.receive(queue)
    assert time.monotonic() - began >= 1
    assert (message["offset"], message["delivery_count"]) == (0, 2)
    assert operations.settle("nack", queue, message, delay_ms=0) == ["ok"]
    (message,) = operations.receive(queue)
    assert operations.settle("nack", queue, message, delay_ms=0) == ["ok"]
    (message,) = operations.receive(queue)
    assert operations.settle("nack", queue, message) == ["ok"]
    (letter,) = operations.receive(f"{queue}.dead")
    headers = letter["headers"]
    assert (headers["dead-letter-reason"], headers["dead-letter-count"]) == ("max-deliveries", "4")
    assert operations.group(queue)["dead"] == 1


def test_dead_letters_are_sent_back(operations, queue):
    operations.send(queue, *"abc")
    assert operations.settle("reject", queue, *operations.receive(queue, max=3)) == ["ok"] * 3
    dead = f"{queue}.dead"
    eventually(lambda: operations.info(queue)["messages"] == 0, "all have left")
    assert [message["headers"]["dead-letter-reason"] for message in operations.peek(dead)] == ["rejected"] * 3
    assert operations.done("POST", at(dead, "/redrive"), params={"max": 1}) == {"count": 1, "skipped": 0}
    (first,) = operations.receive(queue)
    assert (first["body"], first["delivery_count"], first["headers"]) == ("a", 1, {})
    assert operations.done("POST", at(dead, "/redrive")) == {"count": 2, "skipped": 0}
    rest = operations.receive(queue) + operations.receive(queue)
    assert [message["body"] for message in rest] == ["b", "c"]
    operations.empty(dead)


def test_a_stale_receipt_is_refused(operations, make_queue):
    queue = make_queue(backoff_ms=0)
    operations.send(queue, "x", "y")
    x, y = operations.receive(queue, max=2)
    operations.settle("nack", queue, x)
    (again,) = operations.receive(queue)
    for action, more in (("ack", {}), ("nack", {}), ("reject", {}), ("extend", {"lease_ms": 1000})):
        body = {"receipts": [x["receipt"]], **more}
        operations.refused("POST", at(queue, f"/{action}"), 409, "stale", json=body)
    assert operations.settle("ack", queue, x, again, y, "77-1-5d3c09e2") == ["stale", "ok", "ok", "stale"]
    operations.refused("POST", at(queue, "/ack"), 409, "stale", json={"receipts": [again["receipt"]]})
    operations.refused("POST", at(queue, "/ack"), 422, "invalid", json={"receipts": ["7"]})


def test_a_lease_ends_and_can_be_extended(operations, make_queue):
    queue = make_queue(lease_ms=1000)
    operations.send(queue, "short", "long", "own")
    short, long = operations.receive(queue, max=2)
    (own,) = operations.receive(queue, lease_ms=60_000)
    assert own["lease_until"] - own["first_delivered_at"] == 60_000
    assert operations.settle("extend", queue, long, lease_ms=60_000) == ["ok"]
    (again,) = operations.receive(queue, lease_ms=60_000)
    assert (again["offset"], again["body"], again["delivery_count"]) == (0, "short", 2)
    assert operations.receive(queue, wait_ms=0) == []
    operations.ack(queue, again, long, own)


def test_a_late_ack_counts_if_nobody_else_has_the_message(operations, make_queue):
    queue = make_queue(lease_ms=50)
    operations.send(queue, "x")
    (message,) = operations.receive(queue)
    eventually(lambda: operations.group(queue)["ready"] == 1, "the lease has ended")
    operations.ack(queue, message)
    assert operations.info(queue)["messages"] == 0


def test_groups_have_messages_of_their_own(operations, queue):
    operations.send(queue, "a", "b")
    for group in ("one", "two"):
        got = operations.receive(queue, group=group, max=2)
        assert [message["body"] for message in got] == ["a", "b"]
        operations.ack(queue, got[0], params={"group": group})
    assert [message["body"] for message in operations.peek(queue, group="one")] == ["b"]
    assert [(message["body"], message["state"]) for message in operations.peek(queue)] == [("a", "ready"), ("b", "ready")]
    assert operations.done("POST", at(queue, "/purge"), params={"group": "default"}) == {"count": 2}
    assert operations.info(queue)["messages"] == 1
    assert operations.ask("DELETE", at(queue, "/groups/one")).status_code == 204
    assert operations.ask("DELETE", at(queue, "/groups/two")).status_code == 204
    operations.refused("DELETE", at(queue, "/groups/one"), 404, "unknown-group")
    assert [group["name"] for group in operations.info(queue)["groups"]] == ["default"]
    operations.refused("GET", at(queue, "/peek"), 404, "unknown-group", params={"group": "none"})


def test_peek_and_purge(operations, queue):
    operations.send(queue, *(f"{number}" for number in range(20)))
    (taken,) = operations.receive(queue)
    shown = operations.peek(queue, max=3)
    assert [(message["offset"], message["body"], message["state"]) for message in shown] == [
        (0, "0", "leased"), (1, "1", "ready"), (2, "2", "ready")]
    assert len(operations.peek(queue)) == 10
    assert [message["offset"] for message in operations.peek(queue, **{"from": 18})] == [18, 19]
    assert operations.done("POST", at(queue, "/purge")) == {"count": 20}
    assert operations.peek(queue) == []
    operations.refused("POST", at(queue, "/ack"), 409, "stale", json={"receipts": [taken["receipt"]]})


def test_replay_redelivers_to_a_group(operations, make_queue):
    queue = make_queue(retention_ms=3_600_000)
    replay = at(queue, "/groups/default/replay")
    operations.send(queue, "a", "b")
    got = operations.receive(queue, max=2)
    operations.ack(queue, *got)
    operations.send(queue, "c")
    assert operations.done("POST", replay, json={"from_offset": 1}) == {"count": 1}
    again = operations.receive(queue, max=5)
    assert [message["body"] for message in again] == ["b", "c"]
    operations.ack(queue, *again)
    assert operations.done("POST", replay, json={"from_time_ms": got[0]["enqueued_at"]})["count"] == 3
    for body in ({}, {"from_offset": 1, "from_time_ms": 1}):
        operations.refused("POST", replay, 422, "invalid", json=body)


def test_a_full_queue_returns_an_error(operations, make_queue):
    queue = make_queue(length_max=2)
    answer = operations.ask("POST", at(queue, "/messages"), json={"messages": [{"body": "x"}] * 3})
    assert answer.status_code == 207
    first, second, third = answer.json()["results"]
    assert (first, second, third["problem"]["type"]) == ({"offset": 0}, {"offset": 1}, "urn:mainstem:problem:full")
    problem = operations.ask("POST", at(queue, "/messages"), content=b"x")
    assert (problem.status_code, problem.headers["retry-after"]) == (429, "1")
    several = operations.refused("POST", at(queue, "/messages"), 429, "full", json={"messages": [{}, {}]})
    assert len(several["results"]) == 2


def test_a_queue_has_a_limit_in_bytes(operations, make_queue):
    queue = make_queue(bytes_max=1000)
    messages = at(queue, "/messages")
    answer = operations.ask("POST", messages, json={"messages": [{"body": "x" * 400}] * 3})
    assert answer.status_code == 207
    assert answer.json()["results"][2]["problem"]["type"] == "urn:mainstem:problem:full"
    operations.refused("POST", messages, 429, "full", content=b"x" * 400)
    operations.ack(queue, *operations.receive(queue))
    assert operations.send(queue, "x" * 400) == [2]
    operations.refused("POST", messages, 429, "full", content=b"x" * 400)
    # A single request that is too large is refused as well, and does not delay small ones.
    operations.refused("POST", messages, 429, "full", content=b"x" * 1001)
    assert operations.send(queue, "x") == [3]


def test_a_full_queue_drops_its_oldest(operations, make_queue):
    queue = make_queue(length_max=3, overflow="drop-oldest")
    operations.send(queue, "held")
    (held,) = operations.receive(queue)
    assert operations.send(queue, *"abcd") == [1, 2, 3, 4]
    letters = operations.receive(f"{queue}.dead", max=9)
    letters += operations.receive(f"{queue}.dead", max=9) if len(letters) < 2 else []
    assert [letter["body"] for letter in letters] == ["a", "b"], "what somebody has in hand stays"
    assert {letter["headers"]["dead-letter-reason"] for letter in letters} == {"overflow"}
    operations.ack(queue, held)
    assert [message["body"] for message in operations.receive(queue, max=9)] == ["c", "d"]


def test_dead_letters_go_to_the_configured_queue(operations, make_queue, unique):
    chosen = f"{unique}-morgue"
    queue = make_queue(dead_letter_queue=chosen)
    operations.send(queue, "bad")
    operations.settle("reject", queue, *operations.receive(queue))
    (letter,) = operations.receive(chosen)
    assert (letter["body"], letter["headers"]["dead-letter-queue"]) == ("bad", queue)
    operations.refused("GET", at(f"{queue}.dead"), 404, "unknown-queue")
    for wrong in (queue, "a/b", "x" * 250):
        operations.refused("PATCH", at(queue), 422, "invalid", json={"dead_letter_queue": wrong})
    problem = operations.refused("PATCH", at(chosen), 422, "invalid", json={"dead_letter_queue": queue})
    assert "come back" in problem["detail"]
    operations.done("DELETE", at(chosen))


def test_a_group_can_start_with_later_messages(operations, make_queue):
    queue = make_queue(start="latest")
    operations.send(queue, "before")
    assert operations.receive(queue, group="late", wait_ms=0) == []
    operations.send(queue, "after")
    (message,) = operations.receive(queue, group="late", max=9)
    assert message["body"] == "after"
    assert [message["body"] for message in operations.receive(queue, max=9)] == ["before", "after"]


def test_durability_can_be_set_and_is_compared(operations, make_queue):
    queue = make_queue(durability="os")
    operations.refused("PUT", at(queue), 409, "exists", json={"durability": "fsync"})
    assert operations.info(queue)["settings"]["durability"] == "os"
    assert operations.done("PATCH", at(queue), json={"durability": "fsync"})["settings"]["durability"] == "fsync"
    operations.create(queue, durability="fsync")


def test_the_default_group_can_be_removed(operations, queue):
    problem = operations.refused("DELETE", at(queue, "/groups/default"), 422, "invalid")
    assert "the only group" in problem["detail"]
    operations.send(queue, "1")
    (first,) = operations.receive(queue, group="workers")
    assert operations.ask("DELETE", at(queue, "/groups/default")).status_code == 204
    assert [group["name"] for group in operations.info(queue)["groups"]] == ["workers"]
    operations.send(queue, "2")
    (second,) = operations.receive(queue, group="workers")
    operations.ack(queue, first, second, params={"group": "workers"})
    assert operations.info(queue)["messages"] == 0, "nobody else has them"
    operations.send(queue, "3")
    (third,) = operations.receive(queue)
    assert third["body"] == "3", "default begins again like any group"


def test_the_disk_is_free_when_the_last_group_has_settled():
    """Messages stay on disk while a group has not settled them, and no longer."""
    broker_process = BrokerProcess("[kafka]\nsegment_bytes = 65536\n")
    try:
        with Operations(broker_process.url) as operations:
            operations.create("jobs")
            operations.receive("jobs", group="slow", wait_ms=0)

            def size(path):
                try:
                    return path.stat().st_size
                except FileNotFoundError:
                    # It was removed just now.
                    return 0

            def taken():
                return sum(size(path) for log in broker_process.data.rglob("p-*") for path in log.glob("*"))

            def work_off(group):
                while messages := operations.receive("jobs", group=group, max=100, wait_ms=0):
                    operations.ack("jobs", *messages, params={"group": group})

            for _ in range(20):
                operations.send("jobs", *("x" * 10_000 for _ in range(20)))
            work_off("default")
            assert operations.group("jobs")["ready"] == 0
            # Enough time for periodic maintenance.
            time.sleep(3)
            assert taken() >= 4_000_000
            assert operations.info("jobs")["messages"] == 400
            work_off("slow")
            eventually(lambda: taken() < 400_000, "the segments are gone")
        broker_process.stop()
    finally:
        broker_process.clear()


@pytest.mark.parametrize(("method", "path", "status", "word", "request_"), [
    ("POST", "/messages", 400, "malformed", {"content": b"{", "headers": JSON}),
    ("POST", "/messages", 422, "invalid", {"json": {"messages": []}}),
    ("POST", "/messages", 422, "invalid", {"json": {"messages": [{}] * 1001}}),
    ("POST", "/messages", 422, "invalid", {"json": {"messages": [{"bodi": "x"}]}}),
    ("POST", "/messages", 422, "invalid", {"json": {"messages": [{"body": "x", "body_base64": ""}]}}),
    ("POST", "/messages", 422, "invalid", {"json": {"messages": [{"priority": 10}]}}),
    ("POST", "/messages", 422, "invalid", {"json": {"messages": [{"dedup_id": "x" * 256}]}}),
    ("POST", "/messages", 413, "too-large", {"content": b"x" * (8 * 1024 * 1024 + 1)}),
    ("POST", "/receive", 422, "invalid", {"params": {"max": 0}}),
    ("POST", "/receive", 422, "invalid", {"params": {"max": 1001}}),
    ("POST", "/receive", 422, "invalid", {"params": {"wait_ms": 60_001}}),
    ("POST", "/receive", 400, "malformed", {"params": {"max": "many"}}),
    ("POST", "/receive", 400, "malformed", {"params": {"maximum": 1}}),
    ("POST", "/receive", 422, "invalid", {"json": {"max": "1"}}),
    ("POST", "/receive", 422, "invalid", {"json": {"group": None}}),
    ("POST", "/receive", 422, "invalid", {"params": {"max": 1}, "json": {"max": 0}}),
    ("POST", "/messages", 400, "malformed", {"params": {"prio": 1}, "content": b"x"}),
    ("POST", "/messages", 422, "invalid", {"params": {"dedup_id": "d"}, "json": {"messages": [{}, {}]}}),
    ("POST", "/ack", 422, "invalid", {"json": {}}),
    ("POST", "/ack", 415, "media-type", {"content": b"receipts=0-1-5d3c09e2"}),
    ("POST", "/extend", 422, "invalid", {"json": {"receipts": ["0-1-5d3c09e2"], "lease_ms": 0}}),
    ("POST", "/nack", 422, "invalid", {"json": {"receipts": ["0-1-5d3c09e2"], "delay_ms": 43_200_001}}),
    ("PATCH", "", 422, "invalid", {"json": {"lease": 1}}),
    ("PATCH", "", 422, "invalid", {"json": {"lease_ms": 1}}),
    ("POST", "/peek", 405, "method", {}),
    ("GET", "/messages/7", 404, "no-route", {}),
    ("GET", "", 403, "cross-site", {"headers": {"origin": "http://example.com"}}),
])
def test_invalid_requests_are_refused(operations, queue, method, path, status, word, request_):
    operations.refused(method, at(queue, path), status, word, **request_)


def test_unknown_names_are_not_found(operations, unique):
    for method, path in (("GET", ""), ("GET", "/peek"), ("POST", "/purge"), ("POST", "/redrive")):
        operations.refused(method, at(unique, path), 404, "unknown-queue")
    operations.refused("POST", at(unique, "/ack"), 404, "unknown-queue", json={"receipts": ["0-1-5d3c09e2"]})
    operations.refused("PATCH", at(unique), 404, "unknown-queue", json={"lease_ms": 1000})
    operations.refused("PUT", at("no%20queue"), 422, "invalid")


def test_a_request_waits_for_a_message(operations, queue):
    began = time.monotonic()
    assert operations.receive(queue, wait_ms=300) == []
    assert 0.3 <= time.monotonic() - began < 5


def test_twenty_waiting_requests_get_one_message_each(operations, queue):
    async def run():
        async with asking(operations, queue) as (ask, waiting):
            asked = [ask() for _ in range(20)]
            await waiting(20)
            began = time.monotonic()
            operations.send(queue, *map(str, range(20)))
            answers = [answer.json()["messages"] for answer in await asyncio.gather(*asked)]
            assert time.monotonic() - began < 5
            assert sorted(int(answer[0]["body"]) for answer in answers) == list(range(20))
            assert all(len(answer) == 1 for answer in answers)

    asyncio.run(run())


def test_a_client_that_leaves_while_waiting_takes_no_messages(operations, queue):
    host, port = operations.url.removeprefix("http://").split(":")
    for _ in range(5):
        with socket.create_connection((host, int(port))) as gone:
            gone.sendall(f"POST {at(queue, '/receive')}?wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
            eventually(lambda: operations.group(queue)["waiting"] == 1, "it waits")
        eventually(lambda: operations.group(queue)["waiting"] == 0, "it has gone")
    operations.send(queue, "x")
    (message,) = operations.receive(queue)
    assert message["delivery_count"] == 1


def test_a_named_consumer_waits_once(operations, make_queue):
    """It also remains the single active consumer."""
    queue = make_queue(single_active_consumer=True)
    operations.send(queue, "a", "b")
    assert [message["body"] for message in operations.receive(queue, consumer="one")] == ["a"]
    assert operations.receive(queue, consumer="two", wait_ms=0) == []
    assert [message["body"] for message in operations.receive(queue, consumer="one")] == ["b"]

    async def run():
        async with asking(operations, queue) as (ask, waiting):
            older = ask(consumer="one")
            await waiting(1)
            newer = ask(consumer="one")
            assert (await older).json() == {"messages": []}
            operations.send(queue, "c")
            assert (await newer).json()["messages"][0]["body"] == "c"

    asyncio.run(run())


def test_a_named_consumer_stays_the_active_one_when_its_connection_is_lost(operations, make_queue):
    """Its only request is waiting; it stays active until it has been silent for one lease period."""
    queue = make_queue(single_active_consumer=True, lease_ms=3_000)

    async def run():
        async with asking(operations, queue) as (ask, waiting):
            cut = ask(consumer="one")
            await waiting(1)
            other = ask(consumer="two")
            await waiting(2)
            cut.cancel()
            await waiting(1)
            operations.send(queue, "a", "b")
            # It returns in time and is still active.
            (message,) = (await ask(consumer="one")).json()["messages"]
            assert message["body"] == "a"
            assert not other.done(), "two consumers at once"
            operations.ack(queue, message)
            # It is silent from here on.
            began = time.monotonic()
            (message,) = (await other).json()["messages"]
            assert message["body"] == "b"
            assert time.monotonic() - began > 1

    asyncio.run(run())


def test_a_named_consumer_that_asks_anew_stays_the_active_one(operations, make_queue):
    """Another consumer waits, and the first holds a message."""
    queue = make_queue(single_active_consumer=True)
    operations.send(queue, "a")
    (held,) = operations.receive(queue, consumer="one")

    async def run():
        async with asking(operations, queue) as (ask, waiting):
            other = ask(consumer="two")
            await waiting(1)
            for _ in range(5):
                older = ask(consumer="one")
                await waiting(2)
                newer = ask(consumer="one")
                assert (await older).json() == {"messages": []}
                operations.send(queue, "b")
                (message,) = (await newer).json()["messages"]
                assert message["body"] == "b"
                assert not other.done(), "two consumers at once"
                operations.ack(queue, message)
            other.cancel()

    asyncio.run(run())
    operations.ack(queue, held)


def test_health(operations):
    assert operations.done("GET", "/v1/health/live") == {"status": "live"}
    assert operations.done("GET", "/v1/health/ready") == {"status": "ready"}


def test_urllib_as_client(operations, queue):
    """Python's standard library: four requests, and an error."""
    def ask(method, path, body=None, kind="application/json"):
        request = urllib.request.Request(operations.url + at(queue, path), body, {"content-type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            return json.load(answer)

    assert ask("POST", "/messages", b"resize cat.png", "text/plain") == {"results": [{"offset": 0}]}
    (message,) = ask("POST", "/receive?wait_ms=1000")["messages"]
    body = json.dumps({"receipts": [message["receipt"]]}).encode()
    assert ask("POST", "/ack", body)["results"][0]["outcome"] == "ok"
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask("POST", "/ack", body)
    assert (refused.value.code, json.load(refused.value)["type"]) == (409, "urn:mainstem:problem:stale")


def test_waiting_requests_are_answered_at_shutdown(own_broker_process, unique):
    with Operations(own_broker_process.url) as operations:
        operations.done("PUT", at(unique))

    async def run():
        async with asking(own_broker_process, unique) as (ask, waiting):
            asked = ask(wait_ms=60_000)
            await waiting(1)
            own_broker_process.terminate()
            assert (await asked).json() == {"messages": []}

    asyncio.run(run())
    own_broker_process.ended()
