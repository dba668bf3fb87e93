"""`mainstem queue` on the command line: output and exit status."""

import json
import subprocess

import pytest

from broker import binary
from operations import eventually
from worker import Worker, texts

DEADLINE_S = 30


@pytest.fixture
def mainstem(broker_process):
    """Runs `mainstem queue …` and returns its output. `fails`: expected exit status; `says`: expected on stderr."""
    def run(*arguments, stdin=None, fails=0, says="", listener=broker_process.http):
        command = [binary(), "queue", *arguments, "--http", str(listener)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode == fails, (done.stdout, done.stderr)
        assert says in done.stderr if says else done.stderr == ""
        return done.stdout

    return run


def test_queue_commands(mainstem, unique):
    mainstem("create", unique, "--set", "lease_ms=60000")
    mainstem("create", unique, "--set", "lease_ms=60000")
    mainstem("create", unique, "--set", "lease_ms=1000", fails=1, says=f"queue {unique}: ")
    mainstem("configure", unique, "--set", "max_deliveries=2")
    settings = json.loads(mainstem("info", unique, "-J"))["settings"]
    assert (settings["lease_ms"], settings["max_deliveries"]) == (60_000, 2)
    assert mainstem("send", unique, "resize cat.png", "--key", "cat", "-H", "site=north", "-v") == "0\n"
    assert mainstem("send", unique, "-v", stdin="one\n\ntwo\n") == "1\n2\n"
    assert mainstem("peek", unique, "-f", "%o %x %k %h %s\\n").splitlines()[0] == "0 ready cat site=north resize cat.png"
    listed = {line.split()[0]: line.split()[1] for line in mainstem("list").splitlines()}
    assert listed[unique] == "3"
    assert "lease_ms=60000" in mainstem("info", unique)
    assert mainstem("receive", unique, "-c", "1", "-f", "%c %s\\n") == "1 resize cat.png\n"
    assert mainstem("receive", unique, "-W", "0") == "one\ntwo\n"
    assert mainstem("receive", unique, "-W", "0.2") == ""
    mainstem("receive", unique, "-c", "1", "-W", "0.2", fails=27)
    mainstem("send", unique, "a")
    assert mainstem("purge", unique) == "1\n"
    mainstem("delete", unique)
    mainstem("info", unique, fails=1, says=f"queue {unique}: there is no such queue")


def test_unacknowledged_messages_are_redelivered(mainstem, operations, make_queue):
    queue = make_queue(lease_ms=200)
    mainstem("send", queue, "x")
    assert mainstem("receive", queue, "-c", "1", "--no-ack") == "x\n"
    assert mainstem("receive", queue, "-c", "1", "-f", "%c %s\\n") == "2 x\n"
    operations.empty(queue)


def test_manual_group(mainstem, operations, queue):
    mainstem("send", queue, "a")
    assert mainstem("receive", queue, "-g", "a b", "-c", "1") == "a\n"
    assert mainstem("receive", queue, "-c", "1") == "a\n"
    operations.empty(queue)
    mainstem("send", queue, "b")
    assert mainstem("receive", queue, "-c", "1") == "b\n"
    assert operations.info(queue)["messages"] == 1, "the other group has it"
    mainstem("remove-group", queue, "a b")
    assert [group["name"] for group in operations.info(queue)["groups"]] == ["default"]
    assert operations.info(queue)["messages"] == 0
    mainstem("remove-group", queue, "a b", fails=1, says=f"queue {queue}: there is no such group")
    mainstem("remove-group", queue, "default", fails=1, says="the only group")


def test_dead_letter_commands(mainstem, broker_process, operations, unique, queue):
    mainstem("send", queue, "broken")
    with Worker(broker_process.mqtt, unique) as worker:
        worker.work_on(queue)
        worker.reject(worker.next())
        operations.empty(queue)
    dead = f"{queue}.dead"
    (letter,) = (json.loads(line) for line in mainstem("peek", dead, "-J").splitlines())
    assert (letter["body"], letter["headers"]["dead-letter-reason"]) == ("broken", "rejected")
    assert mainstem("redrive", dead) == "1\n"
    assert mainstem("receive", queue, "-c", "1") == "broken\n"
    assert mainstem("redrive", dead) == "0\n"


def test_message_options(mainstem, broker_process, unique, queue):
    mainstem("send", queue, "plain")
    mainstem("send", queue, "urgent", "--priority", "9")
    mainstem("send", queue, "late", "--delay", "2")
    mainstem("send", queue, "gone", "--ttl", "0.001")
    for text in ("once", "twice"):
        mainstem("send", queue, text, "--dedup-id", "a")
    with Worker(broker_process.mqtt, unique) as worker:
        assert texts(worker.work_on(queue).receive(4)) == ["urgent", "plain", "once", "late"]


def test_a_receiver_prints_arriving_messages(broker_process, operations, queue):
    """It waits, prints each message on arrival, and acknowledges it; an interrupt ends it."""
    command = [binary(), "queue", "receive", queue, "--http", str(broker_process.http)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        for number in range(5):
            operations.send(queue, f"{number}")
            assert receiver.stdout.readline() == f"{number}\n"
        operations.empty(queue)
        receiver.terminate()


def test_a_closed_pipe_loses_no_messages(broker_process, operations, queue):
    """`receive | head -n 2`: messages that were not read are not acknowledged."""
    operations.send(queue, *(f"{number}" for number in range(1000)))
    command = f"{binary()} queue receive {queue} -m 10 --http {broker_process.http} | head -n 2"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout == "0\n1\n"
    eventually(lambda: operations.info(queue)["messages"] > 500, "most is there")


@pytest.mark.parametrize(("arguments", "status", "says"), [
    (["send", "QUEUE", "x"], 1, "the queue is full"),
    (["send", "no queue", "x"], 1, "queue no queue: "),
    (["create", "QUEUE2", "--set", "lease=1"], 1, "lease"),
    (["create", "QUEUE2", "--set", "lease_ms=1"], 1, "lease-ms"),
    (["receive", "QUEUE", "-f", "%Z"], 1, "there is no %Z"),
    (["peek", "QUEUE", "--group", "none"], 1, "group"),
    (["redrive", "QUEUE2"], 1, "there is no such queue"),
    (["send", "QUEUE", "x", "--priority", "10"], 2, "0..=9"),
    (["create"], 2, "Usage"),
])
def test_refusals_are_reported(mainstem, operations, make_queue, arguments, status, says):
    queue = make_queue(length_max=1)
    operations.send(queue, "x")
    names = {"QUEUE": queue, "QUEUE2": f"{queue}-2"}
    mainstem(*(names.get(argument, argument) for argument in arguments), fails=status, says=says)


def test_an_unreachable_broker_is_reported(mainstem):
    mainstem("list", fails=1, says="127.0.0.1:1: ", listener="127.0.0.1:1")
