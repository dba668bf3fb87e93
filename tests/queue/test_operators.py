"""What whoever runs the broker sees: numbers for Prometheus, and queues that cannot be read."""

import re
import subprocess

import httpx

from broker import binary
from operations import DEADLINE_S, Operations


def metrics(url):
    """The numbers of a broker, by name and labels."""
    answer = httpx.get(f"{url}/metrics", timeout=DEADLINE_S, trust_env=False)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    told = {}
    for line in answer.text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP \w+ .+|TYPE \w+ (gauge|counter))", line), line
            continue
        name, value = re.fullmatch(r"(\w+\{[^}]*\}) (\d+)", line).groups()
        assert name not in told, name
        told[name] = int(value)
    return told


def test_metrics(operations, queue):
    operations.send(queue, *"abcdef")
    operations.receive(queue, group="other", max=6)
    done, failed, bad = operations.receive(queue, max=3)
    operations.receive(queue, lease_ms=60_000)
    operations.ack(queue, done)
    operations.settle("nack", queue, failed, delay_ms=60_000)
    operations.settle("reject", queue, bad)
    told = metrics(operations.url)
    of = {"available": 1, "messages": 6, "bytes": operations.info(queue)["bytes"], "duplicates_total": 0}
    for name, value in of.items():
        assert told[f'mainstem_queue_{name}{{queue="{queue}"}}'] == value, name
    of = {"ready": 2, "leased": 1, "delayed": 1, "blocked": 0, "waiting": 0, "delivered_total": 4,
          "redelivered_total": 0, "acked_total": 1, "nacked_total": 2, "dead_total": 1}
    for name, value in of.items():
        assert told[f'mainstem_queue_group_{name}{{queue="{queue}",group="default"}}'] == value, name
    assert told[f'mainstem_queue_group_leased{{queue="{queue}",group="other"}}'] == 6
    assert told[f'mainstem_queue_messages{{queue="{queue}.dead"}}'] == 1
    assert told[f'mainstem_queue_group_oldest_timestamp_seconds{{queue="{queue}",group="default"}}'] > 1_700_000_000


def test_a_queue_whose_state_cannot_be_read(own_doors, unique):
    """The others are told of, and it is said of this one that it cannot be."""
    broken, sound = f"{unique}-broken", f"{unique}-sound"
    with Operations(own_doors.url) as operations:
        operations.create(broken)
        before = set(own_doors.data.rglob("q-*"))
        operations.send(broken, *"abc")
        operations.ack(broken, *operations.receive(broken, max=3))
        operations.send(sound, "x")
    states = [state for state in before if state.is_dir()]
    own_doors.terminate()
    assert own_doors.process.wait(DEADLINE_S) == 0
    (state,) = states
    for segment in state.iterdir():
        segment.write_bytes(b"\x55" * segment.stat().st_size)
    own_doors.start()
    with Operations(own_doors.url) as operations:
        listed = {queue["name"]: queue for queue in operations.done("GET", "/v1/queues", params={"info": True})["queues"]}
        assert listed[broken]["problem"]["type"] == "urn:mainstem:problem:storage"
        assert listed[sound]["messages"] == 1
        told = metrics(own_doors.url)
        assert told[f'mainstem_queue_available{{queue="{broken}"}}'] == 0
        assert told[f'mainstem_queue_messages{{queue="{sound}"}}'] == 1
        command = [binary(), "queue", "--http", str(own_doors.http), "list"]
        printed = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True).stdout
        rows = {row.split()[0]: row.split() for row in printed.splitlines()}
        assert (rows[broken][1], rows[sound][1]) == ("unavailable", "1")
        operations.refused("GET", f"/v1/queues/{broken}", 503, "storage")
        operations.ack(sound, *operations.receive(sound))


def test_a_declared_queue_is_set_to_the_durability_that_it_has_been_given(own_doors):
    def durability():
        with Operations(own_doors.url) as operations:
            return operations.info("jobs")["settings"]["durability"]

    for declared in ("os", "fsync", "os"):
        own_doors.kill()
        own_doors.configure(f'[[queue]]\nname = "jobs"\ndurability = "{declared}"\n')
        own_doors.start()
        assert durability() == declared
    own_doors.stop()
