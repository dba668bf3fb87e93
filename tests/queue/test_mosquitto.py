"""mosquitto_pub and mosquitto_sub, 3.1.1 and 5: ordinary MQTT clients as queue workers."""

import subprocess

import pytest

from operations import eventually

DEADLINE_S = 30


@pytest.fixture
def mosquitto(broker_process):
    """Runs one of the tools and returns its lines. `fails`: it must exit with an error; `says`: expected on stderr."""
    def run(tool, *arguments, stdin=None, fails=False, says="", version="mqttv311"):
        command = [f"mosquitto_{tool}", "-h", broker_process.mqtt.host, "-p", str(broker_process.mqtt.port), "-V", version, "-q", "1", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_S)
        assert (done.returncode != 0) == fails, done.stderr
        assert says in done.stderr
        return done.stdout.splitlines()

    return run


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
def test_each_line_is_a_message(mosquitto, operations, queue, version):
    lines = [f"job {number}" for number in range(100)]
    mosquitto("pub", "-t", f"$queue/{queue}", "-l", stdin="\n".join(lines), version=version)
    assert operations.info(queue)["messages"] == 100
    got = mosquitto("sub", "-t", f"$queue/{queue}", "-C", "100", version=version)
    assert got == lines
    # It may have exited before it acknowledged the last message.
    eventually(lambda: operations.group(queue)["leased"] == 0, "it has gone")
    assert operations.info(queue)["messages"] <= 1


def test_messages_of_a_killed_worker_go_to_the_next(mosquitto, broker_process, operations, queue):
    """The tool receives all messages, and acknowledges none that it cannot print."""
    lines = [f"{number} {'x' * 5000}" for number in range(50)]
    mosquitto("pub", "-t", f"$queue/{queue}", "-l", stdin="\n".join(lines))
    command = ["mosquitto_sub", "-h", broker_process.mqtt.host, "-p", str(broker_process.mqtt.port), "-V", "mqttv311", "-q", "1", "-t", f"$queue/{queue}"]
    # Nobody reads its output: its pipe is full before the last line, and it blocks.
    with subprocess.Popen(command, stdout=subprocess.PIPE) as killed:
        eventually(lambda: operations.group(queue)["leased"] > 0 and operations.group(queue)["acked"] > 0, "it works")
        killed.kill()
    eventually(lambda: operations.group(queue)["leased"] == 0, "its connection is lost")
    left = operations.info(queue)["messages"]
    assert 0 < left < 50
    got = mosquitto("sub", "-t", f"$queue/{queue}", "-C", str(left))
    assert got == lines[-left:], "what it had not acknowledged, in order"


def test_mosquitto_subscribers_compete(broker_process, operations, queue):
    command = ["stdbuf", "-oL", "mosquitto_sub", "-h", broker_process.mqtt.host, "-p", str(broker_process.mqtt.port), "-V", "mqttv311", "-q", "1"]
    workers = [subprocess.Popen([*command, "-t", f"$share/g/$queue/{queue}"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        eventually(lambda: any(group["name"] == "g" and group["waiting"] == 2 for group in operations.info(queue)["groups"]),
                   "both wait")
        for number in range(40):
            operations.send(queue, f"{number}")
        eventually(lambda: operations.group(queue, "g")["acked"] == 40, "all is done")
    finally:
        for worker in workers:
            worker.terminate()
    printed = [worker.communicate(timeout=DEADLINE_S)[0].splitlines() for worker in workers]
    assert sorted(int(line) for lines in printed for line in lines) == list(range(40))


def test_senders_get_refusals(mosquitto, operations, make_queue):
    queue = make_queue(length_max=1)
    mosquitto("pub", "-t", f"$queue/{queue}", "-m", "x")
    mosquitto("pub", "-t", f"$queue/{queue}", "-m", "y", fails=True)
    assert mosquitto("sub", "-t", "$queue/+", "-C", "1", says="All subscription requests were denied") == []
    assert operations.info(queue)["messages"] == 1
